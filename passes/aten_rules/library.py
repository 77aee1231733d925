"""Operators that stay library calls, brought into the form in which the library takes them fastest."""

from __future__ import annotations

from xdsl.ir import SSAValue

from ...ir.dialects import kernel, prim
from ...ir.dtypes import BF16
from ...ir.symbols import product
from ...ir.types import is_gpu
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


@rule("convolution.default")
def _convolution(b: Builder) -> Result:
    """convolution(x, w) -> linear(x, w) for images and windows of one pixel in bfloat16: oneDNN's call takes 25 to 50 us for what takes 2.

    Squeezed features of MobileNets and EfficientNets. Those of float32 go to a convolution of our own, with what follows them.
    """
    x, weight, bias = b.tensor("input"), b.tensor("weight"), b.maybe("bias")
    shape = b.shape_of(x)
    if bias is not None and is_gpu(b.type.device) and b.type.dtype.is_float:
        return _bias_behind(b, bias)
    if b.rank_of(x) != 4 or b.dtype_of(x) != BF16 or shape[2:] != (1, 1) or b.shape_of(weight)[2:] != (1, 1):
        raise NotCovered("a convolution of more than one pixel")
    if b.get("transposed") or b.get("groups") != 1 or any(b.get("padding")) or 0 in (*shape, *b.type.shape):
        raise NotCovered("other ways of going over the image")
    operands = [b.reshape(x, shape[:2]), b.reshape(weight, b.shape_of(weight)[:2]), *([] if bias is None else [bias])]
    attrs = {"target": "aten.linear.default", "operands": ("input", "weight", "bias")[: len(operands)]}
    call = b.add(kernel.Extern.make(operands, [b.type.with_(shape=b.type.shape[:2])], attrs))
    return b.add(prim.reshape(call, b.type.shape))


def _bias_behind(b: Builder, bias: SSAValue) -> Result:
    """convolution(x, w, bias) -> convolution(x, w) + bias on a GPU: ATen adds it in a pass of its own, ours is part of what follows."""
    kept = [place for place, name in enumerate(b.names) if name != "bias"]
    literals = {**b.op.literals, "bias": None}
    for name in ("operands", "operand_strides"):
        if literals.get(name):
            literals[name] = tuple(literals[name][place] for place in kept)
    operands = [b.op.operands[place] for place in kept]
    plain = b.add(kernel.Extern.make(operands, [b.type], {"target": b.op.target, **literals}))
    spread = b.add(prim.broadcast(bias, b.type.shape, (1,)))
    return b.finish(b.ew("add", b.up(plain), b.up(spread)))
