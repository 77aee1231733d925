"""loop → loop: reductions into an array of lanes that take a few steps for each lane."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import sympy
from xdsl.ir import Operation

from ....ir.dialects import loop
from ....ir.symbols import FloorDiv, dim, known_equal, simplify_index
from ....ir.syntax import Op, single_block
from ...analysis.cost import JAM
from ...analysis.size_names import replace_sizes
from ...core.context import CompileContext
from ..kernels import CpuLoopPass, FreshVariables, cost, loops_in, names_in, ranges_around, set_bounds, variable
from ..nests import coefficient


@dataclass(frozen=True)
class UnrollJam(CpuLoopPass):
    """Let reductions into an array of lanes take a few steps for each lane: accumulators are loaded and stored once for all of these."""

    name: ClassVar[str] = "unroll-jam"
    after: ClassVar[tuple[str, ...]] = ("tile",)

    def change(self, ctx: CompileContext, kernel: loop.Kernel) -> None:
        """Change the loops of a kernel that have the lanes directly inside."""
        for op in [o for o in kernel.walk() if isinstance(o, loop.For) and o["kind"] == "reduce"]:
            inner = loops_in(op.block_body)
            if len(inner) == 1 and inner[0]["kind"] == "serial" and op.get("step", 1) == 1 and _is_short(op, inner[0]):
                _jam(kernel, op, inner[0])


def _is_short(op: loop.For, lanes: loop.For) -> bool:
    """Whether several steps of a reduction's body may stand in one: it is short, and gcc vectorises it then.

    Lanes that lie apart in memory are left out: gcc takes minutes for these.
    """
    inside = [o for each in (op, lanes) for o in each.block_body.ops if not isinstance(o, loop.For)]
    joins = [o for o in inside if isinstance(o, loop.Accumulate)]
    if len(joins) > 2 or any(len(o.operands) != 2 for o in joins) or any(isinstance(o, loop.Bind) for o in inside):
        return False
    loads = [o for o in inside if isinstance(o, loop.Load)]
    if any(coefficient(o["index"], variable(lanes)) not in (0, 1) for o in loads):
        return False
    return sum(map(cost, inside)) <= 16


def _jam(kernel: loop.Kernel, op: loop.For, lanes: loop.For) -> None:
    """The last loop of a reduction in steps inside the lanes, then itself for the rest."""
    var, start, stop = variable(op), op.get("start", 0), op["stop"]
    size = sympy.Max(0, sympy.sympify(stop) - start)  # the last chunks of a reduction may begin behind its end
    whole = simplify_index(dim(start + JAM * FloorDiv(size, sympy.Integer(JAM))), ranges_around(op))
    block = op.parent
    assert block is not None
    if whole == start:
        return
    fresh = FreshVariables(kernel)
    if not known_equal(whole, stop):
        rest = op.clone()
        replace_sizes(rest, {name: fresh(str(name)) for name in (var, variable(lanes))})
        set_bounds(rest, whole, stop)
        block.insert_op_after(rest, op)
    step = fresh("j")
    several = loop.For.make([], [], {"kind": "reduce", "var": step}, [single_block()])
    set_bounds(several, start, whole)
    several["step"] = JAM
    block.insert_op_before(several, op)
    moved: set[Operation] = set()
    body = [o for each in (op, lanes) for o in each.block_body.ops if not isinstance(o, loop.For)]
    for o in body:
        assert isinstance(o, Op)
        if isinstance(o, loop.Accumulate) or var in names_in(o) or any(v.owner in moved for v in o.operands):
            moved.add(o)
    outside = [o for o in op.block_body.ops if o not in moved and o is not lanes]
    op.detach()
    lanes.detach()
    for o in outside:
        o.detach()
    several.block_body.add_ops([*outside, lanes])
    for o in body:
        if o in moved:
            o.detach()
            op.block_body.add_op(o)
    lanes.block_body.add_op(op)
    set_bounds(op, step, dim(step + JAM))
    op["unroll"] = JAM
