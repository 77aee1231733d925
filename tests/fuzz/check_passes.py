"""Runs passes one at a time on a module, with the reference interpreter before and after each: which pass changes the answer?"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path

import torch
from graphs import Program, random_program
from torch import Tensor

from intarsia.ir.dtypes import DType
from intarsia.ir.interpreter.run import run
from intarsia.ir.text import parse_module, print_module
from intarsia.passes.core.base import Pass
from intarsia.passes.core.context import CompileContext
from intarsia.passes.pipeline import default_pipeline

RELATIVE = {torch.float64: 1e-9, torch.float32: 2e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}


class WrongPass(AssertionError):
    """A pass changed the answer, failed, or left a module that does not verify or print."""


def prim_passes() -> list[Pass]:
    """The default pipeline after `decompose`."""
    return [p for p in default_pipeline() if p.level != "aten"]


def check_program(program: Program, seed: int, passes: Sequence[Pass]) -> None:
    """Run all passes, and the program after each that changed its text.

    Raises:
        WrongPass: with the pass's name and the path of a reproducer.
    """
    module = program.module
    given = [program.inputs(b, seed) for b in program.bindings]
    wanted = [run(module, inputs) for inputs in given]
    before = print_module(module)
    for item in passes:
        try:
            item.apply(CompileContext(), module)
            module.verify()
            after = print_module(module)
            if after == before:
                continue
            _reads_back(after)
            for inputs, want in zip(given, wanted, strict=True):
                compare(run(module, inputs, reverse=bool(seed % 2)), want, program.scales, program.rounded)
        except Exception as error:
            place = _reproducer(item, seed, before, error)
            raise WrongPass(f"seed {seed}: pass '{item.name}': {type(error).__name__}: {error}\n{place}") from error
        before = after


def _reads_back(text: str) -> None:
    again = print_module(parse_module(text))
    assert again == text, "the text that is printed does not parse to the same module"


def compare(
    found: Sequence[Tensor],
    wanted: Sequence[Tensor],
    scales: Sequence[float],
    rounded: Sequence[Collection[DType]] = (),
) -> None:
    """Shapes, dtypes, strides and values agree, up to rounding: of their own types, and of those they were `rounded` to before.

    Raises:
        AssertionError: they do not.
    """
    assert len(found) == len(wanted)
    for k, (a, b, scale, before) in enumerate(zip(found, wanted, scales, rounded or [()] * len(found), strict=True)):
        assert a.dtype == b.dtype and a.shape == b.shape, f"result {k}: {a.dtype} {a.shape}, not {b.dtype} {b.shape}"
        assert a.stride() == b.stride(), f"result {k}: strides {a.stride()}, not {b.stride()}"
        tolerance = RELATIVE.get(a.dtype, 0.0)
        if tolerance:
            tolerance = max([tolerance, *(RELATIVE.get(t.torch, 0.0) for t in before)])
        near = max(1.0, min(scale, 1e6)) * tolerance
        torch.testing.assert_close(
            a, b, rtol=tolerance, atol=near, equal_nan=True, msg=lambda m, k=k: f"result {k}: {m}"
        )


def _reproducer(item: Pass, seed: int, before: str, error: Exception) -> Path:
    folder = Path(os.environ.get("INTARSIA_FUZZ_OUT", tempfile.gettempdir()))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"fuzz_{item.name}_{seed}.ir"
    first = (str(error).strip().splitlines() or [""])[0]
    path.write_text(f"// passes-opt --pipeline {item.spec}    (seed {seed}: {type(error).__name__}: {first})\n{before}")
    return path


def smallest(seed: int, passes: Sequence[Pass]) -> tuple[Program, WrongPass] | None:
    """The shortest prefix of this seed's program that still fails, and how."""
    for operations in range(1, 25):
        program = random_program(seed, operations)
        try:
            check_program(program, seed, passes)
        except WrongPass as error:
            return program, error
    return None
