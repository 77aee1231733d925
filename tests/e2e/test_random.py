"""Random numbers made in kernels (`random="philox"`, what GPUs do by default), here with the kernels of a CPU."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intarsia

N = 100_000
KERNELS = {"random": "philox", "verify_each": True}


def drawn(fn: Callable[..., Tensor], *args: Tensor, seed: int = 1) -> Tensor:
    """What the function gives where it draws in kernels: reproducible from the seed, and new in the next call."""
    fast = intarsia.compile(fn, fullgraph=True, options=KERNELS)
    torch.manual_seed(seed)
    first, second = fast(*args), fast(*args)
    torch.manual_seed(seed)
    assert torch.equal(fast(*args), first)
    assert not torch.equal(first, second)
    return first


# function, mean, variance, least, largest
DISTRIBUTIONS: dict[str, tuple[Callable[[Tensor], Tensor], float, float, float, float]] = {
    "rand": (lambda x: torch.rand_like(x), 0.5, 1 / 12, 0, 1 - 2**-24),
    "rand_f64": (lambda x: torch.rand(len(x), dtype=torch.float64), 0.5, 1 / 12, 0, 1 - 2**-53),
    "rand_bf16": (lambda x: torch.rand(len(x), dtype=torch.bfloat16), 0.5, 1 / 12, 0, 1 - 2**-8),
    "rand_f16": (lambda x: torch.rand(len(x), dtype=torch.float16), 0.5, 1 / 12, 0, 1 - 2**-11),
    "randn": (lambda x: torch.randn(len(x)), 0, 1, -7, 7),
    "randn_f64": (lambda x: torch.randn(len(x), dtype=torch.float64), 0, 1, -9, 9),
    "randint": (lambda x: torch.randint(-3, 10, (len(x),)), 3, 14, -3, 9),
    "randint_far": (lambda x: torch.randint(0, 2**40, (len(x),)) / 2.0**40, 0.5, 1 / 12, 0, 1),
    "randint_like": (lambda x: torch.randint_like(x, 5), 2, 2, 0, 4),
    "random_": (lambda x: torch.empty(len(x), dtype=torch.int64).random_(3, 7), 4.5, 1.25, 3, 6),
    "uniform_": (lambda x: torch.empty_like(x).uniform_(-1, 2), 0.5, 9 / 12, -1, 2),
    "normal_": (lambda x: torch.empty_like(x).normal_(1, 2), 1, 4, -13, 15),
    "normal": (lambda x: torch.normal(x, 3 * x), 1, 9, -20, 22),
    "bernoulli": (lambda x: torch.bernoulli(0.3 * x), 0.3, 0.21, 0, 1),
    "bernoulli_": (lambda x: torch.empty_like(x).bernoulli_(0.7), 0.7, 0.21, 0, 1),
    "exponential_": (lambda x: torch.empty_like(x).exponential_(2.0), 0.5, 0.25, 1e-9, 12),
    "geometric_": (lambda x: torch.empty_like(x).geometric_(0.25), 4, 12, 1, 100),
    "cauchy_": (lambda x: torch.empty_like(x).cauchy_().atan(), 0, math.pi**2 / 12, -1.6, 1.6),
    "log_normal_": (lambda x: torch.empty_like(x).log_normal_(0, 0.5).log(), 0, 0.25, -3.5, 3.5),
    "rrelu": (lambda x: F.rrelu(-x, 0.1, 0.3, training=True), -0.2, 0.04 / 12, -0.3, -0.1),
    "dropout": (lambda x: F.dropout(x, 0.1), 1, 1 / 9, 0, 1.1112),
    "native_dropout": (lambda x: torch.native_dropout(x, 0.5, True)[0], 1, 1, 0, 2),
}


def test_distributions() -> None:
    """One program of all of them, whose draws are reproducible from the seed, and new in the next call."""

    def program(x: Tensor) -> tuple[Tensor, ...]:
        return tuple(fn(x) for fn, *_ in DISTRIBUTIONS.values())

    ones = torch.ones(N)
    fast, kinds = intarsia.compile(program, fullgraph=True, options=KERNELS), [t.dtype for t in program(torch.ones(9))]
    torch.manual_seed(1)
    first, second = fast(ones), fast(ones)
    torch.manual_seed(1)
    rows = zip(DISTRIBUTIONS.items(), kinds, first, second, fast(ones), strict=True)
    for (name, (_, mean, variance, least, largest)), dtype, found, later, again in rows:
        assert torch.equal(found, again) and not torch.equal(found, later), name
        values = found.double()
        assert found.dtype == dtype, name
        assert least <= values.min() and values.max() <= largest, name
        assert abs(values.mean() - mean) < 5 * math.sqrt(variance / N), name
        assert abs(values.var() / variance - 1) < 0.05, name


def test_neighbours_streams_and_calls_are_independent() -> None:
    a, b = drawn(lambda x: torch.stack([torch.rand(N), torch.rand(N)]), torch.ones(1))
    c = drawn(lambda x: torch.rand(N), torch.ones(1), seed=2)
    pairs = [(a, b), (a, c), (a[1:], a[:-1]), (a[4:], a[:-4]), (b[1:], a[:-1])]
    assert all(abs(torch.corrcoef(torch.stack(p))[0, 1]) < 5 / math.sqrt(N) for p in pairs)


def test_a_seed_gives_the_same_whatever_is_fused() -> None:
    def alone(x: Tensor) -> Tensor:
        return torch.rand(40, 50)

    plain = drawn(alone, torch.ones(50))
    both = intarsia.compile(lambda x: (torch.rand(40, 50), x.softmax(-1)), fullgraph=True, options=KERNELS)
    torch.manual_seed(1)
    assert torch.equal(both(torch.ones(50))[0], plain)
    strided = intarsia.compile(lambda x: torch.rand(40, 50).t().contiguous(), fullgraph=True, options=KERNELS)
    torch.manual_seed(1)
    assert torch.equal(strided(torch.ones(50)).t(), plain)


def test_gradients_see_the_mask_of_the_forward_pass() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.5), nn.Dropout(0.25))
    fast = intarsia.compile(net, fullgraph=True, options=KERNELS)
    with torch.enable_grad():
        x = torch.randn(8, 16, requires_grad=True)
        found = fast(x)
        found.sum().backward()
    kept = (found != 0).double() / 0.375
    weight, bias = net[0].weight.double(), net[0].bias.double()
    torch.testing.assert_close(found.double(), (x.double() @ weight.t() + bias) * kept, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(x.grad.double(), kept @ weight, rtol=1e-4, atol=1e-4)
    assert 0.2 < (found != 0).float().mean() < 0.55


def test_the_library_stays_where_kernels_cannot() -> None:
    """Infinite limits of integers, orders and draws without replacement are library calls in the same program."""

    def program(p: Tensor) -> tuple[Tensor, ...]:
        return torch.randperm(10), torch.multinomial(p, 3), torch.randint(-(2**63), 2**63 - 1, (4,)), torch.rand(3)

    fast = intarsia.compile(program, fullgraph=True, options=KERNELS)
    order, chosen, wide, uniform = fast(torch.ones(5))
    assert sorted(order.tolist()) == list(range(10)) and len(set(chosen.tolist())) == 3
    assert wide.abs().max() > 2**40 and 0 <= uniform.min() < 1


def test_a_cpu_has_eagers_numbers_by_default() -> None:
    def program(x: Tensor) -> Tensor:
        return F.dropout(x, 0.3) + torch.rand_like(x)

    x = torch.ones(1000)
    for options in ({}, {"random": "eager"}):
        torch.manual_seed(3)
        wanted = program(x)
        torch.manual_seed(3)
        assert torch.equal(intarsia.compile(program, fullgraph=True, options=options)(x), wanted)
    torch.manual_seed(3)
    assert not torch.equal(intarsia.compile(program, fullgraph=True, options=KERNELS)(x), wanted)


def test_sizes_that_change() -> None:
    fast = intarsia.compile(lambda x: torch.rand_like(x), options=KERNELS, dynamic=True)
    for shape in ((5, 7), (300, 20), (2, 3)):
        torch.manual_seed(0)
        found = fast(torch.empty(shape))
        torch.manual_seed(0)
        flat = drawn(lambda x: torch.rand_like(x.flatten()), torch.empty(shape), seed=0)
        assert torch.equal(found.flatten(), flat)


def test_an_unknown_way_is_refused() -> None:
    with pytest.raises(ValueError, match="takes one of auto, philox, eager"):
        intarsia.compile(lambda x: x, options={"random": "philo"})
