"""A program's text in the place of a call of it."""

from __future__ import annotations

from typing import Any

from intarsia.frontend.entry.inlined import with_program
from intarsia.targets.host.ir import Function, HostProgram
from intarsia.targets.host.render import Inlinable


def test_a_program_of_no_steps() -> None:
    """Random programs found one: a graph between two breaks whose results nobody reads left a `try` without a statement."""

    def graph(a0: Any) -> tuple[()]:
        return ()

    graph.inlinable = Inlinable.of(HostProgram((), (Function("run", ("a0",), (), "()"),)), {})  # type: ignore[attr-defined]
    entry = "def entry(x_):\n    try:\n        out = graph(x_)\n    except Exception as error:\n        return failed(error)\n    return 1\n"
    names: dict[str, Any] = {}
    exec(compile(with_program(entry, names, graph), "entry", "exec"), names)
    assert names["entry"](None) == 1
