"""Products on a GPU whose sizes keep the library from its fast kernels."""

from __future__ import annotations

from typing import Any

import torch

from ...passes.analysis.product_model import MULTIPLE


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
