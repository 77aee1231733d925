"""block: how the loops of a nest are laid over a GPU. Each program of a grid takes a block of rows, and walks what is within a row in blocks.

The loops stay what they are: `block = n` on a loop says that n iterations are one tensor operation. A row that fits is one block,
and is then read from memory once however many stages it has; a longer one is walked several times, which the L2 cache sees.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import sympy
from xdsl.dialects.builtin import ModuleOp

from ....ir.dialects import loop
from ....ir.symbols import Dim, FloorDiv, Mod, Range, dim, free_symbols, power_of_two, product, substitute
from ...analysis import sizes
from ...analysis.affine import Accesses, accesses, across, begins_anywhere, merge
from ...analysis.cost import (
    BAG_STEP,
    BYTES_A_THREAD,
    COLUMNS_A_THREAD,
    ELEMENTS_A_THREAD,
    ENOUGH_PROGRAMS,
    ENOUGH_ROWS,
    GPU_HINT,
    LEAST_LANES,
    LEAST_LONG,
    LEAST_ROW,
    LEAST_SIDE,
    LOADS_A_THREAD,
    PROGRAM_CHUNK,
    PROGRAM_LANES,
    PROGRAM_PIECE,
    PROGRAM_PIECE_AGAIN,
    PROGRAM_POINTS,
    PROGRAM_SQUARE,
    PROGRAM_STEPS,
    PROGRAM_WIDE_LANES,
    TAPS,
)
from ...analysis.machine import Processor
from ...core.base import Pass
from ...core.context import CompileContext
from ..expressions import Expressions, Memory, Node
from ..nests import Loop, Nest, Nests, Segment, Stage, by_stride, coefficient, contiguous_row
from .grid_kernels import divide, grid_kernels

Ranges = dict[sympy.Symbol, Range]


@dataclass(frozen=True)
class BlockLoops(Pass):
    """Lay the loops of kernels over a GPU: blocks of rows for its programs, blocks of elements within a row, warps."""

    name: ClassVar[str] = "block"
    level: ClassVar[str] = "loop"
    after: ClassVar[tuple[str, ...]] = ("cooperate", "tile-products")
    requires: ClassVar[tuple[str, ...]] = ("split-launches",)

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        """No kernel of a GPU is plain afterwards."""
        for kernel, calls in grid_kernels(module, ctx.machine):
            divide(kernel, calls, lambda found: [_blocker(ctx, found).blocks(nest) for nest in found.nests])


def _blocker(ctx: CompileContext, found: Nests) -> Blocker:
    return Blocker(ctx.machine.gpu, found.expressions, found.scratch)


@dataclass(frozen=True)
class Shape:
    """So many rows a program, and so many elements within a row at a time; the `longest` row that a stage walks, and whether that is whole then."""

    block: int
    step: int
    longest: Dim
    whole: bool


@dataclass
class Blocker:
    """Chooses the blocks of a nest."""

    processor: Processor
    lowering: Expressions
    scratch: list[Memory]

    def merged(self, size: Dim) -> sympy.Symbol:
        """A variable for loops that become one."""
        return self.lowering.variable("i", size)

    def blocks(self, nest: Nest) -> Nest:
        """The nest with its blocks."""
        if not nest.rows and len(nest.stages) == 1 and not nest.stages[0].joins and not self._scans(nest):
            return self._points(nest.stages[0])
        return self.row_blocks(nest)

    def _alone(self, nest: Nest) -> list[Loop]:
        """The rows of which a program takes one at a time: where its loops begin must be one number, and bags have rows of their own."""
        bounds = free_symbols(b for s in nest.stages for each in s.loops for b in (each.start, each.stop))
        for stage in nest.stages:
            for join in [j for j in stage.joins if j.attrs.get("bag")]:
                index = join.target.data[1]
                if stage.numbers or len(index) > 1:
                    bounds |= free_symbols(index[:1])
        return [r for r in nest.rows if r.var in bounds]

    def lane(self, nest: Nest) -> Loop | None:
        """The row along which memory is contiguous, of those that a program takes several of."""
        alone = self._alone(nest)
        return contiguous_row(replace(nest, rows=[r for r in nest.rows if r not in alone]) if alone else nest)

    @staticmethod
    def _scans(nest: Nest) -> bool:
        return any(t.scan for s in nest.stages for t in s.stores)

    def _points(self, stage: Stage) -> Nest:
        """One block of elements for each program; two-dimensional where memory is contiguous along different loops."""
        ranges = self.lowering.ranges
        used = accesses(stage.nodes, stage.stores, ranges)
        scatters = any(s.bind is not None for s in stage.stores)  # as the source lies
        order = stage.loops if scatters else by_stride(stage.loops, used.stores, used.loads)
        loops, env = merge(order, used.all, ranges, self.merged)
        crossed = across(loops, [substitute(f, env) for f in used.flats]) if loops else None
        spec = Nest([], [Stage([], stores=stage.stores)], env)
        if crossed is not None:
            inner = loops[-1]
            rest = [s for s in loops if s is not crossed and s is not inner]
            spec.rows = [*self.flat(rest, env, 1), *(self._tile_of(s, PROGRAM_SQUARE) for s in (crossed, inner))]
            spec.warps = 8
        elif not scatters and self._reads_numbers_of_rows(loops, used.loads, env):
            width = PROGRAM_POINTS if hint(loops[-1].size) >= LEAST_LONG else _width(hint(loops[-1].size))
            spec.rows = [*self.flat(loops[:-1], env, max(1, PROGRAM_POINTS // width)), self._tile_of(loops[-1], width)]
            spec.rows[-1].apart = _begin_differently(loops[-1], used, env)
            spec.warps = 4
        elif self._shares_places(loops, used.loads):
            width = _width(hint(loops[-1].size))
            # Columns are axis 0: along it Triton lays threads where it cannot tell which axis is contiguous (steps of 2, masks).
            points = _points_of(_most_of_one(used.loads))
            spec.rows = [self._tile_of(loops[-1], width), *self.flat(loops[:-1], env, max(1, points // width))]
            spec.rows[0].apart = not self._aligned(loops[-1], used.loads, env)
            spec.warps = 4
        else:
            total = product(s.size for s in loops)
            small = isinstance(total, int) and total < PROGRAM_POINTS * ENOUGH_PROGRAMS // 4
            spec.rows = self.flat(
                loops, env, min(power_of_two(hint(total)), PROGRAM_POINTS // 4 if small else PROGRAM_POINTS)
            )
            spec.warps = 4
        return spec

    def _reads_numbers_of_rows(
        self, loops: Sequence[Loop], loads: Sequence[Node], env: dict[sympy.Symbol, Dim]
    ) -> bool:
        """Whether much of what is read is one number for a whole row, which a tile of rows and columns reads once."""
        if len(loops) < 2 or hint(loops[-1].size) < LEAST_ROW:
            return False
        inner, numbers = loops[-1], 0
        for load in loads:
            flat = substitute(load.data[1], env)
            if not free_symbols([flat]).isdisjoint(self.lowering.binds) or coefficient(flat, inner.var) not in (0, 1):
                return False
            numbers += coefficient(flat, inner.var) == 0 and bool(free_symbols([flat]))
        return numbers >= 2

    @staticmethod
    def _shares_places(loops: Sequence[Loop], loads: Sequence[Node]) -> bool:
        """Whether much of the work is to say where to read, which a tile does once for each row and each column: windows, interpolation."""
        if len(loops) < 2 or hint(loops[-1].size) < LEAST_SIDE:
            return False
        return _most_of_one(loads) >= TAPS or any(n.kind == "bind" and n.data[4] for load in loads for n in load.args)

    def _aligned(self, inner: Loop, loads: Sequence[Node], env: dict[sympy.Symbol, Dim]) -> bool:
        """Whether all loads begin at multiples of a vector, and go on element by element."""
        moving = {v for v, e in env.items() if inner.var in free_symbols([e])} | {inner.var}
        binds = self.lowering.binds
        for load in loads:
            memory, flat = load.data[0], substitute(load.data[1], env)
            if any(s in binds and binds[s].free & moving for s in free_symbols([flat])):
                return False
            together = 16 // memory.ref.dtype.bytes
            if coefficient(flat, inner.var) not in (0, 1) or inner.var in free_symbols(load.data[2]):
                return False
            if coefficient(flat, inner.var) == 0:  # one number for all columns
                continue
            rest = dim(flat - inner.var)
            constant = sympy.sympify(rest).as_coeff_Add()[0]
            if constant % together:
                return False
        return True

    def row_blocks(self, nest: Nest) -> Nest:
        """A nest with rows, or reductions, with its blocks."""
        lowering = self.lowering
        used = accesses(
            [n for s in nest.stages for n in s.nodes], [t for s in nest.stages for t in s.stores], lowering.ranges
        )
        lane = self.lane(nest)
        alone = self._alone(nest)
        order = by_stride([r for r in nest.rows if r not in alone], used.stores, used.loads)
        if lane is not None:
            order = [r for r in order if r is not lane] + [lane]
        rows, env = merge(order, used.all, lowering.ranges, self.merged)
        shape = self.shape(nest)
        block, step, longest = shape.block, shape.step, shape.longest
        spec = Nest([], [], env)
        spec.rows = [*(self._tile_of(r, 1) for r in alone), *self.flat(rows, env, block)]
        for stage in nest.stages:
            inside = accesses(stage.nodes, stage.stores, lowering.ranges)
            inner: dict[sympy.Symbol, Dim] = {}
            loops = stage.loops
            if stage.kind != "scan":
                loops = by_stride(loops, inside.stores, inside.loads)
                loops = [s for s in loops if s.start != 0] + [s for s in loops if s.start == 0]
                loops, inner = merge(loops, inside.all, dict(lowering.ranges), self.merged)
            size = product(most(s.start, s.stop) for s in loops)
            width = min(step, power_of_two(size)) if isinstance(size, int) else step
            specs = self.flat(loops, inner, width, stage.kind)
            spec.stages.append(replace(stage, segments=[Segment(specs, inner)]))
        held = shape.whole and lane is None and not self._scans(nest)
        each = ELEMENTS_A_THREAD
        if held and block * step >= 2 * PROGRAM_POINTS:
            each = min(2 * ELEMENTS_A_THREAD, max(ELEMENTS_A_THREAD, BYTES_A_THREAD // self._bytes(nest)))
        if shape.whole and lane is not None and block * step >= PROGRAM_CHUNK and self._reads(nest) == 1:
            each = COLUMNS_A_THREAD
        spec.warps = max(1, min(16, block * step // (32 * each)))
        if held and block == 1 and isinstance(longest, int) and hint(product(r.size for r in rows)) >= ENOUGH_PROGRAMS:
            # Twice the elements a thread, where that leaves no warp half idle: 768 bf16 reach 92 % of the copy rate with one warp, 87 with two.
            at_once, more = 32 * spec.warps * 16 // self._bytes(nest), 2 * each * self._bytes(nest) <= BYTES_A_THREAD
            if more and longest % at_once and longest % (at_once // 2) == 0:
                spec.warps = max(1, spec.warps // 2)
        return spec

    def shape(self, nest: Nest) -> Shape:
        """What a program takes of a nest with rows, or reductions."""
        lane = self.lane(nest)
        sizes = [product(most(s.start, s.stop) for s in stage.loops) for stage in nest.stages if stage.loops]
        longest = max(sizes, key=hint, default=1)
        known = all(isinstance(s, int) for s in sizes)
        if lane is not None:
            few = hint(product(r.size for r in nest.rows)) < PROGRAM_LANES * self.processor.multiprocessors
            hold = known and (few or len(sizes) > 1)
            block, step = self._columns(longest, hold, lane, self.lanes_at_once(nest, lane))
        else:
            alone, again = self._alone(nest), len(sizes) > 1 and not self._scans(nest)
            rows = product(r.size for r in nest.rows if r not in alone)
            sums = 1 if again else max([1, *(len(s.joins) for s in nest.stages)])  # each holds as much as the row
            block, step = self._shape(rows, longest, known, again, self._bytes(nest), self._held // sums)
        if any(s.numbers for s in nest.stages):  # nobody knows how many, and mostly few
            block, step = (1 if lane is None else block), min(step, BAG_STEP)
        return Shape(block, step, longest, known and hint(longest) <= step)

    def _reads(self, nest: Nest) -> int:
        """How many elements a row reads at each place."""
        inner = {each.var for s in nest.stages for each in s.loops}
        used = accesses([n for s in nest.stages for n in s.nodes], [], self.lowering.ranges)
        return sum(bool(n.free & inner) for n in used.loads)

    def _bytes(self, nest: Nest) -> int:
        """The bytes of the smallest elements that a row has."""
        used = accesses([n for s in nest.stages for n in s.nodes], [], self.lowering.ranges)
        inner = {each.var for s in nest.stages for each in s.loops}
        return min((n.data[0].ref.dtype.bytes for n in used.loads if n.free & inner), default=4)

    def lanes_at_once(self, nest: Nest, lane: Loop) -> int:
        """How many columns a program takes: more where rows end within the 64 bytes that memory gives at once, which programs then share."""
        pitch = hint(lane.size) * self._bytes(nest)
        return PROGRAM_WIDE_LANES if pitch % 64 and hint(lane.size) > PROGRAM_WIDE_LANES else PROGRAM_LANES

    @property
    def _held(self) -> int:
        """Elements of a row that one program holds at once: a quarter of the registers, since what is computed needs some as well."""
        return self.processor.registers // 4

    def _columns(self, longest: Dim, hold: bool, lane: Loop, lanes: int) -> tuple[int, int]:
        """How many columns a program takes, and how many of their elements at a time: all of them where it may `hold` them."""
        step, lanes = power_of_two(hint(longest)), min(lanes, power_of_two(hint(lane.size)))
        if hold and step * LEAST_LANES <= self._held:
            return min(PROGRAM_LANES, lanes, self._held // step), step
        return lanes, min(PROGRAM_STEPS * PROGRAM_LANES // lanes, step)

    def _shape(self, rows: Dim, longest: Dim, known: bool, again: bool, narrow: int, held: int) -> tuple[int, int]:
        """How many rows a program takes, and how many elements within a row at a time.

        Args:
            again: a row that is not held is walked more than once. narrow: bytes of an element.
            held: the longest row that is held at once.
        """
        if known and hint(longest) <= held:
            step = power_of_two(hint(longest))
            several = max(1, min(PROGRAM_POINTS // step, hint(rows) // ENOUGH_PROGRAMS))
            return 1 << (several.bit_length() - 1), step
        if not known or not again:
            return 1, PROGRAM_PIECE // 2 if not known or hint(rows) >= ENOUGH_ROWS else PROGRAM_PIECE
        step = PROGRAM_PIECE_AGAIN * (2 if narrow <= 2 else 1)
        while step > PROGRAM_PIECE and -hint(longest) % step * 4 > hint(longest):  # a quarter of the lanes may be idle
            step //= 2
        return 1, step

    def flat(
        self, loops: Sequence[Loop], env: dict[sympy.Symbol, Dim], block: int, kind: str = "parallel"
    ) -> list[Loop]:
        """The loops as one, in blocks; `env` is extended by what the old variables are in the new one."""
        if not loops:
            return []
        if len(loops) == 1:
            return [replace(self._tile_of(loops[0], block), kind=kind)]
        total = product(s.size for s in loops)
        var = self.lowering.variable("x", total)
        step: dict[sympy.Symbol, Dim] = {}
        below: Dim = 1
        for k, each in reversed(list(enumerate(loops))):
            part: Dim = dim(FloorDiv(var, sympy.sympify(below)))
            if k:
                part = dim(Mod(sympy.sympify(part), sympy.sympify(each.size)))
            step[each.var] = dim(each.start + part)
            below = dim(below * each.size)
        for v in env:
            env[v] = substitute(env[v], step)
        env.update(step)
        return [Loop(var, total, kind=kind, block=block)]

    def _tile_of(self, loop: Loop, block: int) -> Loop:
        return replace(loop, kind="parallel", block=block)


def _begin_differently(inner: Loop, used: Accesses, env: dict[sympy.Symbol, Dim]) -> bool:
    """Whether some rows begin at multiples of 16 bytes and others anywhere.

    Triton gives a thread neighbours for the sake of the first; single elements, as the others are moved, then lie in steps.
    """
    found = set()
    for memory, place in [*((n.data[0], n.data[1]) for n in used.loads), *((s.memory, s.flat) for s in used.stores)]:
        flat = substitute(place, env)
        if coefficient(flat, inner.var) == 1:
            found.add(begins_anywhere(flat, inner.var, memory.ref.dtype.bytes))
    return len(found) == 2


def _most_of_one(loads: Sequence[Node]) -> int:
    """How many elements of one memory are read for each element that is made."""
    return max(Counter(load.data[0] for load in loads).values(), default=0)


def _points_of(taps: int) -> int:
    """How many elements a program makes of so many each: a thread has up to 64 of them on their way."""
    each = LOADS_A_THREAD // taps if taps >= TAPS else 0
    return (
        min(2 * PROGRAM_POINTS, max(PROGRAM_POINTS // 4, PROGRAM_POINTS // 8 << each.bit_length() - 1))
        if each
        else PROGRAM_POINTS
    )


def hint(value: Dim) -> int:
    """A number to choose blocks by."""
    return sizes.hint(value, unknown=GPU_HINT)


def most(start: Dim, stop: Dim) -> Dim:
    """The most iterations from `start` below `stop`, where the last chunk of a long loop may have fewer."""
    ends = stop.args if isinstance(stop, sympy.Min) else (stop,)
    counts = [dim(sympy.sympify(end) - start) for end in ends]
    return min(counts, key=lambda c: len(c.free_symbols) if isinstance(c, sympy.Expr) else 0)


def reduced(kernel: loop.Kernel) -> int:
    """The elements that a plain kernel's largest reduction reads, about; 0 without one."""
    found = 0
    for op in kernel.walk():
        if isinstance(op, loop.Accumulate):
            count, around = 1, op.parent_op()
            while isinstance(around, loop.For):
                count *= max(1, hint(most(around.get("start", 0), around["stop"])))
                around = around.parent_op()
            found = max(found, count)
    return found


def _width(size: int) -> int:
    """The columns of a tile: a power of two, as many as leave few of them idle behind the last element."""
    for width in (256, 128, 64, 32):
        if width < 2 * size and -(-size // width) * width * 7 <= size * 8:
            return width
    return min(32, power_of_two(size))
