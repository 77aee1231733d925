"""Reductions of few long rows on a GPU: chunks cover each row once, whatever its length and how it lies, and what is stored beside them."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

import intarsia


def _gradients(dy: Tensor, x: Tensor, h: Tensor) -> tuple[Tensor, ...]:
    s = torch.sigmoid(h)
    a, b = dy * s, dy * x * s * (1 - s)
    return a, b, (a + b).sum((0, 2))


PROGRAMS = {
    "stored beside": _gradients,
    "two sums": lambda x, y, z: ((x * y).sum((0, 2)), (x * z).sum((0, 2))),
    "moments": lambda x, y, z: torch.var_mean(x * y, (1, 2)),
    "per channel": lambda x, y, z: ((x * y[0, :, :1]).sum((1, 2)), (x * z).amax((1, 2))),
    "all": lambda x, y, z: (x * y + z).sum(),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_random_lengths(name: str) -> None:
    """Lengths around multiples of powers of two, and those that chunks divide without being of one."""
    draw = random.Random(name)
    seen = set()
    for _ in range(6):
        batch, channels = draw.choice([(8, 3), (2, 5), (4, 4), (3, 1)])
        length = draw.choice([3999, 8192, 5461, 4096 + draw.randrange(-3, 4), draw.randrange(6000, 9000)])
        args = [torch.randn(batch, channels, length) for _ in range(3)]
        low = intarsia.lower(PROGRAMS[name], *args, target="triton:sm_90")
        seen.add(any(k.name.endswith("_1") for k in low.kernels))
        found, expected = ([r] if isinstance(r, Tensor) else r for r in (low.run("loop", *args), PROGRAMS[name](*args)))
        for got, want in zip(found, expected, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=2e-3)
    assert True in seen  # some are cut


@pytest.mark.parametrize("name", PROGRAMS)
def test_lengths_that_change(name: str) -> None:
    """One program for all lengths: of a short row most chunks are empty."""
    args = [torch.randn(2, 3, 20000) for _ in range(3)]
    for x in args:
        intarsia.mark_dynamic(x, 2)
    low = intarsia.lower(PROGRAMS[name], *args, target="triton:sm_90")
    for length in (20000, 30001, 37, 8192):
        given = [torch.randn(2, 3, length) for _ in range(3)]
        found, expected = (
            [r] if isinstance(r, Tensor) else r for r in (low.run("loop", *given), PROGRAMS[name](*given))
        )
        for got, want in zip(found, expected, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=2e-3)
