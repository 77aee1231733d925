"""index_add by our own kernel: dimensions, dtypes, repeated numbers, factors, numbers outside, several threads."""

from __future__ import annotations

import pytest
import torch

import intarsia


def same(x: torch.Tensor, dim: int, ids: torch.Tensor, rows: torch.Tensor, alpha: float = 1) -> None:
    """Compiled equals eager, and so on two calls."""

    def fn(x: torch.Tensor, ids: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return x.index_add(dim, ids, rows, alpha=alpha)

    compiled = intarsia.compile(fn)
    for _ in range(2):
        torch.testing.assert_close(compiled(x, ids, rows), fn(x, ids, rows), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(5,), (7, 3), (70, 300), (3, 40, 5), (2, 9, 400)])
@pytest.mark.parametrize("number", [torch.int64, torch.int32])
def test_each_dimension(shape: tuple[int, ...], number: torch.dtype) -> None:
    torch.manual_seed(0)
    for dim in range(len(shape)):
        for count in (1, 4, 111):
            sizes = (*shape[:dim], count, *shape[dim + 1 :])
            same(torch.randn(shape), dim, torch.randint(shape[dim], (count,), dtype=number), torch.randn(sizes))
    same(torch.randn(shape), -1, torch.randint(shape[-1], (3,)), torch.randn((*shape[:-1], 3)), alpha=-2.5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.int64])
def test_dtypes(dtype: torch.dtype) -> None:
    same((torch.randn(20, 30) * 5).to(dtype), 0, torch.randint(20, (50,)), (torch.randn(50, 30) * 5).to(dtype), alpha=3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [1, 300])
def test_half_types_are_rounded_once(dtype: torch.dtype, width: int) -> None:
    x, ids, rows = torch.randn(20, width).to(dtype), torch.randint(20, (900,)), torch.randn(900, width).to(dtype)
    for alpha in (1, -2.5):
        found = intarsia.compile(lambda x, ids, rows, a=alpha: x.index_add(0, ids, rows, alpha=a))(x, ids, rows)
        exact = x.double().index_add(0, ids, rows.double(), alpha=alpha)
        torch.testing.assert_close(found, exact.to(dtype), rtol=torch.finfo(dtype).eps, atol=1e-4)


def test_results_past_the_caches_and_rows_in_pieces() -> None:
    x, ids = torch.randn(2003, 5001), torch.randint(1500, (3000,))
    rows = torch.randn(3000, 5001)
    assert "index_add<true>" in intarsia.lower(lambda x, ids, rows: x.index_add(0, ids, rows), x, ids, rows).source()
    same(x, 0, ids, rows, alpha=0.5)
    same(x, 0, ids, rows)


def test_operands_that_are_views() -> None:
    x, rows = torch.randn(30, 20).t(), torch.randn(30, 100).t()[::2]
    same(x, 0, torch.randint(20, (200,))[::4], rows)


def test_numbers_outside_are_an_error() -> None:
    compiled = intarsia.compile(lambda x, ids, rows: x.index_add(0, ids, rows))
    x, rows = torch.zeros(4, 3), torch.ones(2, 3)
    for bad in (4, -1):
        with pytest.raises((IndexError, RuntimeError), match="out of"):
            compiled(x, torch.tensor([0, bad]), rows)
    torch.testing.assert_close(compiled(x, torch.tensor([0, 3]), rows)[3], torch.ones(3))


def test_the_order_of_terms_does_not_depend_on_threads() -> None:
    torch.manual_seed(0)
    x, ids, rows = torch.randn(50, 700), torch.randint(50, (3000,)), torch.randn(3000, 700)
    compiled = intarsia.compile(lambda x, ids, rows: x.index_add(0, ids, rows))
    narrow = intarsia.compile(lambda x, ids, rows: x[:, :9].index_add(0, ids, rows[:, :9]))
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append((compiled(x, ids, rows), narrow(x, ids, rows)))
    finally:
        torch.set_num_threads(before)
    for wide, few in found[1:]:
        assert torch.equal(wide, found[0][0]) and torch.equal(few, found[0][1])


def test_sizes_that_change() -> None:
    compiled = intarsia.compile(lambda x, ids, rows: x.index_add(0, ids, rows) * 2, dynamic=True)
    for rows, count in ((5, 3), (9, 40), (4, 0)):
        x, ids, terms = torch.randn(rows, 6), torch.randint(rows, (count,)), torch.randn(count, 6)
        torch.testing.assert_close(compiled(x, ids, terms), x.index_add(0, ids, terms) * 2)


def test_gradients() -> None:
    x, rows = torch.randn(6, 4, requires_grad=True), torch.randn(9, 4, requires_grad=True)
    ids = torch.randint(6, (9,))

    def fn(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return (x.index_add(0, ids, rows) ** 2).sum()

    want = torch.autograd.grad(fn(x, rows), (x, rows))
    got = torch.autograd.grad(intarsia.compile(fn)(x, rows), (x, rows))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)
