"""The beginning of a module, and a module in float64: what finding the first wrong operation takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue

from ..ir.dtypes import BY_NAME, DType
from ..ir.interpreter.loops import main_function
from ..ir.syntax import Op
from ..ir.types import LiteralAttr, RefType, ScalarType, TensorType, scalar_type, tensor_type

_NARROW = (torch.float32, torch.float16, torch.bfloat16)


def body(module: ModuleOp) -> list[Op]:
    """The operations of `@main` without the return."""
    return [op for op in main_function(module).block_body.ops if isinstance(op, Op)][:-1]


def prefix(module: ModuleOp, count: int) -> ModuleOp:
    """The first operations of `@main`; it gives what the others, or the caller, would have used of them."""
    made = module.clone()
    func, ops = main_function(made), body(made)
    gone: set[Operation] = {*ops[count:], *filter(None, [func.block_body.last_op])}
    values = [r for op in ops[:count] for r in op.results if any(use.operation in gone for use in r.uses)]
    if not values and count:
        values = list(ops[count - 1].results)
    last = func.block_body.last_op
    assert last is not None
    last.operands = [v for v in values if isinstance(v.type, TensorType | RefType)]
    for op in reversed(ops[count:]):
        op.detach()
        op.erase()
    for name in ("result_strides", "owned", "writes_early"):
        func.attributes.pop(name, None)
    func["mutations"] = ()
    func["results"] = tuple(("value", k) for k in range(len(last.operands)))
    return made


def first_wrong(count: int, wrong: Callable[[int], bool]) -> int | None:
    """The smallest number up to `count` for which something is wrong, where it is wrong for all larger ones; None: not even for `count`."""
    if count < 1 or not wrong(count):
        return None
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if wrong(middle) else (middle, high)
    return high


def widened(module: ModuleOp) -> ModuleOp:
    """The module with every floating-point type 64 bits wide; it need not verify."""
    made = module.clone()
    for op in made.walk():
        for region in op.regions:
            for block in region.blocks:
                for value in block.args:
                    _widen(value)
        for value in op.results:
            _widen(value)
        for name, attribute in op.attributes.items():
            if isinstance(attribute, LiteralAttr):
                op.attributes[name] = LiteralAttr(_wide_literal(attribute.data))
    return made


def _widen(value: SSAValue) -> None:
    kind: Any = value.type
    if isinstance(kind, TensorType):
        value._type = tensor_type(kind.shape, _wide(kind.dtype), kind.device)
    elif isinstance(kind, RefType):
        value._type = RefType((kind.shape, kind.strides, _wide(kind.dtype), kind.device))
    elif isinstance(kind, ScalarType):
        value._type = scalar_type(_wide(kind.dtype))


def _wide(dtype: DType) -> DType:
    return BY_NAME["f64"] if dtype.torch in _NARROW else BY_NAME["c128"] if dtype.name == "c64" else dtype


def _wide_literal(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_wide_literal, value))
    return torch.float64 if value in _NARROW and isinstance(value, torch.dtype) else value


def wide_values(values: list[Any]) -> list[Any]:
    """Inputs for a widened module."""
    return [
        v.to(torch.complex128 if v.is_complex() else torch.float64)
        if isinstance(v, torch.Tensor) and (v.is_floating_point() or v.is_complex())
        else v
        for v in values
    ]
