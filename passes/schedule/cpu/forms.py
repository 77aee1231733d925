"""loop → loop: which loops a CPU's kernels run in another form than their own, because that vectorises or stays in the caches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import sympy
from xdsl.ir import Block, Operation, SSAValue

from ....ir.dialects import loop
from ....ir.scalars import SCALARS
from ....ir.symbols import dim, free_symbols
from ....ir.types import ScalarType
from ...analysis.cost import MOST_FOR_ANGLES, SHORTEST_SCAN
from ...core.context import CompileContext
from ..kernels import PURE, CpuLoopPass, names_in, needed_for, variable

BOUNDED = ("sin", "cos", "tanh", "sigmoid", "erf")  # never more than 1
SCANS = ("sum", "prod", "max", "min")
ARGS = ("argmax", "argmin")


@dataclass(frozen=True)
class ChooseForms(CpuLoopPass):
    """Choose the form of a CPU's loops that have a better one than their own: transposes, argmax, running reductions, sin and cos."""

    name: ClassVar[str] = "choose-forms"
    after: ClassVar[tuple[str, ...]] = ("stream",)
    requires: ClassVar[tuple[str, ...]] = ("stream",)

    def change(self, ctx: CompileContext, kernel: loop.Kernel) -> None:
        """Mark the loops of a kernel."""
        for op in kernel.block_body.walk():
            if isinstance(op, loop.For) and (form := form_of(op)):
                op["form"] = form


def form_of(op: loop.For) -> str:
    """The best form of a loop; "" for its own."""
    vector = bool(op.get("vector"))
    if op.get("transpose") and _is_transpose(op):
        return "transpose"
    if vector and _is_extreme(op):
        return "extreme"
    if op["kind"] == "scan" and _is_blocked_scan(op):
        return "blocked_scan"
    if op["kind"] == "reduce" and _is_arg_rows(op):
        return "arg_rows"
    return _angles(op) if vector else ""


def _is_transpose(op: loop.For) -> bool:
    """Two loops that only copy elements of at least four bytes, one directly in the other."""
    inner = op.block_body.first_op
    if not isinstance(inner, loop.For) or len(op.block_body.ops) != 1 or len(inner.block_body.ops) != 2:
        return False
    load, store = inner.block_body.ops
    if not isinstance(load, loop.Load) or not isinstance(store, loop.Store) or load.get("mask"):
        return False
    dtype = load.ref.dtype
    return dtype == store.ref.dtype and dtype.bytes >= 4 and dtype.kind != "bool"


def _is_extreme(op: loop.For) -> bool:
    """One argmax or argmin of pure operations into registers, at the end; the same extreme may be joined for itself, too."""
    *before, last = op.block_body.ops
    if not isinstance(last, loop.Accumulate) or last["kind"] not in ARGS or op["kind"] == "parallel":
        return False
    joins = [o for o in before if isinstance(o, loop.Accumulate)]
    if any(not isinstance(o, (*PURE, loop.Accumulate)) for o in before):
        return False
    same = all(o["kind"] == last["kind"][3:] and o.operands[0] is last.operands[0] for o in joins)
    return same and all(map(loop.is_register, [*(o.operands[1] for o in joins), *last.operands[2:]]))


def _is_arg_rows(op: loop.For) -> bool:
    """argmax or argmin of the columns of memory, whose elements have at least four bytes: a loop over rows around one over columns."""
    if len(op.block_body.ops) != 2 or op.get("step", 1) != 1:
        return False
    number, inner = op.block_body.ops
    if not isinstance(number, loop.Index) or not isinstance(inner, loop.For) or len(inner.block_body.ops) != 2:
        return False
    load, join = inner.block_body.ops
    if not isinstance(load, loop.Load) or not isinstance(join, loop.Accumulate) or not inner.get("vector"):
        return False
    row, lane = variable(op), variable(inner)
    if join["kind"] not in ARGS or load.get("mask") or number["value"] != row:
        return False
    value, at, best, _ = join.operands
    pitch = dim(sympy.sympify(load["index"]).coeff(row))
    along = [sympy.sympify(access["index"]).coeff(lane) for access in (load, join)]
    if value is not load.results[0] or at is not number.results[0] or along != [1, 1]:
        return False
    if {row, lane} & free_symbols([pitch]) or free_symbols([join["index"]]) & {row}:
        return False
    dtype = load.ref.dtype
    return dtype == loop.scalar(value).dtype and dtype.bytes >= 4 and not loop.is_register(best)


def _is_blocked_scan(op: loop.For) -> bool:
    """A running reduction in a register of what pure operations give: one join whose result is read once, and stores behind it."""
    body = list(op.block_body.ops)
    joins = [o for o in body if isinstance(o, loop.Accumulate)]
    if len(joins) != 1 or any(not isinstance(o, (*PURE, loop.Store, loop.Accumulate)) for o in body):
        return False
    (join,) = joins
    if join["kind"] not in SCANS or not loop.is_register(join.operands[1]):
        return False
    value, carry = join.operands
    dtype, at = loop.scalar(value).dtype, body.index(join)
    results = [o for o in body[at + 1 :] if isinstance(o, loop.Load) and o.operands[0] is carry]
    if (
        dtype.kind == "bool"
        or dtype.bytes < 4
        or len(results) != 1
        or any(isinstance(o, loop.Store) for o in body[:at])
    ):
        return False
    trips = dim(op["stop"] - sympy.sympify(op.get("start", 0)))
    return not isinstance(trips, int) or trips >= SHORTEST_SCAN


def _angles(op: loop.For) -> str:
    """The form of a vector loop with sin or cos: their angles are near zero, or cheap to compute once more before the loop runs."""
    block = op.block_body
    if op["kind"] == "parallel" or not _angles_in(block) or any(isinstance(o, loop.For) for o in block.walk()):
        return ""
    far = far_angles(block)
    if not far:
        return "near_angles"
    return "measured_angles" if _are_cheap(needed_for(far, list(block.ops)), block) else ""


def _angles_in(block: Block) -> list[SSAValue]:
    """The operands of sin and cos in floating point, each once."""
    found = [o.operands[0] for o in block.ops if isinstance(o, loop.ScalarOp) and o.row.name in ("sin", "cos")]
    return list(dict.fromkeys(v for v in found if loop.scalar(v).dtype.name in ("f32", "f64")))


def far_angles(block: Block) -> list[SSAValue]:
    """The operands of sin and cos in a loop's body that may be far from zero."""
    return [v for v in _angles_in(block) if not (isinstance(v.owner, loop.ScalarOp) and v.owner.row.name in BOUNDED)]


def _are_cheap(needed: Sequence[Operation], block: Block) -> bool:
    """Whether operations of a body may run before it, reading nothing that it changes, at less than what small angles save."""
    changed: set[object] = set()  # variables and memory
    for op in block.walk():
        if isinstance(op, loop.Bind):
            changed.add(variable(op))
        if isinstance(op, loop.Store | loop.Accumulate):
            changed.update(v for v in op.operands if not isinstance(v.type, ScalarType))
    for op in needed:
        if (
            not isinstance(op, PURE)
            or isinstance(op, loop.Load)
            and (op.operands[0] in changed or names_in(op) & changed)
        ):
            return False
    return sum(SCALARS[o.row.name].cost if isinstance(o, loop.ScalarOp) else 1 for o in needed) <= MOST_FOR_ANGLES
