"""Values that depend on sizes and positions alone, computed while the program is compiled."""

from __future__ import annotations

import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue

from ...ir.dialects import prim
from ...ir.interpreter.run import run
from ...ir.syntax import single_block
from .cost import LARGEST_KNOWN, MOST_KNOWN


def known_value(value: SSAValue) -> torch.Tensor | None:
    """The value, on the CPU; None where it depends on an argument or a size symbol, or is too much to compute."""
    needed = _needed(value)
    if needed is None:
        return None
    body = single_block(arg_types=[])
    made: dict[SSAValue, SSAValue] = {}
    for op in needed:
        body.block.add_op(op.clone(made))
    body.block.add_op(prim.Return.make([made[value]]))
    attributes = {"sym_name": "main", "arg_names": (), "symbols": (), "arg_static": ()}
    (found,) = run(ModuleOp([prim.Func.make([], [], attributes, [body])]), [])
    return found


def _needed(value: SSAValue) -> list[Operation] | None:
    """The operations that the value is computed by, each behind those that it reads; they need not stand in a block yet."""
    found: dict[Operation, None] = {}
    stack = [value]
    while stack:
        owner = stack.pop().owner
        if not isinstance(owner, prim.PrimOp) or owner.regions or len(found) > MOST_KNOWN:
            return None
        if owner in found:
            continue
        shapes = [prim.tensor(v).shape for v in (*owner.operands, *owner.results)]
        if not all(isinstance(n, int) for shape in shapes for n in shape):
            return None
        if any(prim.tensor(v).numel > LARGEST_KNOWN for v in owner.results):
            return None
        found[owner] = None
        stack += owner.operands
    ordered: dict[Operation, None] = {}

    def place(op: Operation) -> None:
        for operand in op.operands:
            if isinstance(operand.owner, Operation) and operand.owner not in ordered:
                place(operand.owner)
        ordered[op] = None

    if isinstance(value.owner, Operation):
        place(value.owner)
    return list(ordered)
