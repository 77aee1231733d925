"""Reads by index: embedding, index_select, gather, index."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from ....ir.dialects import prim
from ....ir.dtypes import I32, I64
from ....ir.symbols import Dim, product
from .builder import Builder, NotCovered, Result, rule


def _take(b: Builder, x: SSAValue, index: SSAValue, d: int, wrap: bool = False) -> SSAValue:
    if b.dtype_of(index) not in (I32, I64):
        raise NotCovered("an index that is not int32 or int64")
    shape = b.shape_of(x)
    if shape[d] == 0:
        raise NotCovered("a dimension that has nothing to read")
    t = prim.tensor(x).with_(shape=(*shape[:d], *b.shape_of(index), *shape[d + 1 :]))
    return b.add(prim.Take.make([x, index], [t], {"dim": d, "wrap": True} if wrap else {"dim": d}))


@rule("embedding.default")
def _embedding(b: Builder) -> Result:
    return _take(b, b.tensor("weight"), b.tensor("indices"), 0)


@rule("index_select.default")
def _index_select(b: Builder) -> Result:
    x, index = b.tensor("self"), b.tensor("index")
    if b.rank_of(x) == 0 or b.rank_of(index) != 1:
        raise NotCovered("a scalar")
    return _take(b, x, index, b.get("dim"))


@rule("gather.default")
def _gather(b: Builder) -> Result:
    x, index = b.tensor("self"), b.tensor("index")
    d = b.get("dim")
    if b.rank_of(x) == 0 or b.rank_of(x) != b.rank_of(index) or b.dtype_of(index) != I64:
        raise NotCovered("a scalar")
    if b.shape_of(x)[d] == 0:
        raise NotCovered("a dimension that has nothing to read")
    return b.add(prim.Gather.make([x, index], [b.type], {"dim": d}))


@rule("index.Tensor", "_unsafe_index.Tensor")
def _index(b: Builder) -> Result:
    x = b.tensor("self")
    places = [(int(n.partition(".")[2]), v) for n, v in zip(b.names, b.op.operands, strict=True) if n != "self"]
    if any(b.dtype_of(v) not in (I32, I64) for _, v in places):
        raise NotCovered("a mask: the size of the result depends on its values")
    if len(places) == 1:
        d, index = places[0]
        return _take(b, x, index, d, wrap=True)
    first, last = places[0][0], places[-1][0]
    if last - first + 1 != len(places):
        raise NotCovered("indices that are not next to each other")
    shape = b.shape_of(x)
    flat = joined_index(b, places, b.common_shape([b.shape_of(v) for _, v in places]))
    total = product(shape[first : last + 1])
    return _take(b, b.reshape(x, (*shape[:first], total, *shape[last + 1 :])), flat, first)


def joined_index(b: Builder, places: Sequence[tuple[int, SSAValue]], common: Sequence[Dim]) -> SSAValue:
    """One index for dimensions that are next to each other, of the first operand reshaped to have one of them.

    Raises:
        NotCovered: a size is 0, or not known on a CPU.
    """
    sizes = [b.shape_of(b.tensor("self"))[d] for d, _ in places]
    if (not all(isinstance(s, int) for s in sizes) and not b.on_gpu) or 0 in sizes:
        raise NotCovered("sizes that are not known")
    flat: SSAValue | None = None
    wrong = []
    for (_, index), size in zip(places, sizes, strict=True):
        index = b.to_shape(b.cast(index, I64), common)
        wrapped = b.ew("where", b.ew("lt", index, 0), b.ew("add", index, size), index)
        wrong.append(b.ew("or", b.ew("lt", wrapped, 0), b.ew("ge", wrapped, size)))
        flat = wrapped if flat is None else b.ew("add", b.ew("mul", flat, size), wrapped)
    assert flat is not None
    total, outside = product(sizes), b.joined("or", wrong)
    return b.ew("where", outside, b.full(total, common, I64), flat)  # an index outside is an error of the joined one
