"""loop → loop: how the plain nests of each kernel are walked: order, tiles of columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Region

from ....ir.dialects import loop
from ...core.base import Pass
from ...core.context import CompileContext
from ...core.rewriter import erase_dead
from ..emit_loops import LoopEmitter, kernel_block, kernel_symbols
from ..kernels import is_grid
from ..read import read
from .tiling import Tiler


@dataclass(frozen=True)
class Schedule(Pass):
    """Choose the loops of the kernels of a CPU: order, tiles of columns."""

    name: ClassVar[str] = "schedule"
    level: ClassVar[str] = "loop"
    after: ClassVar[tuple[str, ...]] = ("lower",)
    requires: ClassVar[tuple[str, ...]] = ("split-reductions", "keep")

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        """Replace the loops of kernels that are plain, but for those of a grid: `block` and the passes before it choose these."""
        for kernel in [op for op in module.ops if isinstance(op, loop.Kernel) and op.get("plain")]:
            if not is_grid(kernel, ctx.machine):
                self._tiled(ctx, kernel)
        for what, kind in (("kernels", loop.Kernel), ("launches", loop.Launch)):
            ctx.diagnostics.count(self.name, what, sum(isinstance(op, kind) for op in module.walk()))

    def _tiled(self, ctx: CompileContext, kernel: loop.Kernel) -> loop.Kernel:
        """The kernel with its loops chosen for a CPU, in its place."""
        found = read(kernel)
        specs = Tiler(ctx.machine.cpu, found.expressions, found.scratch).nests(found.nests)
        block, places = kernel_block(found.arguments, found.scratch)
        emitter = LoopEmitter(block, places, found.expressions.ranges)
        for spec in specs:
            emitter.nest(spec)
        erase_dead(block)
        made = loop.Kernel.make([], [], kernel.literals, [Region(block)], kernel.location)
        del made.attributes["plain"]
        made["symbols"] = kernel_symbols(made, memory=False)
        owner = kernel.parent
        assert owner is not None
        owner.insert_op_before(made, kernel)
        kernel.detach()
        kernel.erase()
        return made
