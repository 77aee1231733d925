"""narrow-weights: a parameter of integers, or of a half type, that a product in float32 widens stays narrow in memory.

linear(x, f(w, scale), bias) -> linear(x, w, bias, scale) with f as its region, by a kernel that computes a panel of the weight at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, SSAValue

from ...ir.dialects import kernel, prim
from ...ir.types import TensorType
from ..core.base import Pass
from ..core.clauses import Clauses, broken
from ..core.context import CompileContext
from ..core.rewriter import erase_unread, producer
from ..fusion.call_region import Memory, in_front, rebuilt, takes_memory
from ..kernels.linear import KEPT_BYTES, LINEAR, OPERANDS, linear_tile, takes_linear
from ..kernels.own_kernels import is_row_by_row


@dataclass(frozen=True)
class NarrowWeights(Pass):
    """Leave weights that are widened for a product narrow in memory: the kernel of the product widens them.

    Options:
        kept: the first weights stay for `hoist`, which keeps them widened: as many as grow by no more bytes than these in all.
    """

    name: ClassVar[str] = "narrow-weights"
    level: ClassVar[str] = "prim"
    after: ClassVar[tuple[str, ...]] = ("decompose", "dce")
    before: ClassVar[tuple[str, ...]] = ("hoist", "own-kernels", "fuse")

    kept: int = KEPT_BYTES

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        kept: dict[SSAValue, int] = {}  # by how much they grow
        for op in list(module.walk()):
            if not isinstance(op, kernel.Extern) or op["target"] not in OPERANDS or op.get("own") or op.regions:
                continue
            call = _by_rows(op)
            if call is None:
                continue
            made, wide = _narrow(call, ctx), prim.tensor(call.operands[1])
            call.erase()
            if made is None:
                continue
            if self._is_kept(made.operands[1], wide, kept):
                made.erase()
                continue
            parent, given = cast(Block, op.parent), list(op.operands)
            parent.insert_op_before(made, op)
            op.results[0].replace_all_uses_with(made.results[0])
            parent.erase_op(op)
            for value in given:
                erase_unread(value)
            ctx.diagnostics.count(self.name, "products")

    def _is_kept(self, weight: SSAValue, wide: TensorType, kept: dict[SSAValue, int]) -> bool:
        """Whether `hoist` has room for it; what it keeps is read faster than it is widened."""
        t = prim.tensor(weight)
        if weight in kept or not isinstance(t.numel, int):
            return True
        growth = t.numel * (wide.dtype.bytes - t.dtype.bytes)
        if t.numel * wide.dtype.bytes > KEPT_BYTES or sum(kept.values()) + growth > self.kept:
            return False
        kept[weight] = growth
        return True


def _by_rows(op: kernel.Extern) -> kernel.Extern | None:
    """The call as `aten.linear`, not in a block: x, the weight row by row, the bias; None where it is not one."""
    named, (x, w, b) = dict(zip(op["operands"], op.operands, strict=True)), OPERANDS[op["target"]]
    if op.get("strides") or op.get("beta", 1) != 1 or op.get("alpha", 1) != 1:
        return None
    weight: SSAValue | None = named[w]
    if op["target"] != LINEAR:
        view = producer(named[w], prim.Permute)
        weight = view.operands[0] if view is not None and tuple(view["perm"]) == (1, 0) else None
    if weight is None:
        return None
    operands = {"input": named[x], "weight": weight, **({"bias": named[b]} if b in named else {})}
    literals = {"target": LINEAR, "operands": tuple(operands), "own": "linear"}
    made = kernel.Extern.make([*operands.values()], [op.results[0].type], literals, loc=op.location)
    made.results[0].name_hint = op.results[0].name_hint
    return made


def _narrow(call: kernel.Extern, ctx: CompileContext) -> kernel.Extern | None:
    """The call with its weight computed from a parameter of fewer bytes, and from values along one of its sides."""
    memory = in_front(call, "weight", shared=True)
    if not memory or broken(takes_weight(prim.tensor(call.operands[1]), memory)):
        return None
    base = max(memory, key=lambda v: cast(int, prim.tensor(v).numel))
    extras: dict[SSAValue, None] = {v: None for v in memory if v is not base}
    call["tile"] = linear_tile(ctx.machine.cpu)
    made = rebuilt(call, factors={"weight": base}, extras=extras)
    if broken(takes_linear(made, ctx.machine)):
        made.erase()
        return None
    return made


def takes_weight(wide: TensorType, memory: Memory) -> Clauses:
    """From what a kernel of ours computes a weight: it reads fewer bytes than the weight has, once a call."""
    yield not broken(takes_memory(memory)), "memory of known sizes, without gaps"
    large = [v for v in memory if prim.tensor(v).numel == wide.numel]
    yield len(large) == 1 and is_row_by_row(large[0]), "one parameter with an element for each of the weight"
    sizes = sum(cast(int, prim.tensor(v).numel) * prim.tensor(v).dtype.bytes for v in memory)
    yield sizes < cast(int, wide.numel) * wide.dtype.bytes, "fewer bytes than the weight"
