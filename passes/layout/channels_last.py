"""channels-last: convolutions (on a CPU those by a parameter) work on channels-last memory, and all that touches their values follows.

oneDNN's convolutions read and write channels-last without reordering; eager's contiguous layout is reordered before and after each one. So
are those on a GPU's matrix units (half types and TF32).
Values that leave the function keep eager's strides: `layout` sees to that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from ...ir.dialects import kernel, prim
from ...ir.dtypes import BF16, F16, F32
from ...ir.symbols import dim
from ...ir.syntax import Op
from ...ir.types import TensorType
from ..analysis.machine import Machine
from ..analysis.strides import channels_last, same_layout
from ..core.base import Pass
from ..core.clauses import broken
from ..core.context import CompileContext
from ..core.rewriter import is_kept, is_static, replace
from ..kernels.convolution import takes_max_pool
from ..kernels.depthwise_kernels import OWN as DEPTHWISE
from ..kernels.depthwise_kernels import takes_depthwise_on_gpu
from ..kernels.first_convolution import is_first, space_to_depth

BACKWARD = "aten.convolution_backward.default"
POOL = "aten.max_pool2d_with_indices.default"

# Derivatives that go the same way, and their image.
TURNED_BACK = {BACKWARD: "input", "aten.max_pool2d_with_indices_backward.default": "self"}

# Library calls that give channels-last results for channels-last operands; the named operand decides.
FOLLOWERS = {
    POOL: "self",
    "aten.avg_pool2d.default": "self",
    "aten._adaptive_avg_pool2d.default": "self",
    "aten.adaptive_avg_pool2d.default": "self",
    "aten.upsample_nearest2d.vec": "input",
    "aten.upsample_bilinear2d.vec": "input",
}


@dataclass(frozen=True)
class ChannelsLast(Pass):
    """Run convolutions on channels-last memory.

    Options:
        min_channels: leave convolutions with fewer output channels as they are.
        pools: a kernel of our own for max_pool2d whose indices nobody reads.
    """

    name: ClassVar[str] = "channels-last"
    level: ClassVar[str] = "prim"
    after: ClassVar[tuple[str, ...]] = ("decompose", "dce")

    least: ClassVar[Mapping[str, float]] = MappingProxyType({"min_channels": 0})
    min_channels: int = 8
    pools: bool = True

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        for func in [op for op in module.body.block.ops if isinstance(op, prim.Func)]:
            values: set[SSAValue] = set()  # those that will lie channels-last
            pixels: dict[SSAValue, SSAValue] = {}  # of an image, a row for each: products of one image read the same
            for op in list(func.block_body.ops):
                if isinstance(op, kernel.Extern):
                    if op.get("own") == "convolution":
                        values.update(op.results)
                    elif self._lies_last(op, ctx.machine):
                        _move(op, ctx.machine)
                        self._convolution(ctx, op, values, pixels)
                    elif _goes_back(op, values, ctx.machine):
                        _move_back(op)
                        values.update(r for r in op.results if prim.tensor(r).rank == 4)
                        ctx.diagnostics.count(self.name, "derivatives moved to channels-last")
                    elif self._wants(op, func, ctx.machine) or _follows(op, values):
                        _move(op, ctx.machine)
                        ctx.diagnostics.count(self.name, "library calls moved to channels-last")
                        # The library looks for indices all the same: 32 ms for 16x64x64x64 in float32.
                        if self.pools and op["target"] == POOL and not broken(takes_max_pool(op, ctx.machine)):
                            op = _own_pool(op)
                            ctx.diagnostics.count(self.name, "pools of our own")
                        self._convolution(ctx, op, values, pixels)
                elif any(v in values for v in op.operands) and _keeps_shape(op, values):
                    values.update(op.results)

    def _convolution(
        self, ctx: CompileContext, op: kernel.Extern, values: set[SSAValue], pixels: dict[SSAValue, SSAValue]
    ) -> None:
        """A call whose operands and results lie channels-last; on a GPU some convolutions become something else."""
        if is_first(op, ctx.machine):
            values.update(space_to_depth(op).results)
            ctx.diagnostics.count(self.name, "first convolutions")
            return
        if op["target"] == "aten.convolution.default" and _is_product(op, ctx.machine):
            values.add(_as_product(op, values, pixels))
            ctx.diagnostics.count(self.name, "products of pixels")
            return
        if not broken(takes_depthwise_on_gpu(op, ctx.machine)):
            _own_depthwise(op)
            ctx.diagnostics.count(self.name, "depthwise convolutions of our own")
        values.update(op.results)

    def _lies_last(self, op: kernel.Extern, target: Machine) -> bool:
        """A convolution on a GPU that is channels-last in eager."""
        if op["target"] != "aten.convolution.default" or op.get("transposed") is True:
            return False
        if not _by_matrix_units(prim.tensor(op.results[0]), target) or not _contiguous_or_last(op):
            return False
        return (op.get("strides") or (None,))[-1] is not None

    def _wants(self, op: kernel.Extern, func: prim.Func, target: Machine) -> bool:
        """A two-dimensional convolution by a parameter that oneDNN or cuDNN carries out, contiguous in eager."""
        if op["target"] != "aten.convolution.default" or op.get("transposed") is True:
            return False
        result = prim.tensor(op.results[0])
        if result.rank != 4:
            return False
        if target.at(result.device).is_grid:
            return _by_matrix_units(result, target) and _contiguous_or_last(op)
        if not _contiguous(op) or not _is_static(op, func):
            return False
        if result.device != "cpu" or (result.dtype != F32 and not (result.dtype == BF16 and target.bfloat16)):
            return False
        channels = result.shape[1]
        return isinstance(channels, int) and channels >= self.min_channels and _turns_less(op, func)


def _turns_less(op: kernel.Extern, func: prim.Func) -> bool:
    """Whether oneDNN turns less in each call than with contiguous images: the weight, where it is not kept, against both images.

    Three steps of training with 4x64x32x32 pixels take 4.7 ms and 7.5 contiguous, with 4x512x4x4 25 and 17.
    """
    weight = op.operands[list(op["operands"]).index("weight")]
    if is_kept(weight, func):
        return True
    sizes = [prim.tensor(v).numel for v in (op.operands[0], op.results[0], weight)]
    return all(isinstance(n, int) for n in sizes) and sizes[2] < sizes[0] + sizes[1]


def _is_static(op: kernel.Extern, func: prim.Func) -> bool:
    """A convolution by a parameter."""
    return is_static(op.operands[list(op["operands"]).index("weight")], func)


def _by_matrix_units(result: TensorType, target: Machine) -> bool:
    """A two-dimensional convolution on a GPU's matrix units: 1.2 to 3.5 times as fast channels-last, without them slower."""
    if not target.at(result.device).is_grid or result.rank != 4:
        return False
    return result.dtype in (F16, BF16) or (result.dtype == F32 and target.tf32)


def _goes_back(op: kernel.Extern, values: set[SSAValue], target: Machine) -> bool:
    """The derivative of a convolution on a GPU's matrix units, or of a pool of an image that lies channels-last."""
    image = TURNED_BACK.get(op["target"])
    if image is None or op.get("transposed") is True or not _contiguous_or_last(op) or image not in op["operands"]:
        return False
    tensors = [prim.tensor(v) for v in op.operands]
    if not all(t.rank == 4 for t in tensors) or not target.at(tensors[0].device).is_grid:
        return False
    if op["target"] == BACKWARD:
        return _by_matrix_units(tensors[0], target) and "weight" in op["operands"]
    return op.operands[list(op["operands"]).index(image)] in values or op.get("operand_strides") is not None


def _move_back(op: kernel.Extern) -> None:
    """Record channels-last strides: the libraries give gradients in the layout of the image."""
    op["operand_strides"] = tuple(channels_last(prim.tensor(v).shape) for v in op.operands)
    shapes = [prim.tensor(r).shape for r in op.results]
    op["strides"] = tuple(channels_last(shape) if len(shape) == 4 else None for shape in shapes)


def _is_product(op: kernel.Extern, target: Machine) -> bool:
    """A window of one pixel in a half type on a GPU: as a product it takes the same time, and may become one kernel with what follows."""
    weight, result = prim.tensor(op.operands[1]), prim.tensor(op.results[0])
    once = all(tuple(op[name]) == one for name, one in (("stride", (1, 1)), ("padding", (0, 0)), ("dilation", (1, 1))))
    half = result.dtype in (F16, BF16) and target.at(result.device).is_grid
    plain = op["groups"] == 1 and tuple(op["operands"]) == ("input", "weight")
    return half and once and plain and weight.shape[2:] == (1, 1)


def _as_product(op: kernel.Extern, values: set[SSAValue], pixels: dict[SSAValue, SSAValue]) -> SSAValue:
    """convolution(x, w) -> linear(pixels of x, w), a row for each pixel; the result seen as an image again."""
    x, weight = op.operands
    n, channels, rows, columns = prim.tensor(x).shape
    outputs = prim.tensor(weight).shape[0]
    count = dim(n * rows * columns)
    made: list[Op] = []
    if x not in pixels:
        if isinstance(
            x.owner, prim.Elementwise | prim.Cast | prim.Concat
        ):  # then its pixels are rows of memory, no copy
            x.owner["strides"] = (channels_last(prim.tensor(x).shape),)
            values.add(x)
        last = prim.permute(x, (0, 2, 3, 1))
        flat = prim.reshape(last.results[0], (count, channels))
        made, pixels[x] = [last, flat], flat.results[0]
    matrix = prim.reshape(weight, (outputs, channels))
    literals = {"target": "aten.linear.default", "operands": ("input", "weight")}
    kind = prim.tensor(op.results[0]).with_(shape=(count, outputs))
    call = kernel.Extern.make([pixels[x], matrix.results[0]], [kind], literals, loc=op.location)
    image = prim.reshape(call.results[0], (n, rows, columns, outputs))
    back = prim.permute(image.results[0], (0, 3, 1, 2))
    replace(op, back.results, [*made, matrix, call, image, back])
    return back.results[0]


def _contiguous(op: kernel.Extern) -> bool:
    given = [*op.get("operand_strides", ()), *op.get("strides", ())]
    return all(strides is None for strides in given)


def _contiguous_or_last(op: kernel.Extern) -> bool:
    """Whether all operands and results are contiguous or channels-last in eager."""
    shapes = [prim.tensor(v).shape for v in (*op.operands, *op.results)]
    given = [*(op.get("operand_strides") or (None,) * len(op.operands)), *(op.get("strides") or ())]
    last = [None if strides is None else channels_last(shape) for shape, strides in zip(shapes, given, strict=False)]
    turned = [(shape, t, w) for shape, t, w in zip(shapes, given, last, strict=False) if t is not None]
    return all(w is not None and same_layout(shape, t, w) for shape, t, w in turned)


def _follows(op: kernel.Extern, values: set[SSAValue]) -> bool:
    """A library call that takes over the layout of its operand, which is channels-last now."""
    name = FOLLOWERS.get(op["target"])
    if name is None or not _contiguous(op) or name not in op["operands"]:
        return False
    return op.operands[list(op["operands"]).index(name)] in values


def _keeps_shape(op: object, values: set[SSAValue]) -> bool:
    """An elementwise operation whose large operands all lie channels-last (or are made by broadcasts)."""
    if isinstance(op, prim.Concat | prim.Pad | prim.Slice):  # the last two of them are the windows of a pooling
        return all(v in values for v in op.operands)
    if isinstance(op, prim.After):
        return op.operands[0] in values
    if not isinstance(op, prim.Elementwise | prim.Cast):
        return False
    return all(v in values or isinstance(v.owner, prim.Broadcast | prim.Full) for v in op.operands)


def _move(op: kernel.Extern, target: Machine) -> None:
    """Record channels-last strides for the four-dimensional operand and results."""
    moved = {"input", FOLLOWERS.get(op["target"], "input")}
    if target.at(prim.tensor(op.results[0]).device).is_grid:
        moved.add("weight")  # cuDNN would turn it in every call, too, and takes longer for it
    op["operand_strides"] = tuple(
        channels_last(prim.tensor(v).shape) if name in moved else None
        for name, v in zip(op["operands"], op.operands, strict=True)
    )
    op["strides"] = tuple(channels_last(prim.tensor(r).shape) for r in op.results)


def _own_depthwise(op: kernel.Extern) -> None:
    """Let `depthwise-kernels` carry it out: the weight with neighbouring channels side by side."""
    channels, _, rows, columns = prim.tensor(op.operands[1]).shape
    op["own"] = DEPTHWISE
    image = channels_last(prim.tensor(op.operands[0]).shape)
    op["operand_strides"] = (image, (1, channels, dim(columns * channels), channels))


def _own_pool(op: kernel.Extern) -> kernel.Extern:
    """The call without indices, as a kernel of our own."""
    literals = {k: v for k, v in op.literals.items() if k not in ("strides", "returned")}
    literals |= {"target": "aten.max_pool2d.default", "own": "max_pool", "strides": (op["strides"][0],)}
    call = kernel.Extern.make(op.operands, [op.results[0].type], literals, loc=op.location)
    replace(op, [call.results[0], *(None for _ in op.results[1:])], [call])
    return call
