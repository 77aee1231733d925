"""own-kernels: library calls that a C++ kernel of our own carries out, on memory that is planned like that of any kernel.

The operation stays the call that it is, with the attribute `own` beside it: what it computes is said by the ATen operator, so the
interpreter and the text are unchanged. `layout` lets such a call read strided views, `plan-buffers` gives its result a place, the target
prints the kernel (targets/cpp/call_kernels.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import BlockArgument, SSAValue

from ...ir.dialects import kernel, prim
from ...ir.dtypes import BF16, F16, F32, F64, I32, I64
from ...ir.symbols import contiguous_strides
from ...ir.syntax import Op
from ..analysis.machine import Machine
from ..analysis.strides import same_layout
from ..core.base import Pass
from ..core.clauses import Call, Clauses, broken
from ..core.context import CompileContext
from ..core.rewriter import is_kept, is_static
from .contractions import LINEAR, as_kernel, contraction_of, put
from .convolution import GRADIENTS, takes_planes, takes_points
from .microkernel import in_registers, is_worth_packing, takes_registers, takes_rows
from .trained_attention import OWN as TRAINED
from .trained_attention import has_trained

INDEX_ADD = "aten.index_add.default"
LEAST_PLANES = 8  # channels
CONVOLUTION = "aten.convolution.default"


@dataclass(frozen=True)
class OwnKernels(Pass):
    """Give products with a parameter, and sums at places, to kernels of our own.

    Options:
        linear: take over products of many rows with a parameter.
        rows: take over linear layers of so few rows that reading the weight is all that they cost.
        index_add: take over index_add.
        planes: take over convolutions with one filter a channel, and their gradients, on images as eager has them.
        points: take over convolutions with windows of one pixel, and their gradients, on such images.
        attention: take over attention that keeps what its backward needs, and that backward.
    """

    name: ClassVar[str] = "own-kernels"
    level: ClassVar[str] = "prim"
    after: ClassVar[tuple[str, ...]] = ("decompose", "dce", "hoist")
    before: ClassVar[tuple[str, ...]] = ("fuse",)

    linear: bool = True
    rows: bool = True
    index_add: bool = True
    planes: bool = True
    points: bool = True
    attention: bool = True

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        for op in list(module.walk()):
            if not isinstance(op, kernel.Extern) or op.get("own"):
                continue
            name, what = "", ""
            if op["target"] == LINEAR and self.rows and _has_few_rows(op, ctx):
                name, what = "rows", "products of few rows"
            elif op["target"] == INDEX_ADD and self.index_add and not broken(takes_index_add(op, ctx.machine)):
                name, what = "index_add", "index_add"
            elif self.planes and _has_planes(op, ctx.machine):
                name, what = "planes", "convolutions of planes"
            elif self.points and _has_points(op, ctx.machine):
                name, what = "points", "convolutions of points"
            elif self.attention and has_trained(op, ctx.machine):
                op["own"] = TRAINED  # which reads views as they lie
                ctx.diagnostics.count(self.name, "attention that is trained")
            elif self.linear and _in_registers(op, ctx):
                what = "products of many rows"
            if name:
                op["own"] = name
                op.attributes.pop("operand_strides", None)  # `layout` brings what lies otherwise
            if what:
                ctx.diagnostics.count(self.name, what)


def _in_registers(op: kernel.Extern, ctx: CompileContext) -> bool:
    """Put a kernel in the place of a product with a parameter, where it takes it and there is enough to do."""
    found, func = contraction_of(op), op.parent_op()
    if found is None or not isinstance(func, prim.Func) or not is_worth_packing(found, func):
        return False
    made = as_kernel(found, in_registers(ctx.machine.cpu), "its weight is packed once")
    if broken(takes_registers(made, ctx.machine)):
        made.erase()
        return False
    put(found, made)
    return True


def _has_planes(op: kernel.Extern, machine: Machine) -> bool:
    """A convolution with one filter for each of enough channels, or its gradients; on processors where this was measured.

    One core of a Zen 5, us of oneDNN and of ours, gradients: 4x576x4x4 pixels and 5x5 windows 995, 65; 4x240x8x8 945, 72; 2x384x14x14
    and 7x7 4174, 348; 4x72x32x32 and 3x3 with steps of 2 379, 176, in code for AVX2 271, 296. The convolutions themselves 71, 38; 74, 38;
    250, 166; 165, 92, in code for AVX2 1.0 to 1.4 of oneDNN's.
    """
    if machine.cpu.vector_bytes < 32 or op["target"] not in (GRADIENTS, CONVOLUTION):
        return False
    if op["target"] == CONVOLUTION and machine.cpu.vector_bytes < 64:
        return False
    return op["groups"] >= LEAST_PLANES and not broken(takes_planes(op, machine))


def _has_points(op: kernel.Extern, machine: Machine) -> bool:
    """A convolution with windows of one pixel by a weight that changes from call to call, or its gradients; on processors where this was measured.

    Two cores of a Zen 5, us of oneDNN's convolution + gradients, of ours: 4x96x4x4 pixels and 576 outputs 63 + 134, 25 + 69; 4x72x16x16 and
    24 78 + 157, 15 + 42; 4x576x1x1 and 144 53 + 121, 19 + 34; 4x512x28x28 and 128 1102 + 2605, 1021 + 2091. Both in code for AVX2:
    70 + 148, 35 + 107; 4x576x1x1 54 + 113, 15 + 36; 4x64x56x56 and 64 2176 + 2440, 564 + 1161.
    """
    if (
        machine.cpu.vector_bytes < 32
        or op["target"] not in (GRADIENTS, CONVOLUTION)
        or broken(takes_points(op, machine))
    ):
        return False
    func, weight = op.parent_op(), op.operands[list(op["operands"]).index("weight")]
    return not isinstance(func, prim.Func) or not is_kept(weight, func)


def takes_index_add(op: Op, machine: Machine) -> Clauses:
    """What targets/cpp/include/intarsia_scatter.h takes of `index_add`."""
    call = Call.of(op)
    yield (
        call.names == ("self", "index", "source"),
        "a tensor, places and what is added there",
    )
    yield call.on_cpu and not call.empty, "memory of the host, nothing empty"
    yield call.are(F32, F64, BF16, F16, I32, I64, names=("self", "source", "result")), "a type that is summed"
    yield call.are(I32, I64, names=("index",)), "places in int32 or int64"
    alpha = op.get("alpha", 1)
    yield call.tensors["self"].dtype.is_float or isinstance(alpha, int), "whole factors of whole numbers"
    yield (
        len(call.shape("self")) == len(call.shape("source")) >= 1 and len(call.shape("index")) == 1,
        "places along one dimension",
    )
    yield isinstance(op.get("dim"), int), "a dimension"
    yield all(s is None for s in op.get("strides", ())), "a result without gaps"
    yield call.lies_in_order(*call.tensors), "memory without gaps"


def _has_few_rows(op: kernel.Extern, ctx: CompileContext) -> bool:
    """A product of few rows with a parameter that lies row by row in memory, on a processor where this was measured."""
    if op.get("own") or ctx.machine.cpu.vector_bytes < 32 or broken(takes_rows(op, ctx.machine)):
        return False
    return all(is_row_by_row(v) for v in op.operands[1:])


def is_row_by_row(value: SSAValue) -> bool:
    """A parameter without gaps, or a reshape of one."""
    if isinstance(value.owner, prim.Reshape):
        value = value.owner.operands[0]
    if not isinstance(value, BlockArgument):
        return False
    func = value.owner.parent_op()
    if not isinstance(func, prim.Func) or not is_static(value, func):
        return False
    strides = func.get("arg_strides", ())[value.index : value.index + 1]
    shape = prim.tensor(value).shape
    return not strides or strides[0] is None or same_layout(shape, strides[0], contiguous_strides(shape))
