"""A program's text in the place of a call of it."""

from __future__ import annotations

from typing import Any

from intarsia.frontend.entry.inlined import with_program


def test_a_program_of_no_steps() -> None:
    """Random programs found one: a graph between two breaks whose results nobody reads left a `try` without a statement."""

    def graph(a0: Any) -> tuple[()]:
        return ()

    graph.text = "def make():\n    def run(a0):\n        return ()\n    return run\n"  # type: ignore[attr-defined]
    entry = "def entry(x_):\n    try:\n        out = graph(x_)\n    except Exception as error:\n        return failed(error)\n    return 1\n"
    names: dict[str, Any] = {}
    exec(compile(with_program(entry, names, graph), "entry", "exec"), names)
    assert names["entry"](None) == 1
