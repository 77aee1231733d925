"""Numbers that a program reads of tensors in a graph that takes gradients: constants of autograd, checked as without."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import intarsia

N = tuple(torch.tensor([n]) for n in (4, 2, 5, 0, 6))


def scaled(x: Tensor, n: Tensor) -> Tensor:
    """By floats of what the gradient goes through, and by integers."""
    return (x / x.abs().max().item()).sum() / (x * x).sum().item() * n.item() + int(n)


def cut(x: Tensor, n: Tensor) -> tuple[Tensor, ...]:
    k = n.item()
    rest = x[k:].cos()
    return x[:k].sin(), rest, torch.cat([x, torch.zeros(k)]), x[: k + 1] @ x[:, : k + 1].t()[:, : x[:2].shape[0]].sum(1)


def listed(x: Tensor, n: Tensor) -> Tensor:
    a, b = torch.cat([n, 6 - n]).tolist()
    return torch.stack([part.sin().sum() for part in torch.split(x, [a, b])]) * x[:, :a].sum()


def written(x: Tensor, n: Tensor) -> tuple[Tensor, int]:
    k = n.item()
    y = x * 2
    y[:k] = 0
    y[: k - 1].mul_(3)
    return y.sin(), k


def recomputed(x: Tensor, n: Tensor) -> Tensor:
    def part(x: Tensor) -> Tensor:
        k = n.item()
        return (x[:k] * k).sin()

    return checkpoint(part, x, use_reentrant=False).cos()  # type: ignore[no-any-return]


def repeated(x: Tensor, n: Tensor) -> Tensor:
    return x.repeat(n.item(), 1).sin()


def inside(x: Tensor, n: Tensor) -> Tensor:
    k = n.item()
    (found,) = torch.autograd.grad((x[:k] * k).sin().sum(), x, create_graph=True)
    return (found * found).sum()


class Times(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, n: Tensor) -> Tensor:
        ctx.k = n.item()
        return x * ctx.k

    @staticmethod
    def backward(ctx: Any, arriving: Tensor) -> Any:
        return arriving * ctx.k, None


def custom(x: Tensor, n: Tensor) -> Tensor:
    return Times.apply(x, n).sin()  # type: ignore[no-any-return,no-untyped-call]


def row(x: Tensor, n: Tensor) -> Tensor:
    return x[n[0]] * 2 + x[x.sum(1).argmax().item()]


def checked(x: Tensor, n: Tensor) -> Tensor:
    """The number is read by nothing else."""
    k = n.item()
    torch._check(k <= 5, lambda: f"too many: {k}")
    return x.sum() * 2


def equal(x: Tensor, n: Tensor) -> Tensor:
    torch._check(n.item() + 2 == x.shape[1])
    return x.sin()


def rows_found(x: Tensor, n: Tensor) -> Tensor:
    found = (torch.arange(6) < n).nonzero()
    torch._check(found.shape[0] > 0, lambda: "none")
    return x.sin()


def masks(x: Tensor, n: Tensor) -> Tensor:
    """Two symbols for one mask."""
    return x[torch.arange(6) < n].exp().sum() + (x * 2)[torch.arange(6) < n].t().sum()


def account(function: Any, n: Tensor, *more: Tensor, grad: bool = True) -> Any:
    """What a call gives, or raises, the gradient, and what it wrote."""
    x = torch.linspace(-1, 1.2, 36).view(6, 6).requires_grad_(grad)
    more = tuple(m.clone() for m in more)
    try:
        result = function(x, n, *more)
    except Exception as error:
        return {"raises": type(error), "says": str(error), "wrote": more}
    found = [r for r in (result if isinstance(result, tuple) else (result,)) if isinstance(r, Tensor)]
    tracked = [r.sin().sum() for r in found if r.requires_grad]
    return result, [r.requires_grad for r in found], torch.autograd.grad(sum(tracked), x) if tracked else (), *more


def agree(got: Any, want: Any) -> None:
    if isinstance(want, dict):
        assert isinstance(got, dict), got
        assert got["raises"] is want["raises"]
        assert got["says"] == want["says"]
        got, want = got["wrote"], want["wrote"]
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5, equal_nan=True)


def quotients(x: Tensor, n: Tensor) -> Any:
    """Floats of integers; a division by zero, a root of what is negative are eager's errors."""
    k = n.item()
    return x * (k / 4), x / math.sqrt(k), float(n), k * 0.5, 1.5 - k, k / x.shape[0], x * (1 / (6 - k))


def inverse(x: Tensor, n: Tensor) -> Tensor:
    return x * (5 / (n * 1.5).sum().item())


def root(x: Tensor, n: Tensor) -> Tensor:
    return x * math.sqrt((n - 1.5).sum().item())


def whole_parts(x: Tensor, n: Tensor) -> Any:
    number = (n / 4).sum().item()
    return x * int((n / 4).sum()), round(number), math.floor(number), math.ceil(number), x[: int(number)] * 2


def limited(x: Tensor, n: Tensor) -> Tensor:
    loss = (x * n).sum()
    if loss.item() > 5:
        loss = loss.clamp(max=5.0) * 2
    return loss


PROGRAMS = [
    quotients,
    inverse,
    root,
    whole_parts,
    limited,
    scaled,
    cut,
    listed,
    written,
    recomputed,
    repeated,
    inside,
    custom,
    row,
    checked,
    equal,
    rows_found,
    masks,
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_as_eager(program: Callable[..., Any]) -> None:
    fast = intarsia.compile(program, fullgraph=True)
    with torch.enable_grad():
        for n in N:
            for grad in (True, False):
                agree(account(fast, n, grad=grad), account(program, n, grad=grad))
        seen = intarsia.counters()
    assert (
        seen["graphs"] <= 4 and seen["breaks"] == 0
    )  # forward and backward, and without gradients; `backward` at first use


def below_zero(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    k = n.item() - 5
    return x[:k] * k, x[k]


def test_negative_numbers_are_eagers() -> None:
    fast = intarsia.compile(below_zero)
    with torch.enable_grad():
        for n in N:
            agree(account(fast, n), account(below_zero, n))
    assert intarsia.counters()["breaks"] == 0


def behind(x: Tensor, n: Tensor, w: Tensor) -> Tensor:
    w.add_(1)
    k = n.item()
    torch._check(k <= 4, lambda: f"{k} is too many")
    return x[:k].sum() * w.sum()


def before(x: Tensor, n: Tensor, w: Tensor) -> Tensor:
    k = n.item()
    torch._check(k <= 4)
    return x[k].sum() * w.add_(1).sum()


@pytest.mark.parametrize("program", [behind, before])
@pytest.mark.parametrize("grad", [True, False])
def test_what_was_written_when_a_check_fails(program: Callable[..., Any], grad: bool) -> None:
    """Once, in front of the check, and not at all behind it."""
    fast, w = intarsia.compile(program), torch.zeros(3)
    with torch.enable_grad():
        for n in N:
            agree(account(fast, n, w, grad=grad), account(program, n, w, grad=grad))
    assert intarsia.counters()["breaks"] == 0


def inner(y: Tensor, n: Tensor) -> Tensor:
    y.mul_(2)
    k = n.item()
    torch._check(k <= 4)
    return y[:k].sum()


def test_a_write_that_autograd_records() -> None:
    """Of an argument: it stays, as in eager, and the error is the check's."""
    fast = intarsia.compile(inner)
    with torch.enable_grad():
        for n in N:
            found = []
            for function in (inner, fast):
                x = torch.ones(6, 6, requires_grad=True)
                y = x * 1
                try:
                    value = function(y, n)
                except RuntimeError as error:
                    assert str(error).startswith("Expected cond")
                    value = y.sum()
                found.append((torch.autograd.grad(value, x), y.detach()))
            torch.testing.assert_close(*found)


@pytest.mark.parametrize("value", [math.nan, math.inf, -2.5, 1e30])
def test_whole_parts_of_what_has_none(value: float) -> None:
    """Eager's errors, its integers of any size, and those below zero."""

    def program(x: Tensor, n: Tensor) -> Any:
        return int((n * 1.0).sum()), x * 2

    fast = intarsia.compile(program)
    for n in (torch.tensor([2.5]), torch.tensor([value]), torch.tensor([3.5])):
        agree(account(fast, n, grad=False), account(program, n, grad=False))


def test_quotients_are_rounded_once() -> None:
    def program(x: Tensor, n: Tensor) -> Any:
        k = n.item()
        return k / 3, float(k), k * 0.5

    fast = intarsia.compile(program)
    for k in (3, 2**53 + 1, 2**62, 2**53, -7):
        n = torch.tensor([k])
        assert fast(n, n) == program(n, n)


def test_what_was_drawn_is_drawn_again() -> None:
    """Where an assumption fails behind a draw, eager draws what the graph drew."""

    def program(x: Tensor, n: Tensor) -> Tensor:
        y = torch.rand(3)
        return x[:, : n.item() - 3].sum() + y

    fast = intarsia.compile(program)
    for grad in (True, False):
        for n in N:
            found = []
            for function in (program, fast):
                torch.manual_seed(0)
                found.append((account(function, n, grad=grad), torch.get_rng_state()))
            torch.testing.assert_close(*found)
