"""Norms as a GPU computes them: weight norm, and the gradients of group norm by sums of channels; the same numbers as torch's own."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

import intarsia

aten = torch.ops.aten
GROUPS = [(2, 8, 9, 4), (1, 6, 1, 1), (2, 6, 35, 6), (4, 32, 20, 8), (3, 4, 700, 1)]


def _agree(function, *args: Tensor) -> None:
    low = intarsia.lower(function, *args, target="triton:sm_90")
    assert low.kernels and all("norm" not in str(k.name) for k in low.kernels)
    found, expected = ([r] if isinstance(r, Tensor) else r for r in (low.run("loop", *args), function(*args)))
    for got, want in zip(found, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("n, channels, area, groups", GROUPS)
def test_gradients_of_group_norm(n: int, channels: int, area: int, groups: int) -> None:
    """Whatever is asked of them, with a weight."""
    x, dy, weight = torch.randn(n, channels, area), torch.randn(n, channels, area), torch.randn(channels)
    _, mean, scale = aten.native_group_norm(x, weight, None, n, channels, area, groups, 1e-5)
    for mask in itertools.product([True, False], repeat=3):
        if not any(mask):
            continue

        def gradients(dy: Tensor, x: Tensor, mean: Tensor, scale: Tensor, weight: Tensor, mask=mask) -> list[Tensor]:
            found = aten.native_group_norm_backward(dy, x, mean, scale, weight, n, channels, area, groups, list(mask))
            return [t for t in found if t is not None]

        _agree(gradients, dy, x, mean, scale, weight)


@pytest.mark.parametrize("shape, dim", [((4, 5, 6), 0), ((4, 5, 6), 2), ((7, 3), 1), ((1, 8), 0), ((5, 1), 0)])
def test_weight_norm(shape: tuple[int, ...], dim: int) -> None:
    v, grad = torch.randn(shape), torch.randn(shape)
    g = torch.randn([n if i == dim else 1 for i, n in enumerate(shape)])
    _agree(lambda v, g: aten._weight_norm_interface(v, g, dim), v, g)
    _, norms = aten._weight_norm_interface(v, g, dim)
    _agree(lambda w, v, g, n: aten._weight_norm_interface_backward(w, v, g, n, dim), grad, v, g, norms)
