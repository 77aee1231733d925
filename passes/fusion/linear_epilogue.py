"""linear-epilogue: a linear layer that a kernel of our own will carry out takes over what follows it.

Activations, and the addition of a tensor of the same kind (a residual), become steps of the call's `epilogue`. The kernel computes them on the sums in
registers, as a loop would: all keep eager's nan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp

from ...ir.dialects import prim
from ...ir.dialects.aten import AtenOp
from ..core.base import Pass
from ..core.context import CompileContext
from ..kernels.linear import is_own_linear
from .convolution_epilogue import chain_of
from .library_epilogue import replace_call


@dataclass(frozen=True)
class LinearEpilogue(Pass):
    """Let linear layers that are kernels of our own carry out the activations and additions that follow."""

    name: ClassVar[str] = "linear-epilogue"
    level: ClassVar[str] = "aten"
    before: ClassVar[tuple[str, ...]] = ("library-epilogue", "decompose")

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        for func in [op for op in module.body.block.ops if isinstance(op, prim.Func)]:
            for op in list(func.block_body.ops):
                if not isinstance(op, AtenOp) or op.parent is None or not is_own_linear(op, func, ctx.machine):
                    continue
                chain = chain_of(op, func)
                if chain.absorbed:
                    replace_call(op, chain)
                    ctx.diagnostics.count(self.name, "operations taken over", len(chain.absorbed))
