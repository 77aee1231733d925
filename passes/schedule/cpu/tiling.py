"""How the loops of a nest are walked: merged, reordered, cut at seams and periods, columns in tiles of lanes.

What is decided here never depends on the number of threads, so that a result is the same on every machine with the same vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import sympy

from ....ir.symbols import (
    Dim,
    FloorDiv,
    Mod,
    Range,
    dim,
    product,
    simplify_index,
    substitute,
)
from ...analysis.affine import accesses, across, cuts, merge
from ...analysis.cost import (
    AS_SHORT,
    COSTLY,
    MAX_PARTS,
    MIN_UNITS,
    SHORT,
)
from ...analysis.machine import Processor
from ...analysis.sizes import hint
from ..expressions import Expressions, Memory, Node, decided
from ..nests import Loop, Nest, Segment, Stage, by_stride, tile_end
from .block_moments import blocked_moments
from .lanes import lane_rows

Ranges = dict[sympy.Symbol, Range]


@dataclass
class Tiler:
    """Chooses the loops of the nests of one kernel."""

    processor: Processor
    lowering: Expressions
    scratch: list[Memory]

    def nests(self, nests: Sequence[Nest]) -> list[Nest]:
        """The nests with their loops, in order."""
        return [spec for nest in nests for spec in self._tile(nest)]

    def _tile(self, nest: Nest) -> list[Nest]:
        if not nest.rows and not any(s.joins or any(t.scan for t in s.stores) for s in nest.stages):
            return [spec for s in nest.stages for spec in self._pointwise(s)]
        return [self._rows(nest)]

    def _pointwise(self, stage: Stage) -> list[Nest]:
        """Nests without reductions: every part between seams has its own loops, merged where memory allows it."""
        stage = self._regular(stage)
        parts = self._parts(stage)
        together = self._together(parts) if len(parts) > 1 else None
        return [together] if together else [self._elements(part, ranges) for part, ranges in parts]

    def _regular(self, stage: Stage) -> Stage:
        """The stage with loops split in two where an index repeats or steps every so many iterations: no division is left in the inner
        loop, which memory can then be contiguous along.
        """
        for _ in range(MAX_PARTS):
            split = self._period(stage)
            if split is None:
                break
            loop, period = split
            high, low = (self.lowering.variable("o", n) for n in (loop.stop // period, period))
            env: dict[sympy.Symbol, Dim] = {loop.var: dim(period * high + low)}
            found = [self.lowering.renamed(s.node, env) for s in stage.stores]
            nodes = [n for n in found if n is not None]
            if len(nodes) < len(found):
                break
            stores = [
                replace(s, node=n, flat=simplify_index(substitute(s.flat, env), self.lowering.ranges))
                for s, n in zip(stage.stores, nodes, strict=True)
            ]
            place = stage.loops.index(loop)
            loops = [
                *stage.loops[:place],
                Loop(high, loop.stop // period),
                Loop(low, period),
                *stage.loops[place + 1 :],
            ]
            stage = Stage(loops, stores=stores)
        return stage

    def _period(self, stage: Stage) -> tuple[Loop, int] | None:
        """A loop over a multiple of the divisor of an index: it and the divisor. Short inner loops gain nothing."""
        flats = dict.fromkeys(n.data[1] for top in stage.nodes for n in top.walk() if n.kind == "load")
        for flat in [f for f in flats if isinstance(f, sympy.Expr)]:
            for part in sorted(flat.atoms(FloorDiv, Mod), key=str):
                base, divisor = part.args
                for each in stage.loops:
                    if base != each.var or each.start != 0 or not isinstance(each.size, int) or not divisor.is_Integer:
                        continue
                    period = int(divisor)
                    if SHORT <= period < each.size and each.size % period == 0:
                        return each, period
        return None

    def _together(self, parts: Sequence[tuple[Stage, Ranges]]) -> Nest | None:
        """All parts between seams in one nest, one after another for each row: one parallel loop, and operands that several parts
        read come from memory once. None where the seams leave too few rows, or a part is a transpose.
        """
        found = [accesses(part.nodes, part.stores, ranges) for part, ranges in parts]
        orders = [by_stride(part.loops, used.stores, used.loads) for (part, _), used in zip(parts, found, strict=True)]
        depth, first = 0, orders[0]
        while depth < len(first) - 1 and all(order[depth] == first[depth] for order in orders):
            depth += 1
        if hint(product(each.size for each in first[:depth])) < MIN_UNITS:
            return None
        ranges = dict(self.lowering.ranges)
        everything = list(dict.fromkeys(flat for used in found for flat in used.all))
        rows, env = merge(first[:depth], everything, ranges, self._merged)
        segments = []
        for order, used, (_, known) in zip(orders, found, parts, strict=True):
            loops, inside = merge(order[depth:], used.all, {**ranges, **known}, self._merged)
            if across([*rows, *loops], [substitute(f, env | inside) for f in used.flats]) is not None:
                return None
            segments.append(Segment(loops, inside))
        return Nest(rows, [replace(parts[0][0], segments=segments)], env)

    def _parts(self, stage: Stage) -> list[tuple[Stage, Ranges]]:
        """The stage split at the seams of pads and concatenations, with the ranges that hold in each part."""
        parts: list[tuple[list[Loop], Ranges]] = [([], dict(self.lowering.ranges))]
        conditions = [c for top in stage.nodes for n in top.walk() for c in _conditions(n)]
        for loop in stage.loops:
            points = cuts(conditions, loop, self.lowering.ranges) if conditions else []
            finer = _cut(parts, loop, points)
            if len(points) * len(parts) > MAX_PARTS and not _as_short(stage, [known for _, known in finer]):
                finer = _cut(parts, loop, [])
            parts = finer
        return [(Stage(loops, stage.joins, stage.stores), ranges) for loops, ranges in parts]

    def _elements(self, stage: Stage, ranges: Ranges) -> Nest:
        found = accesses(stage.nodes, stage.stores, ranges)
        loops, env = merge(by_stride(stage.loops, found.stores, found.loads), found.all, ranges, self._merged)
        return Nest([], [replace(stage, segments=[Segment(loops, env)])])

    def _merged(self, size: Dim) -> sympy.Symbol:
        return self.lowering.variable("i", size)

    def _variable(self, prefix: str, loop: Loop) -> sympy.Symbol:
        return self.lowering.variable(prefix, loop.stop)

    # Nests with reductions.

    def _rows(self, nest: Nest) -> Nest:
        rows, env, width = lane_rows(self.lowering, nest, self.processor)
        ranges = dict(self.lowering.ranges)
        spec = Nest(rows, [], env, width, scratch=dict(nest.scratch), lent=nest.lent)
        lane = self._lanes(nest, spec) if width > 1 else None
        moments = None if lane is not None or nest.scratch or nest.lent else self._moments(nest.stages, ranges)
        spec.stages = [] if moments is None else [moments]
        spec.stages += [self._stage(stage, ranges, lane) for stage in nest.stages[2 * len(spec.stages) :]]
        if lane is not None:
            self._once_a_lane(nest, spec, lane)
        return spec

    @staticmethod
    def _once_a_lane(nest: Nest, spec: Nest, lane: Loop) -> None:
        """What is costly and depends on the rows alone is computed once for each lane, in front of the stage whose loops need it."""
        rows = {r.var for r in nest.rows}
        for number in reversed(range(len(nest.stages))):
            found: dict[Node, None] = {}
            stack, seen = list(nest.stages[number].nodes) if nest.stages[number].loops else [], set[Node]()
            while stack:
                node = stack.pop()
                if node in seen:
                    continue
                seen.add(node)
                if (
                    node.kind == "op"
                    and lane.var in node.free
                    and node.free <= rows
                    and _cost_from_memory(node) >= COSTLY
                ):
                    found[node] = None
                else:
                    stack += node.args
            new = {n: None for n in found if n not in spec.scratch and n not in spec.lent}
            if new:
                spec.scratch |= dict.fromkeys(new, spec.lanes)
                spec.stages.insert(number, Stage([lane], scratch=[(n, spec.lane) for n in new]))

    def _lanes(self, nest: Nest, spec: Nest) -> Loop:
        """Take the last row loop in tiles of lanes: what is held for a row becomes an array, and each stage walks the lanes innermost."""
        row, width = spec.rows[-1], spec.lanes
        tile = self._variable("b", row)
        spec.rows[-1] = Loop(tile, row.stop, row.start, width)
        spec.lane = dim(row.var - tile)
        spec.scratch = {node: dim(size * width) for node, size in spec.scratch.items()}
        for stage in nest.stages:
            stage.scratch = [(n, at if n in spec.lent else dim(at * width + spec.lane)) for n, at in stage.scratch]
        within = (row.start, dim(row.stop - 1))
        return Loop(row.var, tile_end(tile, width, row.stop, row.size), tile, kind="serial", within=within)

    def _stage(self, stage: Stage, ranges: Ranges, lane: Loop | None) -> Stage:
        segments = []
        for part, known in self._parts(stage) if stage.kind != "scan" else [(stage, dict(ranges))]:
            used = accesses(part.nodes, part.stores, known)
            env: dict[sympy.Symbol, Dim] = {}
            loops = part.loops
            if stage.kind != "scan":
                loops, env = merge(by_stride(loops, used.stores, used.loads), used.all, known, self._merged)
            segments.append(Segment([*loops, lane] if lane is not None else loops, env))
        return replace(stage, segments=segments)

    def _moments(self, stages: Sequence[Stage], ranges: Ranges) -> Stage | None:
        """The first two stages as one over blocks, where they are a mean and squares around it over much memory."""
        first = stages[0]
        if len(stages) < 2 or not first.joins or any(_conditions(n) for top in first.nodes for n in top.walk()):
            return None
        used = accesses(first.nodes, [], ranges)
        loops, env = merge(by_stride(first.loops, [], used.loads), used.all, ranges, self._merged)
        return blocked_moments(self.lowering, stages, loops, env)


def _cut(
    parts: Sequence[tuple[list[Loop], Ranges]], loop: Loop, points: Sequence[Dim]
) -> list[tuple[list[Loop], Ranges]]:
    """Each part with the loop inside, once for what lies between two points."""
    bounds = [loop.start, *points, loop.stop]
    return [
        ([*loops, Loop(loop.var, stop, start)], {**ranges, loop.var: (start, dim(stop - 1))})
        for loops, ranges in parts
        for start, stop in zip(bounds, bounds[1:], strict=False)
    ]


def _as_short(stage: Stage, parts: Sequence[Ranges]) -> bool:
    """Whether many parts are written as shortly as the whole: each has a piece of a concatenation, of which the whole computes all."""
    whole = len({n for top in stage.nodes for n in top.walk()})
    written = 0
    for ranges in parts:
        seen: set[Node] = set()
        stack = list(stage.nodes)
        while stack:
            node = _decided(stack.pop(), ranges)
            if node not in seen:
                seen.add(node)
                stack += node.args
        written += len(seen)
        if written > AS_SHORT * whole:
            return False
    return True


def _decided(node: Node, ranges: Ranges) -> Node:
    """What a selection takes throughout a part; the node itself where that is not known, or where it selects nothing."""
    while node.kind == "select" and (taken := decided(node, node.data[0], ranges)) is not None:
        node = taken
    return node


def _conditions(node: Node) -> tuple[Dim, ...]:
    if node.kind == "select":
        return tuple(node.data[0])
    return tuple(node.data[2]) if node.kind == "load" else tuple(node.data[3]) if node.kind == "bind" else ()


def _cost_from_memory(node: Node) -> int:
    """The cost of computing a value from the reductions, loads and integers that it depends on."""
    cost, seen, stack = 0, {node}, [node]
    while stack:
        top = stack.pop()
        if top.kind not in ("op", "cast", "const", "select"):
            continue
        cost += top.cost
        new = [a for a in top.args if a not in seen]
        seen.update(new)
        stack += new
    return cost
