"""Dispatch modes that are entered inside of the graph: what they see and give, and what breaks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from harness import compiled, same
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

LINEAR, NORM = nn.Linear(3, 3).requires_grad_(False), nn.LayerNorm(3).requires_grad_(False)
XS = [torch.linspace(-1, 1, 12).view(4, 3), torch.linspace(-2, 3, 12).view(4, 3)]


class Log(TorchDispatchMode):
    """Writes down what it sees."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls.append((str(func), len(types), len(args), sorted(kwargs or {})))
        return func(*args, **(kwargs or {}))


class Times(TorchDispatchMode):
    """What sin gives, so many times; and how often each operator was called."""

    def __init__(self, factor):
        super().__init__()
        self.factor, self.counts = factor, {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[func] = self.counts.get(func, 0) + 1
        result = func(*args, **(kwargs or {}))
        return result * self.factor if func is torch.ops.aten.sin.default else result


class Other(TorchDispatchMode):
    """Gives something else."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.add.Tensor:
            return torch.ops.aten.mul.Tensor(*args)
        if func is torch.ops.aten.relu.default:
            return args[0]
        if func is torch.ops.aten.exp.default:
            return torch.zeros(2)
        if func is torch.ops.aten.neg.default:
            raise ValueError("no neg")
        return func(*args, **(kwargs or {}))


def layers(x):
    with Log() as mode:
        y = NORM(LINEAR(x).relu()) @ x.t() + F.softmax(x, -1).sum()
        z = torch.zeros(3) + x.mean(0, keepdim=True) + torch.rand(3)
    return y, z, x + 1, mode.calls


def nested(x):
    with Times(0.5) as outer:
        y = x.sin()
        with Times(3.0) as inner:
            z = x.cos().sin()
        w = torch.sin(z)
    return y, z, w, x.sin(), outer.counts, inner.counts


def facts_and_views(x):
    with Log() as mode, torch.no_grad():
        n, size, y = len(x), x.size(), x.view(-1)[2:5]
        z = x.T.contiguous().to(torch.float64), x.detach(), [row * 2 for row in x]
    return n, size, y, z, mode.calls


def others(x):
    with Other():
        return x + x, x.relu() + 1, x.exp(), torch.topk(x, 2).values


def refusing(x):
    with Other():
        return -x


KEPT = Times(2.0)


def of_the_callers(x):
    with KEPT:
        y = x.sin()
    return y, len(KEPT.counts)


def attention(x):
    with Log() as mode:
        q = x[None, None]
        return F.scaled_dot_product_attention(q, q, q), F.cross_entropy(x, torch.arange(4) % 3), mode.calls


def writes(x):
    with Log() as mode:
        y = x.clone().add_(1)
    return y, mode.calls


def inside_vmap(x):
    with Log() as mode:
        y = torch.vmap(lambda r: r * 2)(x)
    return y, mode.calls


def reads(x):
    with Log() as mode:
        y = x * 2 if x.sum() > -100 else x
    return y, mode.calls


ONE = [layers, nested, facts_and_views, others, refusing, of_the_callers, attention]
BREAKS = {writes: "which writes to a tensor", inside_vmap: "meets a torch function mode", reads: "depends on a tensor"}


def outcome(function: Any, x: Any) -> Any:
    torch.manual_seed(0)
    KEPT.counts.clear()
    try:
        return function(x.clone())
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("function", [*ONE, *BREAKS], ids=lambda f: f.__name__)
def test_modes(function):
    fast, log = compiled(function)
    for x in XS:
        assert same(outcome(fast, x), outcome(function, x))
    if function in ONE:
        assert not log.breaks and not log.fallbacks and len(log.captures) <= 1
    else:
        assert BREAKS[function] in log.breaks[0].reason


def test_gradients_and_sizes_break():
    """Autograd takes the derivative of what was called, not of what the mode makes of it."""

    def program(x):
        with Times(0.5):
            return x.sin()

    fast, log = compiled(program)
    for rows in (4, 5, 6):
        x, y = (torch.ones(rows, requires_grad=True) for _ in range(2))
        fast(x).sum().backward()
        program(y).sum().backward()
        assert torch.equal(x.grad, y.grad)
    assert "gradients are wanted" in log.breaks[0].reason
    fast, log = compiled(program)
    for rows in (4, 5, 6):
        assert same(fast(torch.ones(rows)), program(torch.ones(rows)))
    assert "sizes that change" in log.breaks[0].reason
