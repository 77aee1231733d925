"""Operators on numbers and text of Python's own types run as they are; what only looks like them does not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import check, compiled, number_backend
from torch import Tensor

X = torch.arange(4.0)


class Number(int):
    def __add__(self, other: Any) -> int:
        return 40

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def arithmetic(x: Tensor, n: Any, text: Any) -> Any:
    errors = []
    for step in (lambda: n // 0, lambda: n < text, lambda: 1 << -1, lambda: None < n):
        try:
            step()
        except (ArithmeticError, TypeError, ValueError) as error:
            errors.append(f"{type(error).__name__}: {error}")
    n += True
    return x * n, n**2 % 7, n & 6, n / 4, 2.0**n, n == 3.0, text == "a", text < "b", n != None, text == n, errors  # noqa: E711


@pytest.mark.parametrize("n", [2, 3, True, 2.5, float("nan")])
def test_of_pythons_own_types(n: Any) -> None:
    if type(n) is float:
        with pytest.raises(TypeError):  # of `&`
            compiled(arithmetic)[0](X, n, "a")
    else:
        assert check(arithmetic, X, n, "a").breaks == []


def test_of_classes_of_the_programs() -> None:
    def function(x: Tensor, n: Any) -> Any:
        return x * (n + 1), n == 7, 1 + n, n + 1.0, n != 3

    assert check(function, X, Number(3)).breaks == []


def test_of_numbers_that_change() -> None:
    def function(x: Tensor, n: int, f: float) -> Any:
        return x * (n + f) if n > 2 else x - n, n * 2, f < n

    fast, log = compiled(function)
    for n, f in ((3, 0.5), (4, 2.5), (1, 0.5), (7, -1.0), (0, 0.0)):
        assert torch.equal(fast(X, n, f)[0], function(X, n, f)[0]) and fast(X, n, f)[1:] == function(X, n, f)[1:]
    assert log.breaks == []


@pytest.mark.parametrize(
    ("power", "numbers"),
    [
        (lambda k: (-1.0) ** (k / 2), (1, 3, 2, 4, -1, 0, 1)),
        (lambda k: k**0.5, (1, 4, 9, -4, -9, 0, 16)),
        (lambda k: pow(k, 1.5), (1.5, 2.5, -2.5, 3.5, -0.5)),
        (lambda k: k**2.0 + 2.0**k, (1.5, -2.5, 3.5, 0.5)),
    ],
)
def test_powers_that_are_complex(power, numbers):
    def run(x, k):
        p = power(k)
        return x * (p.imag if isinstance(p, complex) else p), type(p)

    fast, log = compiled(run, number_backend)
    for k in numbers:
        expected, found = run(torch.ones(2, dtype=torch.float64), k), fast(torch.ones(2, dtype=torch.float64), k)
        assert found[1] is expected[1]
        torch.testing.assert_close(found[0], expected[0])
    assert not log.breaks and not log.fallbacks


def _rounded_first(x: Tensor, a: float) -> Any:
    return round(a, 1), repr(a), x / round(a, 1), torch.full((2,), round(a, 1))


def _written_first(x: Tensor, a: float) -> Any:
    return repr(a), x / round(a, 1), x * round(-a, 1), x.new_full((2,), round(a, 0)), round(a, 1)


@pytest.mark.parametrize("program", [_rounded_first, _written_first])
def test_rounded_to_a_zero_below_zero(program: Any) -> None:
    """`repr` has the number be one of this call's, whose rounding is -0.0, which sympy does not have."""
    fast, _ = compiled(program, number_backend)
    for a in (-0.04, -0.03, 0.03, -0.02, -1.26):
        found, expected = fast(torch.ones(2), a), program(torch.ones(2), a)
        assert repr(found) == repr(expected)
