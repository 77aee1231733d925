"""Random modules through every pass of the default pipeline, with the interpreter before and after each.

INTARSIA_FUZZ: how many programs. INTARSIA_FUZZ_SEED: the first seed. INTARSIA_FUZZ_OUT: the folder for reproducers.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import ClassVar

import pytest
from check_passes import WrongPass, check_program, prim_passes, smallest
from graphs import random_program
from xdsl.dialects.builtin import ModuleOp

from intarsia.ir.dialects import prim
from intarsia.ir.interpreter.run import run
from intarsia.ir.text import parse_module, print_module
from intarsia.passes.core.base import Pass
from intarsia.passes.core.context import CompileContext

COUNT = int(os.environ.get("INTARSIA_FUZZ", "80"))
FIRST = int(os.environ.get("INTARSIA_FUZZ_SEED", "0"))
PARTS = 8  # tests, so that several workers share the programs


@pytest.mark.parametrize("part", range(PARTS))
def test_no_pass_changes_the_answer(part: int) -> None:
    passes = prim_passes()
    failure = next((f for s in range(FIRST + part, FIRST + COUNT, PARTS) if (f := _failure(s, passes))), None)
    if failure:
        pytest.fail(failure, pytrace=False)


def _failure(seed: int, passes: list[Pass]) -> str:
    """What goes wrong with this seed's program, for its shortest prefix; empty when all is well."""
    try:
        check_program(random_program(seed), seed, passes)
    except WrongPass as error:
        shorter = smallest(seed, passes)
        return str(shorter[1] if shorter else error)
    return ""


@pytest.mark.parametrize(
    "seed",
    [
        200192,  # products and sums in float32, which are then cast to float64
        300251,  # the same with a sum of all elements
        201418,  # float32 through bfloat16 and back
    ],
)
def test_rounding_before_a_cast(seed: int) -> None:
    check_program(random_program(seed), seed, prim_passes())


@pytest.mark.parametrize("seed", range(40))
def test_programs_run_and_print(seed: int) -> None:
    program = random_program(seed)
    program.module.verify()
    text = print_module(program.module)
    again = parse_module(text)
    assert print_module(again) == text
    for binding in program.bindings:
        inputs = program.inputs(binding, seed)
        for a, b in zip(run(program.module, inputs), run(again, inputs), strict=True):
            assert a.shape == b.shape and a.dtype == b.dtype


@dataclass(frozen=True)
class Planted(Pass):
    """Exchange the operands of every subtraction: wrong on purpose."""

    name: ClassVar[str] = "planted"

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        for op in module.walk():
            if isinstance(op, prim.ELEMENTWISE["sub"]):
                op.operands = tuple(reversed(op.operands))


def test_a_wrong_pass_is_caught_by_name(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("INTARSIA_FUZZ_OUT", str(tmp_path))
    caught = 0
    for seed in range(60):
        program = random_program(seed)
        try:
            check_program(program, seed, [Planted()])
        except WrongPass as error:
            assert "pass 'planted'" in str(error)
            caught += 1
    assert caught > 3
    reproducer = next(tmp_path.glob("fuzz_planted_*.ir")).read_text()
    assert "// passes-opt --pipeline planted" in reproducer
    parse_module(reproducer).verify()
