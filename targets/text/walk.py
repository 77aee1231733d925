"""The walk from loops to text that all targets share: lines, scopes, names, the user's lines. A target adds a table of operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from xdsl.ir import Block, Operation, SSAValue

from ...ir.dialects import loop
from ...ir.dtypes import DType
from ...ir.syntax import Op, comment_of, line_of
from ...ir.types import RefType, ScalarType


@dataclass(kw_only=True)
class Walk:
    """A function that is being written.

    Attributes:
        indent, comment: what a line begins with in a scope, and a comment.
        table: what writes each kind of operation.
        text: its lines.
        names: what holds a value, and memory.
        place: the user's line that was written last.
    """

    indent: ClassVar[str]
    comment: ClassVar[str]
    table: ClassVar[Mapping[str, Callable[[Any, Op], None]]]
    text: list[str] = field(default_factory=list)
    names: dict[SSAValue, str] = field(default_factory=dict)
    depth: int = 1
    count: int = 0
    place: str = ""

    def line(self, text: str) -> None:
        """A line of the function."""
        self.text.append(self.indent * self.depth + text)

    def fresh(self, prefix: str) -> str:
        """A name that no other has."""
        self.count += 1
        return f"{prefix}{self.count - 1}"

    @contextmanager
    def scope(self, head: str, end: str = "") -> Iterator[None]:
        """What is written inside of it stands between two lines, further to the right."""
        self.line(head)
        self.depth += 1
        yield
        self.depth -= 1
        if end:
            self.line(end)

    def plainly(self, ops: Iterable[Operation]) -> None:
        """Operations one after another."""
        for op in ops:
            assert isinstance(op, Op)
            self.table[op.name](self, op)

    def operations(self, ops: Iterable[Operation]) -> None:
        """Operations one after another, each behind the user's line that it comes from."""
        for op in ops:
            assert isinstance(op, Op)
            place = line_of(op)
            if place and place != self.place and not isinstance(op, loop.For | loop.Local):
                self.place = place
                self.line(f"{self.comment} {comment_of(place)}")
            self.table[op.name](self, op)


def argument_names(kernel: loop.Kernel) -> dict[SSAValue, str]:
    """The names of a kernel's memory."""
    inputs = kernel["inputs"]
    return {a: f"in{i}" if i < inputs else f"out{i - inputs}" for i, a in enumerate(kernel.block_body.args)}


def parameter_names(kernel: loop.Kernel) -> dict[str, SSAValue]:
    """The names of all that a launch of a kernel is given, in order, and the argument that each is: of members one for each of them."""
    names, count = list(argument_names(kernel).items()), len(kernel.members)
    if "members" not in kernel.attributes:
        return {name: argument for argument, name in names}
    found: dict[str, SSAValue] = {}
    for place in range(kernel.operand_count + count * (len(names) - kernel["inputs"])):
        k, member = kernel.argument(place)
        argument, name = names[k]
        found[name if member is None else f"{name}_{member}"] = argument
    return found


def is_checked(block: Block) -> bool:
    """Whether an index in these operations may lie outside its dimension, which they then say."""
    return any(isinstance(op, loop.Bind) and op.is_checked for op in block.walk())


def origin(kernel: loop.Kernel, comment: str) -> str:
    """The user's lines that a kernel computes, as a comment; "" where none are known."""
    lines = kernel.get("lines", ())
    return f"{comment} from {comment_of(', '.join(lines))}\n" if lines else ""


def dtype_of(value: SSAValue) -> DType:
    """The dtype of a scalar."""
    assert isinstance(value.type, ScalarType)
    return value.type.dtype


def memory_of(value: SSAValue) -> RefType:
    """The type of memory."""
    assert isinstance(value.type, RefType)
    return value.type
