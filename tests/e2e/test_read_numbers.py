"""Integers that a program reads of tensors (`.item()`, `.tolist()`, `int()`, `x[i]`): sizes, bounds, factors and indices of one graph."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import intarsia


def count(x: Tensor) -> Any:
    return (x[:, 0] > 0).sum().item()


def made(x: Tensor) -> Any:
    n = count(x)
    return torch.zeros(n, 3) + x.mean(), torch.arange(n) * 2, torch.full((3,), n), torch.ones(n, n).tril(), n, n * 2


def scaled(x: Tensor) -> Any:
    n = count(x)
    return x * n + n, x / (n + 1), x * (n // 2) + n % 3, x.clamp(max=n), x.add(x, alpha=n)


def cut(x: Tensor) -> Any:
    n, m = count(x), (x > 0).sum().item()
    return (
        x[:n].sin(),
        x[n:] * 2,
        x[:, :n] + 1,
        x[:m] * 2,
        x[m:].sum(),
        x[:, 1:m],
        x[n : n + 2] * 2,
        x.narrow(0, 0, n) + 1,
    )


def listed(x: Tensor) -> Any:
    a, b = (x > 0).sum(0)[:2].tolist()
    n = int((x[:, 0] > 0).sum())
    return x * a + b, torch.zeros(a), a, [y * 2 for y in torch.split(x, [n, x.shape[0] - n])]


def indexed(x: Tensor) -> Any:
    i = x.sum(1).argmax()
    y, z = x * 1, x * 2
    y[i] += 1
    y[i, 2] = 7.0
    z[i].mul_(3)
    return y, z, x[i] * 2, x[i], x[:, 0][i]


def below_zero(x: Tensor) -> Any:
    n = ((x > 0).sum() - 20).item()
    return x * n, x[:n] + 1, n


PROGRAMS = [made, scaled, cut, listed, indexed, below_zero]


def some(rows: int, of: int = 6) -> Tensor:
    found = torch.randn(of, 8, generator=torch.Generator().manual_seed(rows))
    found[:, 0] = -1
    found[:rows, 0] = 0.5
    return found


@pytest.mark.parametrize("program", PROGRAMS)
def test_one_graph(program: Callable[..., Any]) -> None:
    compiled = intarsia.compile(program)
    for x in (some(3), some(0), some(1), some(6), some(2, 9)):
        torch.testing.assert_close(compiled(x), program(x), equal_nan=True)
    report = intarsia.explain(program)(some(3))
    assert (len(report.graphs), report.breaks) == (1, [])


def test_an_element_is_a_view() -> None:
    def view(x: Tensor) -> Tensor:
        return x[x.sum(1).argmax()]

    x = some(3)
    found = intarsia.compile(view)(x)
    found.zero_()
    assert (x == 0).all(1).sum() == 1


def checked(x: Tensor) -> Tensor:
    n = count(x)
    torch._check(n <= 2, lambda: f"too many: {n}")
    return x * n


def outside(x: Tensor) -> Tensor:
    return x[x.long().max() + 4] * 2


@pytest.mark.parametrize("program", [checked, outside])
def test_errors_are_eagers(program: Callable[..., Tensor]) -> None:
    compiled, raising = intarsia.compile(program), 0
    for x in (some(2), some(3), some(0), some(6)):
        try:
            wanted = program(x)
        except Exception as error:
            raising += 1
            with pytest.raises(type(error)) as raised:
                compiled(x)
            assert str(raised.value) == str(error)
            assert program.__name__ in [entry.name for entry in traceback.extract_tb(raised.tb)]
        else:
            torch.testing.assert_close(compiled(x), wanted)
    assert raising


def decided(x: Tensor) -> Tensor:
    n = count(x)
    return x + n if n > 1 else x - n


def compared(x: Tensor) -> Tensor:
    return x * (count(x) > 1)


def test_a_truth_is_an_operand() -> None:
    compiled = intarsia.compile(compared)
    for x in (some(3), some(0), some(1)):
        torch.testing.assert_close(compiled(x), compared(x))
    assert not intarsia.explain(compared)(some(3)).breaks


def test_a_number_decides() -> None:
    compiled = intarsia.compile(decided, fullgraph=True)
    for x in (some(3), some(0), some(1), some(2)):
        torch.testing.assert_close(compiled(x), decided(x))


def unread(x: Tensor) -> Tensor:
    torch._check((x > 0).sum().item() <= 2)
    return x.sin()


def truth(x: Tensor) -> Tensor:
    torch._check_value(bool((x < 1.5).all()), lambda: "large")
    return x.sin()


def rows(x: Tensor) -> Tensor:
    found = (x.detach() > 0).nonzero()
    torch._check(found.shape[0] <= 2)
    return x.sin()


def maximum(x: Tensor) -> Tensor:
    x[x > 0.5].max()
    return x.sin()


def together(x: Tensor) -> Tensor:
    x[x > 0.5] + x[x > 0]
    return x.sin()


@pytest.mark.parametrize("program", [unread, truth, rows, maximum, together])
@pytest.mark.parametrize("grad", [False, True])
def test_checks_of_what_is_not_read_again(program: Callable[..., Tensor], grad: bool) -> None:
    """They are no dead code, in traces with gradients neither."""
    compiled, outcomes = intarsia.compile(program), set[bool]()
    given = ([1.0, -1.0], [0.2, -1.0], [2.0, 0.2, 3.0], [-1.0, 1.0, 1.0])
    for values in given:
        with torch.set_grad_enabled(grad):
            x = torch.tensor(values, requires_grad=grad)
            try:
                wanted = program(x)
            except Exception as error:
                outcomes.add(False)
                with pytest.raises(type(error)) as raised:
                    compiled(x)
                assert str(raised.value) == str(error)
            else:
                outcomes.add(True)
                torch.testing.assert_close(compiled(x), wanted)
    assert outcomes == {True, False}


def test_narrow_begins_where_a_tensor_says():
    """A start that is counted from the end, or is outside, is eager's."""

    def rows(x: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        n = at.item()
        x.narrow(0, n, 2).mul_(2.0)
        return x.narrow(start=n, dim=0, length=2) + 1, torch.narrow(x, 1, 0, n)

    with torch.no_grad():
        fast = intarsia.compile(rows)
        for at in (1, 3, 0, 2):
            x = torch.arange(20.0).view(5, 4)
            mine = x.clone()
            for a, b in zip((*rows(x, torch.tensor(at)), x), (*fast(mine, torch.tensor(at)), mine), strict=True):
                torch.testing.assert_close(a, b)
        seen = intarsia.counters()
        assert (seen["graphs"], seen["breaks"], seen["fallbacks"]) == (1, 0, 0)
        with pytest.raises(RuntimeError) as ours:
            fast(torch.zeros(5, 4), torch.tensor(4))
        with pytest.raises(RuntimeError) as eagers:
            rows(torch.zeros(5, 4), torch.tensor(4))
        assert str(ours.value) == str(eagers.value)

        def last(x: Tensor, at: Tensor) -> Tensor:
            return x.narrow(0, at.item(), 2) * 2

        x = torch.arange(20.0).view(5, 4)
        for at in (1, -2, 3):
            torch.testing.assert_close(intarsia.compile(last)(x, torch.tensor(at)), last(x, torch.tensor(at)))
