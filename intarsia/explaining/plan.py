"""The memory plan of a program as data: each value that gets memory, where it lies, and from which step to which it is needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from io import StringIO

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, SSAValue
from xdsl.printer import Printer

from ..ir.dialects import buffer
from ..ir.interpreter.loops import main_function
from ..ir.symbols import Dim, span
from ..ir.syntax import Op, line_of
from ..ir.types import RefType
from ..passes.analysis.aliases import Aliases, makes_memory
from ..passes.analysis.sizes import hint
from ..targets.host.kernels import is_step
from ..targets.host.memory import held, most_at_once

OUTPUT, ARENA, DEVICE, LIBRARY = "output", "arena", "device", "library"


@dataclass(frozen=True)
class Buffer:
    """Memory for one value.

    Attributes:
        name: the value, as in the text of level "buffer": "%4".
        type: its type there.
        bytes: how much it takes.
        pool: "output" (the user receives it), "arena" (a place in the block that a call works in), "device" (memory of its own), or
            "library" (what a library call gives).
        offset: its place in the arena, in bytes; None elsewhere.
        begin, end: the first and the last step in which it takes memory, counted from 0. A place in the arena is taken until the last
            use; other memory until the host program frees it, or to the last step: so of results.
        in_place: it holds an input of the kernel that writes it.
        line: the user's line, as "file:line".
    """

    name: str
    type: str
    bytes: int
    pool: str
    offset: int | None
    begin: int
    end: int
    in_place: bool = False
    line: str = ""


@dataclass(frozen=True)
class MemoryPlan:
    """Where the values of a program lie, beyond its inputs.

    Attributes:
        buffers: in the order in which they are needed.
        steps: the kernels and library calls by name; places in it are what `begin` and `end` count.
        arena: bytes of the block that is kept between calls.
        peak: most bytes in use at once, the arena included.
    """

    buffers: tuple[Buffer, ...]
    steps: tuple[str, ...]
    arena: int
    peak: int

    def at(self, step: int) -> list[Buffer]:
        """What is needed in a step."""
        return [b for b in self.buffers if b.begin <= step <= b.end]

    def __str__(self) -> str:
        lines = [f"{self.peak:,} bytes at once, {self.arena:,} of them kept between calls; {len(self.steps)} steps"]
        for b in self.buffers[:_SHOWN]:
            place = b.pool if b.offset is None else f"{b.pool} + {b.offset}"
            when = f"{b.begin} to {b.end}" if b.begin != b.end else f"{b.begin}"
            lines.append(f"{b.bytes:>14,}  {place:<18} steps {when:<10} {b.name} {b.line}".rstrip())
        more = len(self.buffers) - _SHOWN
        return "\n".join([*lines, f"and {more} others"] if more > 0 else lines)


_SHOWN = 24


def memory_plan(module: ModuleOp, sizes: Mapping[str, int]) -> MemoryPlan:
    """The plan of a module at the `buffer` level; `sizes`: what its symbols are, as `hint` guesses where they are not named.

    A value begins with the step behind its allocation, a library's with the call that gives it. What a library gives that may be
    memory of an operand, and values without bytes, get none.
    """
    main = main_function(module)
    block = main.block_body

    def number(value: Dim) -> int:
        return hint(value, sizes)

    ops = [op for op in block.ops if isinstance(op, Op)]
    names: list[str] = []
    done: list[int] = []  # how many steps there are in front of each operation
    for op in ops:
        done.append(len(names))
        if is_step(op):
            names.append(str(op.get("kernel") or op.get("target") or op.name).removesuffix(".default"))
    names_of, last_uses = _names(block), Aliases.of(block).last_uses(block)
    ends = {each.value: each.end for each in held(main)}

    def size_of(value: SSAValue) -> int:
        assert isinstance(value.type, RefType)
        return number(span(value.type.shape, value.type.strides)) * value.type.dtype.bytes

    buffers = []
    for place, op in enumerate(ops):
        made = isinstance(op, buffer.Alloc) or (isinstance(op, buffer.Extern) and makes_memory(op))
        for result in op.results if made else ():
            size = size_of(result)
            if not size:
                continue
            pool = op["pool"] if isinstance(op, buffer.Alloc) else LIBRARY
            if pool == ARENA:
                last = last_uses.get(result, place)
                end = done[last] if is_step(ops[last]) else done[last] - 1
            else:
                end = (done[ends[result]] if ends[result] < len(ops) else len(names)) - 1
            begin, offset = done[place], number(op["offset"]) if pool == ARENA else None
            name, kind, kept = names_of[result], str(result.type), bool(op.get("in_place"))
            buffers.append(Buffer(name, kind, size, pool, offset, begin, max(end, begin), kept, line_of(op)))
    arena = number(main.get("arena_bytes", 0))
    return MemoryPlan(tuple(buffers), tuple(names), arena, arena + most_at_once(main, size_of))


def _names(block: Block) -> dict[SSAValue, str]:
    """The values' names in the text of a function."""
    printer = Printer(stream=StringIO())
    return {value: f"%{printer.print_ssa_value(value)}" for value in _values(block)}


def _values(block: Block) -> list[SSAValue]:
    return [*block.args, *(result for op in block.ops for result in op.results)]
