"""Index maps: which element of its operands an element of a value is made of.

`operand_indices(op, index)` maps an index tuple of the result, one expression a dimension, to one index tuple for each operand of
a view or an elementwise operation. Pads, concatenations, gathers and reductions need more than indices and have their own function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import sympy
from xdsl.ir import SSAValue

from ...ir.dialects import prim
from ...ir.symbols import (
    Dim,
    FloorDiv,
    Mod,
    Range,
    contiguous_strides,
    dim,
    is_nonnegative,
    known_equal,
    simplify_index,
    substitute,
)

Index: TypeAlias = tuple[Dim, ...]
Ranges: TypeAlias = Mapping[sympy.Symbol, Range]


def linear(index: Sequence[Dim], strides: Sequence[Dim]) -> Dim:
    """sum(index[k] * strides[k])."""
    total: Dim = 0
    for i, s in zip(index, strides, strict=True):
        if i != 0:
            total = total + i * s
    return dim(total)


def row_major(index: Sequence[Dim], shape: Sequence[Dim]) -> Dim:
    """The position of an element in row-major order."""
    return linear(index, contiguous_strides(shape))


def unflatten(position: Dim, shape: Sequence[Dim], ranges: Ranges) -> Index:
    """The index tuple of the element at `position` in row-major order."""
    if len(shape) == 1:
        return (position,)
    strides = contiguous_strides(shape)
    found: list[Dim] = []
    for k, (size, stride) in enumerate(zip(shape, strides, strict=True)):
        if size == 1:
            found.append(0)
            continue
        part: Dim = position if stride == 1 else FloorDiv(sympy.sympify(position), sympy.sympify(stride))
        if any(s != 1 for s in shape[:k]):
            part = Mod(sympy.sympify(part), sympy.sympify(size))
        found.append(simplify_index(dim(part), ranges))
    return tuple(found)


def reshape_groups(a: Sequence[Dim], b: Sequence[Dim]) -> list[tuple[int, int, int, int]]:
    """Split two shapes of equal element count into the smallest runs of equal element count: (a from, a to, b from, b to)."""
    groups: list[tuple[int, int, int, int]] = []
    i = j = 0
    while i < len(a) or j < len(b):
        i0, j0 = i, j
        left: Dim = 1
        right: Dim = 1
        while True:
            if i > i0 and j > j0 and known_equal(left, right):
                break
            if _grows_left(left, right, i < len(a), j < len(b)):
                left, i = dim(left * a[i]), i + 1
            elif j < len(b):
                right, j = dim(right * b[j]), j + 1
            else:
                break
        groups.append((i0, i, j0, j))
    return groups


def _grows_left(left: Dim, right: Dim, left_has: bool, right_has: bool) -> bool:
    """Whether the next dimension is to be taken from the first shape: its product is smaller, or unknown and the other has ended."""
    if not (left_has and right_has):
        return left_has
    if isinstance(left, int) and isinstance(right, int):
        return left <= right
    if isinstance(left, int):
        return True  # a product with a symbol in it counts as the larger one
    if isinstance(right, int):
        return False
    ratio = sympy.cancel(sympy.sympify(left) / sympy.sympify(right))
    return bool(sympy.denom(ratio) != 1)


def reshape_index(index: Index, result: Sequence[Dim], operand: Sequence[Dim], ranges: Ranges) -> Index:
    """The operand's index of a reshape, dimension group by dimension group so that few divisions appear."""
    if any(s == 0 for s in result):
        return tuple(0 for _ in operand)
    found: list[Dim] = []
    for a0, a1, b0, b1 in reshape_groups(result, operand):
        kept = [k for k in range(a0, a1) if result[k] != 1]
        wanted = [k for k in range(b0, b1) if operand[k] != 1]
        if len(kept) == 1 and len(wanted) == 1:
            found += [index[kept[0]] if k == wanted[0] else 0 for k in range(b0, b1)]
            continue
        position = simplify_index(row_major(index[a0:a1], result[a0:a1]), ranges)
        found += unflatten(position, operand[b0:b1], ranges)
    return tuple(found)


def _reshape(op: prim.PrimOp, index: Index, ranges: Ranges) -> list[Index]:
    return [reshape_index(index, op.type.shape, _shape(op.operands[0]), ranges)]


def _permute(op: prim.PrimOp, index: Index, ranges: Ranges) -> list[Index]:
    found: list[Dim] = [0] * len(index)
    for k, p in enumerate(op["perm"]):
        found[p] = index[k]
    return [tuple(found)]


def _slice(op: prim.PrimOp, index: Index, ranges: Ranges) -> list[Index]:
    steps = zip(index, op["starts"], op["steps"], strict=True)
    return [tuple(dim(start + i * step) for i, start, step in steps)]


def _flip(op: prim.PrimOp, index: Index, ranges: Ranges) -> list[Index]:
    sizes = op.type.shape
    return [tuple(dim(sizes[k] - 1 - i) if k in op["dims"] else i for k, i in enumerate(index))]


def _broadcast(op: prim.PrimOp, index: Index, ranges: Ranges) -> list[Index]:
    sizes = _shape(op.operands[0])
    return [tuple(0 if size == 1 else index[d] for size, d in zip(sizes, op["dims"], strict=True))]


def _same(op: prim.PrimOp, index: Index, ranges: Ranges) -> list[Index]:
    return [index] * len(op.operands)


_MAPS: dict[type[prim.PrimOp], Callable[[prim.PrimOp, Index, Ranges], list[Index]]] = {
    prim.Reshape: _reshape,
    prim.Permute: _permute,
    prim.Slice: _slice,
    prim.Flip: _flip,
    prim.Broadcast: _broadcast,
    prim.Cast: _same,
    prim.Full: _same,
    prim.Iota: _same,
}


def operand_indices(op: prim.PrimOp, index: Index, ranges: Ranges) -> list[Index]:
    """For each operand of a view, a cast, a source or an elementwise operation, the index that result element `index` reads.

    Raises:
        KeyError: the operation reads more than one element, or chooses at run time (pad, concat, take, gather, reduce, scan).
    """
    if isinstance(op, prim.Elementwise):
        return [index] * len(op.operands)
    return _MAPS[type(op)](op, index, ranges)


def has_index_map(op: object) -> bool:
    """Whether `operand_indices` knows the operation."""
    return isinstance(op, prim.Elementwise) or type(op) in _MAPS


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
