"""own-kernels: library calls that a C++ kernel of our own carries out, on memory that is planned like that of any kernel.

The operation stays the call that it is, with the attribute `own` beside it: what it computes is said by the ATen operator, so the
interpreter and the text are unchanged. `layout` lets such a call read strided views, `plan-buffers` gives its result a place, the target
prints the kernel (targets/cpp/own.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, cast

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import BlockArgument, SSAValue

from ..ir.dialects import kernel, prim
from ..ir.dtypes import BF16, BOOL, F16, F32, F64, I32, I64
from ..ir.symbols import contiguous_strides, known_equal
from .base import Pass
from .context import CompileContext
from .linear import is_own_linear
from .rules import is_static
from .strides import same_layout

ATTENTION = "aten.scaled_dot_product_attention.default"
LINEAR = "aten.linear.default"
INDEX_ADD = "aten.index_add.default"
# The most rows of x for which reading the weight once, where it lies, beats oneDNN's call on a packed copy. Measured on Zen 4, two threads,
# weights of 2 to 12 MiB from memory, own over oneDNN: f32 1.6, 1.8 and 1.05 for 1, 2 and 4 rows; bf16 1.6, 1.4 and 0.8.
MOST_ROWS = {F32: 4, BF16: 2}


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
        if ctx.target.name != "cpp":
            return
        for op in list(module.walk()):
            if isinstance(op, kernel.Extern) and op["target"] == ATTENTION and self.attention and _is_attention(op):
                op["own"] = "attention"
                share_heads(op)
                _want_rows(op)
                ctx.diagnostics.count(self.name, "attention")
            elif isinstance(op, kernel.Extern) and op["target"] == LINEAR and self.rows and _has_few_rows(op, ctx):
                op["own"] = "rows"
                op.attributes.pop("operand_strides", None)
                ctx.diagnostics.count(self.name, "products of few rows")
            elif isinstance(op, kernel.Extern) and op["target"] == INDEX_ADD and self.index_add and _is_index_add(op):
                op["own"] = "index_add"
                op.attributes.pop("operand_strides", None)
                ctx.diagnostics.count(self.name, "index_add")
            elif isinstance(op, kernel.Extern) and self.linear and _is_linear(op, ctx):
                op["own"] = "linear"
                op.attributes.pop("operand_strides", None)
                ctx.diagnostics.count(self.name, "products of many rows")


def _is_attention(op: kernel.Extern) -> bool:
    """Four dimensions, one floating type, a mask that is boolean or of that type, no dropout, nothing empty."""
    names = list(op["operands"])
    types = {name: prim.tensor(v) for name, v in zip(names, op.operands, strict=True)}
    kinds = [types[name] for name in ("query", "key", "value")]
    mask, dtype = types.get("attn_mask"), kinds[0].dtype
    if (
        op.get("dropout_p", 0.0) != 0.0
        or dtype not in (F32, BF16, F16)
        or any(t.device != "cpu" for t in types.values())
    ):
        return False
    if any(t.rank != 4 or t.dtype != dtype or 0 in t.shape for t in kinds) or op.get("epilogue"):
        return False
    if mask is not None and (mask.dtype not in (BOOL, dtype) or not 2 <= mask.rank <= 4 or op.get("is_causal")):
        return False
    q, k, v = (t.shape for t in kinds)
    heads = known_equal(q[1], k[1]) or bool(op.get("enable_gqa"))
    return heads and known_equal(k[1], v[1]) and known_equal(q[0], k[0]) and known_equal(q[0], v[0])


def _is_linear(op: kernel.Extern, ctx: CompileContext) -> bool:
    func = op.parent_op()
    return isinstance(func, prim.Func) and not op.get("own") and is_own_linear(op, op["target"], func, ctx.target)


def _has_few_rows(op: kernel.Extern, ctx: CompileContext) -> bool:
    """A linear layer of a few rows, of known sizes, by a parameter that lies row by row in memory."""
    names = list(op["operands"])
    kinds = [prim.tensor(v) for v in (*op.operands, *op.results)]
    x, weight, dtype = kinds[0], kinds[1], kinds[0].dtype
    if ctx.target.isa not in ("avx512", "avx2") or names[:2] != ["input", "weight"] or op.get("epilogue"):
        return False
    if any(t.dtype != dtype or t.device != "cpu" or 0 in t.shape for t in kinds) or weight.rank != 2 or op.get("own"):
        return False
    sizes = (*x.shape, *weight.shape)
    if not all(isinstance(n, int) for n in sizes) or any(s is not None for s in op.get("strides", ())):
        return False
    if math.prod(cast(tuple[int, ...], x.shape[:-1])) > MOST_ROWS.get(dtype, 0):
        return False
    return all(_is_row_by_row(v) for v in op.operands[1:])


def _is_index_add(op: kernel.Extern) -> bool:
    """Numbers in one dimension, one dtype, nothing empty, a result whose rows lie one after another."""
    if list(op["operands"]) != ["self", "index", "source"] or op.get("epilogue") or op.get("own"):
        return False
    x, index, source = (prim.tensor(v) for v in op.operands)
    if any(t.device != "cpu" or 0 in t.shape for t in (x, index, source)) or any(s for s in op.get("strides", ())):
        return False
    alike = x.dtype == source.dtype and x.dtype in (F32, F64, BF16, F16, I32, I64) and index.dtype in (I32, I64)
    factor = x.dtype.is_float or isinstance(op.get("alpha", 1), int)
    return alike and factor and x.rank == source.rank >= 1 and index.rank == 1


def _is_row_by_row(value: SSAValue) -> bool:
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
