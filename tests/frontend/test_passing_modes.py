"""Dispatch modes of the program's around what gradients are wanted of, or around wrapper tensors: they pass operators on, and note."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from harness import compiled, number_backend
from test_wrapper_gradients import nested, pair, x
from test_wrapper_leaves import equal
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import intarsia

aten = torch.ops.aten


class Log(TorchDispatchMode):
    """Writes down what it sees."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls.append(
            (str(func), [t.__name__ for t in types], [tuple(a.shape) for a in args if isinstance(a, Tensor)])
        )
        result = func(*args, **(kwargs or {}))
        self.calls.append([tuple(r.shape) for r in (result if isinstance(result, tuple | list) else [result])])
        return result


class Kept(Log):
    """Keeps what operators give."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls.append(func(*args, **(kwargs or {})))
        return self.calls[-1]


class Norms(Log):
    """Computes of what operators give."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.is_floating_point():
            self.calls.append(result.abs().max())
        return result


class Half(Log):
    """Computes something else."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is aten.mm.default:
            return func(args[0].bfloat16(), args[1].bfloat16()).float()
        return func(*args, **(kwargs or {}))


class Twice(Log):
    """Calls operators twice."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        func(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


class Other(Log):
    """Gives an argument, or swaps two."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is aten.relu.default:
            return args[0] * 1
        return (
            func(*args[::-1])
            if func is aten.mm.default and args[0].shape == args[1].shape
            else func(*args, **(kwargs or {}))
        )


LINES = [
    "t = t @ w",
    "t = F.relu(t)",
    "t = (t * v).sin()",
    "t = F.layer_norm(t, (4,))",
    "t = F.softmax(t, -1)",
    "t = t + t.mean(0, keepdim=True)",
    "t = torch.cat([t[:2], t[1:2]])",
    "a, b = t.split(2, 1); t = torch.cat([b, a * 2], 1)",
    "t = F.gelu(t.t().contiguous().t())",
    "t = t.max(-1, keepdim=True)[0] * t",
    "t = torch.where(t > 0, t, t.exp())",
    "t = F.linear(t, w, v[0])",
]


def program_of(seed: int, mode: type) -> Any:
    draw = random.Random(seed)
    body = "".join(f"        {line}\n" for line in draw.choices(LINES, k=draw.randint(2, 5)))
    text = f"def program(t, w, v):\n    with Mode() as mode:\n{body}    return t * 2, mode.calls\n"
    namespace: dict[str, Any] = {"torch": torch, "F": F, "Mode": mode}
    exec(compile(text, f"<program {seed}>", "exec"), namespace)
    return namespace["program"]


def agree(program: Any, make: Any = lambda k: (x(k), torch.linspace(-1, 1, 16).view(4, 4) * (k + 1), x(k + 1))) -> Any:
    function, log = compiled(program, number_backend)
    with torch.enable_grad():
        for k in range(3):
            found = []
            for run in (program, function):
                given = [t.detach().requires_grad_() for t in make(k)]
                result, calls = run(*given)
                result.sum().sum().backward()
                found.append(
                    [
                        result.detach(),
                        [c.detach() if isinstance(c, Tensor) else c for c in calls],
                        [t.grad for t in given],
                    ]
                )
            equal(*found)
    return log


@pytest.mark.parametrize("seed", range(16))
def test_modes_that_pass_on(seed: int) -> None:
    log = agree(program_of(seed, Log))
    assert not log.breaks and not log.fallbacks and len(log.captures) == 1, log.breaks


@pytest.mark.parametrize("mode", [Kept, Norms, Half, Twice, Other])
@pytest.mark.parametrize("seed", range(4))
def test_modes_that_do_more(mode: type, seed: int) -> None:
    """Eager's derivative is that of the operator, whatever the mode gives: such graphs break."""
    agree(program_of(seed, mode))


def test_modes_around_backward() -> None:
    def inside(w, v):
        with Log() as mode:
            loss = (w @ v.t()).relu().sum()
            (g,) = torch.autograd.grad(loss, [w])
        return g * w, mode.calls

    def whole(w, v):
        with Log() as mode:
            (w @ v.t()).relu().sum().backward()
        return w * 2, mode.calls

    def hooked(w, v):
        with Log() as mode:
            y = w @ v.t()
            y.register_hook(lambda g: g * 2)
            y = y.relu()
        return y, mode.calls

    for program in (inside, whole, hooked):
        assert agree(program, lambda k: (x(k), x(k + 1))).breaks


def test_nested_modes() -> None:
    def program(w, v):
        with Log() as outer, Log() as inner:
            y = (w * v).relu()
        return y, [*outer.calls, *inner.calls]

    agree(program, lambda k: (x(k), x(k + 1)))


@pytest.mark.parametrize("make", [pair, nested])
@pytest.mark.parametrize("mode", [Log, Half, Norms])
def test_wrapper_tensors(make: Any, mode: type) -> None:
    """The mode is asked in front of the class."""

    def program(w, v):
        with mode() as seen:
            y = (w * v).sin() + 1
        return y, seen.calls

    function, log = compiled(program)
    for k in range(3):
        got, want = function(make(k), x(k + 1)), program(make(k), x(k + 1))
        equal(got, want)
    assert mode is not Log or not log.breaks and not log.fallbacks
    if mode is Log:
        assert not agree(program, lambda k: (make(k), x(k + 1))).breaks


def test_counts_in_training() -> None:
    """With code of ours."""

    class Count(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.by = Counter()

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.by[func.overloadpacket.__name__] += 1
            return func(*args, **(kwargs or {}))

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1))

    def program(v):
        with Count() as count:
            y = model(v)
        return y.square().mean(), dict(count.by)

    function = intarsia.compile(program, fullgraph=True)
    with torch.enable_grad():
        for k in range(2):
            found = []
            for run in (program, function):
                model.zero_grad()
                loss, counts = run(x(k))
                loss.backward()
                found.append([loss.detach(), sorted(counts.items()), [p.grad.clone() for p in model.parameters()]])
            equal(*found)
