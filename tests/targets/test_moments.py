"""Variances of rows larger than the caches, block by block: as exact as eager, also around a large mean; infinities and NaN."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import intarsia


def statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    variance, mean = torch.var_mean(x, dim=(0, 2, 3), correction=0)
    return mean, torch.rsqrt(variance + 1e-5)


@pytest.mark.parametrize("shape", [(16, 20, 56, 56), (3, 17, 100, 90), (64, 16, 17, 17), (2, 20, 30, 30)])
@pytest.mark.parametrize("offset", [0.0, 100.0, -3000.0])
def test_nearly_as_exact_as_eager(shape: tuple[int, ...], offset: float) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape) * 2 + offset
    gold, eager, ours = statistics(x.double()), statistics(x), intarsia.compile(statistics)(x)
    for g, e, o in zip(gold, eager, ours, strict=True):
        worst = (e - g).abs().max()
        assert (o - g).abs().max() <= 4 * worst + 5e-6 * g.abs().max()


def test_an_outlier_in_front_and_blocks_of_different_means() -> None:
    torch.manual_seed(0)
    x = torch.randn(16, 16, 40, 40) + 50 * torch.randn(16, 16, 1, 1)
    x[0, :, 0, 0] = 1e5
    gold, ours = statistics(x.double()), intarsia.compile(statistics)(x)
    for g, o in zip(gold, ours, strict=True):
        torch.testing.assert_close(o, g.float(), rtol=1e-4, atol=1e-6)


def test_huge_numbers_infinities_and_nan() -> None:
    x = torch.randn(16, 16, 40, 40)
    x[:, 1], x[3, 2, 1, 1], x[0, 3, 0, 0], x[15, 4, 39, 39] = 1e20, torch.inf, torch.nan, torch.nan
    want = statistics(x)
    ours = intarsia.compile(statistics)(x)
    assert ours[0][3:5].isnan().all() and ours[1][2:5].isnan().all() and not ours[0][2].isfinite()
    kept = [0, *range(5, 16)]
    for o, w in zip(ours, want, strict=True):
        torch.testing.assert_close(o[kept], w[kept], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours[0][1], want[0][1])


def test_batch_norm_in_training() -> None:
    layer, x = torch.nn.BatchNorm2d(16), torch.randn(8, 16, 64, 64) * 3 + 7
    other = torch.nn.BatchNorm2d(16)
    want, got = layer(x), intarsia.compile(other)(x)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(other.running_var, layer.running_var, rtol=1e-4, atol=1e-4)
