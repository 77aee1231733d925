"""Products on a GPU whose sizes keep the library from its fast kernels."""

from __future__ import annotations

from typing import Any

import torch

from ...ir.dialects import prim
from ...ir.dtypes import BF16, F16
from ...ir.syntax import Op
from ...ir.types import RefType, is_gpu
from ..host.steps import Step

MULTIPLE = 8  # elements of a half type: 16 bytes, which the matrix units' loads ask rows to begin at
LEAST_WORK = 1 << 33  # operations; below, copying the weight costs more than it saves
LEAST_OUTPUTS = 512  # below, copying what the weight is multiplied with costs too much


def choose_padded(op: Op, func: prim.Func) -> Step | None:
    """A linear layer in a half type whose number of outputs (a vocabulary) or inputs is no multiple of 8: the weight is copied to where it is.

    The copy is made in every call (a hundredth of the product's time), so that it is never stale. For the inputs, what the weight is
    multiplied with is copied, too.
    """
    names = list(op["operands"])
    x, weight = (op.operands[names.index(n)].type for n in ("input", "weight"))
    assert isinstance(x, RefType) and isinstance(weight, RefType)
    if not is_gpu(weight.device) or weight.dtype not in (F16, BF16) or len(weight.shape) != 2 or op.get("epilogue"):
        return None
    outputs, inputs = weight.shape
    if not isinstance(outputs, int) or not isinstance(inputs, int) or outputs % MULTIPLE == inputs % MULTIPLE == 0:
        return None
    if inputs % MULTIPLE and outputs < LEAST_OUTPUTS:
        return None
    work = 2 * outputs * inputs
    for size in x.shape[:-1]:
        work *= size if isinstance(size, int) else 64
    return Step("padded-linear", {"bias": "bias" in names}) if work >= LEAST_WORK else None


class PaddedLinear:
    """x @ w.T (+ bias) by a weight with rows of rubbish behind its last one, and without what these give; zeros behind the inner size.

    Args:
        bias: whether a third operand is given.
    """

    def __init__(self, bias: bool, **_: Any) -> None:
        self.bias = bias

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        outputs, inputs = weight.shape
        more, deeper = (-(-n // MULTIPLE) * MULTIPLE for n in (outputs, inputs))
        wide = weight.new_empty((more, deeper))
        wide[:outputs, :inputs].copy_(weight)
        if deeper != inputs:
            wide[:, inputs:].zero_()  # of the rows of rubbish, too: it may be nan
            deep = x.new_empty((*x.shape[:-1], deeper))
            deep[..., :inputs].copy_(x)
            deep[..., inputs:].zero_()
            x = deep
        if bias is not None and more != outputs:
            longer = bias.new_empty(more)
            longer[:outputs].copy_(bias)
            bias = longer
        return torch.nn.functional.linear(x, wide, bias)[..., :outputs]
