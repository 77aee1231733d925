"""Writes whose answer depends on the order in which eager goes over memory, or that eager refuses: such calls are left to eager.

A graph's values do not change, so that an operator which writes reads all of its operands first. Eager goes element by element: where
it reads what it has written already (`x[1:] += x[:-1]`), or writes a place twice, the answer is that of its loops, or an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ..errors import GraphBreak
from ..torch_private.dispatch import storage_key
from ..torch_private.functions import OpOverload
from ..torch_private.symbols import hint_of, largest, same_size
from ..values.kinds import tensors_in
from .rules import functional_variant, is_written

__all__ = ["check_write", "is_folded", "is_mutable"]

_STEPS = 4096  # of one search; what is not decided then counts as an overlap
_Dim = tuple[Any, int, int]  # a stride, and the bounds of what it is multiplied with


@cache
def is_mutable(func: OpOverload) -> bool:
    """Whether an operator writes to elements of its arguments."""
    return bool(func._schema.is_mutable) and torch.Tag.inplace_view not in func.tags


def check_write(
    func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], folded: set[int], tracked: bool = False
) -> None:
    """Raise GraphBreak where elements that an operator writes to are others that it reads, or one another.

    `folded` has the storages of inputs whose elements overlap: a write to one of them changes others. `tracked`: the graph is
    differentiated, where writes to parts with gaps, whose sizes values decide, cannot be traced.
    """
    written: list[Tensor] = []
    read: list[Tensor] = []
    for place, argument in enumerate(func._schema.arguments):
        given = args[place] if place < len(args) else kwargs.get(argument.name)
        with_memory = (t for t in tensors_in(given) if t.layout is torch.strided)  # sparse ones consist of others
        (written if is_written(argument) else read).extend(with_memory)
    for place, target in enumerate(written):
        key = storage_key(target)
        if key in folded or (tracked or not _is_apart(target)) and is_folded(target):
            raise GraphBreak(f"{func} writes to memory that several elements of a tensor share")
        for k, other in enumerate(read):
            if storage_key(other) == key:
                # Of lists, each tensor goes with the one of the same number.
                paired = len(written) == 1 or k % len(written) == place
                if not (paired and _in_step(func) and _same_elements(target, other)) and _meet(target, other):
                    raise GraphBreak(f"{func} writes to memory that it reads, in an order of its own")
        if any(storage_key(other) == key and _meet(target, other) for other in written[:place]):
            raise GraphBreak(f"{func} writes to the same memory twice")


@cache
def _in_step(func: OpOverload) -> bool:
    """Whether each element is written after the operands' elements of the same place were read, and no others are."""
    stem = func._schema.name.split("::")[1]
    if stem == "copy_" or stem.startswith("_foreach_"):
        return True
    twin = functional_variant(func)[0]
    return torch.Tag.pointwise in func.tags or (twin is not None and torch.Tag.pointwise in twin.tags)


def _is_in_order(sizes: Sequence[Any], strides: Sequence[Any]) -> bool:
    """Whether all sizes are numbers, or as values say, and the elements follow each other without gaps: the common case, known at once."""
    step = wide = 1
    for n, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if type(n) is int and type(stride) is int and hint_of(step) is not None:
            if n != 1 and stride != step:
                return False
        elif hint_of(n) is not None or not (same_size(stride, step) or same_size(stride, wide)):
            return _is_dense(sizes, strides)
        step, wide = step * n, wide * _at_least_one(n)
    return True


def _at_least_one(size: Any) -> Any:
    """A size as it counts in strides that torch computes: without elements, no element lies anywhere."""
    return max(size, 1) if type(size) is int else torch.sym_max(size, 1)


def _is_dense(sizes: Sequence[Any], strides: Sequence[Any]) -> bool:
    """The same of elements in another order of the dimensions (`nonzero` gives its columns), where sizes are as values say."""
    ahead, step = [(n, s) for n, s in zip(sizes, strides, strict=True) if type(n) is not int or n != 1], 1
    while ahead:
        following = next((p for p in ahead if same_size(p[1], step)), None)
        if following is None or type(following[0]) is not int and hint_of(following[0]) is not None:
            return False
        ahead = [p for p in ahead if p is not following]  # equal ones are not asked for: that would be a guard
        step *= following[0]
    return True


def _is_apart(tensor: Tensor) -> bool:
    """Whether elements are apart however large the sizes are that values decide: each step is longer than all shorter ones together."""
    if all(type(n) is int or hint_of(n) is not None for n in tensor.shape):
        return False
    bounds, end = [largest(n) for n in tensor.shape], 0
    if not all(type(s) is int for s in tensor.stride()):
        return False
    for stride, count in sorted(zip(tensor.stride(), bounds, strict=True), key=lambda dim: dim[0]):
        if count is None or count > 1 and stride <= end:
            return False
        end += stride * max(count - 1, 0)
    return True


def is_folded(tensor: Tensor) -> bool:
    """Whether elements of a tensor lie in the same place."""
    if _is_in_order(tensor.shape, tensor.stride()) or tensor.numel() == 0:
        return False
    dims, end = _dims(tensor), 0
    nested = True
    for stride, _, most in dims:
        nested = nested and bool(stride > end)
        end = end + stride * most
    if nested:
        return False
    terms = [(stride, -most, most) for stride, _, most in _counted(dims)]
    strides = {stride for stride, _, _ in terms}
    return 0 in strides or len(strides) < len(terms) or _reaches(0, terms, nothing=False)


def _same_elements(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one memory have each element in the same place, by the same strides: eager refuses others of a size of 1, too."""
    if a.shape != b.shape or a.dtype != b.dtype or a.storage_offset() != b.storage_offset():
        return False
    return all(bool(s == t) for s, t in zip(a.stride(), b.stride(), strict=True))


def _meet(a: Tensor, b: Tensor) -> bool:
    """Whether an element of one tensor lies where one of the other does, both of one memory."""
    if a.numel() == 0 or b.numel() == 0:
        return False
    if a.itemsize != b.itemsize:
        ends = [(t.storage_offset() + _last(_dims(t)) + 1) * t.itemsize for t in (a, b)]
        before = bool(ends[0] <= b.storage_offset() * b.itemsize)
        return not (before or bool(ends[1] <= a.storage_offset() * a.itemsize))
    mine, others, apart = _dims(a), _dims(b), b.storage_offset() - a.storage_offset()
    # A dimension of both with steps longer than all else together: both are at the same place of it.
    while mine and others:
        stride = mine[-1][0]
        least, most = apart - _last(mine[:-1]), apart + _last(others[:-1])
        if not (bool(stride == others[-1][0]) and bool(most < stride) and bool(least > -stride)):
            break
        mine, others = mine[:-1], others[:-1]
    if bool(apart > _last(mine)) or bool(-apart > _last(others)):
        return False
    return _reaches(int(apart), [*_counted(mine), *((s, -m, 0) for s, _, m in _counted(others))])


def _last(dims: list[Any]) -> Any:
    """How far behind the first element the last one lies."""
    return sum(stride * most for stride, _, most in dims)


def _dims(tensor: Tensor) -> list[Any]:
    """The dimensions with more than one element, shortest steps first, as (stride, 0, size - 1)."""
    pairs = [(s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if not bool(n == 1)]
    if any(hint_of(s) is None for s, _ in pairs):
        raise GraphBreak("memory is written to whose layout depends on a tensor's values")
    return [(s, 0, n - 1) for s, n in sorted(pairs, key=lambda p: hint_of(p[0]))]


def _counted(dims: list[Any]) -> list[_Dim]:
    """The same with plain numbers: symbolic sizes are then guarded to be these."""
    return [(int(s), 0, int(m)) for s, _, m in dims]


def _reaches(goal: int, terms: list[_Dim], nothing: bool = True) -> bool:
    """Whether some multiples of the strides, within their bounds, add up to the goal; `nothing`: also where all are 0."""
    bounds: dict[int, tuple[int, int]] = {0: (0, 0)}
    for stride, low, high in terms:
        least, most = bounds.get(stride, (0, 0))
        bounds[stride] = least + low, most + high
    strides = sorted(bounds, reverse=True)[:-1]
    rests = [(0, 0)]  # what the shorter strides add up to
    for stride in reversed(strides[1:]):
        least, most = rests[-1]
        low, high = bounds[stride]
        rests.append((least + stride * low, most + stride * high))
    todo = [(0, goal, nothing)]
    for _ in range(_STEPS):
        if not todo:
            return False
        place, left, moved = todo.pop()
        if place == len(strides):
            if left == 0 and moved:
                return True
            continue
        stride, (least, most) = strides[place], rests[len(strides) - 1 - place]
        low, high = bounds[stride]
        first, last = max(low, -((most - left) // stride)), min(high, (left - least) // stride)
        if last - first > _STEPS:
            return True
        todo.extend((place + 1, left - stride * k, moved or k != 0) for k in range(first, last + 1))
    return True
