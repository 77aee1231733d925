"""loop → loop: how the plain nests of each kernel are walked: order, tiles, chunks; on a GPU, the blocks of its programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Region

from ...ir.dialects import loop, prim
from ...ir.types import RefType, is_gpu
from ..core.base import Pass
from ..core.context import CompileContext
from .emit_loops import LoopEmitter, drop_unused, kernel_block, kernel_symbols
from .read import read
from .schedule_blocks import divide
from .tiling import Tiler


@dataclass(frozen=True)
class Schedule(Pass):
    """Choose the loops of every kernel: order, tiles; on a GPU blocks."""

    name: ClassVar[str] = "schedule"
    level: ClassVar[str] = "loop"
    after: ClassVar[tuple[str, ...]] = ("lower",)
    requires: ClassVar[tuple[str, ...]] = ("lower",)

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        """Replace the loops of kernels; on a GPU a kernel becomes one for each of its nests."""
        kernels = [op for op in module.ops if isinstance(op, loop.Kernel) and op.get("plain")]
        launches: dict[str, list[loop.Launch]] = {}
        for func in [op for op in module.ops if isinstance(op, prim.Func)]:
            for op in func.block_body.ops:
                if isinstance(op, loop.Launch):
                    launches.setdefault(op["kernel"], []).append(op)
        count = launched = 0
        for kernel in kernels:
            calls = launches.get(kernel["sym_name"], [])
            if any(isinstance(a.type, RefType) and is_gpu(a.type.device) for a in kernel.block_body.args):
                parts = divide(ctx.machine.gpu, kernel, calls)
            else:
                parts = [self._tiled(ctx, kernel)]
            count, launched = count + len(parts), launched + len(parts) * len(calls)
        ctx.diagnostics.count(self.name, "kernels", count)
        ctx.diagnostics.count(self.name, "launches", launched)

    def _tiled(self, ctx: CompileContext, kernel: loop.Kernel) -> loop.Kernel:
        """The kernel with its loops chosen for a CPU, in its place."""
        found = read(kernel)
        specs = Tiler(ctx.machine.cpu, found.expressions, found.scratch).nests(found.nests)
        block, places = kernel_block(found.arguments, found.scratch)
        emitter = LoopEmitter(block, places, found.expressions.ranges)
        for spec in specs:
            emitter.nest(spec)
        drop_unused(block)
        made = loop.Kernel.make([], [], kernel.literals, [Region(block)], kernel.location)
        del made.attributes["plain"]
        made["symbols"] = kernel_symbols(made, memory=False)
        owner = kernel.parent
        assert owner is not None
        owner.insert_op_before(made, kernel)
        kernel.detach()
        kernel.erase()
        return made
