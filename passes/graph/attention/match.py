"""match-attention: softmax(q k^T * s + m) v in whatever way a program writes it is one `scaled_dot_product_attention`.

A call that stands for products has the attribute `empty_rows` (ir/dialects/kernel.py): products give nan in rows
without a score above -inf, the operator gives zeros. Masks that let everything through are dropped, triangles become
`is_causal`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, SSAValue

from ....ir.dialects import kernel, prim
from ....ir.dialects.kernel import ATTENTION
from ....ir.dtypes import F32
from ....ir.symbols import Dim, dim
from ....ir.syntax import Op
from ...core.base import Pass
from ...core.clauses import broken
from ...core.context import CompileContext
from ...core.rewriter import InFrontOf, erase_dead, producer, splat
from ...kernels.attention import CPP, Masks, has_kernel, heads_side_by_side
from ...kernels.short_attention import ROWS
from .find import BMM, Mask, Products, find, takes_products
from .mask_kind import CAUSAL, FULL, mask_kind
from .scores import ScoreRegion

SHUT = -1e30  # added to a score it leaves nothing of it, and times log2(e) it still is a number


@dataclass(frozen=True)
class MatchAttention(Pass):
    """Make one call of attention that is written in products, and say of masks what is known of them.

    Options:
        products: recognise batched products with a softmax between them; else only masks are looked at.
    """

    name: ClassVar[str] = "match-attention"
    level: ClassVar[str] = "prim"
    after: ClassVar[tuple[str, ...]] = ("decompose", "canonicalize", "cse", "dce")
    before: ClassVar[tuple[str, ...]] = ("attention", "hoist", "fuse")

    products: bool = True

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        masks = Masks()
        for func in [op for op in module.body.block.ops if isinstance(op, prim.Func)]:
            changed = False
            for op in [op for op in func.block_body.ops if isinstance(op, kernel.Extern)]:
                if op["target"] == ATTENTION and (kind := _simplify(op, masks)) is not None:
                    ctx.diagnostics.count(self.name, f"{kind} masks")
                    changed = True
                elif self.products and op["target"] == BMM and _match(op, masks, ctx):
                    ctx.diagnostics.count(self.name, "attention")
                    changed = True
            if changed:
                erase_dead(func.block_body)


def _kind(mask: SSAValue, masks: Masks) -> str | None:
    return masks.once(lambda: mask_kind(mask), mask, "kind")


def _simplify(op: kernel.Extern, masks: Masks) -> str | None:
    """attention(q, k, v, mask) -> attention(q, k, v) {is_causal} where the mask says no more; the mask's kind."""
    if "attn_mask" not in op["operands"] or op.get("is_causal"):
        return None
    place = list(op["operands"]).index("attn_mask")
    kind = _kind(op.operands[place], masks)
    if kind is None:
        return None
    literals = dict(op.literals)
    for name in ("operands", "operand_strides"):
        if name in literals:
            literals[name] = tuple(v for k, v in enumerate(literals[name]) if k != place)
    if all(s is None for s in literals.get("operand_strides", (None,))):
        literals.pop("operand_strides", None)
    if kind == CAUSAL:
        literals["is_causal"] = True
    operands = [v for k, v in enumerate(op.operands) if k != place]
    new = kernel.Extern.make(operands, [r.type for r in op.results], literals)
    _put(new, op)
    return kind


def _put(new: kernel.Extern, op: kernel.Extern) -> None:
    """One call in the place of another one."""
    InFrontOf(op).add(new)
    for old, result in zip(op.results, new.results, strict=True):
        result.name_hint = old.name_hint
        old.replace_all_uses_with(result)
    assert op.parent is not None
    op.parent.erase_op(op)


def _match(op: kernel.Extern, masks: Masks, ctx: CompileContext) -> bool:
    """Put a call in front of the last product of an attention and let it be read instead."""
    found = find(op)
    if found is None or broken(takes_products(found)) is not None:
        return False
    q, factor = _unscaled(found.q)
    found = replace(found, scale=found.scale * factor)
    scores = ScoreRegion(found) if found.steps else None
    if not has_kernel(_outline(found, scores), ctx.machine):
        return False
    _Builder(found, q, masks, scores).replace()
    return True


def _outline(found: Products, scores: ScoreRegion | None) -> kernel.Extern:
    """The call without masks, on values of its own: what kernels are asked about."""
    b, h, rows, keys = found.shape
    depth, width = prim.tensor(found.q).shape[2], prim.tensor(found.v).shape[2]
    t = prim.tensor(found.v)
    shapes = [(b, h, rows, depth), (b, h, keys, depth), (b, h, keys, width)]
    read, names, regions = (scores.memory, scores.names, [scores.region()]) if scores else ({}, (), [])
    block = Block(arg_types=[*(t.with_(shape=shape) for shape in shapes), *(v.type for v in read)])
    attrs: dict[str, object] = {"target": ATTENTION, "operands": (*ROWS, *names), "scale": found.scale}
    return kernel.Extern.make(block.args, [t.with_(shape=(b, h, rows, width))], attrs, regions)


def _unscaled(q: SSAValue) -> tuple[SSAValue, float]:
    """x, perhaps of another shape, and f for queries x * f: the kernel multiplies the scores, x may be a view."""
    inner = producer(q, prim.Reshape)
    source = q if inner is None else inner.operands[0]
    rounded = producer(source, prim.Cast)
    scaled = (source if rounded is None else rounded.operands[0]).owner
    if not isinstance(scaled, Op) or scaled.name != "prim.mul":
        return q, 1.0
    factor, x = splat(scaled.operands[1]), scaled.operands[0]
    wide = producer(x, prim.Cast)
    x = x if wide is None else wide.operands[0]
    if not isinstance(factor, float) or not 0 < factor < math.inf or prim.tensor(x).dtype != prim.tensor(q).dtype:
        return q, 1.0
    return x, factor


class _Builder:
    """Makes the call that stands for two products."""

    def __init__(self, found: Products, q: SSAValue, masks: Masks, scores: ScoreRegion | None) -> None:
        self.found, self.q, self.masks, self.scores = found, q, masks, scores
        self.add = InFrontOf(found.last).add
        shapes = [prim.tensor(mask.value).shape for mask in found.masks]
        self.outer: tuple[Dim, ...] = next((s[:2] for s in shapes if len(s) == 5), ())  # images and windows

    def replace(self) -> None:
        last = self.found.last
        result, call = last.results[0], self.call()
        users = [use.operation for use in result.uses]
        if all(isinstance(u, prim.Reshape) and u.results[0].type == call.results[0].type for u in users):
            b, h, rows, width = prim.tensor(call.results[0]).shape
            call["strides"] = (heads_side_by_side((b, h, rows, width)),)  # as the projection that follows reads them
            self.add(call)
            for user in users:
                user.results[0].replace_all_uses_with(call.results[0])
        else:
            self.add(call)
            result.replace_all_uses_with(self.add(prim.reshape(call.results[0], prim.tensor(result).shape)))

    def call(self) -> kernel.Extern:
        """The call, its operands as views of memory where they are ones."""
        found = self.found
        b, h, rows, keys = found.shape
        depth, width = prim.tensor(found.q).shape[2], prim.tensor(found.v).shape[2]
        q = self.seen_as(self.q, (b, h, rows, depth))
        k_turned = self.seen_as(found.k_turned, (b, h, depth, keys))
        v = self.seen_as(found.v, (b, h, keys, width))
        turn = producer(k_turned, prim.Permute)
        direct = turn is not None and tuple(turn["perm"]) == (0, 1, 3, 2)
        k = turn.operands[0] if turn is not None and direct else self.add(prim.permute(k_turned, (0, 1, 3, 2)))
        values = {"query": q, "key": k, "value": v}
        if self.scores is None:
            said, regions = self.mask(values), []
        else:
            values |= dict(zip(self.scores.names, self.scores.memory, strict=True))
            said, regions = {"own": CPP, "empty_rows": "nan"}, [self.scores.region()]
        attrs = {"target": ATTENTION, "operands": tuple(values), "scale": found.scale, **said}
        result = prim.tensor(q).with_(shape=(b, h, rows, width))
        return kernel.Extern.make(list(values.values()), [result], attrs, regions)

    def seen_as(self, value: SSAValue, shape: tuple[Dim, ...]) -> SSAValue:
        """The value, or what is behind its reshape, under another shape."""
        view = producer(value, prim.Reshape)
        source = value if view is None else view.operands[0]
        return source if prim.tensor(source).shape == shape else self.add(prim.reshape(source, shape))

    def mask(self, values: dict[str, SSAValue]) -> dict[str, object]:
        """What happens to the scores: the attributes that say it, beside an operand among `values`."""
        kept: list[Mask] = []
        causal = deadly = False
        for mask in self.found.masks:
            mask = self.as_open(mask)
            kind = _kind(mask.value, self.masks)
            if kind == FULL:
                continue
            causal |= kind == CAUSAL
            deadly |= kind != CAUSAL and (mask.shuts is None or mask.number == -math.inf)
            kept.append(mask)
        if causal and len(kept) == 1:
            return {"is_causal": True, "empty_rows": "none"}
        if kept:
            key = tuple((m.value, m.shuts, m.number == -math.inf) for m in kept), self.found.shape, self.outer
            values["attn_mask"] = self.masks.once(lambda: self.joined(kept), key)
        return {"empty_rows": "nan" if deadly or not kept else "none"}

    def as_open(self, mask: Mask) -> Mask:
        """The same with a truth value that opens the scores."""
        if not mask.shuts:
            return mask
        opened = self.masks.once(lambda: self.add(prim.elementwise("not", mask.value)), mask.value, "not")
        return Mask(opened, False, mask.number)

    def small(self, value: SSAValue, rank: int) -> SSAValue:
        """The value before it was spread: four dimensions that broadcast to the scores', or five with images."""
        batch, heads, _, _ = self.found.shape
        whole = prim.tensor(value).shape
        dims = tuple(range(len(whole)))
        steps: list[Op] = []
        while isinstance(value.owner, prim.Broadcast | prim.Cast | prim.Elementwise):
            op = value.owner
            if isinstance(op, prim.Broadcast):
                dims = tuple(dims[d] for d in op["dims"])
            elif len(op.operands) != 1:
                break
            else:
                steps.append(op)
            value = op.operands[0]
        shape: list[Dim] = [1] * len(whole)
        for d, size in zip(dims, prim.tensor(value).shape, strict=True):
            shape[d] = size
        if len(whole) == 3:
            shape = [1, 1, *shape[1:]] if shape[0] == 1 else [batch, heads, *shape[1:]]
        if len(shape) < rank:
            shape = [1, *shape] if shape[0] == 1 else [*self.outer, *shape[1:]]
        result = value if prim.tensor(value).shape == tuple(shape) else self.add(prim.reshape(value, tuple(shape)))
        for step in reversed(steps):
            kind = prim.tensor(step.results[0]).with_(shape=tuple(shape))
            attributes = {k: v for k, v in step.attributes.items() if k != "strides"}
            result = self.add(type(step).create(operands=[result], result_types=[kind], attributes=attributes))
        return result

    def joined(self, masks: list[Mask]) -> SSAValue:
        """All masks in one of four dimensions: one that is alone as it is, else their sum in float32."""
        rank = 5 if self.outer else 4
        values = [self.small(mask.value, rank) for mask in masks]
        shapes = [prim.tensor(v).shape for v in values]
        whole = tuple(next((s[d] for s in shapes if s[d] != 1), 1) for d in range(rank))
        if len(masks) == 1 and (masks[0].shuts is None or masks[0].number == -math.inf):
            total = values[0]
        else:
            total = self.total(masks, values, whole)
        if rank == 4:
            return total
        if whole[:2] != (1, 1):  # windows of each image have masks of their own
            total = self.spread(total, (*self.outer, *whole[2:]))
        return self.add(prim.reshape(total, (dim(math.prod(prim.tensor(total).shape[:2])), *whole[2:])))

    def total(self, masks: list[Mask], values: list[SSAValue], whole: tuple[Dim, ...]) -> SSAValue:
        """What is added to the scores in all; where a score is replaced, what was added before is forgotten."""
        like = prim.tensor(self.found.v).with_(shape=whole, dtype=F32)
        total: SSAValue | None = None
        for mask, value in zip(masks, values, strict=True):
            if mask.shuts is not None:
                other = self.add(prim.full(0.0, like)) if total is None else total
                number = self.add(prim.full(-math.inf if mask.number == -math.inf else SHUT, like))
                total = self.add(prim.elementwise("where", self.spread(value, whole), other, number))
                continue
            wide = self.spread(value if prim.tensor(value).dtype == F32 else self.add(prim.cast(value, F32)), whole)
            total = wide if total is None else self.add(prim.elementwise("add", total, wide))
        assert total is not None
        return total

    def spread(self, value: SSAValue, shape: tuple[Dim, ...]) -> SSAValue:
        if prim.tensor(value).shape == shape:
            return value
        return self.add(prim.broadcast(value, shape, tuple(range(len(shape)))))
