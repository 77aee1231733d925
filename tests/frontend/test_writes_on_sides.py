"""Sides of branches that write to what they have made themselves; what was there before is not written to on a side."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import compiled, number_backend
from torch import Tensor


def clamped(x: Tensor) -> Tensor:
    y = x * 1
    if x.sum() > 0:
        y = (x * 2).clamp_(0, 3)
    return y + 1


def diagonal(x: Tensor) -> Any:
    r = x @ x.T
    if x.sum() > 0:
        z = r * 2
        z.diagonal().fill_(0)
    else:
        z = r - 1
    return z, r


def set_of_its_own(x: Tensor) -> Tensor:
    if x.sum() > 0:
        sizes = {len(row) for row in (x, x + 1)}
        y = x * sizes.pop()
    else:
        y = x - 1
    return y


def written_before(x: Tensor) -> Tensor:
    r = x * 3
    if x.sum() > 0:
        r.add_(1)
    return r


def through_a_view(x: Tensor) -> Tensor:
    r = x * 3
    if x.sum() > 0:
        v = r[0]
        v.mul_(2)
    return r + 1


def to_the_callers(x: Tensor) -> Tensor:
    if x.sum() > 0:
        x.view(-1).mul_(2)
    return x + 1


def one_of_two(x: Tensor) -> Tensor:
    if x.sum() > 0:
        y = x if x.max() > 2 else x * 2
        y.add_(1)
        return y + 0
    return x * 1


def with_gradients(x: Tensor) -> Tensor:
    y = x * W
    z = (y * 2).mul_(3) if x.sum() > 0 else y - 1
    return z.sum()


W = torch.ones(2, 2, requires_grad=True)
ONE = (clamped, diagonal, set_of_its_own)
OTHERS = (written_before, through_a_view, to_the_callers, one_of_two, with_gradients)


def outcome(function: Any, x: Tensor) -> Any:
    x, W.grad = x.clone(), None
    result = function(x)
    if not isinstance(result, tuple) and result.requires_grad:
        result.backward()
    made = [r.detach().tolist() for r in (result if isinstance(result, tuple) else (result,))]
    return made, x.tolist(), None if W.grad is None else W.grad.tolist()


@pytest.mark.parametrize("function", [*ONE, *OTHERS])
def test_as_eager(function):
    fast, log = compiled(function, number_backend)
    x = torch.tensor([[1.0, 0.5], [0.25, 1.5]])
    for factor in (1, -1, 3, -2):
        assert outcome(fast, factor * x) == outcome(function, factor * x)
    assert log.fallbacks == []
    if function in ONE:
        assert log.breaks == [] and len(log.captures) == 1
