"""One compiled call as data, and its text: checks, the graph, what is replayed behind it, the result."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ..guards.emitter import MissIf, Statement

__all__ = ["Entry", "Message", "Program"]


class Message(str):
    """A statement for others than the program: a warning, a line of a log."""


@dataclass(frozen=True)
class Program:
    """A graph's own program: its lines, and the tuple of its results."""

    lines: Sequence[str]
    results: str


@dataclass(frozen=True)
class Entry:
    """A function of the call's arguments that returns `MISS` where a check does not hold.

    In its text each parameter has an underscore behind its name. The graph's results are `out0`, `out1` and so on.
    """

    parameters: Sequence[str]
    checks: Sequence[Statement]
    result: str
    effects: Sequence[str] = ()
    arguments: Sequence[str] = ()  # of the graph
    outputs: int = 0
    has_graph: bool = False  # else there is nothing to call
    profiled: str = ""  # asks whether a profiler is active, where the graph is to be called as `profiled`
    program: Program | None = None  # in the place of a call of the graph
    late: int = 0  # where checks of what the backend relies on go
    failing: tuple[
        int, ...
    ] = ()  # results of the graph: with one that is true, CPython runs the call (`branches.checks`)
    lasting: bool = False  # whether such a call may well not raise: a loop runs no round
    passes_over: bool = False  # whether sides of branches that warn or raise are left out
    draws: bool = False  # whether the state of random generators is set back for that
    keeps: str = ""  # what the graph writes to, as a tuple: it is set back for that, too (`branches.kept`)
    lets_go: bool = False  # whether no variable is to hold anything but `given` while the rest of the call runs
    drawn: bool = False  # whether the checks draw Python's random numbers (`guards.drawn`)

    def with_late(self, checks: Sequence[Statement]) -> Entry:
        """With what the backend has come to rely on."""
        all_checks = [*self.checks[: self.late], *checks, *self.checks[self.late :]]
        return replace(self, checks=all_checks, late=self.late + len(checks))

    def body(self, miss: str = "return MISS") -> list[str]:
        """The statements; `miss` is the one for a check that does not hold."""
        undo = ["undo(before)"] if self.drawn else []
        lines = [*(["before = None"] if undo else []), "try:"]
        missed = "; ".join([*undo, miss])
        lines += _indented([c.text(missed) if isinstance(c, MissIf) else c for c in self.checks] or ["pass"])
        lines += ["except Exception:", f"    {missed}"]
        if self.has_graph:
            given = f"({''.join(f'{n}_, ' for n in self.parameters)})"
            back = [*(["rewind(states)"] if self.draws else []), *(["put_back(kept)"] if self.keeps else [])]
            rewind = _indented([*back, *undo])
            lines += ["states = drawn()"] if self.draws else []
            lines += [f"kept = keep({self.keeps})"] if self.keeps else []
            lines += ["try:", *_indented(self._graph()), "except Exception as error:", *rewind]
            lines.append(f"    return failed(error, {given})")
            if self.failing:
                lines += [f"if {' or '.join(f'out{n}' for n in self.failing)}:", *rewind]
                lines.append(f"    return failed(None, {given})")
        lines += self.effects
        if self.lets_go:
            names = {name for line in lines for found in _ASSIGNED.findall(line) for name in found.split(", ")} - {
                "given",
                "",
            }
            lines.append(f"{' = '.join(sorted(names))} = None" if names else "pass")
        return [*lines, f"return {self.result}"]

    def _graph(self) -> list[str]:
        into = f"{', '.join(f'out{n}' for n in range(self.outputs))}, = " if self.outputs else ""
        given = f"({', '.join(self.arguments)})"
        if self.program is None:
            called = [f"{into}graph{given}"]
        else:
            called = [*self.program.lines, *([f"{into}{self.program.results}"] if into else [])] or ["pass"]
        if not self.profiled:
            return called
        return [f"if {self.profiled}:", f"    {into}profiled{given}", "else:", *_indented(called)]

    def text(self) -> str:
        """The function."""
        head = f"def entry({', '.join(f'{n}_' for n in self.parameters)}):"
        return "\n".join([head, *_indented(self.body()), ""])


_ASSIGNED = re.compile(r"^ *((?:[^\W\d]\w*(?:, ?|(?= = )))+) ?= ", re.MULTILINE)  # the names in front of an equals sign


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" for line in lines]
