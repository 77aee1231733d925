"""convolution-epilogue: a convolution that a kernel of our own will carry out takes over what follows it.

Batch norm in inference, activations, and the addition of a tensor of the same kind (a residual) become steps of the call's `epilogue`.
All of them keep eager's nan, because the kernel computes them as a loop would.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from xdsl.dialects.builtin import ModuleOp

from ...ir.dialects import prim
from ...ir.dialects.aten import AtenOp
from ..core.base import Pass
from ..core.context import CompileContext
from ..kernels.convolution import is_ours
from .library_epilogue import ACTIVATIONS, Chain, folds, replace_call, same_kind

OWN_ACTIVATIONS: dict[str, Callable[[AtenOp], tuple[Any, ...]]] = {
    **ACTIVATIONS,
    "aten.relu.default": lambda op: ("relu",),
    "aten.hardsigmoid.default": lambda op: ("hardsigmoid",),
    "aten.hardtanh.default": lambda op: ("hardtanh", op.get("min_val", -1), op.get("max_val", 1)),
}
MOST_STEPS = 6


@dataclass(frozen=True)
class ConvolutionEpilogue(Pass):
    """Let convolutions that are kernels of our own carry out the batch norm, activations and additions that follow."""

    name: ClassVar[str] = "convolution-epilogue"
    level: ClassVar[str] = "aten"
    before: ClassVar[tuple[str, ...]] = ("library-epilogue", "decompose")

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        for func in [op for op in module.body.block.ops if isinstance(op, prim.Func)]:
            for op in list(func.block_body.ops):
                if isinstance(op, AtenOp) and op.parent is not None and op.name == "aten.convolution.default":
                    if not is_ours(op, func, ctx.machine):
                        continue
                    chain = chain_of(op, func)
                    if chain.absorbed:
                        replace_call(op, chain)
                        ctx.diagnostics.count(self.name, "operations taken over", len(chain.absorbed))


def chain_of(op: AtenOp, func: prim.Func) -> Chain:
    """What follows the call and may be taken over, in order."""
    chain = Chain(op)
    while len(chain.steps) < MOST_STEPS and _take(chain, func):
        pass
    return chain


def _take(chain: Chain, func: prim.Func) -> bool:
    """Append what follows, if it can be taken over."""
    call, last = chain.call, chain.last
    uses = list(last.results[0].uses)
    if len(uses) != 1 or any(r.first_use is not None for r in last.results[1:]):
        return False
    user, place = uses[0].operation, uses[0].index
    if not isinstance(user, AtenOp) or user.get("effect"):
        return False
    if not chain.steps and place == 0 and folds(user, call, func):
        chain.take_batch_norm(user)
        return True
    if not same_kind(user, call):
        return False
    if user.name in OWN_ACTIVATIONS and place == 0:
        chain.steps.append(OWN_ACTIVATIONS[user.name](user))
    elif user.name == "aten.add.Tensor" and len(user.operands) == 2 and user.get("alpha", 1) == 1:
        other = user.operands[1 - place]
        if other.type != call.results[0].type or other is last.results[0]:
            return False
        chain.steps.append(("add", len(chain.extras)))
        chain.extras.append(other)
    else:
        return False
    chain.absorbed.append(user)
    return True
