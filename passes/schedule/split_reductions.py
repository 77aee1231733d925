"""split-reductions: on a CPU a reduction over much for few rows is one over chunks, and one over what these give.

The size of a chunk never depends on the number of threads, so that a result is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import sympy
from xdsl.dialects.builtin import ModuleOp

from ...ir.dialects import loop
from ...ir.scalars import DOT
from ...ir.symbols import Dim, FloorDiv, Mod, dim, power_of_two, product, simplify_index, substitute
from ...ir.types import ref_type
from ..analysis.affine import accesses, merge
from ..analysis.cost import CHUNK, MAX_CHUNKS, MIN_UNITS, MIN_WORK
from ..analysis.sizes import hint
from ..core.base import Pass
from ..core.context import CompileContext
from .emit_loops import kernel_symbols
from .expressions import Expressions, Memory, Node
from .kernels import is_grid, replace_nests
from .nests import Join, Loop, Nest, Nests, Stage, Store, by_stride, contiguous_row
from .read import read

WHOLE = 64  # elements: even chunks of a size that is not known begin at multiples of it


@dataclass(frozen=True)
class SplitReductions(Pass):
    """Cut reductions of few rows on a CPU into chunks of a fixed size, so that there is work for all threads."""

    name: ClassVar[str] = "split-reductions"
    level: ClassVar[str] = "loop"
    after: ClassVar[tuple[str, ...]] = ("lower",)
    before: ClassVar[tuple[str, ...]] = ("schedule",)
    requires: ClassVar[tuple[str, ...]] = ("lower",)

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        """Kernels of which no reduction is cut stay as they are."""
        for kernel in [op for op in module.ops if isinstance(op, loop.Kernel) and op.get("plain")]:
            if is_grid(kernel, ctx.machine) or not _reduces_much(kernel):
                continue
            found = read(kernel)
            nests = [part for nest in found.nests for part in _split(found, nest)]
            if len(nests) > len(found.nests):
                replace_nests(kernel, found, nests)
                kernel["symbols"] = kernel_symbols(kernel, memory=False)


def _reduces_much(kernel: loop.Kernel) -> bool:
    """Whether a reduction has work for several threads: most kernels need not be read."""
    for op in kernel.walk():
        work: Dim = 1
        around = op.parent_op() if isinstance(op, loop.Accumulate) else None
        while isinstance(around, loop.For):
            work = dim(work * (around["stop"] - around.get("start", 0)))
            around = around.parent_op()
        if not isinstance(work, int) or work >= MIN_WORK:
            return True
    return False


def _split(found: Nests, nest: Nest) -> list[Nest]:
    """The nest, or that over its chunks and that over what these give."""
    stages = [s for s in nest.stages if s.joins]
    if len(stages) != 1 or not nest.stages[0].loops:
        return [nest]
    first = nest.stages[0]
    work = product(each.size for each in first.loops)
    count = product(r.size for r in nest.rows)
    if not isinstance(count, int):
        return [nest]
    lane = contiguous_row(nest)
    units = count
    if lane is not None:
        width = lane.size if isinstance(lane.size, int) else 64
        units = count // width * max(1, width // 256) if width else 0
    total = work * count if isinstance(work, int) else None
    if units >= MIN_UNITS or (total is not None and total < MIN_WORK):
        return [nest]
    chunks = MAX_CHUNKS // 2 if total is None else min(MAX_CHUNKS, total // CHUNK)
    chunks = -(-chunks // max(1, units))
    if chunks < 2:
        return [nest]
    first = flattened(found.expressions, first)
    used = accesses(first.nodes, [], found.expressions.ranges)
    loops = by_stride(first.loops, [], used.loads)
    enough = [each for each in loops if not isinstance(each.size, int) or each.size >= chunks]
    longest = enough[0] if enough else max(loops, key=lambda each: hint(each.size))
    if isinstance(longest.size, int):
        chunks = min(chunks, longest.size)
    return [nest] if chunks < 2 else in_chunks(found, nest, first, longest, chunks)


def flattened(expressions: Expressions, stage: Stage) -> Stage:
    """The stage with neighbouring loops as one wherever memory allows it, so that chunks are contiguous."""
    used = accesses(stage.nodes, stage.stores, expressions.ranges)
    ordered = by_stride(stage.loops, [], used.loads)
    loops, env = merge(ordered, used.all, expressions.ranges, lambda size: expressions.variable("i", size))
    return _with_loops(expressions, stage, loops, env) if env else stage


def as_one_loop(expressions: Expressions, stage: Stage) -> Stage:
    """The stage with all of its loops as one, whose remainders are their variables."""
    total = product(each.size for each in stage.loops)
    variable, below = expressions.variable("i", total), dim(1)
    env: dict[sympy.Symbol, Dim] = {}
    for k, each in reversed(list(enumerate(stage.loops))):
        part = dim(FloorDiv(variable, sympy.sympify(below)))
        env[each.var] = dim(each.start + (Mod(sympy.sympify(part), sympy.sympify(each.size)) if k else part))
        below = dim(below * each.size)
    return _with_loops(expressions, stage, [Loop(variable, total)], env)


def _with_loops(expressions: Expressions, stage: Stage, loops: list[Loop], env: dict[sympy.Symbol, Dim]) -> Stage:
    """The stage with other loops; itself where what it computes cannot be said in their variables."""
    joins = []
    for join in stage.joins:
        args = [expressions.renamed(a, env) for a in join.args]
        known = tuple(a for a in args if a is not None)
        if len(known) < len(args):
            return stage
        joins.append(replace(join, args=known))
    stores = []
    for store in stage.stores:
        node = expressions.renamed(store.node, env)
        if node is None:
            return stage
        stores.append(replace(store, node=node, flat=simplify_index(substitute(store.flat, env), expressions.ranges)))
    return Stage(loops, joins, stores)


def in_chunks(found: Nests, nest: Nest, first: Stage, longest: Loop, chunks: int, even: bool = False) -> list[Nest]:
    """Two nests: one over chunks of a loop of the first stage, whose parts go to scratch, and one over these parts.

    Args:
        first: the first stage of the nest, flattened or not.
        even: chunks of a power of two, about as many: each begins at a multiple of a vector and fills blocks.
    """
    expressions = found.expressions
    cut = _cut(found, nest, longest, chunks, even)
    partial = Stage([Loop(each.var, cut.stop, cut.start) if each is longest else each for each in first.loops])
    partial.stores = list(first.stores)
    save, rest = Stage([]), Stage([Loop(cut.step, cut.chunks)])
    for join in first.joins:
        part = cut.part(join)
        partial.joins.append(replace(join, target=part))
        parts = [part]
        if len(join.args) == 2 and join.kind != DOT:
            dtype = join.args[0].dtype
            parts = [expressions.node("reduced", dtype, (), (part, "values"), (cut.row, cut.chunk)), part]
        loads = tuple(cut.saved(node, save) for node in parts)
        rest.joins.append(Join(join.target, "sum" if join.kind == DOT else join.kind, loads))
    return [Nest([Loop(cut.chunk, cut.chunks), *nest.rows], [partial, save]), Nest(nest.rows, [rest, *nest.stages[1:]])]


def moments_in_chunks(
    found: Nests, nest: Nest, x: Node, loops: Sequence[Loop], longest: Loop, chunks: int, even: bool = False
) -> list[Nest]:
    """Two nests for a mean and the squares around it: each chunk has its own mean, and is joined to the others by their distance from all's.

    Args:
        x: what the first two stages of the nest reduce (`around_mean`), over `loops`, whose sizes are numbers: no chunk is empty.
    Source: Chan, Golub, LeVeque: Updating formulae and a pairwise algorithm for computing sample variances, 1979.
    """
    cut, e = _cut(found, nest, longest, chunks, even), found.expressions
    inside = [Loop(each.var, cut.stop, cut.start) if each is longest else each for each in loops]
    (total,), (squares,) = nest.stages[0].joins, nest.stages[1].joins
    parts = [cut.part(join) for join in (total, squares)]
    distance = e.op("sub", x, e.op("div", parts[0], cut.count(x, inside, cut.chunk)))
    save = Stage([])
    sums, around = (cut.saved(part, save) for part in parts)
    mean = squares.args[0].args[0].args[1]  # (x - mean) * (x - mean)
    count = cut.count(x, inside, cut.step)
    apart = e.op("sub", e.op("div", sums, count), mean)
    joined = e.op("add", around, e.op("mul", e.op("mul", apart, apart), count))
    values = (x, e.op("mul", distance, distance))
    partial = [Stage(inside, [Join(part, "sum", (value,))]) for part, value in zip(parts, values, strict=True)]
    over = [Loop(cut.step, cut.chunks)]
    rest = [Stage(over, [Join(j.target, "sum", (v,))]) for j, v in ((total, sums), (squares, joined))]
    return [
        Nest([Loop(cut.chunk, cut.chunks), *nest.rows], [*partial, save]),
        Nest(nest.rows, [*rest, *nest.stages[2:]]),
    ]


@dataclass(frozen=True)
class _Cut:
    """A loop in chunks: `start` to `stop` of chunk number `chunk`; `step` walks over the chunks behind it.

    `rows` and `row`: how many there are of what is reduced, and the number of one.
    """

    found: Nests
    chunk: sympy.Symbol
    step: sympy.Symbol
    chunks: int
    start: Dim
    stop: Dim
    rows: Dim
    row: Dim

    def part(self, join: Join) -> Node:
        """What a chunk gives for a reduction."""
        name, index = join.target.data[0], join.target.data[1]
        data = (name, (*index, self.chunk), "part")
        return self.found.expressions.node("reduced", join.target.dtype, (), data, (self.row, self.chunk))

    def saved(self, node: Node, save: Stage) -> Node:
        """A chunk's value, stored in memory of its own by `save`, as it is read behind."""
        memory = Memory(
            f"part{len(self.found.scratch)}", ref_type([self.chunks, self.rows], None, node.dtype), "scratch"
        )
        self.found.scratch.append(memory)
        save.stores.append(Store(memory, dim(self.chunk * self.rows + self.row), node))
        flat = dim(self.step * self.rows + self.row)
        return self.found.expressions.node("load", node.dtype, (), (memory, flat, (), None), (flat,))

    def count(self, x: Node, loops: Sequence[Loop], number: sympy.Symbol) -> Node:
        """The elements of chunk `number`, as a number of x's dtype."""
        size = sympy.sympify(product(each.size for each in loops)).subs(self.chunk, number)
        return self.found.expressions.const(dim(size), x.dtype)


def _nearest_power(size: int) -> int:
    """The power of two that is nearest, the greater one from three quarters of it on."""
    above = power_of_two(size)
    return above if 4 * size > 3 * above else above // 2


def _cut(found: Nests, nest: Nest, longest: Loop, chunks: int, even: bool) -> _Cut:
    whole = WHOLE if even and not isinstance(longest.size, int) else 1
    size = dim(whole * FloorDiv(sympy.sympify(dim(longest.size + whole * chunks - 1)), sympy.Integer(whole * chunks)))
    if isinstance(longest.size, int) and isinstance(size, int):
        size = _nearest_power(size) if even else size
        chunks = -(-longest.size // size)  # none is empty
    chunk, step = (found.expressions.variable("k", chunks) for _ in range(2))
    start = dim(chunk * size)
    stop = dim(start + size)
    if not isinstance(longest.size, int) or size * chunks != longest.size:
        stop = dim(sympy.Min(sympy.sympify(longest.stop), sympy.sympify(stop)))
    row: Dim = 0
    for r in nest.rows:
        row = dim(row * r.size + r.var)
    return _Cut(found, chunk, step, chunks, start, stop, product(r.size for r in nest.rows), row)
