"""cooperate: rows that are too long for one multiprocessor of a GPU, or too few for all of them: several programs of the grid share a row.

Each program holds its part of the row, reduces it, gives what it has to the others, waits for theirs (`loop.exchange`), and goes on with
the part that it still holds: memory is read once. Programs begin in the order of their numbers, and those of a row are neighbours;
no more than `SHARERS` share one, and than half of the GPU's multiprocessors, so that a program only ever waits for some that are running:
also beside the same on another stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import sympy
from xdsl.dialects.builtin import ModuleOp

from ....ir.dtypes import I32
from ....ir.scalars import JOINT
from ....ir.symbols import dim, power_of_two, product
from ....ir.types import ref_type
from ...analysis.affine import accesses, merge
from ...analysis.cost import (
    ALONE,
    HELD,
    HELD_ODD,
    HELD_WARPS,
    LEAST_SHARERS,
    READ_ONCE,
    READ_ONCE_WARPS,
    SHARED_LANES,
    SHARED_LEAST,
    SHARED_PROGRAMS,
    SHARED_ROW_BYTES,
    SHARERS,
)
from ...core.base import Pass
from ...core.context import CompileContext
from ..expressions import Expressions, Memory
from ..nests import Loop, Nest, Nests, Segment, Stage, Store, by_stride
from ..online import online
from .blocks import Blocker, reduced
from .grid_kernels import divide, grid_kernels


@dataclass(frozen=True)
class Cooperate(Pass):
    """Let several programs of a GPU share rows that are too long for one, or too few for all multiprocessors."""

    name: ClassVar[str] = "cooperate"
    level: ClassVar[str] = "loop"
    after: ClassVar[tuple[str, ...]] = ("split-launches",)
    requires: ClassVar[tuple[str, ...]] = ("split-launches",)

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        """A kernel whose rows are shared is launched behind one that sets its counters to 0."""
        for kernel, calls in grid_kernels(module, ctx.machine):
            if 2 * reduced(kernel) > ALONE:  # with neighbours up to a power of two
                divide(kernel, calls, lambda found: _shared_rows(ctx, found))


def _shared_rows(ctx: CompileContext, found: Nests) -> list[Nest] | None:
    blocker = Blocker(ctx.machine.gpu, found.expressions, found.scratch)
    return cooperative(blocker, found.nests[0]) if len(found.nests) == 1 else None


@dataclass(frozen=True)
class Parts:
    """How a row is shared.

    Attributes:
        stages: those of the nest, online where possible.
        lane: the loop over neighbouring rows that are taken together, `lanes` at a time.
        blocks: programs that share all rows, or all blocks of neighbouring rows.
        programs, share, total, block: programs of a row, the elements of each, of the row, and of what is read at once.
    """

    stages: list[Stage]
    lane: Loop | None
    lanes: int
    blocks: int
    programs: int
    share: int
    total: int
    block: int
    warps: int


def shared_parts(blocker: Blocker, nest: Nest) -> Parts | None:
    """How programs share the nest's rows; None where rows are better left whole."""
    lowering, processor, lane = blocker.lowering, blocker.processor, blocker.lane(nest)
    most = min(SHARERS, processor.multiprocessors // 2)
    if most < LEAST_SHARERS or any(s.joins and s.stores for s in nest.stages):
        return None
    stages = online(lowering, nest.stages)
    total, rows = _elements(stages), product(r.size for r in nest.rows)
    if total is None or not isinstance(rows, int) or any(r.start != 0 for r in nest.rows):
        return None
    again = any(s.loops for s in stages[1:])
    lanes = 1 if lane is None else min(SHARED_LANES[again], power_of_two(product([lane.size])))
    count = -(-rows // lanes)
    first = stages[0]
    used = accesses(first.nodes, [], lowering.ranges)
    inner = {each.var for each in first.loops}
    width = max((n.data[0].ref.dtype.bytes for n in used.loads if n.free & inner), default=0)
    odd = lane is None and total * width % 16 != 0
    large = total * lanes * width >= SHARED_ROW_BYTES and rows * total * width >= processor.stays_cached
    few = count < 2 * processor.multiprocessors and rows * total >= SHARED_LEAST and total * lanes > 2 * ALONE
    if not width or total * lanes <= ALONE or not (again and large or few):
        return None
    block = (HELD_ODD if odd else HELD) // lanes if again else READ_ONCE // lanes
    programs = min(most, -(-total // block) if again else max(2, SHARED_PROGRAMS // count))
    if again and total > most * block:
        block *= 2
    share = -(-total // (programs * block)) * block
    if not again:  # parts of one size need no masks, whole blocks none either
        counts = [n for n in range(programs, min(most, 2 * programs) + 1) if total % n == 0]
        counts = [
            n for n in range(-(-programs // 2), min(most, 2 * programs) + 1) if total % (n * block) == 0
        ] or counts
        share = total // counts[0] if counts else share
    programs = -(-total // share)
    warps = READ_ONCE_WARPS if not again else HELD_WARPS // 2 if odd else HELD_WARPS
    return Parts(stages, lane, lanes, count, programs, share, total, block, warps) if programs >= 2 else None


def cooperative(blocker: Blocker, nest: Nest) -> list[Nest] | None:
    """The nest with its rows shared among programs, behind one that sets its counters to 0; None where rows are better left whole.

    Where memory is contiguous along the rows' loop `lane`, a block of neighbouring rows takes the place of a row.
    """
    parts, lowering = shared_parts(blocker, nest), blocker.lowering
    if parts is None:
        return None
    stages, lane = parts.stages, parts.lane
    every = accesses([n for s in stages for n in s.nodes], [t for s in stages for t in s.stores], lowering.ranges)
    order = by_stride([r for r in nest.rows if r is not lane], every.stores, every.loads)
    loops, env = merge([*order, lane] if lane is not None else order, every.all, lowering.ranges, blocker.merged)
    spec = Nest(blocker.flat(loops, env, parts.lanes, "parallel"), [], env, warps=parts.warps)
    number = lowering.variable("k", parts.programs)
    for stage in stages:
        spec.stages.append(_shared(blocker, stage, number, parts))
    size = parts.blocks * parts.programs * parts.lanes
    spec.stages[0].exchange = _memories(stages[0], size, blocker.scratch)
    counter = Memory(f"count{len(blocker.scratch)}", ref_type([parts.blocks], None, I32), "scratch")
    blocker.scratch.append(counter)
    spec.stages[0].exchange.append(counter)
    return [_zeros(lowering, counter, parts.blocks), spec]


def _elements(stages: Sequence[Stage]) -> int | None:
    """The elements of a row, where one stage reduces them and all others that walk the row do so in the same way."""
    first = stages[0]
    plain = all(j.kind in ("sum", "prod", "max", "min", *JOINT) and j.args[0].dtype.kind != "bool" for j in first.joins)
    if (
        not first.joins
        or not plain
        or any(s.joins for s in stages[1:])
        or any(t.scan for s in stages for t in s.stores)
    ):
        return None
    totals = {product(each.size for each in s.loops) for s in stages if s.loops}
    if len(totals) != 1 or any(each.start != 0 for s in stages for each in s.loops):
        return None
    (total,) = totals
    return total if isinstance(total, int) else None


def _shared(blocker: Blocker, stage: Stage, number: sympy.Symbol, parts: Parts) -> Stage:
    """A stage with each program on its part of the row; what is not a walk over the row, all of them do."""
    if not stage.loops:
        return stage
    lowering, share, total = blocker.lowering, parts.share, parts.total
    inside = accesses(stage.nodes, stage.stores, lowering.ranges)
    loops, env = merge(
        by_stride(stage.loops, inside.stores, inside.loads), inside.all, dict(lowering.ranges), blocker.merged
    )
    (walk,) = blocker.flat(loops, env, parts.block, stage.kind)
    walk.start, walk.stop, walk.within = dim(number * share), dim(number * share + share), (0, total - 1)
    if total % share:
        walk.stop = dim(sympy.Min(sympy.Integer(total), sympy.sympify(walk.stop)))
    return replace(stage, segments=[Segment([Loop(number, parts.programs, cooperative=True), walk], env)])


def _memories(stage: Stage, size: int, scratch: list[Memory]) -> list[Memory]:
    """Memory for what each program gives, for each accumulator."""
    found = []
    for join in stage.joins:
        for _ in range(len(JOINT.get(join.kind, (0,)))):
            found.append(Memory(f"part{len(scratch)}", ref_type([size], None, join.args[0].dtype), "scratch"))
            scratch.append(found[-1])
    return found


def _zeros(lowering: Expressions, counter: Memory, count: int) -> Nest:
    at = lowering.variable("z", count)
    block = min(1024, power_of_two(count))
    stage = Stage([], stores=[Store(counter, at, lowering.const(0, I32))])
    return Nest([Loop(at, count, kind="parallel", block=block)], [stage], warps=4 if block >= 128 else 1)
