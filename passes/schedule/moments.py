"""A mean and the sum of squares around it, or a maximum and a sum of exponentials below it, from memory that is read once.

The plan of a variance is two stages over the same elements: their sum, then the squares of their distances from the mean. Where a row is
larger than the nearest caches, both are computed block by block instead, and blocks are joined: with n elements of sum S so far, and m of
sum s and squares q around their own mean in the block,

    squares += q + (s/m - S/n)^2 n m / (n + m),    S += s

which loses a few bits where the mean is thousands of times the deviation, and else none (Chan, Golub, LeVeque: Updating formulae and a
pairwise algorithm for computing sample variances, 1979).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import sympy

from ...ir.symbols import Dim, dim, known_equal, product
from ..analysis.cost import MOMENTS_BLOCK, MOMENTS_BYTES
from .expressions import Expressions, Node
from .nests import Join, Loop, Segment, Stage


def blocked_moments(
    lowering: Expressions, stages: Sequence[Stage], loops: Sequence[Loop], env: dict[sympy.Symbol, Dim]
) -> Stage | None:
    """The first two stages as one, or None where they are no mean and squares around it; `loops` are theirs, merged, and `env`
    expresses the old variables in these.
    """
    if len(stages) < 2 or len(loops) < 2 or not all(isinstance(each.size, int) for each in loops):
        return None
    x = _around_mean(lowering, stages[0], stages[1])
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


def one_pass(lowering: Expressions, stages: Sequence[Stage]) -> list[Stage]:
    """The stages with the first two as one, where these are a mean and squares around it, or a maximum and a sum of exp(x - maximum).

    Each element is then joined to what is known so far (Welford: Note on a method for calculating corrected sums of squares, 1962;
    Milakov, Gimelshein: Online normalizer calculation for softmax, 2018), and memory is read once.
    """
    if len(stages) < 2 or not stages[0].joins or not stages[1].joins:
        return list(stages)
    first, second = stages[0], stages[1]
    x = _around_mean(lowering, first, second)
    if x is not None:
        (total,), (squares,) = first.joins, second.joins
        join = Join(squares.target, "moments", (x,), (None, total.target))
        return [Stage(first.loops, [join]), *stages[2:]]
    x = _under_maximum(first, second)
    if x is not None:
        (most,), (total,) = first.joins, second.joins
        return [Stage(first.loops, [Join(total.target, "max_expsum", (x,), (most.target,))]), *stages[2:]]
    return list(stages)


def _under_maximum(first: Stage, second: Stage) -> Node | None:
    """x where the stages are max(x) and sum(exp(x - max(x))) over the same elements."""
    same = [each.var for each in first.loops] == [each.var for each in second.loops]
    if not same or len(first.joins) != 1 or len(second.joins) != 1:
        return None
    (most,), (total,) = first.joins, second.joins
    power = total.args[0]
    if (most.kind, total.kind) != ("max", "sum") or not _is(power, "exp") or not _is(power.args[0], "sub"):
        return None
    x, less = power.args[0].args
    return x if x is most.args[0] and less is most.target and x.dtype.is_float else None


def _around_mean(lowering: Expressions, first: Stage, second: Stage) -> Node | None:
    """x where the stages are sum(x) and sum((x - sum(x)/n)^2) over the same n elements."""
    same = [each.var for each in first.loops] == [each.var for each in second.loops]
    if not same or len(first.joins) != 1 or len(second.joins) != 1:
        return None
    (total,), (squares,) = first.joins, second.joins
    square = squares.args[0]
    if (total.kind, squares.kind) != ("sum", "sum") or not _is(square, "mul") or square.args[0] is not square.args[1]:
        return None
    x, distance = total.args[0], square.args[0]
    if not _is(distance, "sub") or distance.args[0] is not x or not x.dtype.is_float or x.dtype != square.dtype:
        return None
    mean = distance.args[1]
    divided = _is(mean, "div") and mean.args[0] is total.target and mean.args[1].kind in ("const", "index")
    count = mean.args[1].data[0] if divided else None
    if not isinstance(count, sympy.Expr):
        count = int(count) if count is not None and count == int(count) else 0
    return x if known_equal(count, product(each.size for each in first.loops)) and mean.dtype == x.dtype else None


def _is(node: Node, name: str) -> bool:
    return node.kind == "op" and node.data[0] == name
