"""Operators of our own that call functions of the module: one of two, one again and again, one for each slice.

    %2 = aten.ops.intarsia.cond.default(%p, %a, %b) {operands = ["pred", "operands.0", "operands.1"],
                                                     true_body = "body0", false_body = "body1"} : !prim.tensor<[4], f32>

A body is a `prim.func` of the module beside `@main`, with arguments, strides and symbols of its own, and isolated from its caller: what it
reads it is given. So each pass sees it as it sees `@main`. Results are memory of their own.
`cond`: both bodies take the operands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .syntax import Op

__all__ = ["COND", "RUNS", "bodies", "groups"]

Body = Callable[..., Sequence[Tensor]]

COND = "aten.ops.intarsia.cond.default"

_LIBRARY = torch.library.Library("intarsia", "FRAGMENT")
_LIBRARY.define("cond(Tensor pred, Tensor[] operands, str true_body, str false_body) -> Tensor[]")


def cond(true_body: Body, false_body: Body, pred: Tensor, operands: Sequence[Tensor] = ()) -> Sequence[Tensor]:
    """What one of the bodies gives."""
    return (true_body if pred.item() else false_body)(*operands)


# What carries out each operator: a function of its bodies, then of its tensors and lists of tensors, in the schema's order.
RUNS: dict[str, tuple[Callable[..., Sequence[Tensor]], tuple[str, ...]]] = {
    COND: (cond, ("true_body", "false_body")),
}


def bodies(op: Op) -> list[str]:
    """The functions that an operation calls; none where it is no such one."""
    run = RUNS.get(op.get("target") or op.name)
    return [] if run is None else [str(op[name]) for name in run[1]]


def groups(op: Op, values: Sequence[Any]) -> list[Any]:
    """The operands as the operator takes them: a tensor, or a tuple of tensors."""
    found: dict[str, Any] = {}
    for name, value in zip(op["operands"], values, strict=True):
        base, _, index = name.partition(".")
        found[base] = (*found.get(base, ()), value) if index else value
    return list(found.values())
