"""The cheapest call: the guards of the first entry, the program of its graph and the result in the compiled function's own body.

A call of a Python function costs as much as two guards. Where the first thing that a callable was compiled for is its only one, nothing
has to be looked for, so that its text is written into the function itself. What does not have the simple form stays a call.
"""

from __future__ import annotations

import ast
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from .entry import Entry, Program

__all__ = ["inlined_entry", "with_program"]

_MOST = 6000  # characters of a program that is worth it: a call is little beside much work


def with_program(entry: Entry, namespace: dict[str, Any], graph: Any) -> Entry:
    """The entry with the graph's program in place of a call of it, where the graph shows one (`graph.inlinable`).

    `namespace` gets the names that the program needs. The entry stays as it is where the program keeps state of its own.
    """
    program, given = getattr(graph, "inlinable", None), entry.arguments
    if program is None or program.length > _MOST or not entry.has_graph or len(given) != len(program.arguments):
        return entry
    if not all(map(str.isidentifier, given)):
        return entry
    lines, results, values, names = program.inlined("program_", given)
    if names & {*namespace, *re.findall(r"\w+", entry.text())}:
        return entry
    namespace |= values
    return replace(entry, program=Program(lines.splitlines(), results))


def inlined_entry(
    function: types.FunctionType, made: Entry, namespace: Mapping[str, Any], entry: Callable[..., Any]
) -> bool:
    """Write the entry's statements into the compiled function, in place; False where its form does not allow it.

    Args:
        function: the compiled function; its namespace holds `__entries`, and it looks for an entry in a loop.
        made: the entry.
        namespace: the names in it.
        entry: the entry as a function: the statements hold as long as it is the first one.
    """
    held = function.__globals__
    if set(held) & (set(namespace) - {"__builtins__", "MISS"}) or function.__code__.co_freevars:
        return False
    body = [*(f"{name}_ = {name}" for name in made.parameters), *made.body(miss="break")]
    if sum(map(len, body)) > 2 * _MOST:
        return False
    loops = ast.For | ast.While | ast.Lambda | ast.comprehension | ast.FunctionDef
    nodes = [n for line in ast.parse(made.text()).body for n in ast.walk(line)][1:]
    own = {n.id for n in nodes if isinstance(n, ast.Name)} | {f"{name}_" for name in made.parameters}
    if any(isinstance(n, loops) for n in nodes) or own & set(made.parameters):
        return False
    first = ["while __entries and __entries[0] is __first:", *(f"    {line}" for line in body)]
    held |= {name: value for name, value in namespace.items() if name != "__builtins__"}
    held["__first"] = entry
    found: dict[str, Any] = {}
    exec(compile(held["__lookup"].text(first), function.__code__.co_filename, "exec"), {**held}, found)
    function.__code__ = found["compiled"].__code__
    return True
