"""The sum and the squares around the mean of a long row, block by block, from memory that is read once.

A row that is larger than the nearest caches is taken in blocks, and blocks are joined: with n elements of sum S so far, and m of
sum s and squares q around their own mean in the block,

    squares += q + (s/m - S/n)^2 n m / (n + m),    S += s

which loses a few bits where the mean is thousands of times the deviation, and else none (Chan, Golub, LeVeque: Updating formulae and a
pairwise algorithm for computing sample variances, 1979).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import sympy

from ....ir.symbols import Dim, dim
from ...analysis.cost import MOMENTS_BLOCK, MOMENTS_BYTES
from ..expressions import Expressions, Node
from ..nests import Join, Loop, Segment, Stage
from ..online import around_mean


def blocked_moments(
    lowering: Expressions, stages: Sequence[Stage], loops: Sequence[Loop], env: dict[sympy.Symbol, Dim]
) -> Stage | None:
    """The first two stages as one, or None where they are no mean and squares around it; `loops` are theirs, merged, and `env`
    expresses the old variables in these.
    """
    if len(stages) < 2 or len(loops) < 2 or not all(isinstance(each.size, int) for each in loops):
        return None
    x = around_mean(lowering, stages[0], stages[1])
    *outer, inner = loops
    count = 1
    for each in loops:
        count *= int(each.size)
    if (
        x is None
        or count * x.dtype.bytes < MOMENTS_BYTES
        or not MOMENTS_BLOCK[0] <= int(inner.size) <= MOMENTS_BLOCK[1]
    ):
        return None
    (total,), (squares,) = stages[0].joins, stages[1].joins
    size, variables = int(inner.size), [each.var for each in outer]

    def number(value: Dim) -> Node:
        return lowering.node("index", x.dtype, (), (value,), (value,))

    def partial(join: Join, word: str) -> Node:
        return lowering.node("reduced", x.dtype, (), (*join.target.data[:2], word, tuple(variables)), variables)

    block_sum, block_squares, so_far = partial(total, "sum"), partial(squares, "squares"), partial(total, "so far")
    op, here = lowering.op, lowering.const(size, x.dtype)
    distance = op("sub", x, op("div", block_sum, here))
    done: Dim = 0
    for each in outer:
        done = dim(done * each.size + each.var - each.start)
    before, seen = number(dim(done * size)), number(dim(sympy.Max(1, sympy.sympify(dim(done * size)))))
    apart = op("sub", op("div", block_sum, here), op("div", so_far, seen))
    weight = op("div", op("mul", before, here), op("add", before, here))
    joined = op("add", block_squares, op("mul", op("mul", weight, apart), apart))
    specs = [replace(each, kind="scan") for each in outer]
    inside = [
        Stage([inner], [Join(block_sum, "sum", (x,))]),
        Stage([inner], [Join(block_squares, "sum", (op("mul", distance, distance),))]),
        Stage([], [Join(squares.target, "sum", (joined,)), Join(total.target, "sum", (block_sum,))], declared=True),
    ]
    segments = [Segment(specs, env)]
    return Stage(stages[0].loops, [total, squares], segments=segments, inside=inside, running={so_far: total.target})
