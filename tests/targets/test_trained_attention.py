"""Attention that is trained, and its gradients, by the kernels of our own: against float64, for odd sizes and for each processor."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import intarsia
from intarsia.targets.build.toolchain import runs_here

# batch, heads, queries, keys, size of a head; causal; whether heads lie between the tokens' rows
SHAPES = [
    ((2, 3, 37, 37, 16), False, True),
    ((1, 2, 64, 64, 64), True, True),
    ((2, 1, 17, 300, 20), False, False),
    ((1, 3, 55, 29, 33), True, True),
    ((3, 2, 16, 50, 7), True, False),
    ((1, 1, 70, 530, 8), True, False),
]


def gradients(tensors: list[tuple[Tensor, Tensor, Tensor]]) -> list[Tensor]:
    """Results, and gradients of queries, keys and values."""
    turned = [
        [t.transpose(1, 2) if between else t for t in given]
        for given, (_, _, between) in zip(tensors, SHAPES, strict=True)
    ]
    results = [
        F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=None if causal else 0.3)
        for (q, k, v), (_, causal, _) in zip(turned, SHAPES, strict=True)
    ]
    loss = sum([(y * y).sum() for y in results], tensors[0][0].new_zeros(()))
    return [*results, *torch.autograd.grad(loss, [t for given in tensors for t in given])]


@pytest.mark.parametrize("processor", ["", "avx512", "avx2", "plain"])
def test_gradients(processor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processors than this one by the same headers: their vectors are shorter, and their registers fewer."""
    if processor:
        if not runs_here(processor):
            pytest.skip("this machine lacks the instructions")
        monkeypatch.setenv("INTARSIA_PROCESSOR", processor)
    torch.manual_seed(0)
    tensors = []
    for (batch, heads, queries, keys, depth), _, between in SHAPES:
        outer = [(batch, n, heads, depth) if between else (batch, heads, n, depth) for n in (queries, keys, keys)]
        tensors.append(tuple(torch.randn(shape, requires_grad=True) for shape in outer))
    exact = gradients([tuple(t.detach().double().requires_grad_() for t in given) for given in tensors])  # type: ignore[misc]
    found = intarsia.compile(gradients)(tensors)
    for one, expected in zip(found, exact, strict=True):
        torch.testing.assert_close(one.double(), expected, rtol=1e-5, atol=2e-5 * expected.abs().max().item())
    q = torch.randn(2, 3, 20, 16)
    assert count(q, q, 0.0) == (processor != "plain") * 2
    assert count(q[:, :, :8], q, 0.0) == count(q.double(), q.double(), 0.0) == count(q, q, 0.1) == 0


def count(q: Tensor, k: Tensor, dropout: float) -> int:
    """How often the kernels are called for an attention and its gradients."""

    def both(g: Tensor, q: Tensor, k: Tensor) -> tuple[Tensor, ...]:
        out, logs = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, k, dropout)
        how = (g, q, k, k, out, logs, dropout, False)
        return out, *torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(*how)

    with torch.no_grad():
        return intarsia.lower(both, torch.ones_like(q), q, k).ir("buffer").count('own = "trained_attention"')


def test_rows_with_nan() -> None:
    """NaN of one row stays in it, as in eager."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 33, 16) for _ in range(3))
    q[0, 0, 3, 0] = torch.nan
    tensors = [t.requires_grad_() for t in (q, k, v)]

    def step(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)

    expected, found = step(*tensors), intarsia.compile(step)(*tensors)
    assert torch.equal(expected.isnan(), found.isnan()) and bool(found.isnan().any()) and not bool(found.isnan().all())
    for a, b in zip(*(torch.autograd.grad(y.sum(), tensors) for y in (expected, found)), strict=True):
        assert torch.equal(a.isnan(), b.isnan())
