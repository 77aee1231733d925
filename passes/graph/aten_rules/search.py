"""Searches in sorted sequences, on a GPU: a few steps of halving, each a read at a computed place."""

from __future__ import annotations

from ....ir.dialects import prim
from ....ir.dtypes import I32
from ...analysis.cost import LONGEST_SEARCHED
from .builder import Builder, NotCovered, Result, real, rule
from .windows import take


@rule("bucketize.Tensor", "searchsorted.Tensor")
def _bucketize(b: Builder) -> Result:
    """How many elements of the sequence are less than x, or not greater with `right`; nan is greater than all."""
    x = b.tensor("self")
    sequence = b.tensor("boundaries" if b.has("boundaries") else "sorted_sequence")
    real(b.dtype_of(x), b.dtype_of(sequence))
    side = b.get("side")
    if b.rank_of(sequence) != 1 or b.has("sorter"):
        raise NotCovered("a search in several sequences")
    (size,) = b.shape_of(sequence)
    if not isinstance(size, int) or not 0 < size <= LONGEST_SEARCHED or b.dtype_of(x) != b.dtype_of(sequence):
        raise NotCovered("a sequence whose size is not known, or of another dtype")
    right = bool(b.get("right", False)) or side == "right"
    shape = b.shape_of(x)
    value = b.up(x)
    found = b.full(0, shape, I32)
    step = 1 << (size.bit_length() - 1)
    while step:
        probe = b.ew("add", found, step)
        element = b.up(take(b, sequence, b.ew("min", b.ew("sub", probe, 1), size - 1), 0))
        beyond = b.ew("not", b.ew("gt" if right else "ge", element, value))
        found = b.ew("where", b.ew("and", b.ew("le", probe, size), beyond), probe, found)
        step //= 2
    return b.finish(found)


@rule("cummax.default", "cummin.default")
def _cummax(b: Builder) -> Result:
    """The running extreme; where it lies is left to the library."""
    x = b.tensor("self")
    real(b.dtype_of(x))
    if b.op.results[1].uses or b.rank_of(x) == 0 or 0 in b.shape_of(x):
        raise NotCovered("a search for indices")
    if b.dtype_of(x).kind == "bool":
        raise NotCovered("bool")
    value = b.up(x)
    attrs = {"kind": b.op.target.split(".")[1][3:], "dim": b.get("dim")}
    return [b.finish(b.add(prim.Scan.make([value], [prim.tensor(value)], attrs))), None]
