"""loop → loop: which loops run in vector lanes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.ir import Block

from ....ir.dialects import loop
from ...core.context import CompileContext
from ..kernels import CpuLoopPass, loops_in


@dataclass(frozen=True)
class Vectorize(CpuLoopPass):
    """Run the innermost loops of a CPU's kernels in vector lanes, where their iterations are independent or only reduce."""

    name: ClassVar[str] = "vectorize"
    after: ClassVar[tuple[str, ...]] = ("unroll-jam",)
    requires: ClassVar[tuple[str, ...]] = ("schedule", "tile", "unroll-jam")

    def change(self, ctx: CompileContext, kernel: loop.Kernel) -> None:
        """Mark the loops of a kernel."""
        for op in loops_in(kernel.block_body):
            _mark(op)


def _mark(op: loop.For) -> None:
    inner = loops_in(op.block_body)
    if op.get("transpose"):
        return  # a copy of a tile across: its blocks are turned in registers
    copies = [each for each in inner if each.get("unroll")]
    if inner and len(copies) < len(inner):
        for each in inner:
            _mark(each)
    elif op["kind"] in ("serial", "reduce") and not _gathers(op.block_body):
        op["vector"] = True


def _gathers(block: Block) -> bool:
    """Whether the loop stands around the parts of a row: its own accumulators and what they come to."""
    return any(isinstance(op, loop.Local) for op in block.ops)
