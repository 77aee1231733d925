"""Attention as programs write it: from the last product through the softmax back to the first.

    softmax(q k^T * s + m) v    with m a sum, `masked_fill`, `where` or `baddbmm`
    softmax(f(q k^T)) v         with f of operations on single elements

Over three to five dimensions, softmax in the dtype or in float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import cast

from xdsl.ir import Operation, SSAValue

from ....ir.dialects import kernel, prim
from ....ir.dtypes import BF16, F16, F32, DType
from ....ir.symbols import Dim, dim
from ....ir.syntax import Op
from ...core.clauses import Clauses
from ...core.rewriter import producer, splat
from .mask_kind import mask_kind

BMM, BADDBMM = "aten.bmm.default", "aten.baddbmm.default"
DTYPES = (F32, F16, BF16)
ENOUGH = -1e9  # this number, or one below, in the place of a score is as good as -inf beside any other score
LEAST_F16 = -65504.0
SCALINGS = ("prim.cast", "prim.reshape", "prim.permute", "prim.mul", "prim.div")
VIEWS = prim.Reshape | prim.Permute
LONGEST = 32  # operations between a sum and the product that it adds to
MOST_VALUES = 256  # that are looked at for the product whose scores a softmax takes


@dataclass(frozen=True)
class Mask:
    """What happens to the scores, with their shape there: `value` is added, or a truth value opens (shuts) them.

    Attributes:
        shuts: what the truth value is where the score is replaced by `number`; None: the value is added.
    """

    value: SSAValue
    shuts: bool | None = None
    number: float = 0.0


@dataclass
class Products:
    """Two products with a softmax between them.

    Attributes:
        last: the product with the values.
        q, k_turned, v: operands of the products, three dimensions each.
        chain: the operations between them, and the first product.
        shape: batch, heads, rows and keys of the scores.
        masks: what happens to the scores behind their factor `scale`, in order.
        steps: the operations on the scores, in order, where they are more than a factor and masks.
    """

    last: kernel.Extern
    q: SSAValue
    k_turned: SSAValue
    chain: list[Operation]
    shape: tuple[Dim, ...]
    scale: float
    masks: list[Mask]
    steps: list[Op] = field(default_factory=list)

    @property
    def first(self) -> kernel.Extern:
        """The product of queries and keys."""
        return cast(kernel.Extern, self.chain[-1])

    @property
    def v(self) -> SSAValue:
        return self.last.operands[1]


def find(op: kernel.Extern) -> Products | None:
    """What ends with this `aten.bmm` and looks like attention; `takes_products` says whether it is."""
    return _Walk(op).run() if _is_plain(op) else None


def takes_products(found: Products) -> Clauses:
    """What one call of `scaled_dot_product_attention` can stand for."""
    (_, rows, depth), (_, depth_k, keys), (_, keys_v, width) = (
        prim.tensor(x).shape for x in (found.q, found.k_turned, found.v)
    )
    yield (rows, keys) == found.shape[2:] and depth == depth_k and keys == keys_v, "products that fit together"
    yield 0 not in (*found.shape, depth, width), "nothing empty"
    kinds = {prim.tensor(x) for x in (found.q, found.k_turned, found.v)}
    yield len({(t.dtype, t.device) for t in kinds}) == 1 and prim.tensor(found.v).dtype in DTYPES, "one floating type"
    yield not _read_elsewhere(found), "scores and weights that nothing else reads"
    yield math.isfinite(found.scale) and found.scale != 0, "a factor that is a number other than zero"
    yield all(_spreads(prim.tensor(m.value).shape, found) for m in found.masks), "masks of the scores' shape"


def _is_plain(op: kernel.Extern) -> bool:
    return all(s is None for s in op.get("strides", ()))


def _read_elsewhere(found: Products) -> bool:
    inside = {*found.chain, found.last}
    return any(use.operation not in inside for op in found.chain for result in op.results for use in result.uses)


def _spreads(mask: tuple[Dim, ...], found: Products) -> bool:
    """Three dimensions, the four of the scores, or five where batch entries are two: images and their windows."""
    batch, heads, rows, keys = found.shape
    if len(mask) == 5:
        return dim(mask[0] * mask[1]) == batch and mask[2:] == found.shape[1:]
    return mask in (found.shape, (dim(batch * heads), rows, keys))


@dataclass
class _Walk:
    """Walks from the last product back to the first."""

    last: kernel.Extern
    chain: list[Operation] = field(default_factory=list)
    four: tuple[Dim, ...] | None = None
    scale: float = 1.0
    masks: list[Mask] = field(default_factory=list)  # the last one first

    def __post_init__(self) -> None:
        self.dtype: DType = prim.tensor(self.last.operands[1]).dtype
        self.sizes = self.batch, self.rows, self.keys = prim.tensor(self.last.operands[0]).shape

    def run(self) -> Products | None:
        scores = self.before_softmax(self.through_views(self.last.operands[0]))
        if scores is None:
            return None
        behind, steps = list(self.chain), list[Op]()
        product = self.first_product(scores)
        if product is None:
            self.chain, self.scale, self.masks = behind, 1.0, []
            steps = _Steps(self, scores).steps
            if not steps:
                return None
            product = self.operands(cast(kernel.Extern, self.chain[-1]))
            assert product is not None
        shape = self.four or (self.batch, 1, self.rows, self.keys)
        return Products(self.last, *product, self.chain, shape, self.scale, self.masks[::-1], steps)

    def step(self, op: Op) -> SSAValue:
        """Take an operation into the chain; its first operand."""
        self.chain.append(op)
        return op.operands[0]

    def elementwise(self, value: SSAValue, name: str) -> Op | None:
        op = value.owner
        if not isinstance(op, Op) or op.name != f"prim.{name}":
            return None
        self.chain.append(op)
        return op

    def through_views(self, value: SSAValue) -> SSAValue:
        """Through casts between floating types, and views that keep rows and keys the last two dimensions."""
        while True:
            shape = prim.tensor(value).shape
            if len(shape) == 4 and shape[2:] == (self.rows, self.keys):
                self.four = shape
            op = value.owner
            if isinstance(op, prim.Cast):
                if not prim.tensor(op.operands[0]).dtype.is_float:
                    return value
            elif not (isinstance(op, VIEWS) and self.keeps_rows(op)):
                return value
            value = self.step(op)

    def keeps_rows(self, op: Op) -> bool:
        shapes = [prim.tensor(v).shape for v in (op.operands[0], op.results[0])]
        if isinstance(op, prim.Permute):  # only dimensions of one element change their place
            wide = [d for d in op["perm"] if shapes[0][d] != 1]
            return wide == sorted(wide)
        if all(s[-2:] == (self.rows, self.keys) for s in shapes):
            return True
        wide_shapes = [tuple(n for n in s if n != 1) for s in shapes]
        return 1 not in (self.rows, self.keys) and all(s[-2:] == (self.rows, self.keys) for s in wide_shapes)

    def before_softmax(self, weights: SSAValue) -> SSAValue | None:
        """s for exp(s - max(s)) / sum(exp(s - max(s))) over the last dimension."""
        if (quotient := self.elementwise(weights, "div")) is None:
            return None
        powers, total = quotient.operands
        if (power := self.elementwise(powers, "exp")) is None or self.reduced(total, "sum") != powers:
            return None
        if (difference := self.elementwise(power.operands[0], "sub")) is None:
            return None
        scores, highest = difference.operands
        return scores if self.reduced(highest, "max") == scores else None

    def reduced(self, value: SSAValue, kind: str) -> SSAValue | None:
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

    def first_product(self, value: SSAValue) -> tuple[SSAValue, SSAValue] | None:
        """The operands of the product whose scores these are; what happens to the scores on the way is noted."""
        steps = {"prim.add": self.add, "prim.mul": self.mul, "prim.div": self.div, "prim.where": self.where}
        while True:
            value = self.through_views(value)
            op = value.owner
            if isinstance(op, kernel.Extern):
                return self.operands(op)
            if not isinstance(op, Op) or op.name not in steps:
                return None
            self.chain.append(op)
            following = steps[op.name](op)
            if following is None:
                return None
            value = following

    def add(self, op: Op) -> SSAValue | None:
        """The side that leads to a product; the other is a mask, in the operands' dtype."""
        left, right = op.operands
        for side, mask in ((left, right), (right, left)):
            if _leads_to_product(side):
                return side if self.adds(mask) else None
        return None

    def adds(self, mask: SSAValue) -> bool:
        """Note what is added, if it is of the operands' dtype, or says no more than what it says in that."""
        if self.dtype not in _dtypes(mask) and mask_kind(mask) is None:
            return False
        self.masks.append(Mask(mask))
        return True

    def mul(self, op: Op) -> SSAValue | None:
        return self.scaled(op, splat(op.operands[1]))

    def div(self, op: Op) -> SSAValue | None:
        number = splat(op.operands[1])
        return self.scaled(op, 1 / number) if isinstance(number, float) and number else None

    def scaled(self, op: Op, factor: object) -> SSAValue | None:
        """A factor of the scores; behind a mask it would be one of the mask, too."""
        value = op.operands[0]
        while isinstance(value.owner, Op) and value.owner.name in SCALINGS:
            value = value.owner.operands[0]
        if not isinstance(factor, float) or not isinstance(value.owner, kernel.Extern):
            return None
        self.scale *= factor
        return op.operands[0]

    def where(self, op: Op) -> SSAValue | None:
        """where(shut, low number, scores) or where(open, scores, low number)."""
        condition, here, there = op.operands
        for number, other, truth in ((splat(here), there, True), (splat(there), here, False)):
            if isinstance(number, float) and self.is_low(number, condition, truth):
                self.masks.append(Mask(condition, truth, number))
                return other
        return None

    def is_low(self, number: float, condition: SSAValue, truth: bool) -> bool:
        """Whether nothing is left of a score that this number replaces, and the same comes out where one is added.

        A float16 mask holds no number beside which a score vanishes: a row that is shut all over would weigh values by
        its scores, not equally.
        """
        if number == -math.inf or self.dtype != F16:
            return number <= ENOUGH
        return number <= LEAST_F16 and not truth and mask_kind(condition) is not None

    def operands(self, op: kernel.Extern) -> tuple[SSAValue, SSAValue] | None:
        if not _is_plain(op):
            return None
        self.chain.append(op)
        given = dict(zip(op["operands"], op.operands, strict=True))
        if op["target"] == BMM:
            return given["self"], given["mat2"]
        alpha, beta = float(op.get("alpha", 1)), float(op.get("beta", 1))
        if op["target"] != BADDBMM or alpha == 0 or beta not in (0, 1) or self.scale != 1:
            return None
        if beta and not self.adds(given["self"]):
            return None
        self.scale = alpha
        return given["batch1"], given["batch2"]


class _Steps:
    """The operations on the scores of one product that a softmax takes, each with the scores' rows and keys, in order."""

    def __init__(self, walk: _Walk, scores: SSAValue) -> None:
        self.walk, self.steps = walk, list[Op]()
        self.first: kernel.Extern | None = None
        self.seen: dict[SSAValue, bool] = {}
        if self.leads(scores) and all(map(self.keeps_rows, self.steps)):
            assert self.first is not None
            walk.chain += [*self.steps, self.first]
            fours = [s for op in self.steps if len(s := op.type.shape) == 4]
            walk.four = next(iter(fours), walk.four)
        else:
            self.steps = []

    def leads(self, value: SSAValue) -> bool:
        """Whether a value is computed from the product's scores element by element: the first product that is met."""
        op = value.owner
        if value in self.seen or len(self.seen) > MOST_VALUES:
            return self.seen.get(value, False)
        self.seen[value] = False
        if isinstance(op, kernel.Extern):
            fits = op["target"] == BMM and _is_plain(op) and prim.tensor(value).shape == self.walk.sizes
            self.first = self.first or (op if fits else None)
            self.seen[value] = op is self.first
        elif isinstance(op, prim.Elementwise | prim.Cast | VIEWS) and sum(map(self.leads, op.operands)):
            self.steps.append(op)
            self.seen[value] = True
        return self.seen[value]

    def keeps_rows(self, op: Op) -> bool:
        return not isinstance(op, VIEWS) or self.walk.keeps_rows(op)


def _leads_to_product(value: SSAValue) -> bool:
    """Whether the scores of a product are what the value is computed from, elementwise."""
    for _ in range(LONGEST):
        op = value.owner
        if isinstance(op, kernel.Extern):
            return op["target"] in (BMM, BADDBMM)
        if not isinstance(op, Op) or op.name not in (*SCALINGS, "prim.add", "prim.where"):
            return False
        if op.name == "prim.add":
            return any(map(_leads_to_product, op.operands))
        if op.name == "prim.where":
            return any(map(_leads_to_product, op.operands[1:]))
        value = op.operands[0]
    return False


def _dtypes(value: SSAValue) -> set[DType]:
    """The floating types of the value and of what it is spread and cast from: no loss since the narrowest."""
    found = {prim.tensor(value).dtype}
    while isinstance(value.owner, prim.Broadcast | prim.Cast) and prim.tensor(value.owner.operands[0]).dtype.is_float:
        value = value.owner.operands[0]
        found.add(prim.tensor(value).dtype)
    return found
