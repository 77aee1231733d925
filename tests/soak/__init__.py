"""Random programs of five kinds, judged against eager; see `python -m tests.soak --help`."""

from __future__ import annotations

from collections.abc import Callable

from . import modules, operators, options, python_programs, tensors

GENERATORS: dict[str, Callable[[int], str]] = {
    "tensors": tensors.program,
    "operators": operators.program,
    "modules": modules.program,
    "python": python_programs.program,
    "options": options.program,
}
