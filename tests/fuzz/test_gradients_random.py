"""Random torch functions with gradients: results, what is written to the inputs, and gradients, compiled against eager, in float64.

INTARSIA_FUZZ, INTARSIA_FUZZ_SEED: as in test_passes_random.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from functions import Function, random_function, runs_in_eager
from torch import Tensor

import intarsia

COUNT = int(os.environ.get("INTARSIA_FUZZ", "80")) // 10
FIRST = int(os.environ.get("INTARSIA_FUZZ_SEED", "0"))
PARTS = 2


def step(call: Callable[..., Any], function: Function) -> list[Tensor | None]:
    """Results, inputs afterwards, gradients. The inputs are computed, so that the function may write to them."""
    leaves = [torch.empty_strided(x.shape, x.stride(), dtype=torch.float64).copy_(x) for x in function.inputs]
    for k, leaf in enumerate(leaves):
        leaf.requires_grad_(k == 0 or k % 2 == 1)
    with torch.enable_grad():
        inputs = [leaf + 0 for leaf in leaves]
        results = list(call(*inputs))
        seen = [v for v in (*results, *inputs) if v.requires_grad]
        generator = torch.Generator().manual_seed(1)
        weights = [torch.randn(v.shape, generator=generator, dtype=v.dtype) for v in seen]
        torch.autograd.backward(seen, weights)
    return [*(v.detach() for v in (*results, *inputs)), *(leaf.grad for leaf in leaves)]


def differentiates_in_eager(function: Function) -> bool:
    """Whether eager runs it and its gradients: a value that backward needs may be overwritten."""
    try:
        return runs_in_eager(function) and bool(step(function.call, function))
    except RuntimeError:
        return False


@pytest.mark.parametrize("part", range(PARTS))
def test_gradients(part: int) -> None:
    for seed in range(FIRST + part, FIRST + COUNT, PARTS):
        function = random_function(seed)
        if not differentiates_in_eager(function):
            continue
        compiled = intarsia.compile(function.call, fullgraph=True)
        try:
            for _ in range(2):
                wanted, found = step(function.call, function), step(compiled, function)
                assert [v is None for v in found] == [v is None for v in wanted]
                for a, b in zip(found, wanted, strict=True):
                    if b is not None:
                        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)  # parts of it are in float32
        except Exception as error:
            error.add_note(f"seed {seed}:\n{function.source}")
            raise
