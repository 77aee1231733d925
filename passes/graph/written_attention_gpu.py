"""Attention that a program writes out, on a GPU: which products, scales and masks it is made of, and the one call that stands for it.

    softmax(q k^T * s + m) v    with m a sum, `masked_fill`, `where` or `baddbmm`, over three or four dimensions, softmax in the dtype or in float32

A library's kernel takes a mask in the operands' dtype, and has its own ideas of rows in which nothing is open. So masks that are not known to leave
something open are written anew: no number below -1e30, where the same comes out, and nan in rows that are -inf all over, as the operations give.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

from xdsl.ir import Operation, SSAValue

from ...ir.dialects import kernel, prim
from ...ir.dtypes import BF16, F16, F32, DType
from ...ir.symbols import Dim, dim, known_equal
from ...ir.syntax import Op
from ...ir.types import is_gpu
from ..analysis.strides import view_of
from ..core.rewriter import is_dead, producer, splat
from ..kernels.short_attention import Call, choose
from .attention_mask import CAUSAL, FULL, mask_kind

ATTENTION = "aten.scaled_dot_product_attention.default"
BMM, BADDBMM = "aten.bmm.default", "aten.baddbmm.default"
LOWEST = {
    F16: -65504.0,
    BF16: -1e30,
    F32: -1e30,
}  # times log2(e) it is still a number, added to a score it leaves nothing of it
SHUTS = -1e9  # numbers below, put in the place of a score, are as good as -inf beside any other
MOST_WIDTH = 256  # of a head
PLAIN = ("prim.cast", "prim.reshape", "prim.permute", "prim.mul", "prim.div")
VIEWS = prim.Reshape | prim.Permute


@dataclass(frozen=True)
class Mask:
    """What happens to the scores, with their shape there: `value` is added, or it is a truth value that opens (shuts) them.

    Attributes:
        shuts: what the truth value is where the score is replaced by `number`; None: the value is added.
    """

    value: SSAValue
    shuts: bool | None = None
    number: float = 0.0


@dataclass
class WrittenOut:
    """What was found: operands of the products (three dimensions each), the factor of the scores, the masks, and what is not needed any more."""

    v: SSAValue
    chain: list[Operation]
    q: SSAValue
    k_turned: SSAValue
    shape: tuple[Dim, ...]  # batch, heads, rows, keys
    scale: float
    masks: list[Mask]


def find(op: kernel.Extern) -> WrittenOut | None:
    """The attention that ends with this `aten.bmm`."""
    weights, v = op.operands
    t = prim.tensor(v)
    if not is_gpu(t.device) or t.dtype not in LOWEST or 0 in t.shape or op.get("epilogue") or op.get("strides"):
        return None
    return _Finder(op).run()


class _Finder:
    """Walks from the last product back to the first."""

    def __init__(self, op: kernel.Extern) -> None:
        self.op = op
        self.dtype: DType = prim.tensor(op.operands[1]).dtype
        self.batch, self.rows, self.keys = prim.tensor(op.operands[0]).shape
        self.chain: list[Operation] = []
        self.four: tuple[Dim, ...] | None = None
        self.scale = 1.0
        self.masks: list[Mask] = []  # the last one first

    def run(self) -> WrittenOut | None:
        scores = self._before_softmax(self._back(self.op.operands[0]))
        product = None if scores is None else self._product(scores)
        if product is None:
            return None
        q, k_turned = product
        v = self.op.operands[1]
        (_, rows, depth), (_, depth_k, keys), (_, keys_v, width) = (prim.tensor(x).shape for x in (q, k_turned, v))
        fits = (rows, depth, keys, keys_v) == (self.rows, depth_k, self.keys, self.keys)
        if (
            not fits
            or (depth != width and not self._is_short(depth, width))
            or not isinstance(depth, int)
            or depth % 8
            or not 0 < depth <= MOST_WIDTH
        ):
            return None
        if any(prim.tensor(x).dtype != self.dtype for x in (q, k_turned)) or self._read_elsewhere():
            return None
        shape = self.four or (self.batch, 1, self.rows, self.keys)
        if self.scale <= 0 or not all(self._fits(prim.tensor(m.value).shape, shape) for m in self.masks):
            return None
        q, factor = _unscaled(q)
        return WrittenOut(v, self.chain, q, k_turned, shape, self.scale * factor, self.masks[::-1])

    def _is_short(self, depth: Dim, width: Dim) -> bool:
        """Whether a kernel of ours will carry it out: libraries want heads of queries and values of one width."""
        sizes = (self.batch, self.rows, self.keys, depth, width)
        if not all(isinstance(n, int) for n in sizes):
            return False
        call = Call.sized(*cast(tuple[int, int, int, int, int], sizes), self.dtype)
        return call is not None and choose(call, self.dtype) is not None

    def _fits(self, mask: tuple[Dim, ...], shape: tuple[Dim, ...]) -> bool:
        """Three dimensions, the four of the scores, or five where batch entries are two: images and their windows."""
        if len(mask) == 5:
            return dim(mask[0] * mask[1]) == shape[0] and mask[2:] == shape[1:]
        return mask in (shape, (self.batch, self.rows, self.keys))

    def _step(self, op: Op) -> SSAValue:
        """Take an operation into the chain; its first operand."""
        self.chain.append(op)
        return op.operands[0]

    def _back(self, value: SSAValue) -> SSAValue:
        """Through casts between floating types, and views that keep rows and keys the last two dimensions."""
        while True:
            self._note(value)
            op = value.owner
            if isinstance(op, prim.Cast):
                if not prim.tensor(op.operands[0]).dtype.is_float:
                    return value
            elif not (isinstance(op, VIEWS) and self._keeps_rows(op)):
                return value
            value = self._step(op)

    def _note(self, value: SSAValue) -> None:
        shape = prim.tensor(value).shape
        if len(shape) == 4 and shape[2:] == (self.rows, self.keys):
            self.four = shape

    def _keeps_rows(self, op: Op) -> bool:
        shapes = [prim.tensor(v).shape for v in (op.operands[0], op.results[0])]
        if isinstance(op, prim.Permute):  # only dimensions of one element change their place
            wide = [d for d in op["perm"] if shapes[0][d] != 1]
            return wide == sorted(wide)
        if all(s[-2:] == (self.rows, self.keys) for s in shapes):
            return True
        wide_shapes = [tuple(n for n in s if n != 1) for s in shapes]
        return 1 not in (self.rows, self.keys) and all(s[-2:] == (self.rows, self.keys) for s in wide_shapes)

    def _before_softmax(self, weights: SSAValue) -> SSAValue | None:
        """s for exp(s - max(s)) / sum(exp(s - max(s))) over the last dimension."""
        quotient = self._elementwise(weights, "div")
        if quotient is None:
            return None
        powers, total = quotient.operands
        power = self._elementwise(powers, "exp")
        if power is None or self._reduced(total, "sum") != powers:
            return None
        difference = self._elementwise(power.operands[0], "sub")
        if difference is None:
            return None
        scores, highest = difference.operands
        return scores if self._reduced(highest, "max") == scores else None

    def _elementwise(self, value: SSAValue, name: str) -> Op | None:
        op = value.owner
        if not isinstance(op, Op) or op.name != f"prim.{name}":
            return None
        self.chain.append(op)
        return op

    def _reduced(self, value: SSAValue, kind: str) -> SSAValue | None:
        """x for broadcast(reduce<kind>(x)) along the last dimension."""
        spread = producer(value, prim.Broadcast)
        reduce = None if spread is None else producer(spread.operands[0], prim.Reduce)
        last = prim.tensor(value).rank - 1
        if spread is None or reduce is None or reduce["kind"] != kind or tuple(reduce["dims"]) != (last,):
            return None
        if tuple(spread["dims"]) != tuple(range(last)):
            return None
        self.chain += [spread, reduce]
        return reduce.operands[0]

    def _product(self, value: SSAValue) -> tuple[SSAValue, SSAValue] | None:
        """The operands of the product whose scores these are; what happens to the scores on the way is noted."""
        while True:
            value = self._back(value)
            op = value.owner
            if isinstance(op, kernel.Extern):
                return self._operands(op)
            if not isinstance(op, Op) or op.name not in ("prim.add", "prim.mul", "prim.div", "prim.where"):
                return None
            self.chain.append(op)
            following = getattr(self, f"_{op.name[5:]}")(op)
            if following is None:
                return None
            value = following

    def _add(self, op: Op) -> SSAValue | None:
        """The side that leads to the product; the other is a mask, in the operands' dtype."""
        sides = [v for v in op.operands if self._leads(v)]
        if len(sides) != 1:
            return None
        (mask,) = (v for v in op.operands if v is not sides[0])
        if not self._is_mask(mask):
            return None
        self.masks.append(Mask(mask))
        return sides[0]

    def _is_mask(self, mask: SSAValue) -> bool:
        """Whether the mask is of the operands' dtype, or says no more than what it says in that."""
        return self.dtype in _dtypes(mask) or mask_kind(mask) is not None

    def _mul(self, op: Op) -> SSAValue | None:
        return self._scaled(op, splat(op.operands[1]))

    def _div(self, op: Op) -> SSAValue | None:
        number = splat(op.operands[1])
        return self._scaled(op, 1 / number) if isinstance(number, float) and number else None

    def _scaled(self, op: Op, factor: object) -> SSAValue | None:
        # A factor behind a mask would be one of the mask, too.
        if not isinstance(factor, float) or not math.isfinite(factor) or factor == 0 or self._found_before(op):
            return None
        self.scale *= factor
        return op.operands[0]

    def _found_before(self, op: Op) -> bool:
        """Whether a mask comes before this step, seen from the product."""
        value = op.operands[0]
        while isinstance(value.owner, Op) and value.owner.name in PLAIN:
            value = value.owner.operands[0]
        return not isinstance(value.owner, kernel.Extern)

    def _where(self, op: Op) -> SSAValue | None:
        """where(shut, low number, scores) or where(open, scores, low number)."""
        condition, here, there = op.operands
        for number, other, truth in ((splat(here), there, True), (splat(there), here, False)):
            if isinstance(number, float) and self._is_low(number, condition, truth):
                self.masks.append(Mask(condition, truth, number))
                return other
        return None

    def _is_low(self, number: float, condition: SSAValue, truth: bool) -> bool:
        """Whether nothing is left of a score where this number stands in its place, and the same comes out where one is added to it.

        A float16 mask holds no number beside which a score vanishes: a row that is shut all over would weigh values by its scores, not equally.
        """
        if number == -math.inf or self.dtype != F16:
            return number <= SHUTS
        return number <= LOWEST[F16] and not truth and mask_kind(condition) is not None

    def _leads(self, value: SSAValue) -> bool:
        """Whether the scores of a product are what the value is computed from, elementwise."""
        for _ in range(32):
            op = value.owner
            if isinstance(op, kernel.Extern):
                return op["target"] in (BMM, BADDBMM)
            if not isinstance(op, Op) or op.name not in (*PLAIN, "prim.add", "prim.where"):
                return False
            if op.name == "prim.add":
                return any(map(self._leads, op.operands))
            if op.name == "prim.where":
                return any(map(self._leads, op.operands[1:]))
            value = op.operands[0]
        return False

    def _operands(self, op: kernel.Extern) -> tuple[SSAValue, SSAValue] | None:
        if op.get("epilogue") or op.get("strides"):
            return None
        given = dict(zip(op["operands"], op.operands, strict=True))
        if op["target"] == BMM:
            self.chain.append(op)
            return given["self"], given["mat2"]
        if op["target"] != BADDBMM:
            return None
        alpha, beta = float(op.get("alpha", 1)), float(op.get("beta", 1))
        if alpha == 0 or beta not in (0, 1) or self.scale != 1:
            return None
        if beta:
            if not self._is_mask(given["self"]):
                return None
            self.masks.append(Mask(given["self"]))
        self.scale = alpha
        self.chain.append(op)
        return given["batch1"], given["batch2"]

    def _read_elsewhere(self) -> bool:
        """Whether something else needs the scores, the weights or what is between them in memory."""
        inside = {*self.chain, self.op}
        return any(use.operation not in inside for op in self.chain for result in op.results for use in result.uses)


def _unscaled(q: SSAValue) -> tuple[SSAValue, float]:
    """x and f for queries x * f: the kernel multiplies the scores, x may be a view of memory."""
    shape, inner = prim.tensor(q).shape, producer(q, prim.Reshape)
    product = producer(q if inner is None else inner.operands[0], prim.Cast)
    scaled = (product.operands[0] if product is not None else q if inner is None else inner.operands[0]).owner
    if not isinstance(scaled, Op) or scaled.name != "prim.mul":
        return q, 1.0
    factor, x = splat(scaled.operands[1]), scaled.operands[0]
    wide = producer(x, prim.Cast)
    x = x if wide is None else wide.operands[0]
    if not isinstance(factor, float) or not 0 < factor < math.inf or prim.tensor(x).dtype != prim.tensor(q).dtype:
        return q, 1.0
    if prim.tensor(x).shape == shape:
        return x, factor
    view = prim.reshape(x, shape)
    view.location = scaled.location
    block = q.owner.parent if isinstance(q.owner, Op) else None
    assert block is not None and isinstance(q.owner, Op)
    block.insert_ops_before([view], q.owner)
    return view.results[0], factor


def _dtypes(value: SSAValue) -> set[DType]:
    """The floating types that the value's numbers have been through last: it is spread and cast without loss from the narrowest."""
    found = {prim.tensor(value).dtype}
    while isinstance(value.owner, prim.Broadcast | prim.Cast) and prim.tensor(value.owner.operands[0]).dtype.is_float:
        value = value.owner.operands[0]
        found.add(prim.tensor(value).dtype)
    return found


def replace(op: kernel.Extern, found: WrittenOut) -> None:
    """One call in the place of the last product; what it makes unneeded is erased."""
    build = _Builder(op, found)
    call = build.call()
    block = op.parent
    assert block is not None
    result = op.results[0]
    users = [use.operation for use in result.uses]
    kind = call.results[0].type
    if all(isinstance(u, prim.Reshape) and u.results[0].type == kind for u in users):
        for user in users:
            user.results[0].replace_all_uses_with(call.results[0])
    else:
        result.replace_all_uses_with(build.add(prim.reshape(call.results[0], prim.tensor(result).shape)))
    block.insert_ops_before(build.made, op)
    for inner in reversed(list(block.ops)):
        if is_dead(inner):
            block.erase_op(inner)


class _Builder:
    """Makes the operations of the call."""

    def __init__(self, op: kernel.Extern, found: WrittenOut) -> None:
        self.op, self.found = op, found
        self.made: list[Operation] = []
        self.dtype = prim.tensor(found.v).dtype
        shapes = [prim.tensor(mask.value).shape for mask in found.masks]
        self.outer: tuple[Dim, ...] = next((s[:2] for s in shapes if len(s) == 5), ())  # images and windows

    def add(self, op: Operation) -> SSAValue:
        op.location = self.op.location
        self.made.append(op)
        return op.results[0]

    def call(self) -> kernel.Extern:
        """The call, its operands as views of memory where they are ones."""
        found = self.found
        b, h, rows, keys = found.shape
        depth, width = prim.tensor(found.q).shape[2], prim.tensor(found.v).shape[2]
        q = self._seen_as(found.q, (b, h, rows, depth))
        k_turned = self._seen_as(found.k_turned, (b, h, depth, keys))
        v = self._seen_as(found.v, (b, h, keys, width))
        turn = producer(k_turned, prim.Permute)
        direct = turn is not None and tuple(turn["perm"]) == (0, 1, 3, 2)
        k = turn.operands[0] if turn is not None and direct else self.add(prim.permute(k_turned, (0, 1, 3, 2)))
        mask, causal = self._mask()
        operands, names = [q, k, v], ["query", "key", "value"]
        if mask is not None:
            operands.append(mask)
            names.append("attn_mask")
        attrs: dict[str, object] = {"target": ATTENTION, "operands": tuple(names), "scale": found.scale}
        if causal:
            attrs["is_causal"] = True
        if not self._among_heads(q):  # the result lies as its projection reads it, rows of all heads side by side
            beside = [(dim(rows * h * n), n, dim(h * n), 1) for n in (depth, width)]
            attrs["strides"] = (beside[1],)
            attrs["operand_strides"] = (beside[0], *((None,) * (len(names) - 1)))
        kind = prim.tensor(q).with_(shape=(b, h, rows, width))
        call = kernel.Extern.make(operands, [kind], attrs, loc=self.op.location)
        self.made.append(call)
        return call

    @staticmethod
    def _among_heads(q: SSAValue) -> bool:
        """Whether q lies head by head in memory that is there already."""
        view = view_of(q)
        is_memory = view is not None and not isinstance(view.base.owner, prim.PrimOp)
        return view is not None and is_memory and known_equal(view.strides[2], view.shape[3])

    def _seen_as(self, value: SSAValue, shape: tuple[Dim, ...]) -> SSAValue:
        """The value, or what is behind its reshape, under another shape."""
        view = producer(value, prim.Reshape)
        source = value if view is None else view.operands[0]
        if prim.tensor(source).shape == shape:
            return source
        return self.add(prim.reshape(source, shape))

    def _mask(self) -> tuple[SSAValue | None, bool]:
        """What is added to the scores in all, four dimensions that broadcast to the scores', or None; and whether a triangle is all that is open."""
        kept: list[Mask] = []
        causal = deadly = False
        for mask in self.found.masks:
            if mask.shuts:
                mask = Mask(self.add(prim.elementwise("not", mask.value)), False, mask.number)
            kind = mask_kind(mask.value)
            if kind == FULL:
                continue
            causal |= kind == CAUSAL
            deadly |= kind != CAUSAL and (mask.shuts is None or mask.number == -math.inf)
            kept.append(mask)
        if causal and len(kept) == 1:
            return None, True
        return (self._joined(kept, deadly) if kept else None), False

    def _small(self, value: SSAValue, rank: int) -> SSAValue:
        """The value before it was spread, as four dimensions that broadcast to the scores', or five (see `_fits`)."""
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

    def _joined(self, masks: list[Mask], deadly: bool) -> SSAValue:
        """All masks in one of the operands' dtype, no number below LOWEST; `deadly`: nan in rows without anything open, as the program has it."""
        rank = 5 if self.outer else 4
        values = [self._small(mask.value, rank) for mask in masks]
        shapes = [prim.tensor(v).shape for v in values]
        whole = tuple(next((s[d] for s in shapes if s[d] != 1), 1) for d in range(rank))
        like = prim.tensor(self.found.v).with_(shape=whole, dtype=F32)
        lowest = self.add(prim.full(LOWEST[self.dtype], like))
        shut = self.add(prim.full(-math.inf, like)) if deadly else lowest
        total: SSAValue | None = None
        for mask, value in zip(masks, values, strict=True):
            if mask.shuts is not None:
                other = self.add(prim.full(0.0, like)) if total is None else total
                total = self.add(prim.elementwise("where", self._spread(value, whole), other, shut))
                continue
            wide = self._spread(value if prim.tensor(value).dtype == F32 else self.add(prim.cast(value, F32)), whole)
            total = wide if total is None else self.add(prim.elementwise("add", total, wide))
        assert total is not None
        bounded = self.add(prim.elementwise("max", total, lowest))
        if deadly:
            highest = self.add(prim.reduce("max", total, (rank - 1,)))
            nothing = self.add(prim.full(-math.inf, prim.tensor(highest)))
            dead = self.add(prim.elementwise("eq", highest, nothing))
            rows = self.add(prim.broadcast(dead, whole, tuple(range(rank - 1))))
            bounded = self.add(prim.elementwise("where", rows, self.add(prim.full(math.nan, like)), bounded))
        joined = bounded if self.dtype == F32 else self.add(prim.cast(bounded, self.dtype))
        if rank == 4:
            return joined
        if whole[:2] != (1, 1):  # windows of each image have masks of their own
            joined = self._spread(joined, (*self.outer, *whole[2:]))
        return self.add(prim.reshape(joined, (dim(math.prod(prim.tensor(joined).shape[:2])), *whole[2:])))

    def _spread(self, value: SSAValue, shape: tuple[Dim, ...]) -> SSAValue:
        return (
            value
            if prim.tensor(value).shape == shape
            else self.add(prim.broadcast(value, shape, tuple(range(len(shape)))))
        )
