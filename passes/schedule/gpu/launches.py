"""split-launches: on a GPU every nest of a kernel is a kernel of its own, because blocks of one launch do not all wait for each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp

from ....ir.dialects import loop
from ...core.base import Pass
from ...core.context import CompileContext
from .grid_kernels import divide, grid_kernels


@dataclass(frozen=True)
class SplitLaunches(Pass):
    """Make a kernel of each loop nest on a GPU, with memory between two launches."""

    name: ClassVar[str] = "split-launches"
    level: ClassVar[str] = "loop"
    after: ClassVar[tuple[str, ...]] = ("lower", "chunk-reductions")
    requires: ClassVar[tuple[str, ...]] = ("lower",)

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        """Kernels of one nest stay as they are."""
        for kernel, calls in grid_kernels(module, ctx.machine):
            kinds = [type(op) for op in kernel.block_body.ops]
            if kinds.count(loop.For) != 1 or {loop.Store, loop.Atomic, loop.Local} & set(kinds):
                divide(kernel, calls, lambda found: found.nests)
