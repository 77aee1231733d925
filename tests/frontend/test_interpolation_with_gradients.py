"""Interpolation with gradients, also by factors that are too small to change a size (3 by 1.3): eager copies there, and goes back as it came."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import intarsia

MODES = {"linear": 1, "bilinear": 2, "trilinear": 3, "bicubic": 2, "nearest": 2, "nearest-exact": 1}


@torch.enable_grad()
@pytest.mark.parametrize("mode", MODES)
def test_as_eager(mode: str) -> None:
    draw = random.Random(mode)
    corners = None if "nearest" in mode else False
    rank = MODES[mode]
    for case in range(6):
        sizes = [draw.randint(1, 6) for _ in range(rank)]
        factors = [draw.choice((1.3, 1.3, 2.0, 0.7, 1.0)) for _ in range(rank)] if case % 2 else None
        target = None if factors else [n + draw.choice((0, 0, 3)) for n in sizes]
        if factors and any(int(n * f) == 0 for n, f in zip(sizes, factors, strict=True)):
            continue

        def f(x: Tensor, target: object = target, factors: object = factors) -> Tensor:
            return F.interpolate(x, target, factors, mode, corners) * 1.0

        leaves = [torch.linspace(-1, 1, 4).outer(torch.rand(max(1, torch.Size(sizes).numel())).abs()) for _ in "a"]
        given = [leaves[0].reshape(2, 2, *sizes).clone().requires_grad_() for _ in range(2)]
        found, wanted = intarsia.compile(f, dynamic=False)(given[0]), f(given[1])
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
        ours, theirs = (
            torch.autograd.grad(y.square().sum(), x)[0] for y, x in zip((found, wanted), given, strict=True)
        )
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
