"""In which order memory holds what a kernel reads: values have their strides only after fusion."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import cast

from xdsl.ir import SSAValue

from ...ir.dialects import prim
from ..analysis.sizes import hint
from ..analysis.strides import memory_strides, recorded_strides
from ..analysis.views import kept_dimensions
from .graph import POINTWISE, Access, Graph, elements


class Orders:
    """The orders of the values of one function."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.axes = graph, graph.axes
        self._contiguous: dict[SSAValue, int] = {}

    def innermost(self, access: Access) -> int:
        """The axis along which the memory is contiguous; -1: none."""
        at = self.contiguous(access.base)
        last = _behind(access, at) or (access.dims[at] if access.dims else [])
        if last:
            return self.axes.leaves(last)[-1]
        rest = zip(memory_strides(access.base), access.dims, prim.tensor(access.base).shape, strict=True)
        sized = [(hint(stride), dims) for stride, dims, size in rest if dims and size != 1]
        return self.axes.leaves(min(sized, key=lambda each: each[0])[1])[-1] if sized else -1

    def contiguous(self, value: SSAValue) -> int:
        """The dimension along which a value is contiguous; an image whose layout is open lies as all lie that it is computed of."""
        if value not in self._contiguous:
            shape, node = prim.tensor(value).shape, self.graph.node_of.get(value)
            sized = [(hint(t), d) for d, (s, t) in enumerate(zip(shape, memory_strides(value), strict=True)) if s != 1]
            last = min(sized, default=(1, len(shape) - 1), key=lambda each: each[0])[1]
            if len(shape) == 4 and node is not None and node.kind == POINTWISE and recorded_strides(value) is None:
                whole = [x for x in node.accesses if not x.indirect and elements(x.base) >= elements(value)]
                along = {self.innermost(x) for x in whole}
                last = 1 if along and shape[1] != 1 and along <= set(self.axes.leaves(node.dims[1])) else last
            self._contiguous[value] = last
        return self._contiguous[value]

    def of(self, reads: Mapping[SSAValue, Sequence[Access]], domain: list[int]) -> list[int]:
        """The domain's axes from the outermost to the innermost, as the first memory of its size that is read has them."""
        size = math.prod(hint(self.axes.sizes[a]) for a in domain)
        for value, accesses in reads.items():
            if accesses[0].indirect or elements(value) != size:
                continue
            shape = prim.tensor(value).shape
            strides = [hint(s) for s in memory_strides(value)]
            dims = sorted((i for i, s in enumerate(shape) if s != 1), key=lambda i: -strides[i])
            order = self.axes.leaves(a for i in dims for a in accesses[0].dims[i])
            if set(order) == set(domain):
                return order
        return domain


def _behind(access: Access, at: int) -> list[int]:
    """The axes of a dimension of memory that is read through a slice: those of the dimension which runs with it where the reader is."""
    if not access.seen:
        return []
    place: int | None = at
    for op in reversed(access.views):
        if place is not None and isinstance(op, prim.Slice):
            place = place if op["steps"][place] == 1 else None
        elif place is not None and isinstance(op, prim.VIEWS):
            place = kept_dimensions(cast(prim.PrimOp, op))[place]
    return access.seen[place] if place is not None else []
