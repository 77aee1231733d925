"""contraction-epilogue: products and convolutions that are kernels of our own take over operations on single elements around them.

    %1 = kernel.contract(%x, %w) ({ ... prim.contract ... kernel.yield })
    %2 = prim.tanh(%1)    %3 = prim.add(%2, %y)
      -> %3 = kernel.contract(%x, %w, %y) ({ ... prim.contract ... prim.tanh ... prim.add ... kernel.yield })

The kernel computes these on sums that are in registers or in the first cache. x of a product may be computed, too, an element once:

    %1 = prim.mul(%x, %g)    %2 = kernel.contract(%1, %w) ({ ... prim.contract ... })
      -> %2 = kernel.contract(%x, %g, %w) ({ ... prim.mul ... prim.contract ... })
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import ClassVar, cast

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from ...ir.dialects import kernel, prim
from ...ir.symbols import Dim
from ...ir.syntax import Op
from ..analysis.strides import Strides, channels_last, memory_strides, recorded_strides, same_layout
from ..core.base import Pass
from ..core.context import CompileContext
from ..kernels.microkernel import MOST_TENSORS, Matrices
from .call_region import LEFT, MOST_OPERATIONS, grouped, in_front, is_cheap_input, join_in_front, rebuilt
from .graph import is_free
from .join import join


@dataclass(frozen=True)
class ContractionEpilogue(Pass):
    """Let products and convolutions of our own carry out the operations on single elements that follow.

    Options:
        halves: also those behind a result of a half type, which is not rounded then.
    """

    name: ClassVar[str] = "contraction-epilogue"
    level: ClassVar[str] = "prim"
    after: ClassVar[tuple[str, ...]] = ("own-convolution", "own-kernels", "narrow-weights", "channels-last")
    before: ClassVar[tuple[str, ...]] = ("fuse",)

    halves: bool = True

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        for func in [op for op in module.body.block.ops if isinstance(op, prim.Func)]:
            position = {op: k for k, op in enumerate(func.block_body.ops)}
            for op in list(func.block_body.ops):
                if not isinstance(op, kernel.Contract | kernel.Extern) or not _has_tail(op):
                    continue
                dtype = prim.tensor(op.results[0]).dtype
                if dtype != dtype.compute and not self.halves:
                    continue
                found = _Following(op, position)
                if found.grow():
                    found.replace()
                    ctx.diagnostics.count(self.name, "operations taken over", len(found.ops))
            for op in list(func.block_body.ops):  # what follows one call is not in front of the next
                if isinstance(op, kernel.Contract) and compute_factor(op, op.product.operands[0]):
                    ctx.diagnostics.count(self.name, "factors computed")


def _has_tail(op: kernel.Contract | kernel.Extern) -> bool:
    return isinstance(op, kernel.Contract) or (op.get("own") == "convolution" and not op.regions)


def compute_factor(op: kernel.Contract, factor: SSAValue) -> bool:
    """Let the kernel compute a factor, where that leaves nothing to do in front of it; whether it does."""
    if not isinstance(factor, BlockArgument) or len(list(factor.uses)) > 1:
        return False
    x = op.operands[factor.index]
    memory = in_front(op, x)
    if not memory or not is_cheap_input(prim.tensor(x), memory):
        return False
    join_in_front(op, x, memory)
    return True


@dataclass
class _Following:
    """The operations that a call goes on with: all on single elements, with one result."""

    call: kernel.Contract | kernel.Extern
    position: dict[Operation, int]
    ops: list[Op] = field(default_factory=list)
    extras: dict[SSAValue, None] = field(default_factory=dict)  # what they read beside: memory

    def grow(self) -> bool:
        """Find them, in program order: the most that have one result, of the call's type and layout."""
        values: list[SSAValue] = [self.call.results[0]]
        taken, read = list[Op](), dict[SSAValue, None]()
        todo: list[tuple[int, Op]] = []
        while len(taken) < MOST_OPERATIONS and self._push_readers(values[-1], todo) and todo:
            op = heapq.heappop(todo)[1]
            todo = [entry for entry in todo if entry[1] is not op]
            more = self._reads(op, values)
            if more is None or self._given + len(read | more) > MOST_TENSORS:
                break
            read |= more
            taken.append(op)
            if self._fits(op) and all(use.operation in taken for v in values for use in v.uses):
                self.ops, self.extras = list(taken), dict(read)
            values.append(op.results[0])
        return bool(self.ops)

    @property
    def _given(self) -> int:
        """Tensors that the tail reads already."""
        if isinstance(self.call, kernel.Contract):
            found = Matrices.of(self.call)
            return MOST_TENSORS if found is None else len(found.tail)
        return int("bias" in self.call["operands"])

    def _push_readers(self, value: SSAValue, todo: list[tuple[int, Op]]) -> bool:
        """Add the readers to the candidates, in program order; whether all of them are some."""
        readers = {use.operation for use in value.uses}
        if not all(isinstance(r, prim.Elementwise | prim.Cast) and r.name not in LEFT for r in readers):
            return False
        known = {op for _, op in todo}
        todo += [(self.position[r], cast(Op, r)) for r in readers if r not in known]
        heapq.heapify(todo)
        return True

    def _reads(self, op: Op, values: list[SSAValue]) -> dict[SSAValue, None] | None:
        """The memory that an operation reads beside the values; None where it reads it in another order."""
        found: dict[SSAValue, None] = {}
        for value in op.operands:
            if value in values:
                continue
            source, dims = _memory(value)
            if isinstance(source.owner, prim.Full):
                continue
            t = prim.tensor(source)
            if dims is None and t.shape != self._shape or dims not in (None, (), (self._axis,)):
                return None
            if t.shape not in (self._shape, (), self._shape[self._axis : self._axis + 1]):
                return None
            found[source] = None
        return found

    @property
    def _shape(self) -> tuple[Dim, ...]:
        return prim.tensor(self.call.results[0]).shape

    @property
    def _axis(self) -> int:
        """The dimension of channels, or of a product's columns."""
        return 1 if isinstance(self.call, kernel.Extern) else len(self._shape) - 1

    def _fits(self, op: Op) -> bool:
        """Whether a result is what the call gives: elements of the same type, in the same order in memory."""
        given, value = self.call.results[0], op.results[0]
        strides = recorded_strides(value)
        same = strides is None or same_layout(self._shape, strides, memory_strides(given))
        return value.type == given.type and same

    def replace(self) -> None:
        """One call in the place of the last of them."""
        last, parent = self.ops[-1], cast(Block, self.call.parent)
        if isinstance(self.call, kernel.Contract):
            made: Op = grouped(self.ops, (self.call.results[0], *self.extras))
        else:
            made = rebuilt(self.call, self.ops, {v: self._wanted(v) for v in self.extras})
        parent.insert_op_before(made, last)
        last.results[0].replace_all_uses_with(made.results[0])
        for op in reversed(self.ops):
            parent.erase_op(op)
        if isinstance(self.call, kernel.Contract):
            join(self.call, cast(kernel.Fused, made))
        else:
            parent.erase_op(self.call)

    def _wanted(self, extra: SSAValue) -> Strides | None:
        """The strides in which the tail of a convolution reads it; None: contiguous."""
        return channels_last(self._shape) if prim.tensor(extra).shape == self._shape else None


def _memory(value: SSAValue) -> tuple[SSAValue, tuple[int, ...] | None]:
    """What a value is made of by operations that cost nothing: elements of another type, and numbers spread along these dimensions."""
    dims: tuple[int, ...] | None = None
    while True:
        owner = value.owner
        if isinstance(owner, prim.Broadcast) and dims is None:
            dims = tuple(owner["dims"])
        elif not isinstance(owner, prim.Cast) or not is_free(owner):
            return value, dims
        value = owner.operands[0]
