"""Rows and columns that several programs of a GPU share give what eager gives, call after call and on two streams at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import intarsia
from intarsia.testing import check


def _pool_of_norm(x: Tensor) -> Tensor:
    y = F.group_norm(x, 1)
    return F.group_norm(x + F.avg_pool2d(y, 3, 1, 1, count_include_pad=False) - y, 1).relu() + x


CASES: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "log_softmax": (lambda x: x.log_softmax(-1), (24, 65536)),
    "odd rows": (lambda x: x.softmax(-1), (24, 70001)),
    "layer_norm": (lambda x: F.layer_norm(x, (65536,)), (24, 65536)),
    "variance": (lambda x: torch.var_mean(x, (0, 2, 3)), (16, 24, 64, 64)),
    "norm of a window of a norm": (_pool_of_norm, (8, 16, 64, 65)),
    "columns": (lambda x: x.softmax(0), (8192, 1100)),
    "column variance": (lambda x: x.var(0), (8192, 1100)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_values(name: str, dtype: torch.dtype) -> None:
    fn, shape = CASES[name]
    check(fn, [torch.randn(shape, device="cuda").to(dtype)])


def test_again_and_on_two_streams() -> None:
    fn, shape = CASES["log_softmax"]
    compiled = intarsia.compile(fn)
    inputs = [torch.randn(shape, device="cuda") for _ in range(2)]
    expected = [fn(x) for x in inputs]
    compiled(inputs[0])
    streams = [torch.cuda.Stream() for _ in inputs]
    torch.cuda.synchronize()
    found: list[list[Tensor]] = [[], []]
    for _ in range(20):
        for x, stream, results in zip(inputs, streams, found, strict=True):
            with torch.cuda.stream(stream):
                results.append(compiled(x))
    torch.cuda.synchronize()
    for results, right in zip(found, expected, strict=True):
        for result in results:
            torch.testing.assert_close(result, right)
