"""The memory plan of a program as data: each value that gets memory, where it lies, and from which step to which it is needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from io import StringIO

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.printer import Printer

from ..ir.dialects import buffer
from ..ir.interpreter.loops import main_function
from ..ir.symbols import Dim, span, substitute, symbol
from ..ir.syntax import Op, line_of
from ..ir.types import RefType
from ..passes.analysis.aliases import Aliases, makes_memory
from ..targets.host.kernels import is_step

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
        begin, end: the first and the last step that it is needed in, counted from 0; of a result of the program `end` is the last step.
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
    """The plan of a module at the `buffer` level; `sizes`: what its symbols are."""
    main = main_function(module)
    block, values = main.block_body, {symbol(name): number for name, number in sizes.items()}

    def number(value: Dim) -> int:
        return int(substitute(value, values))

    aliases = Aliases.of(block)
    ops = [op for op in block.ops if isinstance(op, Op)]
    place_of: dict[Operation, int] = {op: place for place, op in enumerate(ops)}
    step_of, names = _steps(ops)
    last, names_of = aliases.last_uses(block), _names(block)
    returned = {root for v in ops[-1].operands for root in aliases.roots(v)}
    buffers = []
    for place, op in enumerate(ops):
        made = isinstance(op, buffer.Alloc) or (isinstance(op, buffer.Extern) and makes_memory(op))
        for result in op.results if made else ():
            assert isinstance(result.type, RefType)
            pool = op["pool"] if isinstance(op, buffer.Alloc) else LIBRARY
            first = min((place_of[use.operation] for use in result.uses), default=place) if pool != LIBRARY else place
            end = len(names) - 1 if result in returned else step_of[last.get(result, place)]
            size = number(span(result.type.shape, result.type.strides)) * result.type.dtype.bytes
            offset = number(op["offset"]) if pool == ARENA else None
            begin, kept = max(step_of[first], 0), bool(op.get("in_place"))
            name, kind = names_of[result], str(result.type)
            buffers.append(Buffer(name, kind, size, pool, offset, begin, max(end, begin), kept, line_of(op)))
    arena = number(main.get("arena_bytes", 0))
    own = [b for b in buffers if b.pool != ARENA]
    peak = max((sum(b.bytes for b in own if b.begin <= k <= b.end) for k in range(len(names))), default=0)
    return MemoryPlan(tuple(buffers), tuple(names), arena, arena + peak)


def _steps(ops: list[Op]) -> tuple[list[int], list[str]]:
    """For each operation the step that it belongs to (what stands between two belongs to the one before), and the steps' names."""
    places, names = [], []
    for op in ops:
        if is_step(op):
            names.append(str(op.get("kernel") or op.get("target") or op.name).removesuffix(".default"))
        places.append(len(names) - 1)
    return places, names


def _names(block: Block) -> dict[SSAValue, str]:
    """The values' names in the text of a function."""
    printer = Printer(stream=StringIO())
    return {value: f"%{printer.print_ssa_value(value)}" for value in _values(block)}


def _values(block: Block) -> list[SSAValue]:
    return [*block.args, *(result for op in block.ops for result in op.results)]
