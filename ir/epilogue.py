"""The epilogue of a library call: the operations on its one result that the call carries out too.

`kernel.extern` and `buffer.extern` may have an attribute `epilogue`, a list of steps in order. Operands named `epilogue.0`, `epilogue.1`, ...
are the tensors that steps refer to by number:

    ["batch_norm", eps, mean, variance, weight, bias]   numbers of operands; weight and bias may be none
    ["gelu", "none" or "tanh"], ["leaky_relu", slope], ["silu"], ["hardswish"], ["sigmoid"], ["tanh"]

The meaning of the whole is the operator, then torch's own operators for the steps: `apply_epilogue`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

PREFIX = "epilogue."


def apply_epilogue(result: Tensor, steps: Sequence[Sequence[Any]], extras: Sequence[Tensor]) -> Tensor:
    """The operator's result after the steps.

    Raises:
        KeyError: there is no step of that name.
    """
    for name, *arguments in steps:
        result = _STEPS[name](result, extras, *arguments)
    return result


def extras_of(names: Sequence[str], values: Sequence[Any]) -> list[Any]:
    """The operands that belong to the epilogue, in the order of their numbers."""
    found = {int(name[len(PREFIX) :]): v for name, v in zip(names, values, strict=True) if name.startswith(PREFIX)}
    return [found[k] for k in range(len(found))]


def _batch_norm(
    x: Tensor, extras: Sequence[Tensor], eps: float, mean: int, variance: int, weight: int | None, bias: int | None
) -> Tensor:
    scale, shift = (None if k is None else extras[k] for k in (weight, bias))
    return F.batch_norm(x, extras[mean], extras[variance], scale, shift, False, 0.0, eps)


_STEPS: dict[str, Callable[..., Tensor]] = {
    "batch_norm": _batch_norm,
    "gelu": lambda x, _, approximate: F.gelu(x, approximate=approximate),
    "leaky_relu": lambda x, _, slope: F.leaky_relu(x, slope),
    "silu": lambda x, _: F.silu(x),
    "hardswish": lambda x, _: F.hardswish(x),
    "sigmoid": lambda x, _: torch.sigmoid(x),
    "tanh": lambda x, _: torch.tanh(x),
}
