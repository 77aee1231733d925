"""written-attention: softmax(q k^T * s + m) v, written with batched products, is the call that does it in one.

The two products and the softmax between them become `aten.scaled_dot_product_attention` with the attribute `written`: where a row has no
score above -inf, the operations that were written give nan, and the operator would give zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from ...ir.dialects import kernel, prim
from ...ir.dtypes import F32
from ...ir.symbols import Dim, dim
from ...ir.syntax import Op
from ...ir.types import is_gpu
from ..core.base import Pass
from ..core.context import CompileContext
from ..core.rewriter import is_dead, producer, splat
from ..kernels.own_kernels import ATTENTION
from . import written_attention_gpu

BMM = "aten.bmm.default"


@dataclass(frozen=True)
class WrittenAttention(Pass):
    """Recognise attention that is written with batched products and a softmax: in float32 over four dimensions, on a GPU in float16 and bfloat16, too."""

    name: ClassVar[str] = "written-attention"
    level: ClassVar[str] = "prim"
    after: ClassVar[tuple[str, ...]] = ("decompose", "dce")
    before: ClassVar[tuple[str, ...]] = ("own-kernels", "hoist", "fuse")

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        for op in list(module.walk()):
            if not isinstance(op, kernel.Extern) or op["target"] != BMM or op.parent is None:
                continue
            if is_gpu(prim.tensor(op.results[0]).device):
                on_gpu = written_attention_gpu.find(op)
                if on_gpu is not None:
                    written_attention_gpu.replace(op, on_gpu)
                    ctx.diagnostics.count(self.name, "attention")
            else:
                found = _match(op)
                if found is not None:
                    _replace(op, found)
                    ctx.diagnostics.count(self.name, "attention")


@dataclass
class _Attention:
    """The operands of the products (three dimensions each), the factor of the scores, what is added to them, and their shape."""

    q: SSAValue
    k_turned: SSAValue
    v: SSAValue
    scale: float
    mask: SSAValue | None
    shape: tuple[Dim, ...]


def _match(op: kernel.Extern) -> _Attention | None:
    weights, v = _four(op.operands[0]), op.operands[1]
    if weights is None or prim.tensor(v).dtype != F32 or _has_strides(op):
        return None
    scores = _before_softmax(weights)
    if scores is None or prim.tensor(scores).rank != 4:
        return None
    found = _scores(scores, None)
    total = _elementwise(scores, "add")
    if found is None and total is not None:
        left, right = total.operands
        found = _scores(left, right) or _scores(right, left)
    if found is None:
        return None
    q, k_turned, scale, mask = found
    whole, rows, keys, values = (prim.tensor(x).shape for x in (weights, q, k_turned, v))
    fits = rows[2] == keys[1] and keys[2] == values[1] == whole[3] and rows[1] == whole[2]
    if not fits or 0 in (*rows, *keys, *values):
        return None
    return _Attention(q, k_turned, v, scale, mask, whole)


def _four(value: SSAValue) -> SSAValue | None:
    """The value of shape (a, b, m, n) that is seen as (a * b, m, n) here."""
    view = producer(value, prim.Reshape)
    if view is None:
        return None
    inner, outer = prim.tensor(view.operands[0]).shape, prim.tensor(value).shape
    if len(inner) != 4 or len(outer) != 3 or inner[2:] != outer[1:] or dim(inner[0] * inner[1]) != outer[0]:
        return None
    return view.operands[0]


def _before_softmax(weights: SSAValue) -> SSAValue | None:
    """s for exp(s - max(s)) / sum(exp(s - max(s))) over the last dimension, when nothing else reads what is in between."""
    quotient = _elementwise(weights, "div")
    if quotient is None or not _read_by(weights, 1):
        return None
    e, total = quotient.operands
    power = _elementwise(e, "exp")
    if power is None or _reduced(total, "sum") != e or not _read_by(e, 2):
        return None
    difference = _elementwise(power.operands[0], "sub")
    if difference is None or not _read_by(power.operands[0], 1):
        return None
    scores, highest = difference.operands
    return scores if _reduced(highest, "max") == scores and _read_by(scores, 2) else None


def _reduced(value: SSAValue, kind: str) -> SSAValue | None:
    """x for broadcast(reduce<kind>(x)) along the last of four dimensions."""
    spread = producer(value, prim.Broadcast)
    if spread is None:
        return None
    reduce = producer(spread.operands[0], prim.Reduce)
    if reduce is None or reduce["kind"] != kind or tuple(reduce["dims"]) != (3,):
        return None
    if tuple(spread["dims"]) != (0, 1, 2) or not _read_by(value, 1) or not _read_by(spread.operands[0], 1):
        return None
    return reduce.operands[0]


def _scores(value: SSAValue, mask: SSAValue | None) -> tuple[SSAValue, SSAValue, float, SSAValue | None] | None:
    """q, k transposed, factor and mask for bmm(q, k transposed) with or without a constant factor."""
    scale = 1.0
    if (
        isinstance(value.owner, Op)
        and value.owner.name in ("prim.mul", "prim.div")
        and _read_by(value, 1 if mask is not None else 2)
    ):
        number = splat(value.owner.operands[1])
        if not isinstance(number, float) or number == 0:
            return None
        scale = number if value.owner.name == "prim.mul" else 1 / number
        value = value.owner.operands[0]
        reads = 1
    else:
        reads = 1 if mask is not None else 2
    view = producer(value, prim.Reshape)
    if view is None:
        return None
    product = producer(view.operands[0], kernel.Extern)
    if product is None or product["target"] != BMM or _has_strides(product):
        return None
    if not _read_by(value, reads) or not _read_by(view.operands[0], 1):
        return None
    q, k_turned = product.operands
    if prim.tensor(q).dtype != F32 or prim.tensor(q).device != "cpu":
        return None
    return q, k_turned, scale, mask


def _elementwise(value: SSAValue, name: str) -> Op | None:
    """The elementwise operation of that name that makes the value, or None."""
    owner = value.owner
    return owner if isinstance(owner, Op) and owner.name == f"prim.{name}" else None


def _seen_as(value: SSAValue, shape: tuple[Dim, ...], made: list[Op]) -> SSAValue:
    """The memory behind a reshape under another shape; a reshape that is needed for it is appended to `made`."""
    view = producer(value, prim.Reshape)
    source = value if view is None else view.operands[0]
    if prim.tensor(source).shape == shape:
        return source
    made.append(prim.reshape(source, shape))
    return made[-1].results[0]


def _before_broadcast(mask: SSAValue) -> SSAValue:
    """A mask that is the same for batch entries or heads, once."""
    spread = producer(mask, prim.Broadcast)
    if spread is None:
        return mask
    rank = prim.tensor(spread.operands[0]).rank
    return spread.operands[0] if rank >= 2 and tuple(spread["dims"]) == tuple(range(4 - rank, 4)) else mask


def _read_by(value: SSAValue, count: int) -> bool:
    return len(list(value.uses)) == count


def _has_strides(op: Op) -> bool:
    return any(s is not None for s in op.get("strides", ())) or bool(op.get("epilogue"))


def _replace(op: kernel.Extern, found: _Attention) -> None:
    """One call in the place of the second product; what it makes unneeded is erased."""
    block = op.parent
    assert block is not None
    b, h, rows, keys = found.shape
    depth, width = prim.tensor(found.q).shape[2], prim.tensor(found.v).shape[2]
    made: list[Op] = []
    q = _seen_as(found.q, (b, h, rows, depth), made)
    k_turned = _seen_as(found.k_turned, (b, h, depth, keys), made)
    v = _seen_as(found.v, (b, h, keys, width), made)
    k = prim.permute(k_turned, (0, 1, 3, 2))
    operands, names = [q, k.results[0], v], ["query", "key", "value"]
    if found.mask is not None:
        operands.append(_before_broadcast(found.mask))
        names.append("attn_mask")
    users = [use.operation for use in op.results[0].uses]
    kind = prim.tensor(op.results[0]).with_(shape=(b, h, rows, width))
    direct = all(isinstance(u, prim.Reshape) and u.results[0].type == kind for u in users)
    attrs: dict[str, object] = {"target": ATTENTION, "operands": tuple(names), "scale": found.scale, "written": True}
    if direct:  # rows of all heads side by side, as the projection that follows reads them
        attrs["strides"] = ((dim(rows * h * width), width, dim(h * width), 1),)
    call = kernel.Extern.make(operands, [kind], attrs, loc=op.location)
    made += [k, call]
    if direct:
        for user in users:
            user.results[0].replace_all_uses_with(call.results[0])
    else:
        back = prim.reshape(call.results[0], prim.tensor(op.results[0]).shape)
        op.results[0].replace_all_uses_with(back.results[0])
        made.append(back)
    block.insert_ops_before(made, op)
    for inner in reversed(list(block.ops)):
        if is_dead(inner):
            block.erase_op(inner)
