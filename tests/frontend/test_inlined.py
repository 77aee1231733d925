"""A program's text in the place of a call of it."""

from __future__ import annotations

from typing import Any

import pytest

from intarsia.frontend.entry.entry import Entry, Message
from intarsia.frontend.entry.inlined import with_program
from intarsia.frontend.guards.emitter import MissIf
from intarsia.targets.host.ir import Function, HostProgram, Statement
from intarsia.targets.host.render import Inlinable


def run(entry: Entry, names: dict[str, Any], *args: Any) -> Any:
    exec(compile(entry.text(), "entry", "exec"), names)
    return names["entry"](*args)


def test_a_program_of_no_steps() -> None:
    """Random programs found one: a graph between two breaks whose results nobody reads left a `try` without a statement."""

    def graph(a0: Any) -> tuple[()]:
        return ()

    graph.inlinable = Inlinable.of(HostProgram((), (Function("run", ("a0",), (), "()"),)), {})  # type: ignore[attr-defined]
    names: dict[str, Any] = {}
    entry = with_program(Entry(["x"], [], "1", (), ["x_"], 0, True), names, graph)
    assert entry.program is not None and run(entry, names, None) == 1


@pytest.mark.parametrize("inline", [False, True])
def test_an_entry_runs_its_parts_in_order(inline: bool) -> None:
    def graph(a0: int) -> tuple[int, int]:
        return a0 + 1, a0 + 2

    if inline:
        statements = (Statement("%(o0)s = %(a0)s + 1", ("o0",)), Statement("%(o1)s = %(a0)s + 2", ("o1",)))
        program = HostProgram((), (Function("run", ("a0",), statements, "(%(o0)s, %(o1)s)"),))
        graph.inlinable = Inlinable.of(program, {})  # type: ignore[attr-defined]
    names: dict[str, Any] = {"MISS": "missed", "graph": graph, "said": []}
    effects = ["said.append(out0)", Message("said.append('a message')")]
    entry = Entry(["x"], [MissIf("x_ > 3"), "v0 = x_"], "out1", effects, ["v0"], 2, True, late=1)
    entry = with_program(entry.with_late([MissIf("x_ == 2")]), names, graph)
    assert (entry.program is not None) is inline
    assert [run(entry, names, x) for x in (1, 2, 3, 4)] == [3, "missed", 5, "missed"]
    assert names["said"] == [2, "a message", 4, "a message"]
    assert "break" in " ".join(entry.body("break")) and "MISS" not in " ".join(entry.body("break"))
