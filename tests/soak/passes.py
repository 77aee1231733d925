"""Modules of the `prim` level (tests/fuzz/graphs.py) through the passes, one at a time, with the interpreter before and after each."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "fuzz"))
from check_passes import WrongPass, check_program, prim_passes  # noqa: E402
from graphs import random_program  # noqa: E402

from intarsia.ir.text import print_module  # noqa: E402


def program(seed: int) -> str:
    """The module of this seed."""
    return print_module(random_program(seed).module)


def failure(seed: int) -> str:
    """Which pass changes the answer of this seed's program, and the path of a reproducer; "" for none."""
    try:
        check_program(random_program(seed), seed, prim_passes())
    except WrongPass as error:
        return str(error)
    return ""
