"""Values of half types that a kernel only moves: they stay the 16 bits that they are, without a conversion to float and back."""

from __future__ import annotations

from xdsl.ir import Block, Operation, SSAValue

from ...ir.dialects import loop
from ...ir.dtypes import DType
from ...ir.types import RefType, ScalarType

_HALF = {"f16", "bf16"}


def moved(block: Block) -> dict[SSAValue, DType]:
    """Scalars that are loaded from a half type, perhaps negated or chosen, and then stored in that type, and nothing else."""
    found: dict[SSAValue, DType] = {}
    order: list[Operation] = []
    for op in block.walk():
        order.append(op)
        source = _source(op, found)
        if source is not None:
            found[op.results[0]] = source
    changed = True
    while changed:
        changed = False
        for op in reversed(order):
            for value in op.results:
                if value in found and not (
                    _source(op, found) and all(_moves(u.operation, value, found) for u in value.uses)
                ):
                    del found[value]
                    changed = True
    return found


def _source(op: Operation, found: dict[SSAValue, DType]) -> DType | None:
    """The half type whose bits the operation gives, if it computes nothing."""
    if isinstance(op, loop.Load):
        return op.ref.dtype if op.ref.dtype.name in _HALF else None
    if isinstance(op, loop.ScalarCast):
        half, kind = found.get(op.operands[0]), op.results[0].type
        return half if half and isinstance(kind, ScalarType) and kind.dtype in (half, half.compute) else None
    if not isinstance(op, loop.ScalarOp) or op.row.name not in ("where", "neg"):
        return None
    chosen = op.operands[1:] if op.row.name == "where" else op.operands
    kinds = {found.get(v) for v in chosen if not isinstance(v.owner, loop.Constant)}
    return kinds.pop() if len(kinds) == 1 else None


def _moves(user: Operation, value: SSAValue, found: dict[SSAValue, DType]) -> bool:
    """Whether the user of a value takes its bits."""
    if isinstance(user, loop.Store):
        ref = user.operands[1].type
        return isinstance(ref, RefType) and ref.dtype == found[value]
    return len(user.results) == 1 and found.get(user.results[0]) == found[value] and value is not _condition(user)


def _condition(user: Operation) -> SSAValue | None:
    return user.operands[0] if isinstance(user, loop.ScalarOp) and user.row.name == "where" else None
