"""loop → loop: what memory is asked for early: reads that the processor does not foresee, where a loop works on something else before them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import sympy
from xdsl.ir import SSAValue

from ....ir.dialects import loop
from ....ir.symbols import Dim, dim, free_symbols, product, substitute, symbol
from ....ir.syntax import Op, single_block
from ...analysis.cost import AHEAD, ASKED, FAR, MOMENTS_FIRST
from ...analysis.size_names import replace_sizes
from ...analysis.sizes import hint
from ...core.context import CompileContext
from ..kernels import (
    PURE,
    CpuLoopPass,
    FreshVariables,
    loops_in,
    names_in,
    needed_for,
    set_bounds,
    surrounding,
    variable,
)
from ..nests import coefficient, tile_end


@dataclass(frozen=True)
class Prefetch(CpuLoopPass):
    """Ask early for what loops read out of order: rows gathered by number, the next row, squares of a transpose, blocks of moments."""

    name: ClassVar[str] = "prefetch"
    after: ClassVar[tuple[str, ...]] = ("parallelize",)
    requires: ClassVar[tuple[str, ...]] = ("parallelize",)

    def change(self, ctx: CompileContext, kernel: loop.Kernel) -> None:
        """Add prefetches to the loops of a kernel; but for moments, to those that have work for several threads."""
        for op in [o for o in kernel.walk() if isinstance(o, loop.For) and o["kind"] == "scan"]:
            _next_block(op)
        for outermost in [o for o in loops_in(kernel.block_body) if o["kind"] == "parallel"]:
            loops = surrounding(outermost)
            last, inner = loops[-1], loops_in(loops[-1].block_body)
            if not inner and len(loops) > 1:
                _gathered_rows(loops[-2], last)
            elif inner and inner[0].get("transpose"):
                _next_square(loops, inner)
            elif len(inner) > 1:
                _next_row(kernel, last, *inner[:2])


def _loads(op: loop.For) -> Iterator[loop.Load]:
    """The loads in a loop's own body that happen in every iteration."""
    return (o for o in op.block_body.ops if isinstance(o, loop.Load) and not o.get("mask"))


def _binds(op: loop.For) -> dict[sympy.Symbol, loop.Bind]:
    """The integers from memory that indices in a loop's own body may be made of, by their names."""
    return {symbol(str(o["var"])): o for o in op.block_body.ops if isinstance(o, loop.Bind)}


def _ask(op: loop.For, asked: dict[tuple[SSAValue, Dim, int], None]) -> None:
    """Ask for elements from an index on at the beginning of each iteration."""
    first = op.block_body.first_op
    assert first is not None
    for memory, index, count in asked:
        op.block_body.insert_op_before(loop.Prefetch.make([memory], [], {"index": index, "count": count}), first)


def _gathered_rows(outer: loop.For, inner: loop.For) -> None:
    """Rows in which the innermost loop reads by number: the next iteration's row while this one is worked on."""
    asked: dict[tuple[SSAValue, Dim, int], None] = {}
    binds = _binds(inner) if inner.get("vector") else {}
    for load in _loads(inner) if binds else ():
        flat = load["index"]
        numbers = [s for s in free_symbols([flat]) if s in binds]
        if len(numbers) != 1 or coefficient(flat, variable(inner)) != 0 or coefficient(flat, numbers[0]) != 1:
            continue
        count, step = binds[numbers[0]]["size"], coefficient(flat, variable(outer))
        known = isinstance(count, int) and isinstance(step, int) and step >= count
        if known and AHEAD[0] <= count * load.ref.dtype.bytes <= AHEAD[1]:
            later = substitute(flat, {numbers[0]: 0, variable(outer): dim(variable(outer) + outer.get("step", 1))})
            asked[load.operands[0], later, count] = None
    _ask(outer, asked)


def _next_square(loops: Sequence[loop.For], inner: Sequence[loop.For]) -> None:
    """Squares that are copied across before they are worked on: a column of the next square with each row of this one."""
    asked: dict[tuple[SSAValue, Dim, int], None] = {}
    copies, work = [op for op in inner if op.get("transpose")], inner[-1]
    blocks = {variable(op): op for op in loops}
    for copy in copies:
        (across,) = loops_in(copy.block_body)
        starts = [op["start"] for op in (copy, across)]
        for load in _loads(across):
            row = dim(variable(work) - starts[1])
            step = {variable(copy): dim(starts[0] + blocks[starts[0]]["step"] + row), variable(across): starts[1]}
            asked[load.operands[0], substitute(load["index"], step), blocks[starts[1]]["step"]] = None
    _ask(work, asked)


def _next_block(op: loop.For) -> None:
    """Rows that are joined block by block: the beginning of the next block, the processor foresees the rest."""
    inner = loops_in(op.block_body)
    size = dim(sympy.sympify(inner[0]["stop"]) - inner[0].get("start", 0)) if inner else 0
    if not isinstance(size, int) or not any(isinstance(o, loop.Local) for o in op.block_body.ops):
        return
    asked: dict[tuple[SSAValue, Dim, int], None] = {}
    step = {variable(inner[0]): inner[0].get("start", 0), variable(op): dim(variable(op) + 1)}
    binds = _binds(inner[0])
    for load in _loads(inner[0]):
        if not free_symbols([load["index"]]) & binds.keys():
            count = min(size, MOMENTS_FIRST // load.ref.dtype.bytes)
            asked[load.operands[0], substitute(load["index"], step), count] = None
    _ask(op, asked)


def _next_row(kernel: loop.Kernel, row: loop.For, first: loop.For, second: loop.For) -> None:
    """Rows that are read twice: while the second loop finds a row in the nearest cache, what the first one reads of the next row."""
    size, rows = first["stop"], row["stop"]
    plain = all(op.get("vector") and not op.get("start") and op.get("step", 1) == 1 for op in (first, second))
    if not plain or second["stop"] != size or second["kind"] != "reduce" or row.get("step", 1) != 1:
        return
    if not isinstance(size, int) or size < 2 * ASKED or not isinstance(rows, int) or loops_in(second.block_body):
        return
    var, start = variable(first), FreshVariables(kernel)("b")
    later = {variable(row): sympy.Min(variable(row) + 1, rows - 1)}
    asked: dict[tuple[SSAValue, Dim, int], None] = {}
    for load in _loads(first):
        memory, flat = load.operands[0], load["index"]
        numbers = [s for s in free_symbols([flat]) if s in (binds := _binds(row))]
        is_far = hint(product(load.ref.shape)) * load.ref.dtype.bytes >= FAR
        if coefficient(flat, var) != 1 or not is_far or memory not in kernel.block_body.args[: kernel["inputs"]]:
            continue
        if numbers:
            number = _number_of_row(kernel, row, binds[numbers[0]], later, second) if len(numbers) == 1 else None
            if number is None:
                continue
            below = substitute(flat, {**later, numbers[0]: number})
        elif coefficient(flat, variable(row)):
            below = substitute(flat, {variable(row): dim(variable(row) + 1)})
        else:
            continue
        asked[memory, substitute(below, {var: start}), ASKED] = None
    if asked:
        attrs = {"kind": "reduce", "var": start, "stop": size, "step": ASKED}
        block = loop.For.make([], [], attrs, [single_block()])
        row.block_body.insert_op_before(block, second)
        second.detach()
        block.block_body.add_op(second)
        set_bounds(second, start, tile_end(start, ASKED, size, size))
        _ask(block, asked)


def _number_of_row(
    kernel: loop.Kernel, row: loop.For, bind: loop.Bind, later: dict[sympy.Symbol, Dim], before: loop.For
) -> Dim | None:
    """The integer from memory that another row has instead of this one's, read in front of a loop; None where that takes more than reading."""
    block = row.block_body
    needed = needed_for(bind.operands, list(block.ops))
    names = {variable(op) for op in block.ops if isinstance(op, loop.Bind)}
    used = {s for op in needed if isinstance(op, Op) for s in names_in(op)}
    if bind.get("mask") or used & names or variable(row) not in used or not all(isinstance(o, PURE) for o in needed):
        return None
    if any(isinstance(o, loop.Load) and isinstance(o.operands[0].owner, loop.Local) for o in needed):
        return None
    copies: dict[SSAValue, SSAValue] = {}
    found = FreshVariables(kernel)(str(bind["var"]))
    for op in (*needed, bind):
        copy = op.clone(copies)
        assert isinstance(copy, Op)
        replace_sizes(copy, later)
        if op is bind:
            copy["var"] = found
        block.insert_op_before(copy, before)
    return found
