"""Online (running) reductions: a mean and the sum of squares around it, or a maximum and a sum of exponentials below it, in one reading.

A variance is two stages over the same elements: their sum, then the squares of their distances from the mean; a softmax begins
with two as well. Each is one stage where every element is joined to what is known so far.
"""

from __future__ import annotations

from collections.abc import Sequence

import sympy

from ...ir.symbols import known_equal, product
from .expressions import Expressions, Node
from .nests import Join, Stage


def online(lowering: Expressions, stages: Sequence[Stage]) -> list[Stage]:
    """The stages with the first two as one, where these are a mean and squares around it, or a maximum and a sum of exp(x - maximum).

    Each element is then joined to what is known so far (Welford: Note on a method for calculating corrected sums of squares, 1962;
    Milakov, Gimelshein: Online normalizer calculation for softmax, 2018), and memory is read once.
    """
    if len(stages) < 2 or not stages[0].joins or not stages[1].joins:
        return list(stages)
    first, second = stages[0], stages[1]
    x = around_mean(lowering, first, second)
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


def around_mean(lowering: Expressions, first: Stage, second: Stage) -> Node | None:
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
