"""Writes by index: scatter, index_put, index_add and their like. On a CPU they are the library's, or kernels of our own written by hand."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from xdsl.ir import SSAValue

from ....ir.dialects import prim
from ....ir.dtypes import BOOL, F32, F64, I32, I64
from ....ir.symbols import Dim, product
from .builder import Builder, NotCovered, Result, real, rule
from .index import joined_index

ADDED = (F32, F64, I32, I64)  # what every GPU adds atomically


def _checked(b: Builder, x: SSAValue, index: SSAValue, kind: str) -> None:
    """That elements of x may be stored, or added to, in any order."""
    dtype = b.dtype_of(x)
    real(dtype)
    if torch.are_deterministic_algorithms_enabled():
        raise NotCovered("an order that is always the same")
    if kind == "sum" and dtype not in ADDED:
        raise NotCovered(f"sums of {dtype.name}, which are not added atomically")
    if b.dtype_of(index) not in (I32, I64):
        raise NotCovered("an index that is not int32 or int64")
    if b.rank_of(x) == 0 or any(s == 0 for v in (x, index) for s in b.shape_of(v)):
        raise NotCovered("a scalar, or nothing to write")


def _scatter(
    b: Builder, kind: str, x: SSAValue, index: SSAValue, source: SSAValue, d: int, wrap: bool = False
) -> SSAValue:
    attrs: dict[str, object] = {"kind": kind, "dim": d}
    return b.add(prim.Scatter.make([x, index, source], [prim.tensor(x)], attrs | ({"wrap": True} if wrap else {})))


def _rows(
    b: Builder, kind: str, x: SSAValue, index: SSAValue, source: SSAValue, d: int, wrap: bool = False
) -> SSAValue:
    """Slices along d to the places that a vector of numbers gives: each number stands for all elements of a slice."""
    shape = b.shape_of(x)
    shape = (*shape[:d], b.shape_of(index)[0], *shape[d + 1 :])
    spread = b.add(prim.broadcast(index, shape, (d,)))
    return _scatter(b, kind, x, spread, b.to_shape(source, shape), d, wrap)


@rule("scatter.src", "scatter.value", "scatter_add.default")
def _scatter_elements(b: Builder) -> Result:
    x, index = b.tensor("self"), b.tensor("index")
    kind = "sum" if "scatter_add" in b.op.target else "set"
    _checked(b, x, index, kind)
    if b.rank_of(index) != b.rank_of(x):
        raise NotCovered("a scalar")
    shape = b.shape_of(index)
    if b.has("src"):
        source = _first(b, b.tensor("src"), shape)
    else:
        source = b.full(b.operand(b.either("value"), b.dtype_of(x)), shape, b.dtype_of(x))
    return _scatter(b, kind, x, index, source, b.get("dim"))


def _first(b: Builder, source: SSAValue, shape: Sequence[Dim]) -> SSAValue:
    """The first elements along each dimension."""
    for d, (size, have) in enumerate(zip(shape, b.shape_of(source), strict=True)):
        if size != have:
            source = b.slice(source, d, 0, size)
    return source


@rule("scatter_reduce.two", "scatter.reduce")
def _scatter_reduce(b: Builder) -> Result:
    """Sums, and means as sums over counts; what an element was before counts or not."""
    x, index, d = b.tensor("self"), b.tensor("index"), b.get("dim")
    reduce = b.get("reduce")
    if reduce not in ("sum", "add", "mean"):
        raise NotCovered(f"the reduction {reduce}, which atomic operations do not do as eager does with nan")
    _checked(b, x, index, "sum")
    dtype, shape = b.dtype_of(x), b.shape_of(index)
    if b.rank_of(index) != b.rank_of(x) or (reduce == "mean" and not dtype.is_float):
        raise NotCovered("a scalar, or a mean of integers")
    itself = bool(b.get("include_self", True))
    zeros = b.full(0, shape, dtype)
    before = x if itself else _scatter(b, "set", x, index, zeros, d)
    total = _scatter(b, "sum", before, index, _first(b, b.tensor("src"), shape), d)
    if reduce != "mean":
        return total
    counted = _scatter(b, "sum", b.full(1 if itself else 0, b.shape_of(x), dtype), index, b.full(1, shape, dtype), d)
    return b.finish(b.ew("div", total, b.ew("max", counted, 1.0)))


@rule("index_add.default", "index_copy.default", "index_fill.int_Scalar")
def _index_rows(b: Builder) -> Result:
    x, index = b.tensor("self"), b.tensor("index")
    kind = "sum" if "index_add" in b.op.target else "set"
    _checked(b, x, index, kind)
    if b.rank_of(index) != 1:
        raise NotCovered("a scalar")
    if "fill" in b.op.target:
        source = b.full(b.operand(b.get("value"), b.dtype_of(x)), (), b.dtype_of(x))
    else:
        source = b.cast(b.tensor("source"), b.dtype_of(x))
        if b.rank_of(source) != b.rank_of(x):
            raise NotCovered("a source of fewer dimensions")
    alpha = b.get("alpha", 1)
    if kind == "sum" and alpha != 1:
        source = b.ew("mul", source, b.operand(alpha, b.dtype_of(x)))
    return _rows(
        b, kind, x, index, source, b.get("dim"), wrap="fill" in b.op.target
    )  # -1 is the last one to index_fill alone


@rule("index_put.default", "_unsafe_index_put.default")
def _index_put(b: Builder) -> Result:
    """x[.., i, j, ..] = values: the dimensions that are indexed become one."""
    x, values = b.tensor("self"), b.tensor("values")
    kind = "sum" if b.get("accumulate", False) else "set"
    operands = zip(b.names, b.op.operands, strict=True)
    places = [(int(n.partition(".")[2]), v) for n, v in operands if n.partition(".")[0] == "indices"]
    if len(places) == 1 and b.dtype_of(places[0][1]) == BOOL and kind == "set":
        return _masked(b, x, *places[0], values)
    if not places or any(b.dtype_of(v) == BOOL for _, v in places):
        raise NotCovered("a mask")
    for _, index in places:
        _checked(b, x, index, kind)
    first, last = places[0][0], places[-1][0]
    if last - first + 1 != len(places):
        raise NotCovered("indices that are not next to each other")
    shape = b.shape_of(x)
    common = b.common_shape([b.shape_of(v) for _, v in places])
    index, wrap, joined = places[0][1], True, x
    if len(places) > 1:
        index, wrap = joined_index(b, places, common), False
        total = product(shape[first : last + 1])
        joined = b.reshape(x, (*shape[:first], total, *shape[last + 1 :]))
    wide = (*shape[:first], *common, *shape[last + 1 :])
    source = b.to_shape(b.cast(values, b.dtype_of(x)), wide)
    flat = b.reshape(source, (*shape[:first], product(common), *shape[last + 1 :]))
    index = b.reshape(b.to_shape(index, common), (product(common),))
    return b.reshape(_rows(b, kind, joined, index, flat, first, wrap), shape)


def _masked(b: Builder, x: SSAValue, first: int, mask: SSAValue, values: SSAValue) -> SSAValue:
    """x[mask] = number: what the mask takes is one value."""
    shape, dtype = b.shape_of(x), b.dtype_of(x)
    real(dtype)
    taken = shape[first : first + b.rank_of(mask)]
    if b.rank_of(values) > 1 or any(size != 1 for size in b.shape_of(values)):
        raise NotCovered("a mask, and a value for each element that it takes")
    if b.rank_of(mask) == 0 or (*b.shape_of(mask),) != (*taken,):
        raise NotCovered("a mask of other sizes")
    dims = range(first, first + b.rank_of(mask))
    wide = b.add(prim.broadcast(mask, shape, tuple(dims)))
    return b.ew("where", wide, b.to_shape(b.cast(values, dtype), shape), x)
