"""What each view operation reads: one map from the index of a result's element to the index of its operand's.

All but reshapes read, along each dimension of the operand, `start + step * i` for the index i along one dimension of the
result (`Read`). A reshape reads the element at the same row-major position, run of dimensions by run (`reshape_groups`).
Strides, axes and dimensions are followed through views by these maps alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import sympy

from ...ir.dialects import prim
from ...ir.symbols import (
    Dim,
    FloorDiv,
    Mod,
    Range,
    contiguous_strides,
    dim,
    known_equal,
    product,
    simplify_index,
)

Index: TypeAlias = tuple[Dim, ...]
Ranges: TypeAlias = Mapping[sympy.Symbol, Range]


class Read(NamedTuple):
    """Where a view reads along one dimension of its operand: start + step * (the index along `dim`; None: only there)."""

    dim: int | None
    start: Dim = 0
    step: Dim = 1


def _permute(op: prim.PrimOp) -> list[Read]:
    places = {p: k for k, p in enumerate(op["perm"])}
    return [Read(places[k]) for k in range(len(places))]


def _after(op: prim.PrimOp) -> list[Read]:
    return [Read(k) for k in range(op.type.rank)]


def _slice(op: prim.PrimOp) -> list[Read]:
    return [Read(k, *where) for k, where in enumerate(zip(op["starts"], op["steps"], strict=True))]


def _flip(op: prim.PrimOp) -> list[Read]:
    return [Read(k, dim(s - 1), -1) if k in op["dims"] else Read(k) for k, s in enumerate(op.type.shape)]


def _broadcast(op: prim.PrimOp) -> list[Read]:
    sizes = prim.tensor(op.operands[0]).shape
    return [Read(None if size == 1 else d) for size, d in zip(sizes, op["dims"], strict=True)]


_READS: dict[type[prim.PrimOp], Callable[[prim.PrimOp], list[Read]]] = {
    prim.Permute: _permute,
    prim.After: _after,
    prim.Slice: _slice,
    prim.Flip: _flip,
    prim.Broadcast: _broadcast,
}


def reads(op: prim.PrimOp) -> list[Read]:
    """Where a permutation, slice, flip or broadcast reads along each dimension of its operand.

    Raises:
        KeyError: the operation is none of these.
    """
    return _READS[type(op)](op)


def operand_index(op: prim.PrimOp, index: Index, ranges: Ranges) -> Index:
    """The element of its operand that a view reads for element `index` of its result.

    Raises:
        KeyError: the operation is no view.
    """
    if isinstance(op, prim.Reshape):
        return reshape_index(index, op.type.shape, prim.tensor(op.operands[0]).shape, ranges)
    return tuple(r.start if r.dim is None else dim(r.start + r.step * index[r.dim]) for r in reads(op))


def view_strides(op: prim.PrimOp, strides: Sequence[Dim], offset: Dim) -> tuple[Index, Dim] | None:
    """Strides and offset of a view of memory that has these; None where no strides, or negative ones, would say it."""
    t = prim.tensor(op.operands[0])
    if isinstance(op, prim.Reshape):
        found = reshape_strides(t.shape, strides, op.type.shape)
        return None if found is None else (found, offset)
    result: list[Dim] = [0] * op.type.rank
    for read, stride in zip(reads(op), strides, strict=True):
        if read.step == -1:
            return None
        if read.dim is not None:
            result[read.dim] = dim(read.step * stride)
        offset = offset + read.start * stride
    return tuple(result), dim(offset)


def kept_dimensions(op: prim.PrimOp) -> list[int | None]:
    """For each dimension of a view's operand the one of its result that runs with it, element by element.

    Reshapes keep those that stand alone between others of one element.
    """
    old, new = prim.tensor(op.operands[0]).shape, op.type.shape
    if isinstance(op, prim.Reshape):
        found: list[int | None] = [None] * len(old)
        for a0, a1, b0, b1 in reshape_groups(new, old):
            inner, outer = ([k for k in range(*ends) if s[k] != 1] for ends, s in (((b0, b1), old), ((a0, a1), new)))
            if len(inner) == len(outer) == 1:
                found[inner[0]] = outer[0]
        return found
    whole = [
        r.dim is not None and (r.start, r.step) == (0, 1) and old[k] == new[r.dim] for k, r in enumerate(reads(op))
    ]
    return [r.dim if kept else None for r, kept in zip(reads(op), whole, strict=True)]


def reshape_groups(a: Sequence[Dim], b: Sequence[Dim]) -> tuple[tuple[int, int, int, int], ...]:
    """Split two shapes of equal element count into the smallest runs of equal element count: (a from, a to, b from, b to)."""
    return _reshape_groups(tuple(a), tuple(b))


@lru_cache(maxsize=1 << 14)
def _reshape_groups(a: tuple[Dim, ...], b: tuple[Dim, ...]) -> tuple[tuple[int, int, int, int], ...]:
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
    return tuple(groups)


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


def linear(index: Sequence[Dim], strides: Sequence[Dim]) -> Dim:
    """sum(index[k] * strides[k])."""
    return _linear(tuple(index), tuple(strides))


@lru_cache(maxsize=1 << 15)
def _linear(index: Index, strides: Index) -> Dim:
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


def reshape_strides(shape: Sequence[Dim], strides: Sequence[Dim], new_shape: Sequence[Dim]) -> Index | None:
    """Strides of memory seen under another shape, or None when no strides can express it."""
    return _reshape_strides(tuple(shape), tuple(strides), tuple(new_shape))


@lru_cache(maxsize=1 << 14)
def _reshape_strides(shape: tuple[Dim, ...], strides: tuple[Dim, ...], new_shape: tuple[Dim, ...]) -> Index | None:
    if any(s == 0 for s in shape):
        return contiguous_strides(new_shape)
    result: list[Dim] = []
    for a0, a1, b0, b1 in reshape_groups(new_shape, shape):
        run = [(shape[k], strides[k]) for k in range(b0, b1) if shape[k] != 1]
        gaps = any(not known_equal(outer, dim(size * inner)) for (_, outer), (size, inner) in pairwise(run))
        if gaps or not known_equal(product(new_shape[a0:a1]), product(shape[b0:b1])):
            return None
        step = run[-1][1] if run else 1
        result += [dim(step * stride) for stride in contiguous_strides(new_shape[a0:a1])]
    return tuple(result)


def stored_behind(op: prim.Pad) -> bool:
    """Whether a value keeps its places when something is put behind it along one dimension."""
    numbers = all(isinstance(n, int) for n in (*op["low"], *op["high"]))
    return numbers and not any(op["low"]) and sum(n != 0 for n in op["high"]) == 1 and min(op["high"]) == 0
