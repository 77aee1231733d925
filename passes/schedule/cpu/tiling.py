"""How the loops of a nest are walked: merged, reordered, tiled, spread over threads, laid over vector lanes.

What is decided here never depends on the number of threads, so that a result is the same on every machine with the same vectors.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import sympy

from ....ir.dtypes import F32
from ....ir.symbols import (
    Dim,
    FloorDiv,
    Mod,
    Range,
    dim,
    known_equal,
    product,
    simplify_index,
    substitute,
)
from ...analysis.affine import accesses, across, cuts, merge
from ...analysis.cost import (
    COSTLY,
    MAX_PARTS,
    MIN_UNITS,
    SHORT,
    TILE_AGAIN,
    TILE_ONCE,
)
from ...analysis.machine import Processor
from ...analysis.sizes import hint
from ...analysis.views import row_major
from ..expressions import Expressions, Memory, Node
from ..nests import Loop, Nest, Segment, Stage, Store, by_stride, coefficient, contiguous_row, tile_end
from .block_moments import blocked_moments

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
            if len(points) * len(parts) > MAX_PARTS:
                points = []
            bounds = [loop.start, *points, loop.stop]
            parts = [
                ([*loops, Loop(loop.var, stop, start)], {**ranges, loop.var: (start, dim(stop - 1))})
                for loops, ranges in parts
                for start, stop in zip(bounds, bounds[1:], strict=False)
            ]
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
        ranges = dict(self.lowering.ranges)
        found = accesses([n for s in nest.stages for n in s.nodes], [t for s in nest.stages for t in s.stores], ranges)
        lane = contiguous_row(nest)
        order = by_stride(nest.rows, found.stores, found.loads)
        if lane is not None:
            order = [r for r in order if r is not lane] + [lane]
        rows, env = merge(order, found.all, ranges, self._merged)
        spec = Nest(rows, [], env)
        lane_loop: Loop | None = None
        if lane is not None:
            lane_loop = self._lanes(nest, spec, rows[-1])
        kept = self._kept(nest, spec)
        for number, stage in enumerate(nest.stages):
            moments = self._moments(nest.stages, ranges) if number == 0 and lane is None and not kept else None
            if moments is not None:
                spec.stages.append(moments)
            elif number != 1 or not spec.stages[0].inside:
                spec.stages.append(self._stage(stage, ranges, lane_loop))
        for (node, first), position in kept.items():  # then no two stages became one
            spec.stages[first].scratch.append((node, position))
        if lane_loop is not None:
            self._once_a_lane(nest, spec, lane_loop)
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

    def _lanes(self, nest: Nest, spec: Nest, row: Loop) -> Loop:
        """Take the last row loop in tiles of lanes: accumulators become arrays, and each stage walks the lanes innermost."""
        others = product(each.size for each in spec.rows[:-1])
        again = any(len(s.loops) for s in nest.stages[1:] if s.stores)
        width = self.processor.strip // (TILE_AGAIN if again else TILE_ONCE)
        if isinstance(row.size, int):
            while width > 64 and row.size // width * hint(others) < MIN_UNITS // 2:
                width //= 2
            lanes = self.processor.lanes(F32)
            width = min(width, -(-row.size // lanes) * lanes)
        tile = self._variable("b", row)
        within = (row.start, dim(row.stop - 1))
        spec.rows[-1] = Loop(tile, row.stop, row.start, width)
        spec.lanes, spec.lane = width, dim(row.var - tile)
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

    def _kept(self, nest: Nest, spec: Nest) -> dict[tuple[Node, int], Dim]:
        """Costly values that several stages of a row need: (value, stage that computes it) to its place in a row's scratch."""
        found: dict[tuple[Node, int], Dim] = {}
        first: dict[Node, int] = {}
        rows = {r.var for r in nest.rows}
        for number, stage in enumerate(nest.stages):
            inner = {each.var for each in stage.loops}
            sizes = [each.size for each in stage.loops]
            count = product(sizes)
            if not inner or any(s.scan for s in stage.stores):
                continue
            seen: set[Node] = set()
            stack = list(stage.nodes)
            while stack:
                node = stack.pop()
                if node in seen:
                    continue
                seen.add(node)
                earlier = first.get(node)
                fits = isinstance(count, int) and count * spec.lanes * node.dtype.bytes <= 2 * self.processor.l1_bytes
                room = None if fits or earlier is None else self._room(nest, stage, node, spec)
                if (
                    earlier is not None
                    and (fits or room is not None)
                    and node.kind in ("op", "cast", "select", "load")
                    and inner <= node.free
                    and [each.var for each in nest.stages[earlier].loops] == [each.var for each in stage.loops]
                    and _worth_keeping(node, rows, {*spec.scratch, *spec.lent})
                ):
                    if node in spec.scratch or node in spec.lent:
                        continue
                    if room is not None:
                        found[node, earlier] = room.flat
                        spec.lent[node] = room.memory
                        continue
                    place = row_major([each.var for each in stage.loops], sizes)
                    found[node, earlier] = dim(place * spec.lanes + spec.lane)
                    spec.scratch[node] = dim(count * spec.lanes)
                    continue
                stack += node.args
            for node in seen:
                first.setdefault(node, number)
        return found

    @staticmethod
    def _room(nest: Nest, stage: Stage, node: Node, spec: Nest) -> Store | None:
        """A result of the last stage, not yet lent, whose memory can hold a value until the result itself is written there."""
        last = nest.stages[-1]
        if [each.var for each in last.loops] != [each.var for each in stage.loops]:
            return None
        for store in last.stores:
            memory, steps = store.memory, [coefficient(store.flat, each.var) for each in stage.loops]
            whole = known_equal(memory.ref.numel, dim(product(r.size for r in (*nest.rows, *stage.loops))))
            once = sum(s.memory is memory for each in nest.stages for s in each.stores) == 1
            read = any(
                n.kind == "load" and n.data[0] is memory for each in nest.stages for t in each.nodes for n in t.walk()
            )
            if (
                memory.ref.dtype == node.dtype
                and whole
                and once
                and not read
                and all(steps)
                and memory not in spec.lent.values()
            ):
                return store
        return None


def _conditions(node: Node) -> tuple[Dim, ...]:
    if node.kind == "select":
        return tuple(node.data[0])
    return tuple(node.data[2]) if node.kind == "load" else tuple(node.data[3]) if node.kind == "bind" else ()


def _worth_keeping(node: Node, rows: set[sympy.Symbol], kept: Collection[Node]) -> bool:
    """Whether computing a value again costs clearly more than reading it back from the nearest cache."""
    if node in kept:
        return True
    cost = loads = 0
    seen: set[Node] = set()
    stack = [node]
    while stack:
        top = stack.pop()
        if top in seen or top.free <= rows:
            continue
        seen.add(top)
        if top.kind == "load" or top in kept:
            loads += 1
            continue
        cost += top.cost
        stack += top.args
    return cost >= 8 or loads >= 3


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
