"""`as_strided` beyond the end of a storage: eager's error, at its place; writes behind it do not happen."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import intarsia


def caught(x: Tensor, n: int) -> Any:
    x.add_(1)
    try:
        shown: Any = x.as_strided((n,), (1,))
    except RuntimeError as error:
        shown = str(error)
    x.mul_(2)
    return shown


def escaping(x: Tensor, n: int) -> Any:
    x.add_(1)
    shown = torch.as_strided(x, (2, n), (0, 1), 3) * 2
    x.mul_(2)
    return shown


def account(f: Any, x: Tensor, n: int) -> Any:
    try:
        found = f(x, n)
    except RuntimeError as error:
        found = str(error)
    return found.tolist() if isinstance(found, Tensor) else found, x.tolist()


@pytest.mark.parametrize("f", [caught, escaping])
def test_as_eager(f: Any) -> None:
    fast = intarsia.compile(f)
    for n in (3, 100, 9, 10, 0, 13):
        for view in (False, True):
            xs = [torch.arange(24.0)[: 12 if view else 24] if view else torch.arange(12.0) for _ in range(2)]
            assert account(fast, xs[0], n) == account(f, xs[1], n)
