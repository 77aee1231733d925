"""What runs after a graph break: the break's instruction, then the rest of each frame as a piece of its own.

A `Piece` is the rest of one frame: a code object, an instruction and what is on the stack there. It is captured and
compiled like a function whose arguments are the frame's cells, live locals and stack. A `Step` runs the break
instruction of one frame and says which piece comes next. `Step.run` runs pieces one after the other until one returns, so
that a break in a loop does not nest calls.
"""

from __future__ import annotations

import inspect
import re
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..bytecode.closing import HOLDERS, holds_open
from ..bytecode.instruction import disassemble
from ..bytecode.resume import free_names, resume_code
from ..runtime.hidden_frames import unseen
from .break_instruction import BreakInstruction

__all__ = ["Family", "Piece", "Step", "Tail", "leave_contexts"]


PASSED = ("value", "saved")  # the kinds of stack entries that are arguments of a piece


class Family(Protocol):
    """The pieces of one compiled callable."""

    def piece(self, piece: Piece) -> Callable[..., Any]:
        """The compiled function of a piece; equal pieces share it."""


class Tail(tuple):  # type: ignore[type-arg]
    """What a piece returns that ends in a break: (the next piece's function, its arguments)."""

    __slots__ = ()


@unseen
@dataclass(frozen=True, eq=False)
class Piece:
    """The rest of a frame from instruction `ip` of the normal form on.

    Its arguments are the cells named by `cells`, the locals named by `names` and the stack entries of the kinds "value"
    and "saved" (the exception being handled there) in `layout`, in this order. With `native`, CPython runs it.
    Pieces of one code object over one namespace are equal; code objects of two files may compare equal and are not.
    """

    code: types.CodeType
    globals: dict[str, Any] = field(repr=False)
    ip: int
    cells: tuple[str, ...]
    names: tuple[str, ...]
    layout: tuple[str, ...]
    native: bool = False

    @property
    def _key(self) -> tuple[Any, ...]:
        return id(self.code), id(self.globals), self.ip, self.cells, self.names, self.layout, self.native

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Piece) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def line(self) -> int:
        """The source line on which the piece begins."""
        return disassemble(self.code).instructions[self.ip].line

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names for the arguments, as reports show them."""
        stacked = [f"stack_{i}" for i, kind in enumerate(self.layout) if kind in PASSED]
        out: list[str] = []
        for name in (*(f"cell_{c}" for c in self.cells), *self.names, *stacked):
            plain = re.sub(r"\W", "_", name)
            plain = plain if plain.isidentifier() and not plain.startswith("_") else f"local{plain}"
            while plain in out:
                plain += "_"
            out.append(plain)
        return tuple(out)

    @property
    def signature(self) -> inspect.Signature:
        """Positional parameters only."""
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        return inspect.Signature([inspect.Parameter(name, kind) for name in self.arguments])

    def run_native(self, *args: Any) -> Any:
        """The rest of the frame, run by CPython."""
        return self.run_last([*args])

    def run_last(self, given: list[Any]) -> Any:
        """`run_native`, of a list that is emptied: what the frame drops, nothing else keeps alive."""
        made = resume_code(self.code, self.ip, self.names, self.layout)
        cells = dict(zip(self.cells, given, strict=False))
        closure = tuple(cells.get(name) or types.CellType() for name in free_names(made))
        function = types.FunctionType(made, self.globals, self.code.co_name, None, closure or None)
        del given[: len(self.cells)]
        return function(given)


def leave_contexts(piece: Piece, given: list[Any], error: BaseException) -> None:
    """Leave the `with` blocks that are open in a frame whose rest is not run: on the stack stand their `__exit__`, the innermost last."""
    for value in reversed(given[len(piece.cells) + len(piece.names) :]):
        if isinstance(value, types.MethodType) and value.__name__ == "__exit__":
            value(type(error), error, None)


def _unknown() -> None:
    """The function of a piece that was not asked for yet."""


@unseen
class Step:
    """the break's instruction of one frame and the pieces that follow its outcomes.

    The family keeps the pieces' functions, and is kept by the compiled callable: steps, which are parts of both, keep neither.
    """

    def __init__(
        self, family: Family, instruction: BreakInstruction | None, pieces: list[tuple[Piece, list[int]]]
    ) -> None:
        self.family, self.instruction, self.pieces = weakref.ref(family), instruction, pieces
        self._functions: list[Callable[[], Any]] = [_unknown] * len(pieces)

    def start(self, given: list[tuple[Any, ...]]) -> Tail:
        """Run the instruction. `given` is its operands and what the frame keeps: cells, locals, the stack below the operands.

        The list is emptied, so that nobody else keeps alive what the next piece does not take: an iterator whose loop is left.
        """
        operands, state = given
        given.clear()
        which, pushed = (0, ()) if self.instruction is None else self.instruction.function(*operands)
        function = self._functions[which]()
        if function is None:
            function = self._function(which)
        piece, taken = self.pieces[which]
        values = [*[state[i] for i in taken], *pushed]
        named = values[: len(piece.cells) + len(piece.names)]
        # Two values pushed are a loop's iterator and its item, and pieces know when a loop drops its iterator.
        if any(type(v) in HOLDERS and holds_open(v) for v in (named if len(pushed) > 1 else (*named, *pushed))):
            return Tail((piece.run_last, (values,)))  # CPython drops them when the program does
        native = function.__func__ is Piece.run_native if isinstance(function, types.MethodType) else False
        return Tail((function.__self__.run_last, (values,)) if native else (function, tuple(values)))

    def _function(self, which: int) -> Callable[..., Any]:
        """The function of a piece; CPython runs it where the compiled callable is gone and a part of it still runs."""
        family, piece = self.family(), self.pieces[which][0]
        if family is None:
            return piece.run_native
        function = family.piece(piece)
        if isinstance(function, types.FunctionType):
            self._functions[which] = weakref.ref(function)
        return function

    def run(self, given: list[tuple[Any, ...]]) -> Any:
        """`start`, and everything that follows in this frame: what the frame returns.

        Pieces are called in this very frame: where torch.compile looks at calls, CPython keeps what a function is given on the caller's
        stack until it returns, and a first piece's arguments (an iterator) would outlive their loop.
        """
        result = self.start(given)
        while type(result) is Tail:
            function, args = result
            result = function(*args)
        return result
