"""What passes over the loops of kernels share: one kernel at a time, those of a CPU only where a pass asks for no others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block

from ...ir.dialects import loop
from ...ir.types import RefType, is_gpu
from ..core.base import Pass
from ..core.context import CompileContext


@dataclass(frozen=True)
class CpuLoopPass(Pass):
    """Base of passes that change the loops of a CPU's kernels, one kernel after another: they define `change`."""

    level: ClassVar[str] = "loop"
    after: ClassVar[tuple[str, ...]] = ("schedule",)
    requires: ClassVar[tuple[str, ...]] = ("schedule",)

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        """Change every kernel of a CPU in place."""
        for kernel in [op for op in module.ops if isinstance(op, loop.Kernel) and not runs_on_gpu(op)]:
            self.change(ctx, kernel)

    def change(self, ctx: CompileContext, kernel: loop.Kernel) -> None:
        """Change one kernel in place."""
        raise NotImplementedError


def runs_on_gpu(kernel: loop.Kernel) -> bool:
    """Whether the kernel's memory lies on a GPU."""
    return any(isinstance(a.type, RefType) and is_gpu(a.type.device) for a in kernel.block_body.args)


def loops_in(block: Block) -> list[loop.For]:
    """The loops that stand directly in a block."""
    return [op for op in block.ops if isinstance(op, loop.For)]


def innermost_loops(block: Block) -> Iterator[loop.For]:
    """The loops without a loop in them, in order."""
    for op in loops_in(block):
        if loops_in(op.block_body):
            yield from innermost_loops(op.block_body)
        else:
            yield op
