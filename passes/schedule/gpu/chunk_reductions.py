"""chunk-reductions: on a GPU a reduction over much for few rows is one over chunks, and one over what these give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp

from ....ir.dialects import loop
from ....ir.scalars import DOT
from ....ir.symbols import product
from ...analysis.affine import accesses
from ...analysis.cost import ENOUGH_PROGRAMS, PROGRAM_CHUNK
from ...core.base import Pass
from ...core.context import CompileContext
from ..emit_loops import kernel_symbols
from ..kernels import replace_nests
from ..nests import Loop, Nest, Nests, by_stride
from ..online import around_mean
from ..read import read
from ..split_reductions import as_one_loop, flattened, in_chunks, moments_in_chunks
from .blocks import Blocker, hint, reduced
from .cooperative import shared_parts
from .grid_kernels import grid_kernels, named_sizes
from .one_reading import joined_nests, stored_beside
from .product_tiles import is_product, split_of

VECTOR = 8  # elements of two bytes in 16


@dataclass(frozen=True)
class ChunkReductions(Pass):
    """Cut reductions of few rows on a GPU into chunks, so that there are programs enough."""

    name: ClassVar[str] = "chunk-reductions"
    level: ClassVar[str] = "loop"
    after: ClassVar[tuple[str, ...]] = ("lower",)
    before: ClassVar[tuple[str, ...]] = ("schedule",)
    requires: ClassVar[tuple[str, ...]] = ("lower",)

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        """Kernels of which no reduction is cut stay as they are."""
        for kernel, _ in grid_kernels(module, ctx.machine):
            multiplies = any(isinstance(op, loop.Accumulate) and op["kind"] == DOT for op in kernel.walk())
            if not multiplies and reduced(kernel) < 2 * PROGRAM_CHUNK:
                continue
            with named_sizes(kernel):
                found = read(kernel)
                blocker = Blocker(ctx.machine.gpu, found.expressions, found.scratch)
                nests = _in_one_reading(blocker, found)
                if nests != found.nests:
                    replace_nests(kernel, found, nests)
            kernel["symbols"] = kernel_symbols(kernel, memory=True)


def _in_one_reading(blocker: Blocker, found: Nests) -> list[Nest]:
    """The nests, reductions in chunks: these read once what several reductions, and stores of single elements, are made of."""
    waiting, made = joined_nests(found), list[Nest]()
    while waiting:
        nest = waiting.pop(0)
        parts = _chunked(blocker, found, nest)
        if len(parts) > 1:
            first, taken = stored_beside(found, nest, waiting)
            if taken:
                parts = _chunked(blocker, found, replace(nest, stages=[first, *nest.stages[1:]]))
                waiting = [other for other in waiting if other not in taken]
        made += parts
    return made


def _chunked(blocker: Blocker, found: Nests, nest: Nest) -> list[Nest]:
    """The nest, or that over its chunks and that over what these give."""
    first = nest.stages[0]
    if is_product(nest):
        chunks = split_of(nest)
        return [nest] if chunks < 2 else in_chunks(found, nest, first, first.loops[0], chunks)
    joined = sum(bool(s.joins) for s in nest.stages)
    x = around_mean(found.expressions, first, nest.stages[1]) if joined == 2 and nest.stages[1].joins else None
    if not first.joins or not first.loops or first.numbers or (joined != 1 and x is None):
        return [nest]
    shared = shared_parts(blocker, nest)
    again = any(s.loops and not s.joins for s in nest.stages[1:])
    if shared is not None and (again or (x is not None and shared.programs * shared.blocks >= ENOUGH_PROGRAMS)):
        return [nest]  # programs that share a row hold it for what comes behind the reduction: it is read once
    work, count = product(s.size for s in first.loops), product(r.size for r in nest.rows)
    lane = blocker.lane(nest)
    lanes = 1 if lane is None else blocker.lanes_at_once(nest, lane)
    programs = -(-hint(count) // lanes)
    if programs * 4 > ENOUGH_PROGRAMS or hint(work) * hint(count) < 2 * PROGRAM_CHUNK * max(1, programs):
        return [nest]
    # The sum of 67 million float32 reaches 98 % of the copy rate with twice as many, 96 without.
    most = 2 * ENOUGH_PROGRAMS if lane is None else ENOUGH_PROGRAMS
    chunks = min(most // max(1, programs), max(1, hint(work) // (PROGRAM_CHUNK // lanes)))
    if x is not None and lane is not None:
        chunks = min(ENOUGH_PROGRAMS, -(-hint(work) * lanes // PROGRAM_CHUNK))  # each is held
    first = flattened(found.expressions, first)
    used = accesses(first.nodes, [], found.expressions.ranges)
    enough = [s for s in by_stride(first.loops, [], used.loads) if hint(s.size) >= chunks]
    even = lane is None
    uneven = even and bool(enough) and not _begin_at_vectors(first.loops, enough[0])
    if (uneven or not enough) and x is None and len(first.loops) > 1:  # windows keep loops apart that would be one
        one = as_one_loop(found.expressions, first)
        if len(one.loops) == 1:
            first, enough = one, one.loops
    if chunks < 2 or not enough or (x is not None and not isinstance(enough[0].size, int)):
        return [nest]
    if x is None:
        return in_chunks(found, nest, first, enough[0], chunks, even)
    return moments_in_chunks(found, nest, first.joins[0].args[0], first.loops, enough[0], chunks, even)


def _begin_at_vectors(loops: Sequence[Loop], cut: Loop) -> bool:
    """Whether chunks of a loop of contiguous memory begin where a thread may read 16 bytes at once."""
    inside = product(s.size for s in loops if s is not cut)
    return len(loops) == 1 or isinstance(inside, int) and inside % VECTOR == 0
