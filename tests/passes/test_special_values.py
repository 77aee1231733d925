"""Operators that are a few others, against eager: special values, dtypes, dimensions; and that they are no library calls."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_decompose_values import SPECIAL, matrix, same, vector
from torch import Tensor

from tests.opdb.harness import try_interpreter

X = torch.tensor(SPECIAL)
PAIRS = torch.cartesian_prod(X, X).t().contiguous()
TARGETS = torch.tensor([[[0, 2, -100], [1, 1, 2]], [[2, -100, 0], [0, 0, 1]]])

CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "nan_to_num": (lambda x: (x.nan_to_num(), x.nan_to_num(1.0, 2.0, -3.0), x.half().nan_to_num()), (X,)),
    "shrink": (lambda x: (F.hardshrink(x, 0.7), F.softshrink(x, 0.7), F.celu(x, 1.3)), (X,)),
    "xlogy": (lambda x, y: (torch.xlogy(x, y), torch.xlogy(2.0, y), torch.special.xlog1py(x, y)), (*PAIRS,)),
    "logaddexp": (lambda x, y: (torch.logaddexp(x, y), torch.logaddexp2(x, y)), (*PAIRS,)),
    "logit": (lambda x: (x.logit(), x.logit(0.1)), (torch.tensor([0.0, 0.05, 0.5, 1.0, 1.5, math.nan]),)),
    "parts": (lambda x: (x.frac(), x.deg2rad(), x.rad2deg(), x.sinc()), (X[:-3],)),
    "signs": (lambda x: (x.isposinf(), x.isneginf(), x.signbit(), x.heaviside(x + 2)), (X,)),
    "integers": (
        lambda i: (i.isposinf(), i.signbit(), i % 3, i // 3, i.deg2rad(), i.count_nonzero(0), i.aminmax(dim=0)),
        (torch.arange(-7, 8).reshape(5, 3),),
    ),
    "fmax": (lambda x, y: (torch.fmax(x, y), torch.fmin(x, y)), (*PAIRS,)),
    "counts": (lambda x: (x.nansum(), x.nansum(0, True), x.count_nonzero(), x.count_nonzero((0, 1))), (PAIRS,)),
    "ends": (lambda x: (x.aminmax(), x.aminmax(dim=1, keepdim=True)), (matrix(torch.bfloat16, 4, 6),)),
    "norms": (lambda x: (x.norm(math.inf, 1), torch.linalg.vector_norm(x, -math.inf)), (matrix(torch.float32, 4, 6),)),
    "moves": (
        lambda x: (F.pixel_unshuffle(x, 2), F.channel_shuffle(x, 3)),
        (matrix(torch.float32, 2, 6, 4, 8),),
    ),
    "cross": (
        lambda x, y: torch.linalg.cross(x, y, dim=1),
        (matrix(torch.float32, 4, 3, 2), matrix(torch.float32, 1, 3, 2)),
    ),
    "logits": (
        lambda x, t, w: [
            F.binary_cross_entropy_with_logits(x, t, weight, reduction=r, pos_weight=p)
            for weight, p, r in ((w, None, "none"), (None, w + 2, "mean"), (w, w, "sum"))
        ],
        (matrix(torch.float32, 4, 6) * 40, torch.rand(4, 6), torch.rand(6)),
    ),
    "margin": (lambda x, t: F.soft_margin_loss(x, t), (matrix(torch.float32, 4, 6), torch.ones(4, 6))),
    "image_classes": (
        lambda x, t, w: [F.cross_entropy(x, t, w, reduction=r) for r in ("none", "mean", "sum")],
        (matrix(torch.float32, 2, 3, 2, 3), TARGETS, torch.rand(3)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_values(name: str) -> None:
    fn, args = CASES[name]
    found, externs = try_interpreter(fn, args, {})
    same(fn(*args), found)
    assert not externs


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_division_by_a_number(dtype: torch.dtype) -> None:
    x = vector(dtype)
    for divisor, externs in ((4, 0), (-3, 2)):

        def fn(x: Tensor, divisor: int = divisor) -> Any:
            return x % divisor, x // divisor

        found, count = try_interpreter(fn, (x,), {})
        same(fn(x), found)
        assert count == externs


def test_gradients_of_classes_of_an_image() -> None:
    """The gradient of a mean over what is not left out."""

    def fn(x: Tensor, t: Tensor, w: Tensor) -> Tensor:
        total = F.nll_loss(x, t, w, reduction="sum")
        mask = (t != -100) * w[t.clamp(min=0)]
        ones = torch.tensor(1.0)
        return torch.ops.aten.nll_loss2d_backward(ones, x, t, w, 1, -100, mask.sum()) + total

    args = (matrix(torch.float32, 2, 3, 2, 3), TARGETS, torch.rand(3))
    found, externs = try_interpreter(fn, args, {})
    same(fn(*args), found)
    assert not externs
