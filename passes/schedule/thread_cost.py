"""Which loops are worth a second thread: an estimate of a nest's work against the cost of waking threads up."""

from __future__ import annotations

from typing import TypeAlias

import sympy
from xdsl.ir import Block

from ...ir.dialects import loop
from ...ir.scalars import SCALARS
from ...ir.symbols import Dim, dim, substitute, symbol
from ...ir.syntax import Op
from ..analysis.cost import HINT, SCALAR_FACTOR, WORTH_A_THREAD

Variables: TypeAlias = dict[sympy.Symbol, Dim]


def set_grain(block: Block) -> None:
    """Make parallel loops with little work serial; with sizes that are not known, say from how many iterations on they are parallel."""
    for op in block.ops:
        if isinstance(op, loop.For) and op["kind"] == "parallel":
            trips, (inside, known) = _trips(op, {}), _work(op.block_body, False, _first(op, {}))
            if isinstance(trips, int) and known:
                if trips * inside < WORTH_A_THREAD:
                    _serial(op)
            else:
                op["grain"] = max(1, -(-WORTH_A_THREAD // max(1, inside)))


def _serial(op: loop.For) -> None:
    op["kind"] = "serial"
    for inner in op.block_body.ops:
        if isinstance(inner, loop.For) and inner["kind"] == "parallel":
            _serial(inner)


def _first(op: Op, outer: Variables) -> Variables:
    """The variables of the loops around a body, each at its first value."""
    return {**outer, symbol(str(op["var"])): substitute(dim(op.get("start", 0)), outer)}


def _trips(op: Op, outer: Variables) -> Dim:
    """How often a loop's body runs when the loops around it are at their start; an expression where sizes are not known."""
    length = substitute(dim(sympy.sympify(op["stop"]) - sympy.sympify(op.get("start", 0))), outer)
    step = substitute(dim(op.get("step", 1)), outer)
    return -(-length // step) if isinstance(length, int) and isinstance(step, int) else length


def _work(block: Block, vector: bool, outer: Variables) -> tuple[int, bool]:
    """Simple operations in one run of a block, and whether all sizes in it are known."""
    total, known = 0, True
    for op in block.ops:
        if isinstance(op, loop.For):
            trips = _trips(op, outer)
            inside, sure = _work(op.block_body, vector or bool(op.get("vector")), _first(op, outer))
            known = known and sure and isinstance(trips, int)
            total += (trips if isinstance(trips, int) else HINT) * inside
        elif isinstance(op, loop.ScalarOp):
            total += SCALARS[op.row.name].cost * (1 if vector else SCALAR_FACTOR)
        else:
            total += 1 if vector else SCALAR_FACTOR
    return total, known
