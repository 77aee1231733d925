"""benchmarks/product_order.py: right on both sides of each clause, and it fires where that leaves fewer multiplications."""

import random

import pytest
import torch
from torch import Tensor

import intarsia
from benchmarks.product_order import ProductOrder


def text(fn, args, passes) -> str:
    return intarsia.lower(fn, *args, passes=passes).ir("prim")


def check(fn, *args, fires: bool) -> None:
    """Eager's result within rounding, under the verifier; the program changes exactly where `fires` says so."""
    with torch.no_grad():
        expected = fn(*args)
        options = {"on_error": "raise", "verify_each": True}
        got = intarsia.compile(fn, passes=[ProductOrder()], options=options)(*args)
        assert (text(fn, args, [ProductOrder]) != text(fn, args, [])) is fires
    assert (got.shape, got.stride(), got.dtype) == (expected.shape, expected.stride(), expected.dtype)
    assert (got - expected).abs().max() <= 1e-2 * expected.abs().max() if got.dtype == torch.half else True
    if got.dtype != torch.half:
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())


def between(kind: str, x: Tensor) -> Tensor:
    """What stands between two products: the first row is passed through, the others end a chain."""
    taken = {
        "nothing": lambda: x,
        "times": lambda: x * 0.25,
        "over": lambda: x / x.size(-1),
        "views": lambda: x[None][0],
    }
    ends = {"relu": x.relu, "plus": lambda: x + 1.0, "zero": lambda: x * 0.0, "turned": lambda: x.transpose(-1, -2)}
    return {**taken, **ends}[kind]()


@pytest.mark.parametrize("seed", range(2))
def test_random_chains(seed: int) -> None:
    """Two products of random sizes, with something between: both ways of writing them, in batches and alone."""
    draw = random.Random(seed)
    for kind in ("nothing", "times", "over", "views", "relu", "plus", "zero"):
        m, k, n, p = (draw.choice([3, 8, 24, 64]) for _ in range(4))
        batch = draw.choice([(), (2,), (1,), (2, 3)])
        a, b, c = torch.randn(*batch, m, k), torch.randn(*batch, k, n), torch.randn(*batch, n, p)
        left, right = m * k * n + m * n * p, k * n * p + m * k * p
        taken = kind in ("nothing", "times", "over", "views")
        check(lambda a, b, c, kind=kind: between(kind, a @ b) @ c, a, b, c, fires=taken and right < left)
        check(lambda a, b, c, kind=kind: a @ between(kind, b @ c), a, b, c, fires=taken and left < right)


TALL = (torch.randn(64, 8), torch.randn(8, 64), torch.randn(64, 4))


def test_what_others_read_stays() -> None:
    def twice(a, b, c):
        inner = a @ b
        return inner @ c + inner.sum()

    check(twice, *TALL, fires=False)


def test_types() -> None:
    check(lambda a, b, c: a @ b @ c, *(x.double() for x in TALL), fires=True)
    check(lambda a, b, c: a @ b @ c, *(x.half() for x in TALL), fires=False)


def test_turned_factors() -> None:
    check(lambda a, b, c: a.t() @ b.t() @ c, TALL[0].t(), torch.randn(64, 8), TALL[2], fires=True)
    check(lambda a, b, c: between("turned", a @ b) @ c, *TALL, fires=False)


@pytest.mark.parametrize("bias", [True, False])
def test_linear_layers(bias: bool) -> None:
    """A bias behind the last layer stays; one between two layers ends the chain. Weights may come first, last and in a row."""
    narrow, wide = torch.nn.Linear(96, 8, bias=bias), torch.nn.Linear(8, 96, bias=bias)
    x, graph = torch.randn(64, 96), torch.randn(64, 64)
    check(lambda x, g: narrow(g @ x), x, graph, fires=True)
    check(lambda x, g: narrow(g[None] @ x[None]), x, graph, fires=True)
    check(lambda x, g: narrow(wide(g[:, :8])), x, graph, fires=not bias)
    check(lambda x, g: wide(x[:, :8]) @ narrow.weight.t(), x, graph, fires=not bias)


def test_four_factors_and_sizes_that_change() -> None:
    a, b, c = TALL
    check(lambda a, b, c, d: ((a @ b) @ (a @ b)) @ d, a, b, c, torch.randn(64, 2), fires=True)
    compiled = intarsia.compile(lambda a, b, c: a @ b @ c, passes=[ProductOrder()], dynamic=True)
    with torch.no_grad():
        for size in (64, 32, 80):
            a, b = torch.randn(size, 8), torch.randn(8, size)
            c = torch.randn(size, 4)
            torch.testing.assert_close(compiled(a, b, c), a @ b @ c, rtol=1e-4, atol=1e-3)


def test_a_factor_of_zero_and_numbers_that_leave_the_range() -> None:
    """A number near the ends of float32's range stays between the products, where the program has it."""
    check(lambda a, b, c: (a @ b * 1e-20) @ c, *TALL, fires=True)
    check(lambda a, b, c: (a @ b * 1e-35) @ c, *TALL, fires=False)
    for f in (lambda a, b, c: (a @ b / 0.0) @ c, lambda a, b, c: (a @ b * 1e200 * 1e200) @ c):
        with torch.no_grad():
            got = intarsia.compile(f, passes=[ProductOrder()])(*TALL)
            assert torch.equal(got.isnan(), f(*TALL).isnan())
