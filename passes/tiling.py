"""How the loops of a nest are walked: merged, reordered, tiled, spread over threads, laid over vector lanes.

What is decided here never depends on the number of threads, so that a result is the same on every machine with the same vectors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import sympy

from ..ir.symbols import Dim, FloorDiv, dim, product
from ..ir.types import ref_type
from .context import Target
from .emit_loops import LoopSpec, NestSpec, StageSpec
from .lower import Lowering, Memory, Node
from .nests import MIN_UNITS, MIN_WORK, Join, Loop, Nest, Stage, Store, column_votes

SMALL = 16 * 1024  # simple operations; a kernel below this is not worth a second thread
BLOCK = 8 * 1024  # elements of a long loop that one thread takes at a time
CHUNK = 32 * 1024  # elements of a split reduction that one thread takes at a time
MAX_CHUNKS = 64


@dataclass
class Tiler:
    """Chooses the loops of the nests of one kernel."""

    target: Target
    lowering: Lowering
    scratch: list[Memory]

    def nests(self, nests: Sequence[Nest]) -> list[NestSpec]:
        """The nests with their loops, in order."""
        found: list[NestSpec] = []
        for nest in nests:
            for part in self._split(nest):
                found += self._tile(part)
        return found

    # Reductions with too few rows for the threads.

    def _split(self, nest: Nest) -> list[Nest]:
        """A reduction over much for few rows becomes one over chunks of a fixed size, and one over the chunks."""
        stages = [s for s in nest.stages if s.joins]
        if len(stages) != 1 or not nest.stages[0].loops:
            return [nest]
        first = nest.stages[0]
        work = product(l.size for l in first.loops)
        count = product(r.size for r in nest.rows)
        if not isinstance(count, int):
            return [nest]
        lane = self._lane(nest)
        units = count
        if lane is not None:
            width = lane.size if isinstance(lane.size, int) else 64
            units = count // width * max(1, width // 256) if width else 0
        total = work * count if isinstance(work, int) else None
        if units >= MIN_UNITS or (total is not None and total < MIN_WORK):
            return [nest]
        longest = max(first.loops, key=lambda l: l.size if isinstance(l.size, int) else 1 << 62)
        chunks = MAX_CHUNKS // 2 if total is None else min(MAX_CHUNKS, total // CHUNK)
        chunks = -(-chunks // max(1, units))
        if isinstance(longest.size, int):
            chunks = min(chunks, longest.size)
        return [nest] if chunks < 2 else self._chunked(nest, first, longest, chunks)

    def _chunked(self, nest: Nest, first: Stage, longest: Loop, chunks: int) -> list[Nest]:
        lowering = self.lowering
        chunk, step = lowering.variable("k", chunks), lowering.variable("k", chunks)
        size = dim(FloorDiv(sympy.sympify(dim(longest.size + chunks - 1)), sympy.Integer(chunks)))
        start = dim(chunk * size)
        stop = dim(sympy.Min(sympy.sympify(longest.stop), sympy.sympify(dim(start + size))))
        count = product(r.size for r in nest.rows)
        row: Dim = 0
        for r in nest.rows:
            row = dim(row * r.size + r.var)
        partial = Stage([Loop(l.var, stop, start) if l is longest else l for l in first.loops])
        save, rest = Stage([]), Stage([Loop(step, chunks)])
        for join in first.joins:
            op, index = join.target.data[0], join.target.data[1]
            part = lowering.node("reduced", join.target.dtype, (), (op, (*index, chunk), "part"), (row, chunk))
            partial.joins.append(Join(part, join.kind, join.args))
            parts = [part]
            if len(join.args) == 2:
                dtype = join.args[0].dtype
                parts = [lowering.node("reduced", dtype, (), (part, "values"), (row, chunk)), part]
            loads = []
            for node in parts:
                memory = Memory(f"part{len(self.scratch)}", ref_type([chunks, count], None, node.dtype), "scratch")
                self.scratch.append(memory)
                save.stores.append(Store(memory, dim(chunk * count + row), node))
                flat = dim(step * count + row)
                loads.append(lowering.node("load", node.dtype, (), (memory, flat, (), None), (flat,)))
            rest.joins.append(Join(join.target, join.kind, tuple(loads)))
        return [Nest([Loop(chunk, chunks), *nest.rows], [partial, save]), Nest(nest.rows, [rest, *nest.stages[1:]])]

    # Loops.

    def _tile(self, nest: Nest) -> list[NestSpec]:
        if not nest.rows and not any(s.joins or any(t.scan for t in s.stores) for s in nest.stages):
            return [self._pointwise(s) for s in nest.stages]
        kind = "parallel" if self._large(nest) else "serial"
        lane = self._lane(nest)
        rows = [LoopSpec(r.var, r.start, r.stop, kind=kind) for r in nest.rows]
        stages = [self._stage(s) for s in nest.stages]
        return [NestSpec(rows, {}, stages)]

    def _stage(self, stage: Stage) -> StageSpec:
        kind = "reduce" if stage.joins else "scan" if any(s.scan for s in stage.stores) else "serial"
        loops = [LoopSpec(l.var, l.start, l.stop, kind=kind) for l in stage.loops]
        if loops and kind != "scan":
            loops[-1].vector = True
        return StageSpec(loops, {}, stage.joins, stage.stores)

    def _pointwise(self, stage: Stage) -> NestSpec:
        kind = "parallel" if self._large(Nest([], [stage])) else "serial"
        loops = [LoopSpec(l.var, l.start, l.stop, kind=kind) for l in stage.loops]
        if len(loops) > 1:
            loops[-1].kind = "serial"
        if loops:
            loops[-1].vector = True
        return NestSpec([], {}, [StageSpec(loops, {}, [], stage.stores)])

    def _large(self, nest: Nest) -> bool:
        """Whether the nest has work for more than one thread."""
        rows = product(r.size for r in nest.rows)
        work = 0
        for stage in nest.stages:
            points = dim(product(l.size for l in stage.loops) * rows)
            if not isinstance(points, int):
                return True
            work += points * max(1, cost_of(stage.nodes))
        return work >= SMALL

    def _lane(self, nest: Nest) -> Loop | None:
        """The row variable along which neighbours in memory lie, when that is no inner variable."""
        loads = {n for s in nest.stages for top in s.nodes for n in top.walk() if n.kind == "load"}
        rows = {r.var for r in nest.rows}
        if not rows or column_votes(loads, rows) <= 0:
            return None
        best = max(nest.rows, key=lambda r: sum(1 for n in loads if column_votes({n}, {r.var}) > 0))
        return best


def cost_of(nodes: Iterable[Node]) -> int:
    """The cost of computing nodes once, common ones counted once."""
    seen = {n for top in nodes for n in top.walk()}
    return sum(n.cost for n in seen)
