"""Names for generated Python: constants in its namespace, what is fetched in its locals."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["MISS", "Emitter", "MissIf", "Statement", "with_few_locals"]


class Fetchable(Protocol):
    """What can be written as an expression: a source."""

    def reconstruct(self, emit: Emitter, /) -> str:
        """The expression; `emit` names constants and shared prefixes."""


class _Miss:
    def __repr__(self) -> str:
        return "MISS"


MISS = _Miss()  # what an entry returns that does not fit the call


@dataclass(frozen=True)
class MissIf:
    """A check: where the test holds, the entry does not fit the call."""

    test: str

    def text(self, miss: str = "return MISS") -> str:
        """The statement."""
        return f"if {self.test}: {miss}"

    __str__ = text


Statement = str | MissIf


class Emitter:
    """Names for the generated function: constants in its namespace, fetched paths in its locals."""

    def __init__(self) -> None:
        self.namespace: dict[str, Any] = {}
        self.lines: list[Statement] = []
        self.late = 0  # the place of checks that follow when the backend has seen the graph
        self._constants: dict[int, str] = {}
        self._fetched: dict[Fetchable, str] = {}

    def miss_if(self, test: str) -> None:
        """Add a check."""
        self.lines.append(MissIf(test))

    def constant(self, value: Any, hint: str = "c") -> str:
        """A name for `value` in the namespace of the generated code."""
        known = self._constants.get(id(value))
        if known is not None:
            return known
        stem = re.sub(r"\W+", "_", hint)[-40:].strip("_") or "c"
        stem = stem if stem[0].isalpha() else f"c_{stem}"
        name = f"{stem}_{len(self.namespace)}"
        self._constants[id(value)] = name
        self.namespace[name] = value
        return name

    def literal(self, value: Any) -> str:
        """`value` as source text when it is plain, else as a named constant."""
        if value is None or value is Ellipsis or type(value) in (bool, int, str, bytes):
            return repr(value)
        if type(value) is float and value - value == 0.0:
            return repr(value)
        return self.constant(value, type(value).__name__)

    def fetch(self, source: Fetchable) -> str:
        """The local that holds the value of `source`; its line is emitted the first time."""
        known = self._fetched.get(source)
        if known is None:
            text = source.reconstruct(self)
            if text.isidentifier():
                known = text
            else:
                known = f"v{len(self._fetched)}"
                self.lines.append(f"{known} = {text}")
            self._fetched[source] = known
        return known

    def known(self, source: Fetchable) -> str | None:
        """The local that holds the value of `source`, where one does."""
        return self._fetched.get(source)

    def inline(self, source: Fetchable) -> str:
        """Like `fetch`, but spelled in place when it is used only once."""
        return self._fetched.get(source) or source.reconstruct(self)


# A string, or one of the locals that `Emitter.fetch` makes.
_FETCHED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|(?<![\w.])v\d+\b""")


def with_few_locals(lines: Sequence[Statement], kept: str) -> list[Statement]:
    """The same straight-line statements; a local that is not read again, also not in the text `kept`, gives its name to a later one.

    A frame with hundreds of locals does not fit into what is left of CPython's block of frames (16 KiB), and each call then takes a
    block from the system and gives it back.
    """
    names = [[m for m in _FETCHED.findall(str(line)) if m[0] == "v"] for line in lines]
    last = {name: number for number, found in enumerate(names) for name in found}
    keep = {m for m in _FETCHED.findall(kept) if m[0] == "v"}
    free: list[str] = []
    given: dict[str, str] = {name: name for name in keep}
    made: list[Statement] = []
    for number, line in enumerate(lines):
        for name in names[number]:
            if name not in given:
                given[name] = free.pop() if free else f"kept{len(given)}"
        text = _FETCHED.sub(lambda m: given.get(m.group(), m.group()), line.test if isinstance(line, MissIf) else line)
        made.append(MissIf(text) if isinstance(line, MissIf) else text)
        free += [given[name] for name in dict.fromkeys(names[number]) if last[name] == number and name not in keep]
    return made
