"""Embedding bags: rows of a table, joined. On a GPU a loop over the rows of each bag, whose lengths may be known in the call alone.

On a CPU the largest of the rows is a gather and a reduction, where bags have one length. Sums and means stay with the library there, whose
kernel for them takes half the time of such a loop, and so do bags whose lengths are known in the call alone. Its maxima take 3 to 9 times as long.
"""

from __future__ import annotations

import sympy
from xdsl.ir import SSAValue

from ....ir.dialects import prim
from ....ir.dtypes import BOOL, I32, I64
from ....ir.scalars import identity
from ....ir.symbols import Dim, FloorDiv, dim, known_equal
from .builder import CPU_RULES, Builder, NotCovered, Result, rule

MEAN, MAX = 1, 2  # torch's numbers of the modes; 0 is a sum


_BAGS = ("_embedding_bag_forward_only.default", "_embedding_bag.default")


def _operands(b: Builder) -> tuple[SSAValue, SSAValue]:
    """The table and the numbers of its rows."""
    if any(r.uses for r in list(b.op.results)[1:]):
        raise NotCovered("what its gradient needs")
    weight, indices = b.tensor("weight"), b.tensor("indices")
    if b.dtype_of(indices) not in (I32, I64) or not b.type.dtype.is_float:
        raise NotCovered("a table of no floats, or an index that is not int32 or int64")
    return weight, indices


@rule(*_BAGS, table=CPU_RULES)
def _largest(b: Builder) -> Result:
    """The largest of each bag's rows: the library does as fast what is not that."""
    weight, indices = _operands(b)
    if b.get("mode", 0) != MAX:
        raise NotCovered("what the library does as fast")
    bags, width = b.type.shape
    length = _length(b, b.tensor("offsets"), b.shape_of(indices)[0], bags)
    taken = prim.tensor(weight).with_(shape=(bags, length, width))
    index, wide = b.reshape(indices, (bags, length)), b.type.dtype.compute
    rows = b.cast(b.add(prim.Take.make([weight, index], [taken], {"dim": 0})), wide)
    padding = b.get("padding_idx", -1)
    if padding < 0:
        return [b.finish(b.reduce("max", rows, (1,))), None, None, None]
    kept = b.ew("ne", index, padding)
    each = b.to_shape(b.reshape(kept, (bags, length, 1)), taken.shape)
    most = b.reduce("max", b.ew("where", each, rows, b.full(identity("max", wide), taken.shape, wide)), (1,))
    some = b.reshape(b.reduce("any", b.cast(kept, BOOL), (1,)), (bags, 1))
    most = b.ew("where", b.to_shape(some, b.type.shape), most, b.full(0.0, None, wide))
    return [b.finish(most), None, None, None]


def _length(b: Builder, offsets: SSAValue, count: Dim, bags: Dim) -> int:
    """The length of each bag, where they begin at 0, n, 2n ...

    Raises:
        NotCovered: they are known in the call alone.
    """
    made = offsets.owner
    if b.get("include_last_offset") or not isinstance(made, prim.Iota) or made["start"] != 0:
        raise NotCovered("bags whose lengths are known in the call alone")
    length = made["step"]
    if not isinstance(length, int) or length < 1 or not known_equal(dim(bags * length), count):
        raise NotCovered("bags of unequal lengths")
    return length


# ---- on a GPU ---------------------------------------------------------------------------------------------------------


@rule(*_BAGS)
def _bags(b: Builder) -> Result:
    """`prim.bag`; a mean is a sum over the number of rows that count, and a bag without any is 0."""
    weight, indices = _operands(b)
    bags, width = b.type.shape
    if any(s == 0 for s in (bags, width, *b.shape_of(indices), *b.shape_of(weight))):
        raise NotCovered("nothing to join")
    mode, padding, wide = b.get("mode", 0), b.get("padding_idx", -1), b.type.dtype.compute
    attrs = {"padding": padding} if padding >= 0 else {}
    start, length = _bounds(b, bags, b.shape_of(indices)[0])
    operands = [weight, indices, start, length]
    if b.has("per_sample_weights"):
        operands.append(b.tensor("per_sample_weights"))
    joined = b.add(
        prim.Bag.make(operands, [b.type.with_(dtype=wide)], {"kind": "max" if mode == MAX else "sum"} | attrs)
    )
    if mode not in (MEAN, MAX):
        return [b.finish(joined), None, None, None]
    number = b.cast(length, wide)
    if padding >= 0:
        ones = b.full(1.0, (b.shape_of(weight)[0],), wide)
        counted = b.type.with_(shape=(bags,), dtype=wide)
        number = b.add(prim.Bag.make([ones, indices, start, length], [counted], {"kind": "sum"} | attrs))
    number = b.to_shape(b.reshape(number, (bags, 1)), b.type.shape)
    if mode == MEAN:
        return [b.finish(b.ew("div", joined, b.ew("max", number, 1.0))), None, None, None]
    return [b.finish(b.ew("where", b.ew("gt", number, 0.0), joined, b.full(0.0, None, wide))), None, None, None]


def _bounds(b: Builder, bags: Dim, count: Dim) -> tuple[SSAValue, SSAValue]:
    """Where each bag begins in the index, and how many numbers it has there: as the library has it, the first one begins at 0 whatever is given."""
    offsets = b.tensor("offsets")
    made = offsets.owner
    if isinstance(made, prim.Iota) and made["start"] == 0 and not b.get("include_last_offset"):
        total, step = sympy.sympify(count), sympy.sympify(made["step"])
        numbers = sympy.cancel(total / step)
        as_many = (numbers, -FloorDiv(-total, step), FloorDiv(total - 1, step) + 1, FloorDiv(total + step - 1, step))
        # 0, n, 2n ... below a multiple of n
        if sympy.denom(numbers) == 1 and any(known_equal(bags, dim(n)) for n in as_many):
            return offsets, b.full(made["step"], (bags,), I64)
    offsets = b.cast(offsets, I64)
    first = b.full(0, (1,), I64)
    if b.get("include_last_offset"):
        ends = b.slice(offsets, 0, 1, bags)
    else:
        last = b.full(count, (1,), I64)
        ends = last if bags == 1 else b.concat([b.slice(offsets, 0, 1, dim(bags - 1)), last], 0)
    start = first if bags == 1 else b.concat([first, b.slice(offsets, 0, 1, dim(bags - 1))], 0)
    start = b.ew("max", b.ew("min", start, count), 0)
    return start, b.ew("sub", b.ew("max", b.ew("min", ends, count), start), start)
