"""A host program as data: statements that know which names they use, define and give up.

A statement is a line of Python with slots: `%(o0)s = %(empty_strided)s((8,), (1,), %(torch.float32)s)`. All names stand in slots, so that
every form of a program (with aligned arguments, in parts, timed, inside of a caller's function) is made from the same statements, by taking
some away, adding some, and filling slots in another way (render.py). `%(a0.data_ptr())s` is the address of a tensor that kernels are given
and that may have to be copied for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

ADDRESS = ".data_ptr()"  # at the end of a slot: the address of the tensor that is named before it
Kind = Literal["step", "comment", "size", "stream", "alignment"]


def use(name: str) -> str:
    """The slot of a name."""
    return f"%({name})s"


def address_of(name: str) -> str:
    """The slot of the address of a tensor."""
    return f"%({name}{ADDRESS})s"


def verbatim(text: str) -> str:
    """Text without names."""
    return text.replace("%", "%%")


def tuple_of(items: Sequence[str]) -> str:
    """The text of a tuple."""
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


class _Recorder(dict[str, str]):
    """Takes down which slots a text has."""

    def __missing__(self, name: str) -> str:
        self[name] = ""
        return ""


@dataclass(frozen=True)
class Statement:
    """One line.

    Attributes:
        text: the line with its slots.
        writes: the names that it defines; of those it may read the value that they had.
        frees: the names that it gives up.
        kind: "size" reads a symbolic size from the arguments, "stream" asks for the current stream, "alignment" asks whether arguments
            that kernels read are aligned.
        step: which of the program's steps it belongs to: kernels, library calls and copies, in order; -1: none.
    """

    text: str
    writes: tuple[str, ...] = ()
    frees: tuple[str, ...] = ()
    kind: Kind = "step"
    step: int = -1

    @cached_property
    def slots(self) -> tuple[str, ...]:
        """What stands in its slots, each once."""
        found = _Recorder()
        self.text % found
        return tuple(found)

    @property
    def reads(self) -> set[str]:
        """The names that it uses, those of functions and dtypes too."""
        return {slot.removesuffix(ADDRESS) for slot in self.slots}.difference(self.writes, self.frees)

    def as_json(self) -> list[Any]:
        """Plain data for the cache."""
        return [self.text, list(self.writes), list(self.frees), self.kind, self.step]

    @staticmethod
    def from_json(data: Sequence[Any]) -> Statement:
        """The inverse of `as_json`."""
        text, writes, frees, kind, step = data
        return Statement(text, tuple(writes), tuple(frees), kind, step)


@dataclass(frozen=True)
class Names:
    """What statements together read, define and give up."""

    reads: frozenset[str]
    writes: frozenset[str]
    frees: frozenset[str]

    @staticmethod
    def of(statements: Iterable[Statement]) -> Names:
        """Of these statements."""
        lines = list(statements)
        return Names(
            frozenset(name for line in lines for name in line.reads),
            frozenset(name for line in lines for name in line.writes),
            frozenset(name for line in lines for name in line.frees),
        )


@dataclass(frozen=True)
class Function:
    """A function of a program.

    Attributes:
        result: what it gives, as text with slots.
        is_part: whether it is handed to `piece`, which may record it: see run/pieces.py.
    """

    name: str
    arguments: tuple[str, ...]
    statements: tuple[Statement, ...]
    result: str
    is_part: bool = False

    def as_json(self) -> list[Any]:
        """Plain data for the cache."""
        return [self.name, list(self.arguments), [s.as_json() for s in self.statements], self.result, self.is_part]

    @staticmethod
    def from_json(data: Sequence[Any]) -> Function:
        """The inverse of `as_json`."""
        name, arguments, statements, result, is_part = data
        return Function(name, tuple(arguments), tuple(map(Statement.from_json, statements)), result, is_part)


@dataclass(frozen=True)
class HostProgram:
    """A function `make` (or of another name) that does what is done once, and gives the functions for each call.

    Attributes:
        once: what is done once.
        functions: the functions; parts come before what calls them.
        gives: the names of those that `make` gives.
        has_arena: whether `run` owns memory for its intermediate values, so that two threads need two of it.
    """

    once: tuple[Statement, ...]
    functions: tuple[Function, ...]
    gives: tuple[str, ...] = ("run",)
    has_arena: bool = False
    name: str = "make"

    @property
    def has_parts(self) -> bool:
        """Whether there are parts of which each may be recorded."""
        return any(function.is_part for function in self.functions)

    def statements(self) -> Iterable[Statement]:
        """All of them."""
        yield from self.once
        for function in self.functions:
            yield from function.statements

    def with_statements(self, statements: Mapping[str, Iterable[Statement]]) -> HostProgram:
        """With other statements in the functions of these names."""
        functions = [replace(f, statements=tuple(statements.get(f.name, f.statements))) for f in self.functions]
        return replace(self, functions=tuple(functions))

    def as_json(self) -> list[Any]:
        """Plain data for the cache."""
        functions = [f.as_json() for f in self.functions]
        return [[s.as_json() for s in self.once], functions, list(self.gives), self.has_arena, self.name]

    @staticmethod
    def from_json(data: Sequence[Any]) -> HostProgram:
        """The inverse of `as_json`."""
        once, functions, gives, has_arena, name = data
        made = tuple(map(Function.from_json, functions))
        return HostProgram(tuple(map(Statement.from_json, once)), made, tuple(gives), has_arena, name)


@dataclass(frozen=True)
class Halves:
    """A program with large results as two functions: what is recorded, and its tail.

    Attributes:
        program: gives both: the first gives values for the tail, which takes these and the program's arguments.
        steps: how many steps the tail has.
        results: positions of the results whose memory the tail takes.
    """

    program: HostProgram
    steps: int
    results: tuple[int, ...]
