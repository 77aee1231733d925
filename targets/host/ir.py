"""A host program as data: statements that know which names they use, define and give up.

A statement is a line of Python with slots: `%(o0)s = %(empty_strided)s((8,), (1,), %(torch.float32)s)`. All names stand in slots, so that
every form of a program (with aligned arguments, in parts, timed, inside of a caller's function) is made from the same statements, by taking
some away, adding some, and filling slots in another way (render.py). `%(a0.data_ptr())s` is the address of a tensor that kernels are given
and that may have to be copied for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any, Literal, NamedTuple

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


class Statement(NamedTuple):
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

    @property
    def reads(self) -> set[str]:
        """The names that it uses, those of functions and dtypes too."""
        slots = _Recorder()
        self.text % slots
        return {slot.removesuffix(ADDRESS) for slot in slots}.difference(self.writes, self.frees)


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


class Function(NamedTuple):
    """A function of a program.

    Attributes:
        result: what it gives, as text with slots.
        is_part: whether it is handed to `piece`, which may record it: see recordings/pieces.py.
    """

    name: str
    arguments: tuple[str, ...]
    statements: tuple[Statement, ...]
    result: str
    is_part: bool = False


@dataclass(frozen=True)
class HostProgram:
    """A function `make` (or of another name) that does what is done once, and gives the functions for each call.

    Attributes:
        once: what is done once.
        functions: the functions; parts come before what calls them.
        gives: the names of those that `make` gives.
        arena: bytes for its intermediate values that `run` has addresses in, so that two threads need two of it; None: it has none.
        code: its text compiled, where the cache has kept it; a program that is made of this one has none.
    """

    once: tuple[Statement, ...]
    functions: tuple[Function, ...]
    gives: tuple[str, ...] = ("run",)
    arena: int | None = None
    name: str = "make"
    code: CodeType | None = field(default=None, init=False, compare=False, repr=False)

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
        functions = [f._replace(statements=tuple(statements.get(f.name, f.statements))) for f in self.functions]
        return replace(self, functions=tuple(functions))

    def as_data(self, code: CodeType | None = None) -> tuple[Any, ...]:
        """Plain data for the cache."""
        functions = tuple((*f[:2], tuple(map(tuple, f.statements)), *f[3:]) for f in self.functions)
        return tuple(map(tuple, self.once)), functions, self.gives, self.arena, self.name, code

    @staticmethod
    def from_data(data: tuple[Any, ...]) -> HostProgram:
        """The inverse of `as_data`."""
        once, functions, *others, code = data
        made = tuple(Function._make((*f[:2], tuple(map(Statement._make, f[2])), *f[3:])) for f in functions)
        program = HostProgram(tuple(map(Statement._make, once)), made, *others)
        object.__setattr__(program, "code", code)
        return program


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
