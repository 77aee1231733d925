"""loop → loop: which loops over single elements are cut into tiles: squares where memory is walked across, strips where rows are few."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import sympy
from xdsl.ir import Block, Operation

from ....ir.dialects import loop
from ....ir.symbols import dim, product
from ....ir.syntax import Op, single_block
from ....ir.types import ref_type
from ...analysis.affine import across
from ...analysis.cost import ANGLES, MIN_UNITS, SERIAL_OPERATIONS
from ...analysis.machine import Processor
from ...analysis.size_names import replace_sizes
from ...analysis.sizes import hint
from ...core.context import CompileContext
from ..kernels import CpuLoopPass, FreshVariables, cost, loops_in, names_in, set_bounds, surrounding, variable
from ..nests import Loop, coefficient, tile_end


@dataclass(frozen=True)
class Tile(CpuLoopPass):
    """Cut loops over single elements into tiles: squares where memory is walked across, strips where rows are too few for threads."""

    name: ClassVar[str] = "tile"

    def change(self, ctx: CompileContext, kernel: loop.Kernel) -> None:
        """Cut the loops of a kernel that stand around nothing but single elements."""
        for outermost in loops_in(kernel.block_body):
            loops = surrounding(outermost)
            if all(_is_plain(op) for op in loops) and not loops_in(loops[-1].block_body):
                _tile(kernel, loops, ctx.machine.cpu)


def _is_plain(op: loop.For) -> bool:
    """Whether a loop only computes and stores elements, in front of the loop in it if there is one."""
    inner = any(isinstance(o, loop.For) for o in op.block_body.ops)
    if op["kind"] != "serial" or op.get("step", 1) != 1 or inner and not isinstance(op.block_body.last_op, loop.For):
        return False
    return not any(isinstance(o, loop.Accumulate | loop.Local) for o in op.block_body.ops)


def _tile(kernel: loop.Kernel, ops: Sequence[loop.For], processor: Processor) -> None:
    loops = [Loop(variable(op), op["stop"], op.get("start", 0)) for op in ops]
    inside = [o for op in ops for o in op.block_body.ops if isinstance(o, Op) and not isinstance(o, loop.For)]
    indices = [o["index"] for kind in (loop.Load, loop.Store) for o in inside if isinstance(o, kind)]
    crossed = across(loops, indices)
    if crossed is not None:
        fresh = FreshVariables(kernel)
        outer = ops[loops.index(crossed)]
        _copy_across(_cut(ops, (outer, ops[-1]), processor.square, fresh), outer, ops[-1], fresh, processor.square)
        return
    size = loops[-1].size
    few = hint(product(each.size for each in loops[:-1])) < MIN_UNITS
    if not few or isinstance(size, int) and size < 2 * processor.strip:
        return
    work = dim(product(each.size for each in loops) * max(1, sum(map(cost, inside))))
    if not isinstance(work, int) or work >= SERIAL_OPERATIONS:
        _cut(ops, ops[-1:], ANGLES if any(map(_is_angle, inside)) else processor.strip, FreshVariables(kernel))


def _is_angle(op: Op) -> bool:
    return isinstance(op, loop.ScalarOp) and op.row.name in ("sin", "cos")


def _cut(ops: Sequence[loop.For], tiled: Sequence[loop.For], length: int, fresh: FreshVariables) -> Block:
    """Walk some of the loops that stand in each other in tiles, innermost, each operation as far out as its variables allow.

    Returns: the body of the loops over tiles.
    """
    rows = [op for op in ops if op not in tiled]
    tiles = [_tiles_of(op, fresh("b"), length) for op in tiled]
    chain = [*rows, *tiles, *tiled]
    depths = {variable(op): depth for depth, op in enumerate(chain)}
    needs: dict[Operation, int] = {}
    for op in ops:
        stands = min(depths[variable(op)], len(ops) - 1)  # a tile is never empty
        for o in op.block_body.ops:
            if isinstance(o, Op) and not isinstance(o, loop.For):
                below = [needs.get(v.owner, 0) for v in o.operands if isinstance(v.owner, Operation)]
                needs[o] = max([stands, *(depths.get(s, 0) for s in names_in(o)), *below])
                if isinstance(o, loop.Bind):
                    depths[variable(o)] = needs[o]
    block, behind = ops[0].parent, ops[0].next_op
    assert block is not None
    for op in reversed(ops):
        op.detach()
    for depth, op in enumerate(chain):
        if behind is None:
            block.add_op(op)
        else:
            block.insert_op_before(op, behind)
        block, behind = op.block_body, None
        for o in [o for o in needs if needs[o] == depth]:
            o.detach()
            block.add_op(o)
    for op, around in zip(tiled, tiles, strict=True):
        start, size = variable(around), dim(op["stop"] - op.get("start", 0))
        set_bounds(op, start, tile_end(start, length, op["stop"], size))
    return tiles[-1].block_body


def _tiles_of(op: loop.For, var: sympy.Symbol, length: int) -> loop.For:
    """A loop over the tiles of another loop's range."""
    tiles = loop.For.make([], [], {"kind": op["kind"], "var": var}, [single_block()])
    set_bounds(tiles, op.get("start", 0), op["stop"])
    tiles["step"] = length
    return tiles


def _copy_across(block: Block, outer: loop.For, inner: loop.For, fresh: FreshVariables, side: int) -> None:
    """Copy what the innermost loop of a square reads across into scratch in the nearest cache, in front of the square, and read it there.

    A column of a large matrix would fall into few sets of that cache, and blocks can be transposed in registers.
    """
    rows, columns = variable(outer), variable(inner)
    # What a number from memory chooses is not copied: the number would have to be read again.
    bound = {variable(o) for op in (outer, inner) for o in op.block_body.ops if isinstance(o, loop.Bind)}
    crossed = [
        o
        for o in inner.block_body.ops
        if isinstance(o, loop.Load)
        and not o.get("mask")
        and not names_in(o) & bound
        and coefficient(o["index"], rows) == 1
        and hint(coefficient(o["index"], columns) or 0) >= 4
    ]
    place = dim(side * (rows - outer["start"]) + columns - inner["start"])
    scratch = []
    for load in crossed:
        local = loop.Local.make(
            [], [ref_type([side * side], None, loop.scalar(load.results[0]).dtype)], {"size": side * side}
        )
        block.insert_op_before(local, outer)
        scratch.append(local)
    for load, local in zip(crossed, scratch, strict=True):
        names = {columns: fresh("i"), rows: fresh("i")}
        read = load.clone()
        store = loop.Store.make([read.results[0], local.results[0]], [], {"index": place})
        row, column = (loop.For.make([], [], op.literals, [single_block()]) for op in (outer, inner))
        row.block_body.add_ops([read, store])
        column.block_body.add_op(row)
        column["transpose"] = True
        replace_sizes(column, names)
        block.insert_op_before(column, outer)
        kept = loop.Load.make([local.results[0]], [load.results[0].type], {"index": place})
        inner.block_body.insert_op_before(kept, load)
        load.results[0].replace_all_uses_with(kept.results[0])
        load.detach()
        load.erase()
