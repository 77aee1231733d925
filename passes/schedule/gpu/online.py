"""online: rows of which no program of a GPU holds all are reduced in one reading: mean and variance, maximum and sum of exponentials."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp

from ....ir.dialects import loop
from ...core.base import Pass
from ...core.context import CompileContext
from ..kernels import replace_nests
from ..nests import Nest, Nests
from ..online import online
from ..read import read
from .blocks import Blocker
from .grid_kernels import grid_kernels, named_sizes


@dataclass(frozen=True)
class Online(Pass):
    """Join each element of a long row to what is known so far, where a GPU's program would else read the row again for its mean or maximum."""

    name: ClassVar[str] = "online"
    level: ClassVar[str] = "loop"
    after: ClassVar[tuple[str, ...]] = ("cooperate", "tile-products")
    before: ClassVar[tuple[str, ...]] = ("block",)
    requires: ClassVar[tuple[str, ...]] = ("split-launches",)

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        """Kernels of which all rows are held by a program, or are reduced once, stay as they are."""
        for kernel, _ in grid_kernels(module, ctx.machine):
            kinds = [op["kind"] for op in kernel.walk() if isinstance(op, loop.Accumulate)]
            if kinds[:1] not in (["sum"], ["max"]) or "sum" not in kinds[1:]:
                continue
            with named_sizes(kernel):
                found = read(kernel)
                blocker = Blocker(ctx.machine.gpu, found.expressions, found.scratch)
                nests = [_online(blocker, found, nest) for nest in found.nests]
                if any(len(new.stages) < len(old.stages) for new, old in zip(nests, found.nests, strict=True)):
                    replace_nests(kernel, found, nests)


def _online(blocker: Blocker, found: Nests, nest: Nest) -> Nest:
    return nest if blocker.shape(nest).whole else Nest(nest.rows, online(found.expressions, nest.stages))
