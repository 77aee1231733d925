"""loop → loop: which results are written past the caches: those larger than any, of which nothing is left there when they are read."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import sympy
from xdsl.ir import Block, SSAValue

from ....ir.dialects import loop
from ....ir.symbols import dim
from ....ir.types import RefType
from ...analysis.cost import SHORTEST_STREAM, STREAMED
from ...core.context import CompileContext
from ..kernels import CpuLoopPass, variable
from ..nests import coefficient


@dataclass(frozen=True)
class Stream(CpuLoopPass):
    """Mark the stores of vector loops that write a large result once, in its order, with nothing of it read."""

    name: ClassVar[str] = "stream"
    after: ClassVar[tuple[str, ...]] = ("prefetch",)
    requires: ClassVar[tuple[str, ...]] = ("prefetch",)

    def change(self, ctx: CompileContext, kernel: loop.Kernel) -> None:
        """Mark the stores of a kernel."""
        block = kernel.block_body
        _mark(block, block.args[kernel["inputs"] :])


def _mark(block: Block, results: Sequence[SSAValue]) -> None:
    large = {r for r in results if isinstance(r.type, RefType) and is_streamed(r.type)}
    if not large:
        return
    uses = Counter(v for op in block.walk() for v in op.operands if v in large and not isinstance(op, loop.Store))
    for op in block.walk():
        if (
            not isinstance(op, loop.For)
            or not op.get("vector")
            or any(isinstance(o, loop.For) for o in op.block_body.ops)
        ):
            continue
        stores = [o for o in op.block_body.ops if isinstance(o, loop.Store) and o.operands[1] in large]
        written = Counter(s.operands[1] for s in stores)
        for store in stores:
            along = coefficient(store["index"], variable(op))
            memory = store.operands[1]
            once = written[memory] == 1 and not uses[memory] and not store.get("mask")
            if along == 1 and once and _is_long(op, store.ref.dtype.bytes):
                store["stream"] = True


def is_streamed(ref: RefType) -> bool:
    """Whether memory is so large that its elements are better written past the caches."""
    known = ref.dtype.kind != "bool" and all(isinstance(n, int) for n in ref.shape)
    return known and math.prod(int(n) for n in ref.shape) * ref.dtype.bytes >= STREAMED


def _is_long(op: loop.For, bytes_each: int) -> bool:
    """Whether every element is written, and enough of them one after another; tiles with a rest are long."""
    trips = dim(op["stop"] - sympy.sympify(op.get("start", 0)))
    return op.get("step", 1) == 1 and (not isinstance(trips, int) or trips * bytes_each >= SHORTEST_STREAM)
