"""Random numbers that a GPU's kernels make."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intarsia
from intarsia.ir.philox import philox

GPU = "cuda:0"
N = 1_000_000


def words(count: int) -> Tensor:
    """The words that a program with this many draws from the generator as it is now."""
    seed = torch.randint(-(2**63), 2**63 - 1, (), device=GPU).cpu()
    return philox(seed.expand(count), torch.arange(count))


@pytest.mark.parametrize("shape", [(1000,), (7, 33), (64, 4096), (3, 5, 1030), ()])
def test_the_numbers_are_those_of_the_reference(shape: tuple[int, ...]) -> None:
    fast = intarsia.compile(lambda x: torch.rand_like(x), fullgraph=True, options={"verify_each": True})
    with torch.no_grad():
        torch.manual_seed(5)
        found = fast(torch.empty(shape, device=GPU)).cpu()
    torch.manual_seed(5)
    wanted = (words(found.numel()) & 0xFFFFFF).float() * 2.0**-24
    assert torch.equal(found, wanted.reshape(shape))


def test_seeds_and_calls() -> None:
    with torch.no_grad():
        fast = intarsia.compile(lambda x: F.dropout(x, 0.3) * torch.rand_like(x))
        x = torch.ones(N, device=GPU)
        torch.manual_seed(1)
        first, second = fast(x), fast(x)
        torch.cuda.manual_seed(1)
        assert torch.equal(fast(x), first)
        assert not torch.equal(first, second)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_distributions(dtype: torch.dtype) -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        return torch.rand_like(x), torch.randn_like(x), F.dropout(torch.ones_like(x), 0.25)

    with torch.no_grad():
        torch.manual_seed(0)
        found = intarsia.compile(program, fullgraph=True)(torch.empty(N, dtype=dtype, device=GPU))
    for values, mean, variance in zip(found, (0.5, 0, 1), (1 / 12, 1, 1 / 3), strict=True):
        assert values.dtype == dtype
        assert abs(values.double().mean() - mean) < 5 * math.sqrt(variance / N) + (
            1e-3 if dtype == torch.bfloat16 else 0
        )
        assert abs(values.double().var() / variance - 1) < 0.02


def test_gradients_see_the_mask_of_the_forward_pass() -> None:
    net = nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.5), nn.Dropout(0.25)).to(GPU)
    fast = intarsia.compile(net, fullgraph=True)
    for _ in range(5):
        x = torch.randn(8, 16, device=GPU, requires_grad=True)
        found = fast(x)
        found.sum().backward()
        kept = (found != 0).float() / 0.375
        torch.testing.assert_close(found, net[0](x) * kept, rtol=1e-2, atol=1e-2)
        torch.testing.assert_close(x.grad, kept @ net[0].weight, rtol=1e-2, atol=1e-2)


def test_eagers_numbers_on_request() -> None:
    def program(x: Tensor) -> Tensor:
        return F.dropout(x, 0.3) + torch.randn_like(x)

    with torch.no_grad():
        fast, x = intarsia.compile(program, options={"random": "eager"}), torch.ones(1000, device=GPU)
        for seed in range(5):
            torch.manual_seed(seed)
            wanted = program(x)
            torch.manual_seed(seed)
            assert torch.equal(fast(x), wanted)


def test_draws_into_memory_in_another_order() -> None:
    def program(x: Tensor) -> Tensor:
        y = (x * 2).transpose(0, 1)
        return y.clone().bernoulli_(0.3) + F.alpha_dropout(y, 0.2, True) + y.clone().uniform_()

    with torch.no_grad():
        fast, x = intarsia.compile(program, options={"random": "eager"}), torch.ones(7, 16, 3, device=GPU)
        torch.manual_seed(1)
        wanted = program(x)
        torch.manual_seed(1)
        torch.testing.assert_close(fast(x), wanted)


def test_failed_draws_leave_the_generator_as_it_was() -> None:
    def program(p: Tensor) -> Tensor:
        for _ in range(4):
            p = (p @ p).softmax(-1)
        return torch.multinomial(p, 2)

    with torch.no_grad():
        fast = intarsia.compile(program)
        for _ in range(5):
            assert fast(torch.rand(8, 8, device=GPU)).shape == (8, 2)
        torch.rand(4, device=GPU)
