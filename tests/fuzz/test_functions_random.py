"""Random torch functions: at every level in the interpreter, and compiled, against eager.

INTARSIA_FUZZ, INTARSIA_FUZZ_SEED: as in test_passes_random.
"""

from __future__ import annotations

import os

import pytest
import torch
from check_passes import RELATIVE
from functions import Function, random_function, runs_in_eager
from torch import Tensor

import intarsia
from intarsia.ir.interpreter.run import run_user
from intarsia.ir.text import parse_module

COUNT = int(os.environ.get("INTARSIA_FUZZ", "80"))
FIRST = int(os.environ.get("INTARSIA_FUZZ_SEED", "0"))
PARTS = 4


def seeds(part: int, count: int) -> range:
    return range(FIRST + part, FIRST + count, PARTS)


def copies(inputs: list[Tensor]) -> list[Tensor]:
    return [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(x) for x in inputs]


def same(found: list[Tensor], wanted: list[Tensor], what: str) -> None:
    """Values, dtypes and strides agree.

    Raises:
        AssertionError: they do not.
    """
    assert len(found) == len(wanted), what
    for k, (a, b) in enumerate(zip(found, wanted, strict=True)):
        tolerance = RELATIVE.get(b.dtype, 0.0)
        assert a.dtype == b.dtype and a.shape == b.shape, (
            f"{what}: value {k}: {a.dtype} {a.shape}, not {b.dtype} {b.shape}"
        )
        # Fake tensors do not always know eager's stride of a dimension of size 1, which addresses nothing.
        assert all(n < 2 or p == q for n, p, q in zip(b.shape, a.stride(), b.stride(), strict=True)), (
            f"{what}: value {k}: strides {a.stride()}, not {b.stride()} of {tuple(b.shape)}"
        )
        torch.testing.assert_close(
            a, b, rtol=tolerance, atol=10 * tolerance, msg=lambda m, k=k: f"{what}: value {k}: {m}"
        )


@torch.no_grad()
def check_levels(function: Function) -> None:
    """The text after each pass, run by the interpreter, gives what the imported graph gives."""
    lowered = intarsia.lower(function.call, *copies(function.inputs))
    wanted: list[Tensor] = []
    for name, text in lowered.stages.items():
        given = lowered.inputs(*copies(function.inputs))
        results = run_user(parse_module(text), [*given, *lowered.constants])
        found = [v for v in (*results, *given) if isinstance(v, Tensor)]
        wanted = wanted or found
        same(found, wanted, f"after {name}")


@pytest.mark.parametrize("part", range(PARTS))
def test_every_level(part: int) -> None:
    for seed in seeds(part, COUNT // 2):
        function = random_function(seed)
        if not runs_in_eager(function):
            continue
        try:
            check_levels(function)
        except Exception as error:
            error.add_note(f"seed {seed}:\n{function.source}")
            raise


@pytest.mark.parametrize("part", range(PARTS))
def test_compiled(part: int) -> None:
    for seed in seeds(part, COUNT // 10):
        function = random_function(seed)
        if not runs_in_eager(function):
            continue
        compiled = intarsia.compile(function.call, fullgraph=True)
        for _ in range(2):
            eager, ours = copies(function.inputs), copies(function.inputs)
            try:
                same([*compiled(*ours), *ours], [*function.call(*eager), *eager], "compiled")
            except Exception as error:
                error.add_note(f"seed {seed}:\n{function.source}")
                raise
