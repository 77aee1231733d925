"""Which angles a vector loop takes sin and cos of: where none is far from zero, a loop may use versions at a third of the cost."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.ir import Operation, SSAValue

from ...ir.dialects import loop
from ...ir.scalars import SCALARS
from ...ir.symbols import free_symbols
from ...ir.syntax import Op
from ...ir.types import ScalarType

MOST_WORK = 32  # for computing the angles once more; about what the cheaper versions save
FUNCTIONS = ("sin", "cos")
BOUNDED = ("sin", "cos", "tanh", "sigmoid", "erf")  # never more than 1


@dataclass(frozen=True)
class Angles:
    """Operands of sin and cos in a loop's body that may be far from zero, and what computes them in the body, in order."""

    values: tuple[SSAValue, ...]
    needed: tuple[Operation, ...]


def find_angles(op: Op) -> Angles | None:
    """The angles of a vector loop; None where there are none, or where they cannot be looked at before the loop runs."""
    block = op.block_body
    operands = dict.fromkeys(
        inner.operands[0]
        for inner in block.ops
        if isinstance(inner, loop.ScalarOp) and inner.row.name in FUNCTIONS and _is_float(inner.operands[0])
    )
    if not operands or op["kind"] == "parallel":
        return None
    values = [v for v in operands if not (isinstance(v.owner, loop.ScalarOp) and v.owner.row.name in BOUNDED)]
    local: set[object] = set()  # variables and memory that the body itself changes
    for inner in block.walk():
        if isinstance(inner, loop.For):
            return None
        if isinstance(inner, loop.Bind):
            local.add(inner["var"])
        if isinstance(inner, loop.Store | loop.Accumulate):
            local.update(v for v in inner.operands if not isinstance(v.type, ScalarType))
    needed: set[Operation] = set()
    work = [v.owner for v in values]
    cost = 0
    while work:
        made = work.pop()
        if not isinstance(made, Operation) or made.parent is not block or made in needed:
            continue
        if not isinstance(made, loop.Load | loop.ScalarOp | loop.ScalarCast | loop.Constant | loop.Index):
            return None
        if isinstance(made, loop.Load) and (made.operands[0] in local or _variables(made) & local):
            return None
        needed.add(made)
        cost += SCALARS[made.row.name].cost if isinstance(made, loop.ScalarOp) else 1
        work += [v.owner for v in made.operands]
    return Angles(tuple(values), tuple(o for o in block.ops if o in needed)) if cost <= MOST_WORK else None


def _is_float(value: SSAValue) -> bool:
    return isinstance(value.type, ScalarType) and value.type.dtype.name in ("f32", "f64")


def _variables(op: Op) -> set[object]:
    return {s for value in op.literals.values() for s in free_symbols(value if isinstance(value, tuple) else (value,))}
