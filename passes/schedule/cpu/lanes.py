"""The rows of a nest in their order, and how many of the last one a CPU takes at a time: lanes, where memory is contiguous along that row."""

from __future__ import annotations

import sympy

from ....ir.dtypes import F32
from ....ir.symbols import Dim, product
from ...analysis.affine import accesses, merge
from ...analysis.cost import MIN_UNITS, TILE_AGAIN, TILE_ONCE
from ...analysis.machine import Processor
from ...analysis.sizes import hint
from ..expressions import Expressions
from ..nests import Loop, Nest, by_stride, contiguous_row


def lane_rows(
    lowering: Expressions, nest: Nest, processor: Processor
) -> tuple[list[Loop], dict[sympy.Symbol, Dim], int]:
    """The rows, ordered by stride and merged, what their old variables are in the new ones, and how many of the last are taken together."""
    used = accesses(
        [n for s in nest.stages for n in s.nodes], [t for s in nest.stages for t in s.stores], lowering.ranges
    )
    lane = contiguous_row(nest)
    order = by_stride(nest.rows, used.stores, used.loads)
    if lane is not None:
        order = [r for r in order if r is not lane] + [lane]
    rows, env = merge(order, used.all, dict(lowering.ranges), lambda size: lowering.variable("i", size))
    if lane is None:
        return rows, env, 1
    again, row = any(s.loops for s in nest.stages[1:] if s.stores), rows[-1]
    width = processor.strip // (TILE_AGAIN if again else TILE_ONCE)
    if isinstance(row.size, int):
        others = hint(product(each.size for each in rows[:-1]))
        while width > 64 and row.size // width * others < MIN_UNITS // 2:
            width //= 2
        lanes = processor.lanes(F32)
        width = min(width, -(-row.size // lanes) * lanes)
    return rows, env, width
