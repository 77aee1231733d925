"""Checks in a step that takes gradients and writes parameters: one graph, and where one fails everything is as in eager.

PYTEST_DONT_REWRITE: asserts of the programs are Python's own.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import compiled, number_backend, same
from torch import nn

import intarsia

SEEN: list[object] = []


def plain(model, optimizer, x):
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    if not torch.isfinite(loss):
        raise ValueError(f"loss {loss.item()}")
    loss.backward()
    optimizer.step()
    return loss.detach()


def of_gradients(model, optimizer, x):
    SEEN.append("began")
    optimizer.zero_grad(set_to_none=False)
    loss = model(x).pow(2).mean()
    loss.backward()
    for name, p in model.named_parameters():
        if p.grad.isnan().any() or p.grad.abs().max() > 1e6:
            raise ValueError(f"{name} of {len(SEEN)}")
    optimizer.step()
    SEEN.append("done")
    return loss.detach()


def clipped(model, optimizer, x):
    """Gradients add up over the steps."""
    loss = model(x).pow(2).mean()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    optimizer.step()
    return norm


def behind(model, optimizer, x):
    """What is checked was written: the parameters are what eager leaves, bad ones."""
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
    for p in model.parameters():
        assert not p.isnan().any(), "bad parameters"


def by_hand(model, optimizer, x):
    """Gradients that never come to `.grad`."""
    weights = list(model.parameters())
    found = torch.autograd.grad(model(x).pow(2).mean(), weights)
    with torch.no_grad():
        for w, g in zip(weights, found, strict=True):
            torch._check_tensor_all(torch.isfinite(g), lambda: "bad gradient")
            w.sub_(g, alpha=0.1)


def penalty(model, optimizer, x):
    """Backward goes on outside."""
    weights = list(model.parameters())
    found = torch.autograd.grad(model(x).pow(2).mean(), weights, create_graph=True)
    if not torch.stack([g.sum() for g in found]).isfinite().all():
        raise ValueError("penalty")
    return sum(g.pow(2).sum() for g in found)


def caught(model, optimizer, x):
    """It is no check where the program goes on."""
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    try:
        if not torch.isfinite(loss):
            raise ValueError
        loss.backward()
        optimizer.step()
    except ValueError:
        return x * 0
    return loss.detach() + x


PROGRAMS = [plain, of_gradients, clipped, behind, by_hand, penalty]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.norm, self.b = nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.Linear(8, 1)

    def forward(self, x):
        return self.b(self.norm(self.a(x)).relu())


def states(program: Callable[..., Any], kind: Any, compile: Any) -> Any:
    """What every step gives or raises, and all that it leaves behind, how often parameters were written to among it."""
    SEEN.clear()
    model = Net()
    optimizer = kind(model.parameters())
    fast, found = compile(program), []
    for k in range(7):
        x = torch.randn(16, 6, generator=torch.Generator().manual_seed(k))
        if k in (2, 5):
            x[0, 0] = float("nan") if k == 2 else float("inf")
        try:
            result = fast(model, optimizer, x)
        except Exception as error:
            result = type(error).__name__, str(error)
        if isinstance(result, torch.Tensor) and result.requires_grad:
            result = torch.autograd.grad(result, list(model.parameters()), allow_unused=True)
        everything = [*model.state_dict().values(), *(p.grad for p in model.parameters())]
        everything += [v for state in optimizer.state.values() for v in state.values()]
        kept = [v.clone() if isinstance(v, torch.Tensor) else v for v in everything]
        found.append((result, kept, [p._version for p in model.parameters()], list(SEEN)))
        if k == 5:  # as good as new
            with torch.no_grad():
                model.load_state_dict(Net().state_dict())
    return found


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


@pytest.mark.parametrize("kind", [sgd, torch.optim.AdamW])
@pytest.mark.parametrize("program", PROGRAMS)
def test_steps(program, kind):
    logs = []

    def compile(function):
        fast, log = compiled(function, number_backend)
        logs.append(log)
        return fast

    with torch.enable_grad():
        want, got = states(program, kind, lambda f: f), states(program, kind, compile)
    for a, b in zip(got, want, strict=True):
        assert same(a, b), f"compiled {a}, eager {b}"
    assert any(isinstance(a[0], tuple) and isinstance(a[0][0], str) for a in want)
    assert not logs[0].breaks and not logs[0].fallbacks
    assert len(logs[0].captures) <= 3


def test_a_step_that_goes_on():
    with torch.enable_grad():
        want = states(caught, sgd, lambda f: f)
        got = states(caught, sgd, lambda f: compiled(f, number_backend)[0])
    for a, b in zip(got, want, strict=True):
        assert same(a, b), f"compiled {a}, eager {b}"


def hooked(model, optimizer, x):
    y = model.a(x)
    y.register_hook(lambda g: g * 2)
    loss = model.b(y).pow(2).mean()
    loss.backward()
    if loss.isnan():
        raise ValueError("nan")
    return loss.detach()


def recorded(x, y):
    """Autograd records the write."""
    y.mul_(2)
    if x.isnan().any():
        raise ValueError("nan")
    return y.sum() * x.sum()


def test_what_breaks():
    with torch.enable_grad():
        fast, log = compiled(hooked, number_backend)
        model = Net()
        fast(model, None, torch.ones(16, 6))
        assert "hooks of the program's see the gradients" in log.breaks[0].reason
        fast, log = compiled(recorded, number_backend)
        fast(torch.ones(3), torch.ones(3, requires_grad=True) * 1)
        assert "autograd records a write" in log.breaks[0].reason


def test_compiled():
    """By the compiler itself: nothing of a failed step is left in parameters, statistics, states."""
    with torch.enable_grad():
        want, got = states(plain, sgd, lambda f: f), states(plain, sgd, lambda f: intarsia.compile(f, fullgraph=True))
    for (a, kept, *_), (b, wanted, *_) in zip(got, want, strict=True):
        torch.testing.assert_close(kept, wanted, rtol=1e-3, atol=1e-4, equal_nan=True)
        assert type(a) is type(b)
        assert not isinstance(a, tuple) or a == b
