"""own-kernels: library calls that a C++ kernel of our own carries out, on memory that is planned like that of any kernel.

The operation stays the call that it is, with the attribute `own` beside it: what it computes is said by the ATen operator, so the
interpreter and the text are unchanged. `layout` lets such a call read strided views, `plan-buffers` gives its result a place, the target
prints the kernel (targets/cpp/own.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import BlockArgument, SSAValue

from ...ir.dialects import kernel, prim
from ...ir.dtypes import BF16, BOOL, F16, F32, F64, I32, I64
from ...ir.symbols import contiguous_strides, known_equal
from ...ir.syntax import Op
from ...ir.types import RefType
from ..analysis.machine import Machine
from ..analysis.strides import same_layout
from ..core.base import Pass
from ..core.clauses import Call, Clauses, broken
from ..core.context import CompileContext
from ..core.rewriter import is_static
from .linear import is_own_linear, linear_tile, takes_rows

ATTENTION = "aten.scaled_dot_product_attention.default"
LINEAR = "aten.linear.default"
INDEX_ADD = "aten.index_add.default"


@dataclass(frozen=True)
class OwnKernels(Pass):
    """Give attention, and products with a parameter, to kernels of our own.

    Options:
        attention: take over scaled_dot_product_attention.
        linear: take over products of many rows with a parameter.
        rows: take over linear layers of so few rows that reading the weight is all that they cost.
        index_add: take over index_add.
    """

    name: ClassVar[str] = "own-kernels"
    level: ClassVar[str] = "prim"
    after: ClassVar[tuple[str, ...]] = ("decompose", "dce", "hoist")
    before: ClassVar[tuple[str, ...]] = ("fuse",)

    attention: bool = True
    linear: bool = True
    rows: bool = True
    index_add: bool = True

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        for op in list(module.walk()):
            if not isinstance(op, kernel.Extern) or op.get("own"):
                continue
            if op["target"] == ATTENTION and self.attention and not broken(takes_attention(op, ctx.machine)):
                op["own"] = "attention"
                share_heads(op)
                _want_rows(op)
                ctx.diagnostics.count(self.name, "attention")
                continue
            name, what = "", ""
            if op["target"] == LINEAR and self.rows and _has_few_rows(op, ctx):
                name, what = "rows", "products of few rows"
            elif op["target"] == INDEX_ADD and self.index_add and not broken(takes_index_add(op, ctx.machine)):
                name, what = "index_add", "index_add"
            elif self.linear and _is_linear(op, ctx):
                name, what = "linear", "products of many rows"
            if name:
                op["own"] = name
                if name == "linear":
                    op["tile"] = linear_tile(ctx.machine.cpu)
                op.attributes.pop("operand_strides", None)  # `layout` brings what lies otherwise
                ctx.diagnostics.count(self.name, what)


def _is_linear(op: kernel.Extern, ctx: CompileContext) -> bool:
    func = op.parent_op()
    return isinstance(func, prim.Func) and is_own_linear(op, func, ctx.machine)


def takes_attention(op: Op, machine: Machine) -> Clauses:
    """What targets/cpp/include/intarsia_attention.h takes of `scaled_dot_product_attention`."""
    call = Call.of(op)
    rows = ("query", "key", "value")
    yield (
        call.names in (rows, (*rows, "attn_mask")) and not op.get("epilogue"),
        "queries, keys, values and perhaps a mask",
    )
    yield op.get("dropout_p", 0.0) == 0.0, "no dropout"
    yield call.are(F32, BF16, F16, names=(*rows, "result")), "one floating type"
    yield call.on_cpu, "memory of the host"
    q, k, v = (call.shape(name) for name in rows)
    yield {len(q), len(k), len(v)} == {4}, "four dimensions"
    yield not any(0 in shape for shape in (q, k, v)), "nothing empty"
    mask = call.tensors.get("attn_mask")
    yield mask is None or not op.get("is_causal"), "a mask, or causal, and not both"
    yield (
        mask is None or mask.dtype in (BOOL, call.tensors["query"].dtype),
        "a mask of the same type, or of truth values",
    )
    yield mask is None or 2 <= len(mask.shape) <= 4, "a mask of two to four dimensions"
    yield known_equal(q[1], k[1]) or bool(op.get("enable_gqa")), "as many heads, or shared ones"
    yield known_equal(k[1], v[1]), "as many heads of keys as of values"
    yield known_equal(q[0], k[0]) and known_equal(q[0], v[0]), "equal batches"
    memories = [
        (name, kind) for name, kind in call.tensors.items() if isinstance(kind, RefType) and name != "attn_mask"
    ]
    yield all(m.shape[-1] == 1 or m.strides[-1] == 1 for _, m in memories), "rows without gaps"


def takes_index_add(op: Op, machine: Machine) -> Clauses:
    """What targets/cpp/include/intarsia_scatter.h takes of `index_add`."""
    call = Call.of(op)
    yield (
        call.names == ("self", "index", "source") and not op.get("epilogue"),
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


def _want_rows(op: kernel.Extern) -> None:
    """Operands that must be copied get rows without gaps, also where eager reads them with gaps."""
    given = op.get("operand_strides")
    if given:
        op["operand_strides"] = tuple(
            s if s is None or s[-1] == 1 or (s[-1] == 0 and name == "attn_mask") else None
            for name, s in zip(op["operands"], given, strict=True)
        )


def share_heads(op: kernel.Extern) -> None:
    """attention(q, repeat(k), repeat(v)) -> attention(q, k, v) {enable_gqa}: repeated heads are not written to memory."""
    names = list(op["operands"])
    places = [names.index("key"), names.index("value")]
    found = [_before_repeat(op.operands[i]) for i in places]
    k, v = found
    if op.get("enable_gqa") or k is None or v is None or prim.tensor(k).shape[1] != prim.tensor(v).shape[1]:
        return
    for i, value in zip(places, (k, v), strict=True):
        op.operands[i] = value
    op["enable_gqa"] = True
    given = op.get("operand_strides")
    if given:
        op["operand_strides"] = tuple(None if i in places else s for i, s in enumerate(given))


def _before_repeat(value: SSAValue) -> SSAValue | None:
    """(b, h, l, d) for reshape(broadcast(...), (b, h * g, l, d)) over (b, h, g, l, d); None for anything else."""
    reshape = value.owner
    broadcast = reshape.operands[0].owner if isinstance(reshape, prim.Reshape) else None
    if not isinstance(broadcast, prim.Broadcast):
        return None
    wide, whole = prim.tensor(broadcast.results[0]).shape, prim.tensor(value).shape
    if len(wide) != 5 or (whole[0], whole[2], whole[3]) != (wide[0], wide[3], wide[4]):
        return None
    source = broadcast.operands[0]
    kept = (wide[0], wide[1], wide[3], wide[4])
    if tuple(broadcast["dims"]) == (0, 1, 3, 4) and prim.tensor(source).shape == kept:
        return source
    inner = source.owner
    if (
        tuple(broadcast["dims"]) == (0, 1, 2, 3, 4)
        and isinstance(inner, prim.Reshape)
        and prim.tensor(source).shape == (wide[0], wide[1], 1, wide[3], wide[4])
        and prim.tensor(inner.operands[0]).shape == kept
    ):
        return inner.operands[0]
    return None
