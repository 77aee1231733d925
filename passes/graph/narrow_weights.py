"""narrow-weights: a parameter of integers, or of a half type, that a product in float32 widens stays narrow in memory.

linear(x, f(w, scale), bias) -> kernel.contract(x, w, bias, scale) with f in front of its sums: it computes a panel of the weight at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, cast

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from ...ir.dialects import kernel, prim
from ...ir.types import TensorType
from ..core.base import Pass
from ..core.clauses import Clauses, broken
from ..core.context import CompileContext
from ..core.rewriter import producer
from ..fusion.call_region import Memory, in_front, join_in_front, takes_memory
from ..fusion.join import layout_of
from ..kernels.contractions import Contraction, as_kernel, contraction_of, put
from ..kernels.microkernel import KEPT_BYTES, in_registers, takes_registers
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

    least: ClassVar[Mapping[str, float]] = MappingProxyType({"kept": 0})
    kept: int = KEPT_BYTES

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        kept: dict[SSAValue, int] = {}  # by how much they grow
        for op in list(module.walk()):
            found = contraction_of(op) if isinstance(op, kernel.Extern) and not op.get("own") else None
            if found is None or found.batched or layout_of(found.op.results[0]) is not None:
                continue
            memory = in_front(found.op, found.b, shared=True) if _is_by_rows(found) else None
            wide = prim.tensor(found.b)
            if not memory or broken(takes_weight(wide, memory)):
                continue
            made = as_kernel(found, in_registers(ctx.machine.cpu), "its weight is widened")
            if broken(takes_registers(made, ctx.machine)) or self._is_kept(_base(memory), wide, kept):
                made.erase()
                continue
            join_in_front(put(found, made), found.b, memory)
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


def _is_by_rows(found: Contraction) -> bool:
    """Whether the weight is (columns, inner), or what is turned in front of the product."""
    view = producer(found.b, prim.Permute)
    return found.transposed or (view is not None and tuple(view["perm"]) == (1, 0))


def _base(memory: Memory) -> SSAValue:
    """The parameter that is widened."""
    return max(memory, key=lambda v: cast(int, prim.tensor(v).numel))


def takes_weight(wide: TensorType, memory: Memory) -> Clauses:
    """From what a kernel of ours computes a weight: it reads fewer bytes than the weight has, once a call."""
    yield not broken(takes_memory(memory)), "memory of known sizes, without gaps"
    large = [v for v in memory if prim.tensor(v).numel == wide.numel]
    yield len(large) == 1 and is_row_by_row(large[0]), "one parameter with an element for each of the weight"
    sizes = sum(cast(int, prim.tensor(v).numel) * prim.tensor(v).dtype.bytes for v in memory)
    yield sizes < cast(int, wide.numel) * wide.dtype.bytes, "fewer bytes than the weight"
