"""own-convolution: convolutions by a parameter go to a kernel of our own, with the weight packed and batch norm folded into it.

    convolution(x, w, b) {epilogue = [batch_norm, ...]}
      -> convolution(x, pack(w * factor), (b - mean) * factor + shift) {own, packed, epilogue = [...]},  factor = scale / sqrt(variance + eps)

Packing and folding are ordinary operations on parameters: `hoist` computes them once for each state of the parameters. The attribute
`packed` is the shape that the weight had; what the packed weight is, ir/packing.py says.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue

from ...ir.dialects import kernel, prim
from ...ir.epilogue import PREFIX
from ...ir.packing import BLOCK, WINOGRAD
from ..analysis.machine import Processor
from ..analysis.strides import Strides, channels_last, is_view, recorded_strides
from ..core.base import Pass
from ..core.context import CompileContext
from .convolution import FEW_CHANNELS, convolution_tile, is_depthwise, is_ours, is_winograd

CONVOLUTION = "aten.convolution.default"


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
        weight, bias = named["weight"], named.get("bias")
        extras = [v for name, v in named.items() if name.startswith(PREFIX)]
        steps = list(op.get("epilogue", ()))
        if steps and steps[0][0] == "batch_norm":
            weight, bias, extras = self._fold(steps.pop(0), weight, bias, extras)
        steps, extras = _renumbered(steps, extras)
        shape = prim.tensor(weight).shape
        pack = self._transform if self.winograd else self._pack_depthwise if is_depthwise(op) else self._pack
        packed = pack(weight)
        operands = [named["input"], packed, *([] if bias is None else [bias]), *extras]
        names = ["input", "weight", *([] if bias is None else ["bias"]), *(f"{PREFIX}{k}" for k in range(len(extras)))]
        result = prim.tensor(op.results[0])
        literals: dict[str, Any] = {k: v for k, v in op.literals.items() if k != "epilogue"}
        literals |= {"operands": tuple(names), "own": "convolution", "packed": tuple(shape)}
        literals["tile"] = convolution_tile(op, self.winograd, self.cpu)
        literals["strides"] = (channels_last(result.shape),)
        given: list[Strides | None] = [None] * len(operands)
        given[0] = _input_strides(named["input"])
        for k, extra in enumerate(extras):
            given[len(operands) - len(extras) + k] = channels_last(prim.tensor(extra).shape)
        literals["operand_strides"] = tuple(given)
        if steps:
            literals["epilogue"] = tuple(steps)
        call = kernel.Extern.make(operands, [result], literals, loc=op.location)
        call.results[0].name_hint = op.results[0].name_hint
        block.insert_ops_before([*self.made, call], op)
        op.results[0].replace_all_uses_with(call.results[0])
        op.detach()
        op.erase()

    def _fold(
        self, step: tuple[Any, ...], weight: SSAValue, bias: SSAValue | None, extras: list[SSAValue]
    ) -> tuple[SSAValue, SSAValue, list[SSAValue]]:
        """Weight and bias of the convolution that gives what batch norm gives after this one."""
        _, eps, *numbers = step
        mean, variance, scale, shift = (None if k is None else extras[k] for k in numbers)
        assert mean is not None and variance is not None
        small = self.add(prim.full(eps, prim.tensor(variance)))
        factor = self.add(prim.elementwise("rsqrt", self.add(prim.elementwise("add", variance, small))))
        if scale is not None:
            factor = self.add(prim.elementwise("mul", factor, scale))
        if bias is None:
            centred = self.add(prim.elementwise("neg", mean))
        else:
            centred = self.add(prim.elementwise("sub", bias, mean))
        new = self.add(prim.elementwise("mul", centred, factor))
        if shift is not None:
            new = self.add(prim.elementwise("add", new, shift))
        spread = self.add(prim.broadcast(factor, prim.tensor(weight).shape, (0,)))
        used = {k for k in numbers if k is not None}
        kept = [v for k, v in enumerate(extras) if k not in used]
        return self.add(prim.elementwise("mul", weight, spread)), new, kept

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


def _renumbered(steps: list[Any], extras: list[SSAValue]) -> tuple[list[Any], list[SSAValue]]:
    """Steps whose tensors are numbered from 0 again; only `add` refers to one."""
    number, found = 0, []
    for step in steps:
        if step[0] == "add":
            step, number = ("add", number), number + 1
        found.append(tuple(step))
    assert number == len(extras)
    return found, extras


def _input_strides(x: SSAValue) -> Strides | None:
    """Channels-last; of few channels any layout is as good, so that what memory holds is read as it is."""
    shape = prim.tensor(x).shape
    channels = shape[1]
    if isinstance(channels, int) and channels < FEW_CHANNELS and not is_view(x.owner):
        return recorded_strides(x)
    return channels_last(shape)
