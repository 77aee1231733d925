"""split-reductions: on a CPU a reduction over much for few rows is one over chunks, and one over what these give.

The size of a chunk never depends on the number of threads, so that a result is the same on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import sympy
from xdsl.dialects.builtin import ModuleOp

from ...ir.dialects import loop
from ...ir.scalars import DOT
from ...ir.symbols import Dim, FloorDiv, dim, product
from ...ir.types import ref_type
from ..analysis.affine import accesses, merge
from ..analysis.cost import CHUNK, MAX_CHUNKS, MIN_UNITS, MIN_WORK
from ..analysis.sizes import hint
from ..core.base import Pass
from ..core.context import CompileContext
from .emit_loops import kernel_symbols
from .expressions import Expressions, Memory
from .kernels import is_grid, replace_nests
from .nests import Join, Loop, Nest, Nests, Stage, Store, by_stride, contiguous_row
from .read import read


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
    used = accesses(stage.nodes, [], expressions.ranges)
    ordered = by_stride(stage.loops, [], used.loads)
    loops, env = merge(ordered, used.all, expressions.ranges, lambda size: expressions.variable("i", size))
    if not env:
        return stage
    joins = []
    for join in stage.joins:
        args = [expressions.renamed(a, env) for a in join.args]
        known = tuple(a for a in args if a is not None)
        if len(known) < len(args):
            return stage
        joins.append(replace(join, args=known))
    return Stage(loops, joins)


def in_chunks(found: Nests, nest: Nest, first: Stage, longest: Loop, chunks: int) -> list[Nest]:
    """Two nests: one over chunks of a loop of the first stage, whose parts go to scratch, and one over these parts.

    Args:
        first: the first stage of the nest, flattened or not.
    """
    expressions = found.expressions
    chunk, step = expressions.variable("k", chunks), expressions.variable("k", chunks)
    size = dim(FloorDiv(sympy.sympify(dim(longest.size + chunks - 1)), sympy.Integer(chunks)))
    start = dim(chunk * size)
    stop = dim(start + size)
    if not isinstance(longest.size, int) or longest.size % chunks:
        stop = dim(sympy.Min(sympy.sympify(longest.stop), sympy.sympify(stop)))
    count = product(r.size for r in nest.rows)
    row: Dim = 0
    for r in nest.rows:
        row = dim(row * r.size + r.var)
    partial = Stage([Loop(each.var, stop, start) if each is longest else each for each in first.loops])
    save, rest = Stage([]), Stage([Loop(step, chunks)])
    for join in first.joins:
        op, index = join.target.data[0], join.target.data[1]
        part = expressions.node("reduced", join.target.dtype, (), (op, (*index, chunk), "part"), (row, chunk))
        partial.joins.append(replace(join, target=part))
        parts = [part]
        if len(join.args) == 2 and join.kind != DOT:
            dtype = join.args[0].dtype
            parts = [expressions.node("reduced", dtype, (), (part, "values"), (row, chunk)), part]
        loads = []
        for node in parts:
            memory = Memory(f"part{len(found.scratch)}", ref_type([chunks, count], None, node.dtype), "scratch")
            found.scratch.append(memory)
            save.stores.append(Store(memory, dim(chunk * count + row), node))
            flat = dim(step * count + row)
            loads.append(expressions.node("load", node.dtype, (), (memory, flat, (), None), (flat,)))
        rest.joins.append(Join(join.target, "sum" if join.kind == DOT else join.kind, tuple(loads)))
    return [Nest([Loop(chunk, chunks), *nest.rows], [partial, save]), Nest(nest.rows, [rest, *nest.stages[1:]])]
