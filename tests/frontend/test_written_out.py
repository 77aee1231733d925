"""Operators of torch's that look at values or at memory, written out: as eager on both sides of what they take."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import intarsia

FALLS = {"on_error": "warn", "verify_each": False}


def account(f: Any, *args: Any) -> Any:
    """The result, or the error, and what was warned of."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            found = f(*args)
        except (RuntimeError, IndexError, NotImplementedError) as error:
            found = f"{type(error).__name__}: {error}".splitlines()[0]
    return found, sorted({str(w.message).splitlines()[0] for w in seen if issubclass(w.category, UserWarning)})


def listed(found: Any) -> Any:
    return found if isinstance(found, tuple) else [found]


def agree(f: Any, calls: list[tuple[Any, ...]], breaks: int | None = 0) -> None:
    intarsia.reset()
    fast = intarsia.compile(f, options=FALLS)
    for args in calls:
        (found, told), (expected, warned) = account(fast, *args), account(f, *args)
        if isinstance(expected, str):
            assert found == expected
        else:
            torch.testing.assert_close(found, expected, equal_nan=True)
            strides = [[t.stride() for t in r if isinstance(t, Tensor)] for r in map(listed, (found, expected))]
            assert strides[0] == strides[1]
        assert told == warned
    counts = intarsia.counters()
    if breaks is not None:
        assert (counts["breaks"], counts["fallbacks"]) == (breaks, 0)


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    made = torch.randn(
        shape,
        generator=torch.Generator().manual_seed(sum(shape)),
        dtype=torch.complex128 if dtype.is_complex else torch.float64,
    )
    return (made * 3).to(dtype)


# covariances


def cov(x: Tensor, correction: int = 1, f: Any = None, a: Any = None) -> Tensor:
    return torch.cov(x, correction=correction, fweights=f, aweights=a) * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.complex64], ids=str)
@pytest.mark.parametrize("shape", [(8,), (3, 8), (1, 5), (4, 2)], ids=str)
def test_cov(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    sizes = [shape, (*shape[:-1], shape[-1] + 3), (*shape[:-1], shape[-1] + 7)]
    agree(cov, [(numbers(*s, dtype=dtype), c) for s in sizes for c in (0, 1)])


@pytest.mark.parametrize(
    "x",
    [numbers(3, 1), numbers(1), torch.tensor(2.0), numbers(3, 0), numbers(2, 3, 4), torch.ones(3, 4) > 0],
    ids=lambda x: f"{tuple(x.shape)} {x.dtype}",
)
def test_cov_that_warns_or_raises(x: Tensor) -> None:
    agree(cov, [(x,), (x, 0), (x, 5)], None)
    agree(lambda x: x.corrcoef(), [(x,)], None)


def test_cov_with_weights() -> None:
    ints, floats = torch.tensor([1, 2, 1, 3, 1]), torch.tensor([0.5, 1.0, 0.2, 0.4, 2.0])
    calls = [
        (numbers(3, 5), c, f, a) for c in (0, 1) for f in (None, ints) for a in (None, floats) if (f, a) != (None, None)
    ]
    agree(cov, calls)


@pytest.mark.parametrize("w", [[0, 0, 0], [1, -1, 2], [0, 1, 0], [1, 2]], ids=str)
def test_weights_that_eager_refuses_or_warns_of(w: list[int]) -> None:
    whole, floats = torch.tensor(w), torch.tensor([float(n) for n in w])
    good = torch.ones(3, dtype=torch.int64), torch.ones(3)
    x = numbers(2, 3)
    agree(cov, [(x, 1, good[0], None), (x, 1, whole, None), (x, 0, whole, None), (x, 1, floats, None)], None)
    agree(cov, [(x, 1, None, good[1]), (x, 1, None, floats), (x, 0, None, floats), (x, 1, None, whole)], None)
    agree(cov, [(x, 1, *good), (x, 1, whole, floats), (x, 0, whole, floats)], None)


@pytest.mark.parametrize(
    "x", [numbers(3, 8), numbers(8), numbers(3, 8, dtype=torch.int64)], ids=lambda x: f"{x.dtype}{x.dim()}"
)
def test_corrcoef(x: Tensor) -> None:
    agree(lambda x: torch.corrcoef(x) + x.corrcoef(), [(x,), (torch.cat([x, x + 1], -1),), (torch.cat([x, x, x], -1),)])


def test_gradients_of_covariances() -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        return (torch.cov(x, aweights=w) + torch.corrcoef(x)).sin().sum()

    fast = intarsia.compile(f)
    with torch.enable_grad():
        for n in (5, 6, 7):
            x, w = numbers(3, n).requires_grad_(), torch.rand(n)
            torch.testing.assert_close(torch.autograd.grad(fast(x, w), x), torch.autograd.grad(f(x, w), x))


# histograms


def test_histograms() -> None:
    def f(x: Tensor, bins: Any, weight: Any = None, density: bool = False) -> Any:
        return tuple(torch.histogram(x * 1, bins, weight=weight, density=density))

    edges = torch.linspace(-2, 3, 6)
    agree(f, [(numbers(n), edges) for n in (20, 30, 40)])
    agree(f, [(numbers(4, n).t(), edges[::2], numbers(4, n).t().abs(), True) for n in (2, 3, 4)])
    agree(f, [(numbers(n), 7, None, True) for n in (20, 30, 0)])
    agree(
        lambda x: tuple(x.histogram(4, range=(-1.0, 2.0))), [(numbers(n, dtype=torch.float64),) for n in (20, 30, 40)]
    )


@pytest.mark.parametrize(
    "args",
    [
        (numbers(5, dtype=torch.int64), 4),
        (numbers(5), torch.linspace(0, 1, 4, dtype=torch.float64)),
        (numbers(5), torch.zeros(2, 2)),
        (numbers(5), torch.zeros(0)),
        (numbers(5), 0),
        (numbers(5) * float("nan"), 3),
        (numbers(5), 3, numbers(4)),
    ],
    ids=range(7),
)
def test_histograms_that_eager_refuses(args: tuple[Any, ...]) -> None:
    agree(lambda x, bins, weight=None: tuple(torch.histogram(x, bins, weight=weight)), [args, args], None)


# equality


def equal(x: Tensor, y: Tensor) -> Any:
    return x * torch.equal(x, y), torch.equal(x, y * 2)


def test_equal_of_sizes_that_change() -> None:
    calls = [(torch.ones(n), torch.ones(n) + k) for n in (3, 4, 5, 6) for k in (0, 1)]
    agree(equal, calls)
    agree(equal, [*calls, (torch.ones(3), torch.ones(1)), (torch.ones(1), torch.ones(3))], None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.bool, torch.float16], ids=str)
@pytest.mark.parametrize("kind", ["*", "+", "/", "*=", "r*", "r/"])
def test_truths_beside_tensors(kind: str, dtype: torch.dtype) -> None:
    def f(x: Tensor) -> Any:
        flag = (x.float().sum() > 3).item()
        if kind == "*=":
            y = x.clone()
            y *= flag
            return y
        return {
            "*": lambda: x * flag,
            "+": lambda: x + flag,
            "/": lambda: x / flag,
            "r*": lambda: flag * x,
            "r/": lambda: flag / x,
        }[kind]()

    agree(f, [(torch.ones(n).to(dtype),) for n in (2, 4, 5, 2)], None if kind == "/" else 0)


# memory that is shown from the beginning of a storage


def shown(x: Tensor, n: int) -> Any:
    return torch.as_strided(x, (n,), (1,)) * 2, x.as_strided((2, n), (1, 1)) + 1


@pytest.mark.parametrize("dynamic", [None, True])
def test_where_an_argument_lies_is_guarded(dynamic: bool | None) -> None:
    """Without, a call got the numbers in front of its argument's."""
    fast = intarsia.compile(shown, options=FALLS, dynamic=dynamic)
    whole = [torch.arange(float(n)) for n in (24, 12, 13, 16, 40)]
    calls = [
        (whole[0][:12], 9),
        (whole[0][2:14], 9),
        (whole[1], 9),
        (whole[1], 13),
        (whole[2][:12], 12),
        (whole[3][3:15], 13),
    ]
    calls.append((whole[3][3:15], 14))
    calls += [(whole[4][k : k + 10 + k], 12) for k in (0, 3, 5, 9)]
    for x, n in calls:
        found, expected = account(fast, x, n), account(shown, x, n)
        assert str(found) == str(expected)


def test_offsets_that_change_are_one_graph() -> None:
    def f(x: Tensor, n: int) -> Any:
        return torch.as_strided(x, (n, 3), (2, 1)) * 2, x.as_strided((n,), (1,), x.storage_offset() + 2)

    agree(f, [(torch.arange(40.0 + 5 * k)[3 + k * k :], 5 + k) for k in range(5)])
    assert intarsia.counters()["graphs"] == 2


def test_scattered_into_memory() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        return torch.as_strided_scatter(x, y, (3,), (2,)) + torch.as_strided_copy(x, (3, 5), (1, 2))

    agree(lambda x, y: f(x, y.expand(3)), [(torch.arange(40.0)[k : k + 5], torch.ones(1)) for k in (0, 2, 3, 1)], None)
