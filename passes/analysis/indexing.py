"""Index maps: which element of its operands an element of a value is made of.

`operand_indices(op, index)` maps an index tuple of the result, one expression a dimension, to one index tuple for each
operand of a view (views.py) or an elementwise operation. Pads, concatenations, gathers and reductions need more than
indices and have their own function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import sympy
from xdsl.ir import SSAValue

from ...ir.dialects import prim
from ...ir.symbols import Dim, dim, is_nonnegative, simplify_index, substitute
from .views import Index, Ranges, operand_index

_SAME = (prim.Elementwise, prim.Cast, *prim.SOURCES)  # element by element


def operand_indices(op: prim.PrimOp, index: Index, ranges: Ranges) -> list[Index]:
    """For each operand of a view, a cast, a source or an elementwise operation, the index that result element `index` reads.

    Raises:
        KeyError: the operation reads more than one element, or chooses at run time (pad, concat, take, gather, reduce, scan).
    """
    return [index] * len(op.operands) if isinstance(op, _SAME) else [operand_index(op, index, ranges)]


def pad_index(op: prim.Pad, index: Index, ranges: Ranges) -> tuple[Index, list[Dim]]:
    """The operand's index, and expressions that are all >= 0 where the element comes from the operand."""
    found: list[Dim] = []
    conditions: list[Dim] = []
    for i, size, low in zip(index, _shape(op.operands[0]), op["low"], strict=True):
        inner = dim(i - low)
        found.append(inner)
        conditions += [c for c in (inner, dim(size - 1 - inner)) if not is_nonnegative(c, ranges)]
    return tuple(found), conditions


def contracted_index(
    op: prim.Contract, number: int, at: Mapping[sympy.Symbol, Dim], ranges: Ranges
) -> tuple[Index, list[Dim]]:
    """The index of an operand where the iteration is `at`, and expressions that are all >= 0 where it is an element of the operand."""
    found = tuple(simplify_index(substitute(place, at), ranges) for place in op["maps"][number])
    ends = [end for i, size in zip(found, _shape(op.operands[number]), strict=True) for end in (i, dim(size - 1 - i))]
    return found, [end for end in ends if not is_nonnegative(end, ranges)] if op.get("padded") else []


def concat_parts(op: prim.Concat, index: Index) -> list[tuple[Index, Dim, Dim]]:
    """For each operand its index, and the interval [from, to) of the result's dimension that it fills."""
    d: int = op["dim"]
    parts: list[tuple[Index, Dim, Dim]] = []
    start: Dim = 0
    for operand in op.operands:
        stop = dim(start + _shape(operand)[d])
        parts.append(((*index[:d], dim(index[d] - start), *index[d + 1 :]), start, stop))
        start = stop
    return parts


def rolled(op: prim.Concat) -> tuple[SSAValue, int] | None:
    """What the operation rolls along its dimension, and the number of elements that go from its beginning to its end; None where it is no roll."""
    slices = [v.owner for v in op.operands if isinstance(v.owner, prim.Slice)]
    if len(op.operands) != 2 or len(slices) != 2:
        return None
    d: int = op["dim"]
    (source, rest), (other, first) = ((s.operands[0], s.type.shape[d]) for s in slices)
    if source is not other or not isinstance(rest, int) or not isinstance(first, int):
        return None
    whole = tuple(0 for _ in op.type.shape)
    starts = [tuple(s["starts"]) for s in slices]
    steps = all(step == 1 for s in slices for step in s["steps"])
    at = (*whole[:d], first, *whole[d + 1 :])
    return (source, first) if steps and starts == [at, whole] and _shape(source) == op.type.shape else None


def take_index(op: prim.Take, index: Index) -> tuple[Index, Callable[[Dim], Index]]:
    """The index tuple of the index operand, and the one of the data as a function of the number found there."""
    d: int = op["dim"]
    end = d + prim.tensor(op.operands[1]).rank
    return index[d:end], lambda found: (*index[:d], found, *index[end:])


def gather_index(op: prim.Gather, index: Index) -> Callable[[Dim], Index]:
    """The index tuple of the data as a function of the number found in the index operand at `index`."""
    d: int = op["dim"]
    return lambda found: (*index[:d], found, *index[d + 1 :])


def reduce_index(op: prim.Reduce, index: Index, inner: Sequence[Dim]) -> Index:
    """The operand's index from the result's and one expression for each reduced dimension."""
    kept, reduced = iter(index), iter(inner)
    rank = prim.tensor(op.operands[0]).rank
    return tuple(next(reduced) if k in op["dims"] else next(kept) for k in range(rank))


def reduced_sizes(op: prim.Reduce) -> tuple[Dim, ...]:
    """The sizes of the reduced dimensions."""
    shape = _shape(op.operands[0])
    return tuple(shape[d] for d in op["dims"])


def _shape(value: SSAValue) -> tuple[Dim, ...]:
    return prim.tensor(value).shape
