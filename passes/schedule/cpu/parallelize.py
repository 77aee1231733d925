"""loop → loop: which loops are spread over threads: an estimate of a nest's work against the cost of waking threads up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import sympy
from xdsl.ir import Block

from ....ir.dialects import loop
from ....ir.scalars import SCALARS
from ....ir.symbols import Dim, dim, free_symbols, substitute
from ...analysis.cost import HINT, MIN_UNITS, SCALAR_FACTOR, WORTH_A_THREAD
from ...analysis.sizes import hint
from ...core.context import CompileContext
from ..kernels import CpuLoopPass, loops_in, variable

Variables: TypeAlias = dict[sympy.Symbol, Dim]


@dataclass(frozen=True)
class Parallelize(CpuLoopPass):
    """Spread the outer loops of a CPU's kernels over threads, where there is work enough for a second one.

    What is decided does not depend on the number of threads, so that a result is the same with any.
    """

    name: ClassVar[str] = "parallelize"
    after: ClassVar[tuple[str, ...]] = ("vectorize",)
    requires: ClassVar[tuple[str, ...]] = ("vectorize",)

    def change(self, ctx: CompileContext, kernel: loop.Kernel) -> None:
        """Mark loops; where sizes are not known, say from how many iterations on they are parallel."""
        for op in loops_in(kernel.block_body):
            inside, known = _work(op.block_body, False, _first(op, {}))
            work = _repeated(op, inside, {}) if known else None
            if work is not None and work < WORTH_A_THREAD or not _spread(op):
                continue
            if work is None:
                op["grain"] = max(1, -(-WORTH_A_THREAD // max(1, inside)))


def _spread(outermost: loop.For) -> bool:
    """Mark loops from the outside as parallel until there are enough iterations for many threads; says whether there are such loops."""
    units, op, variables = 1, outermost, set[sympy.Symbol]()
    while op["kind"] == "serial" and not op.get("vector") and not op.get("transpose"):
        start, stop = dim(op.get("start", 0)), dim(op["stop"])
        if free_symbols((start, stop)) & variables:
            break
        op["kind"] = "parallel"
        variables.add(variable(op))
        units *= max(1, hint(dim(stop - start)) // hint(dim(op.get("step", 1))))
        inner = loops_in(op.block_body)
        if units >= 4 * MIN_UNITS or len(inner) != 1 or any(isinstance(each, loop.Local) for each in op.block_body.ops):
            break
        op = inner[0]
    return bool(variables)


def _first(op: loop.For, outer: Variables) -> Variables:
    """The variables of the loops around a body, each at its first value."""
    return {**outer, variable(op): substitute(dim(op.get("start", 0)), outer)}


def _repeated(op: loop.For, inside: int, outer: Variables) -> int | None:
    """The work of a loop of so much work each time, when the loops around it are at their start; None where sizes are not known."""
    start, step = op.get("start", 0), op.get("step", 1)
    tiles = op.parent_op() if isinstance(start, sympy.Symbol) else None
    while isinstance(tiles, loop.For) and variable(tiles) != start:
        tiles = tiles.parent_op()
    if isinstance(tiles, loop.For):  # the first tile is whole, if there are more
        whole, length = dim(tiles["stop"] - tiles.get("start", 0)), tiles.get("step", 1)
        length = min(whole, length) if isinstance(whole, int) else length
    else:
        length = dim(substitute(op["stop"], outer) - substitute(start, outer))
    return length * inside // step if isinstance(length, int) and isinstance(step, int) else None


def _work(block: Block, vector: bool, outer: Variables) -> tuple[int, bool]:
    """Simple operations in one run of a block, and whether all sizes in it are known."""
    total, known = 0, True
    for op in block.ops:
        if isinstance(op, loop.For):
            inside, sure = _work(
                op.block_body, vector or bool(op.get("vector") or op.get("transpose")), _first(op, outer)
            )
            repeated = _repeated(op, inside, outer)
            known = known and sure and repeated is not None
            total += HINT * inside if repeated is None else repeated
        elif isinstance(op, loop.ScalarOp):
            total += SCALARS[op.row.name].cost * (1 if vector else SCALAR_FACTOR)
        else:
            total += 1 if vector else SCALAR_FACTOR
    return total, known
