"""Calls that begin in inference mode: what values decide is in the graph there too, and results are inference tensors as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import intarsia

WEIGHT = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))


def _counted(x: Tensor) -> Tensor:
    for _ in range(int((x > 0).sum())):
        x = x.sin() + 0.1
    return x


def _doubled(x: Tensor) -> Tensor:
    y = x.abs() + 1
    while y.sum() < 100:
        y = y * 2
    return y


def _either(x: Tensor) -> Tensor:
    return x + 1 if x.sum() > 0 else x - 1


def _refused(x: Tensor) -> Tensor:
    if (x > 2).any():
        raise ValueError(f"too large: {x.max():.3f}")
    return x * 2


def _written(x: Tensor) -> Tensor:
    y = x.clone()
    y[y > 0] = 0
    y[x.sum(1) > 0] += 1
    return y


def _views(x: Tensor) -> Any:
    y = x[x[:, 0].nonzero().squeeze(1)]
    return y.view(-1), y.t(), y


def _hits(x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for e in (x.sum(0) > 0).nonzero():
        out[:, e[0]] += x[:, e[0]] * 2
    return out


PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "places": lambda x: torch.nonzero(x > 0, as_tuple=True),
    "rows": lambda x: (x[x > 0].sum(), x[x.sum(1) > 0] @ WEIGHT.t()),
    "unique": lambda x: (x > 0).long().sum(1).unique(return_counts=True),
    "repeated": lambda x: x.repeat_interleave((x[:, 0] > 0).long() + 1, 0),
    "scale": lambda x: x * x.sum().item(),
    "part": lambda x: x[: int((x > 0).sum().clamp(1, 3))].sum(0),
    "numbers": lambda x: torch.arange((x > 0).sum().item()),
    "counted": _counted,
    "doubled": _doubled,
    "either": _either,
    "refused": _refused,
    "written": _written,
    "views": _views,
    "hits": _hits,
}


def _outcome(call: Callable[[Tensor], Any], x: Tensor) -> Any:
    try:
        leaves = pytree.tree_leaves(call(x))
    except ValueError as error:
        return str(error)
    return [(leaf.dtype, leaf.shape, leaf.stride(), leaf.is_inference(), leaf.tolist()) for leaf in leaves]


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_values_decide(name: str) -> None:
    program = PROGRAMS[name]
    intarsia.reset()
    fast = intarsia.compile(program)
    for seed in range(6):
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed)) * (1, 3, 0)[seed % 3]
        with torch.inference_mode():
            inner = x.clone() if seed < 3 else x
            want, got = _outcome(program, inner), _outcome(fast, inner)
        assert len(want) == len(got)
        if isinstance(want, str):
            assert got == want
            continue
        for (*facts, values), (*expected, numbers) in zip(got, want, strict=True):
            assert facts == expected
            torch.testing.assert_close(torch.tensor(values), torch.tensor(numbers), equal_nan=True)
    found = intarsia.counters()
    assert found["breaks"] == 0
    assert found["captures"] <= 2  # of inference tensors and of others
