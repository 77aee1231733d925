"""Operators that stay library calls, brought into the form in which the library takes them fastest."""

from __future__ import annotations

from ...ir.dialects import kernel, prim
from ...ir.symbols import product
from .builder import Builder, NotCovered, Result, rule


@rule("linear.default")
def _linear(b: Builder) -> Result:
    """linear(x) -> reshape(linear(reshape(x))) for more than two dimensions: the library would do the same at every call."""
    x = b.tensor("input")
    given = [*b.op.get("operand_strides", ()), *b.op.get("strides", ())]
    if b.rank_of(x) <= 2 or b.rank_of(b.tensor("weight")) != 2 or any(s is not None for s in given):
        raise NotCovered("a product that the library does")
    shape = b.shape_of(x)
    rows = product(shape[:-1])
    flat = b.reshape(x, (rows, shape[-1]))
    operands = [flat if v is x else v for v in b.op.operands]
    result = b.type.with_(shape=(rows, b.type.shape[-1]))
    attrs = {"target": b.op.target, **b.op.literals}
    call = b.add(kernel.Extern.make(operands, [result], attrs))
    return b.add(prim.reshape(call, b.type.shape))
