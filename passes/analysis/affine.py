"""Questions about the index expressions of a loop body: how far a step of a variable goes, which loops are one, where ranges split."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import sympy

from ...ir.symbols import Dim, FloorDiv, Range, dim, is_nonnegative, known_equal, substitute
from ..schedule.expressions import Node
from ..schedule.nests import Loop, Store, coefficient
from .sizes import hint


@dataclass
class Accesses:
    """The index expressions that a body really uses within given ranges: `loads` and `stores` (flat indices), and all others."""

    loads: list[Node]
    stores: list[Store]
    others: list[Dim]

    @property
    def flats(self) -> list[Dim]:
        """Flat indices of loads and stores."""
        return [n.data[1] for n in self.loads] + [s.flat for s in self.stores]

    @property
    def all(self) -> list[Dim]:
        """All expressions, each once."""
        return list(dict.fromkeys([*self.flats, *self.others]))


def accesses(tops: Iterable[Node], stores: Sequence[Store], ranges: Mapping[sympy.Symbol, Range]) -> Accesses:
    """What is read; the side of a selection that the ranges exclude is not looked at."""
    found = Accesses([], list(stores), [])
    seen: set[Node] = set()
    stack = list(tops)
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.kind == "select":
            known = decided(node.data[0], ranges)
            if known is not None:
                stack.append(node.args[0 if known else 1])
                stack += node.args[2:]
                continue
            found.others += node.data[0]
        elif node.kind == "load":
            known = decided(node.data[2], ranges)
            if known is False:
                continue
            found.loads.append(node)
            found.others += () if known else node.data[2]
        elif node.kind in ("index", "bind"):
            found.others += [node.data[0]] if node.kind == "index" else node.data[3]
        elif node.kind == "reduced":
            found.others += (
                [i for i in node.data[1] if isinstance(i, sympy.Expr)] if isinstance(node.data[1], tuple) else []
            )
        stack += node.args
    return found


def begins_anywhere(flat: Dim, var: sympy.Symbol, width: int) -> bool:
    """Whether elements of `width` bytes that are neighbours along `var` do not begin at multiples of 16 bytes, wherever the other loops are."""
    index = sympy.expand(flat)
    others = [index.coeff(s) for s in index.free_symbols if s != var]
    return bool(index.coeff(var) == 1) and any(c.is_Integer and c % (16 // width) != 0 for c in others)


def decided(conditions: Sequence[Dim], ranges: Mapping[sympy.Symbol, Range]) -> bool | None:
    """Whether all of the conditions hold (are >= 0) throughout the ranges; None when that depends."""
    if all(is_nonnegative(c, ranges) for c in conditions):
        return True
    if any(is_nonnegative(dim(-1 - c), ranges) for c in conditions):
        return False
    return None


def across(loops: Sequence[Loop], flats: Sequence[Dim]) -> Loop | None:
    """A loop along which some memory is contiguous while the innermost loop strides through it: a transpose."""
    inner = loops[-1]
    for flat in flats:
        step = coefficient(flat, inner.var)
        if step is None or hint(step) < 4:
            continue
        for loop in loops[:-1]:
            if coefficient(flat, loop.var) == 1 and hint(loop.size) >= 8 and hint(inner.size) >= 8:
                return loop
    return None


def mergeable(outer: Loop, inner: Loop, exprs: Iterable[Dim]) -> bool:
    """Whether the two loops are one loop of outer*inner iterations for all expressions."""
    if inner.start != 0:
        return False
    for expr in exprs:
        a, b = coefficient(expr, outer.var), coefficient(expr, inner.var)
        if a is None or b is None or not known_equal(a, dim(b * inner.stop)):
            return False
    return True


def merge(
    loops: Sequence[Loop], exprs: Sequence[Dim], ranges: dict[sympy.Symbol, Range], fresh: Callable[[Dim], sympy.Symbol]
) -> tuple[list[Loop], dict[sympy.Symbol, Dim]]:
    """Fuse neighbouring loops into one where possible; the mapping gives vanished variables in terms of the others.

    a*n + b = m: a becomes FloorDiv(m, n) and b becomes m - n*FloorDiv(m, n), so that divisions cancel where the loops are one.
    """
    found: list[Loop] = []
    gone: dict[sympy.Symbol, Dim] = {}
    for loop in loops:
        pending = [substitute(e, gone) for e in exprs] if gone else exprs
        if found and mergeable(found[-1], loop, pending):
            outer, size = found.pop(), loop.stop
            merged = Loop(fresh(dim(outer.stop * size)), dim(outer.stop * size), dim(outer.start * size))
            ranges[merged.var] = (merged.start, dim(merged.stop - 1))
            high = FloorDiv(merged.var, sympy.sympify(size))
            step: dict[sympy.Symbol, Dim] = {outer.var: high, loop.var: dim(merged.var - size * high)}
            gone = {v: substitute(e, step) for v, e in gone.items()} | step
            loop = merged
        found.append(loop)
    return found, gone


def cuts(conditions: Iterable[Dim], loop: Loop, ranges: Mapping[sympy.Symbol, Range]) -> list[Dim]:
    """Where to split the loop so that conditions of the form ±var + constant >= 0 do not change within a part, in order.

    Only as many as can be put in order; none when that is not possible.
    """
    points: list[Dim] = []
    for condition in conditions:
        c = coefficient(condition, loop.var)
        if c not in (1, -1):
            continue
        rest = dim(condition - c * loop.var)
        if isinstance(rest, sympy.Expr) and any(s in ranges for s in rest.free_symbols):
            continue
        point = dim(-rest) if c == 1 else dim(rest + 1)
        if not any(known_equal(point, p) for p in points):
            points.append(point)
    if all(isinstance(p, int) for p in (loop.start, loop.stop, *points)):
        return sorted(p for p in points if loop.start < p < loop.stop)
    inside = [
        p for p in points if not is_nonnegative(dim(loop.start - p), {}) and not is_nonnegative(dim(p - loop.stop), {})
    ]
    ordered: list[Dim] = []
    for p in inside:
        if not (is_nonnegative(dim(p - loop.start), {}) and is_nonnegative(dim(loop.stop - p), {})):
            return []  # the point may lie outside the loop
        place = 0
        for q in ordered:
            if is_nonnegative(dim(p - q), {}):
                place += 1
            elif not is_nonnegative(dim(q - p), {}):
                return []
        ordered.insert(place, p)
    return ordered
