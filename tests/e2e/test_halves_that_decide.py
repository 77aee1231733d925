"""Where a number of a half type decides (a comparison, floor, argmax), it is the rounded one, as in eager: equal numbers are equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import intarsia

PROGRAMS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "sums": lambda x, y: (x.sum() > y.sum(), x.sum() == y.sum(), y.mean() < x.mean()),
    "equal": lambda x, y: x * 0.3 == y * 0.3,
    "order": lambda x, y: (x + 100 > y + 100, x * 0.3 >= 0.3, (x * 0.7 < y * 0.7).sum()),
    "floor": lambda x, y: ((x * 9).floor(), (x * 0.9).ceil(), (x * 3.3).round(), (x / 0.3).trunc()),
    "sign": lambda x, y: ((x * 1e-5).sign(), (x * 1e-7) > 0),
    "infinite": lambda x, y: ((x * 3e4).isinf(), (x * 3e4).isnan(), (x * 6e4).isfinite()),
    "places": lambda x, y: ((x + 50).argmax(), (x * 0.01).argmin(), (x + 50).reshape(4, -1).argmax(1)),
    "where": lambda x, y: torch.where(x * 0.3 == y * 0.3, x, y),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager(name: str, dtype: torch.dtype) -> None:
    function = PROGRAMS[name]
    fast = intarsia.compile(function)
    torch.manual_seed(0)
    for count in (8, 64, 512):
        x = torch.randn(count).to(dtype)
        for y in (x[:], x.flip(0), x.clone()):
            mine, theirs = fast(x, y), function(x, y)
            for a, b in zip(*([r] if isinstance(r, Tensor) else r for r in (mine, theirs)), strict=True):
                torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
