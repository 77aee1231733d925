"""Axes: how the dimensions of values in one kernel correspond.

Each dimension of size > 1 is a sequence of axes, outermost first. Axes known to run together are in one class; a reshape that
splits a dimension splits its axes into an outer and an inner part. Two values have the same domain when they have the same
classes of axes, whatever their shapes are: this is the mixed-radix chain of the linear index.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ...ir.dialects import prim
from ...ir.symbols import Dim
from .strides import exact_quotient
from .views import kept_dimensions

Dims = list[list[int]]  # the axes of each dimension


class Axes:
    """A union-find forest over axes; a representative may be split into (outer, inner)."""

    def __init__(self) -> None:
        self.sizes: list[Dim] = []
        self._parent: list[int] = []
        self._parts: dict[int, tuple[int, int]] = {}

    @property
    def splits(self) -> int:
        """How many axes have been split so far: a stamp for sequences of leaves."""
        return len(self._parts)

    def new(self, size: Dim) -> int:
        """A fresh axis."""
        self.sizes.append(size)
        self._parent.append(len(self._parent))
        return len(self._parent) - 1

    def dims(self, shape: Iterable[Dim]) -> Dims:
        """Fresh axes for a shape; a dimension of size 1 has none."""
        return [[] if size == 1 else [self.new(size)] for size in shape]

    def find(self, axis: int) -> int:
        """The representative of the axis' class."""
        parent = self._parent
        while parent[axis] != axis:
            parent[axis] = parent[parent[axis]]
            axis = parent[axis]
        return axis

    def leaves(self, axes: Iterable[int]) -> list[int]:
        """The classes of unsplit axes that these axes consist of, outermost first."""
        result = []
        stack = list(axes)[::-1]
        while stack:
            axis = self.find(stack.pop())
            parts = self._parts.get(axis)
            if parts is None:
                result.append(axis)
            else:
                stack += parts[::-1]
        return result

    def flat(self, dims: Dims) -> list[int]:
        """The leaves of all dimensions, outermost first."""
        return self.leaves(axis for axes in dims for axis in axes)

    def union(self, a: int, b: int) -> None:
        """Declare that two axes of one size run together."""
        a, b = self.find(a), self.find(b)
        if a == b:
            return
        for x, y in self.align([a], [b]) or ():
            x, y = self.find(x), self.find(y)
            if x != y:
                self._parent[max(x, y)] = min(x, y)

    def align(self, a: Sequence[int], b: Sequence[int]) -> list[tuple[int, int]] | None:
        """Pairs of leaves that correspond when both sequences are the same mixed-radix number; splits axes as needed.

        None when they cannot be aligned: (6, 4) and (4, 6).
        """
        if len(a) == len(b) == 1:  # as most are
            p, q = self.find(a[0]), self.find(b[0])
            if p not in self._parts and q not in self._parts and (p == q or self.sizes[p] == self.sizes[q]):
                return [(p, q)]
        left, right = list(a)[::-1], list(b)[::-1]
        pairs: list[tuple[Any, Any]] = []
        while True:
            x, y = self._pop(left), self._pop(right)
            if x is None or y is None:
                return pairs if x is y else None
            if x == y:
                pairs.append((x, y))
                continue
            size_x, size_y = self.sizes[x], self.sizes[y]
            if size_x == size_y:
                pairs.append((x, y))
            elif (rest := exact_quotient(size_x, size_y)) is not None:
                right.append(y)
                left += self._split(x, size_y, rest)
            elif (rest := exact_quotient(size_y, size_x)) is not None:
                left.append(x)
                right += self._split(y, size_x, rest)
            else:
                return None

    def regroup(self, dims: Dims, shape: Sequence[Dim]) -> Dims | None:
        """The axes of the same elements under another shape; None when the radices do not fit."""
        rest = self.flat(dims)[::-1]
        result: Dims = []
        for size in shape:
            axes: list[int] = []
            missing = size
            while missing != 1:
                axis = self._pop(rest)
                if axis is None:
                    return None
                found = self.sizes[axis]
                quotient = exact_quotient(missing, found)
                if quotient is not None:
                    axes.append(axis)
                    missing = quotient
                    continue
                quotient = exact_quotient(found, missing)
                if quotient is None:
                    return None
                rest += self._split(axis, missing, quotient)
            result.append(axes)
        return result if not rest else None

    def through(self, op: prim.PrimOp, dims: Dims) -> Dims | None:
        """The axes of a view's dimensions from those of its operand; dimensions that do not correspond get fresh axes."""
        shape = op.type.shape
        if isinstance(op, prim.Reshape):
            return self.regroup(dims, shape)
        given = {d: axes for d, axes in zip(kept_dimensions(op), dims, strict=True) if d is not None}
        return [given[d] if d in given else self.dims([size])[0] for d, size in enumerate(shape)]

    def _pop(self, stack: list[int]) -> int | None:
        while stack:
            axis = self.find(stack.pop())
            parts = self._parts.get(axis)
            if parts is None:
                return axis
            stack += parts[::-1]
        return None

    def _split(self, axis: int, outer: Dim, inner: Dim) -> tuple[int, int]:
        """Split a leaf; the parts come back innermost first, as a stack wants them."""
        parts = (self.new(outer), self.new(inner))
        self._parts[axis] = parts
        return parts[::-1]
