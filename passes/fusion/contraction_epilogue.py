"""contraction-epilogue: products and convolutions that are kernels of our own go on with what is computed from their elements.

    %1 = kernel.extern<aten.linear.default>(%x, %w) {own = "linear"}
    %2 = prim.tanh(%1)    %3 = prim.add(%2, %y)
      -> %3 = kernel.extern<aten.linear.default>(%x, %w, %y) {own = "linear"} ({^bb0(%s, %t): prim.tanh(%s) ... kernel.yield})

The kernel computes the region on sums that are in registers or in the first cache.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import ClassVar, cast

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue

from ...ir.dialects import kernel, prim
from ...ir.epilogue import PREFIX
from ...ir.symbols import Dim
from ...ir.syntax import Op, single_block
from ..analysis.strides import Strides, channels_last, memory_strides, recorded_strides, same_layout
from ..core.base import Pass
from ..core.context import CompileContext
from ..kernels.linear import MOST_TENSORS
from .graph import is_free

CONTRACTIONS = ("linear", "narrow", "convolution")  # what `own` says of calls that have a tail
MOST_OPERATIONS = 64
LEFT = frozenset(f"prim.{name}" for name in ("sin", "cos", "tan"))  # their loops look for the largest angle first


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
                if not isinstance(op, kernel.Extern) or op.get("own") not in CONTRACTIONS or op.regions:
                    continue
                dtype = prim.tensor(op.results[0]).dtype
                if dtype != dtype.compute and not self.halves:
                    continue
                found = _Following(op, position)
                if found.grow():
                    found.replace()
                    ctx.diagnostics.count(self.name, "operations taken over", len(found.ops))


@dataclass
class _Following:
    """The operations that a call goes on with: all on single elements, with one result."""

    call: kernel.Extern
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
        return sum(name in ("bias", "self") for name in self.call["operands"])

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
        return 1 if self.call["own"] == "convolution" else len(self._shape) - 1

    def _fits(self, op: Op) -> bool:
        """Whether a result is what the call gives: elements of the same type, in the same order in memory."""
        given, value = self.call.results[0], op.results[0]
        strides = recorded_strides(value)
        same = strides is None or same_layout(self._shape, strides, memory_strides(given))
        return value.type == given.type and same

    def replace(self) -> None:
        """One call in the place of the last of them."""
        call, last = self.call, self.ops[-1]
        kinds = [call.results[0].type, *(v.type for v in self.extras)]
        region = single_block(arg_types=kinds)
        block = region.block
        inner: dict[SSAValue, SSAValue] = dict(zip([call.results[0], *self.extras], block.args, strict=True))
        for op in self.ops:
            for value in op.operands:
                _bring(value, inner, block)
            copy = op.clone(inner)
            copy.attributes.pop("strides", None)
            block.add_op(copy)
            inner[op.results[0]] = copy.results[0]
        block.add_op(kernel.Yield.make([inner[last.results[0]]]))
        literals = call.literals
        given = call.get("operand_strides") or (None,) * len(call.operands)
        literals["operands"] = (*call["operands"], *(f"{PREFIX}{k}" for k in range(len(self.extras))))
        literals["operand_strides"] = (*given, *map(self._wanted, self.extras))
        if not any(literals["operand_strides"]):
            del literals["operand_strides"]
        made = kernel.Extern.make(
            [*call.operands, *self.extras], [last.results[0].type], literals, [region], call.location
        )
        made.results[0].name_hint = last.results[0].name_hint
        parent = cast(Block, call.parent)
        parent.insert_op_before(made, last)
        last.results[0].replace_all_uses_with(made.results[0])
        for op in reversed([call, *self.ops]):
            parent.erase_op(op)

    def _wanted(self, extra: SSAValue) -> Strides | None:
        """The strides in which the tail reads it; None: contiguous."""
        is_image = self.call["own"] == "convolution" and prim.tensor(extra).shape == self._shape
        return channels_last(self._shape) if is_image else None


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


def _bring(value: SSAValue, inner: dict[SSAValue, SSAValue], block: Block) -> None:
    """Copy what makes a value, from memory on, into the region."""
    if value in inner:
        return
    owner = cast(Op, value.owner)
    for operand in owner.operands:
        _bring(operand, inner, block)
    copy = owner.clone(inner)
    copy.attributes.pop("strides", None)
    block.add_op(copy)
    inner[value] = copy.results[0]
