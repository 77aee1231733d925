"""The same program on another device: every tensor of a module moved there."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.rewriter import Rewriter

from .syntax import Op, defined_values
from .types import RefType, TensorType, ref_type, tensor_type


def retarget(module: ModuleOp, device: str) -> None:
    """Put all tensors of a module on `device` ("cuda:0"); numbers that name a device follow.

    So a program that was captured with tensors on one device can be compiled for a machine that is not there.
    """
    for op in module.walk():
        for value in list(defined_values(op)):
            _move(value, device)
        if isinstance(op, Op) and op.get("device") is not None:
            op["device"] = device


def _move(value: SSAValue, device: str) -> None:
    t = value.type
    if isinstance(t, TensorType):
        Rewriter.replace_value_with_new_type(value, tensor_type(t.shape, t.dtype, device))
    elif isinstance(t, RefType):
        Rewriter.replace_value_with_new_type(value, ref_type(t.shape, t.strides, t.dtype, device))
