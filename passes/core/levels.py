"""Which level a module is at: read from its operations, so that a text file needs no header.

Some modules are legal at several levels: one that holds only library calls is prim, kernel and loop at once.
"""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from ...ir.dialects.prim import VIEWS
from ...ir.syntax import Op
from .base import LEVELS

_LEGAL_AT = {"aten": {"aten"}, "loop": {"loop"}, "buffer": {"buffer"}, "scalar": {"loop"}}
_LEGAL_OP_AT = {
    "prim.func": set(LEVELS),
    "prim.return": set(LEVELS),
    "kernel.extern": {"prim", "kernel", "loop"},
    "kernel.fused": {"kernel"},
    "kernel.contract": {"prim", "kernel", "loop"},  # a microkernel's at all of them
    "loop.kernel": {"loop", "buffer"},
}
_VIEW_LEVELS = {"prim", "kernel", "loop"}


def legal_levels(op: Operation) -> set[str]:
    """The levels at which this operation may stand in a function's body or in the module."""
    found = _LEGAL_OP_AT.get(op.name)
    if found is not None:
        return found
    if isinstance(op, VIEWS):
        return _VIEW_LEVELS
    dialect = op.name.partition(".")[0]
    if dialect == "prim":
        return {"prim"}
    return _LEGAL_AT.get(dialect, set(LEVELS))


def host_operations(module: ModuleOp) -> Iterator[Operation]:
    """The operations that stand in the module and in its functions' bodies, not those inside kernels."""
    for top in module.body.ops:
        yield top
        if top.name == "prim.func":
            for block in top.regions[0].blocks:
                yield from block.ops


def module_levels(module: ModuleOp) -> set[str]:
    """All levels at which the module is legal; empty when its operations belong to different levels."""
    levels = set(LEVELS)
    seen: set[str] = set()
    for op in host_operations(module):
        if op.name not in seen:
            seen.add(op.name)
            levels &= legal_levels(op)
    # What passes have written out already may stand among ATen operations, which decompose writes out.
    return levels or {"aten"} if all(legal_levels(op) & {"aten", "prim"} for op in host_operations(module)) else levels


def first_illegal(module: ModuleOp, level: str) -> Operation | None:
    """The first operation that may not stand in a module of this level."""
    return next((op for op in host_operations(module) if level not in legal_levels(op)), None)


def bodies(module: ModuleOp) -> Iterator[Op]:
    """The operations whose single block is a straight line of tensor operations: functions, then the kernels in them."""
    for top in module.body.ops:
        if not isinstance(top, Op) or top.name != "prim.func":
            continue
        yield top
        for op in top.block_body.ops:
            if isinstance(op, Op) and op.name in ("kernel.fused", "kernel.contract"):
                yield op
