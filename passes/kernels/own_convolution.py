"""own-convolution: convolutions by a parameter go to a kernel of our own, with the weight packed and batch norm folded into it.

    (convolution(x, w, b) - mean) * factor + shift -> convolution(x, pack(w * factor), (b - mean) * factor + shift) {own, packed}

Packing and folding are ordinary operations on parameters: `hoist` computes them once for each state of the parameters. The attribute
`packed` is the shape that the weight had; what the packed weight is, ir/packing.py says.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cmp_to_key
from typing import Any, ClassVar, cast

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import BlockArgument, Operation, SSAValue

from ...ir.dialects import kernel, prim
from ...ir.packing import BLOCK, WINOGRAD
from ...ir.syntax import Op
from ..analysis.machine import Processor
from ..analysis.strides import Strides, channels_last, is_view, recorded_strides
from ..core.base import Pass
from ..core.context import CompileContext
from ..core.rewriter import is_kept, producer
from .convolution import FEW_CHANNELS, convolution_tile, is_depthwise, is_ours, is_winograd

CONVOLUTION = "aten.convolution.default"
MOST_FOLDED = 32  # operations on parameters that say what a channel is multiplied by


@dataclass(frozen=True)
class OwnConvolution(Pass):
    """Give convolutions by a parameter to a kernel of our own, on channels-last memory.

    Options:
        winograd: compute windows of 3x3 with steps of 1 in a quarter of the products. 2.4 to 3.6 times the rounding error of the plain sum, and an
            infinite or NaN input reaches all of the 4x4 outputs whose tile reads it.
    """

    name: ClassVar[str] = "own-convolution"
    level: ClassVar[str] = "prim"
    after: ClassVar[tuple[str, ...]] = ("decompose", "dce")
    before: ClassVar[tuple[str, ...]] = ("hoist", "channels-last", "fuse")

    winograd: bool = True

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        for func in [op for op in module.body.block.ops if isinstance(op, prim.Func)]:
            for op in list(func.block_body.ops):
                if not isinstance(op, kernel.Extern) or op["target"] != CONVOLUTION or op.get("own"):
                    continue
                if is_ours(op, func, ctx.machine):
                    winograd = self.winograd and is_winograd(op)
                    _Packing(op, winograd, ctx.machine.cpu).run()
                    ctx.diagnostics.count(self.name, "convolutions")


@dataclass
class _Packing:
    op: kernel.Extern
    winograd: bool
    cpu: Processor
    made: list[Operation] = field(default_factory=list)

    def add(self, op: prim.PrimOp | kernel.Extern) -> SSAValue:
        self.made.append(op)
        return op.results[0]

    def run(self) -> None:
        """Replace the call."""
        op, block = self.op, self.op.parent
        assert block is not None
        named = dict(zip(op["operands"], op.operands, strict=True))
        weight, bias, last = self._fold(named["weight"], named.get("bias"))
        shape = prim.tensor(weight).shape
        pack = self._transform if self.winograd else self._pack_depthwise if is_depthwise(op) else self._pack
        packed = pack(weight)
        operands = [named["input"], packed, *([] if bias is None else [bias])]
        result = prim.tensor(op.results[0])
        literals: dict[str, Any] = dict(op.literals) | {"operands": ("input", "weight", "bias")[: len(operands)]}
        literals |= {"own": "convolution", "packed": tuple(shape)}
        literals["tile"] = convolution_tile(op, self.winograd, self.cpu)
        literals["strides"] = (channels_last(result.shape),)
        literals["operand_strides"] = (_input_strides(named["input"]), *(None for _ in operands[1:]))
        call = kernel.Extern.make(operands, [result], literals, loc=op.location)
        call.results[0].name_hint = op.results[0].name_hint
        block.insert_ops_before([*self.made, call], op)
        last.replace_all_uses_with(call.results[0])
        while last.owner is not op:  # from the last sum or product back to the call
            owner = cast(Op, last.owner)
            last = next(v for v in owner.operands if not isinstance(v.owner, prim.Broadcast))
            block.erase_op(owner)
        block.erase_op(op)

    def _fold(self, weight: SSAValue, bias: SSAValue | None) -> tuple[SSAValue, SSAValue | None, SSAValue]:
        """Weight and bias of the convolution that gives what sums and products with a number a channel make of this one; the last of them."""
        value = self.op.results[0]
        while (found := self._number_a_channel(value)) is not None:
            user, number = found
            if user.name == "prim.mul":
                spread = self.add(prim.broadcast(number, prim.tensor(weight).shape, (0,)))
                weight = self.add(prim.elementwise("mul", weight, spread))
                bias = None if bias is None else self.add(prim.elementwise("mul", bias, number))
            elif bias is not None:
                bias = self.add(prim.elementwise(user.row.name, bias, number))
            else:
                bias = number if user.name == "prim.add" else self.add(prim.elementwise("neg", number))
            value = user.results[0]
        return weight, bias, value

    def _number_a_channel(self, value: SSAValue) -> tuple[prim.Elementwise, SSAValue] | None:
        """The only reader of a value, where it adds, takes away or multiplies by what parameters say for each channel."""
        uses = list(value.uses)
        user = uses[0].operation if len(uses) == 1 else None
        if not isinstance(user, prim.Elementwise) or user.name not in ("prim.add", "prim.sub", "prim.mul"):
            return None
        place = uses[0].index
        spread = producer(user.operands[1 - place], prim.Broadcast)
        if spread is None or tuple(spread["dims"]) != (1,) or (user.name == "prim.sub" and place == 1):
            return None
        number = spread.operands[0]
        fits = prim.tensor(number).shape == prim.tensor(value).shape[1:2] and user.type == value.type
        return (user, number) if fits and self._of_parameters(number) else None

    def _of_parameters(self, value: SSAValue) -> bool:
        """Whether parameters alone say what the value is: it moves in front of the call with what computes it."""
        func = self.op.parent_op()
        assert isinstance(func, prim.Func)
        todo, needed = [value], set[Operation]()
        while todo:
            owner = todo.pop()
            if isinstance(owner, BlockArgument):
                if not is_kept(owner, func):
                    return False
            elif not isinstance(owner.owner, prim.PrimOp) or len(needed) > MOST_FOLDED:
                return False
            elif owner.owner not in needed:
                needed.add(owner.owner)
                todo += owner.owner.operands
        late = [op for op in needed if self.op.is_before_in_block(op)]
        for op in _in_order(late):
            op.detach()
            self.op.parent.insert_op_before(op, self.op)  # type: ignore[union-attr]
        return True

    def _pack(self, weight: SSAValue) -> SSAValue:
        """(outputs, inputs, rows, columns) -> (blocks, rows, columns, inputs, BLOCK)."""
        outputs, inputs, rows, columns = cast(tuple[int, ...], prim.tensor(weight).shape)
        blocks = -(-outputs // BLOCK)
        if blocks * BLOCK != outputs:
            weight = self._pad(weight, blocks * BLOCK - outputs)
        split = self.add(prim.reshape(weight, (blocks, BLOCK, inputs, rows, columns)))
        return self._pad(self.add(prim.permute(split, (0, 3, 4, 2, 1))), 0)

    def _transform(self, weight: SSAValue) -> SSAValue:
        """(outputs, inputs, 3, 3) -> (blocks, 36, inputs, BLOCK)."""
        t = prim.tensor(weight)
        outputs, inputs = cast(tuple[int, ...], t.shape[:2])
        shape = (-(-outputs // BLOCK), 36, inputs, BLOCK)
        return self.add(
            kernel.Extern.make([weight], [t.with_(shape=shape)], {"target": WINOGRAD, "operands": ("weight",)})
        )

    def _pack_depthwise(self, weight: SSAValue) -> SSAValue:
        """(channels, 1, rows, columns) -> (rows, columns, channels)."""
        channels, _, rows, columns = prim.tensor(weight).shape
        flat = self.add(prim.reshape(weight, (channels, rows, columns)))
        return self._pad(self.add(prim.permute(flat, (1, 2, 0))), 0)

    def _pad(self, value: SSAValue, count: int) -> SSAValue:
        """Zeros behind the first dimension. None of them at the end of packing: what `hoist` keeps is this, and not what a view is of."""
        t = prim.tensor(value)
        shape = (cast(int, t.shape[0]) + count, *t.shape[1:])
        zeros = (0,) * t.rank
        attrs = {"low": zeros, "high": (count, *zeros[1:]), "value": 0.0}
        return self.add(prim.Pad.make([value], [t.with_(shape=shape)], attrs))


def _in_order(ops: list[Operation]) -> list[Operation]:
    """Operations of one block, first one first."""

    def compare(a: Operation, b: Operation) -> int:
        return -1 if a.is_before_in_block(b) else 1

    return sorted(ops, key=cmp_to_key(compare))


def _input_strides(x: SSAValue) -> Strides | None:
    """Channels-last; of few channels any layout is as good, so that what memory holds is read as it is."""
    shape = prim.tensor(x).shape
    channels = shape[1]
    if isinstance(channels, int) and channels < FEW_CHANNELS and not is_view(x.owner):
        return recorded_strides(x)
    return channels_last(shape)
