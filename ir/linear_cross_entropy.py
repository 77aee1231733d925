"""An operator of our own: a linear layer and the cross entropy of its results, without the results (logits) in memory.

    loss, grad_input, grad_weight, grad_bias = linear_cross_entropy(input, weight, bias, target, scale, chunks)

For row i with logits l = weight @ input[i] + bias: loss[i] = log(sum(exp(l))) - l[target[i]], in float32 or wider. With `scale`,
the gradients of sum(scale * loss), each in the dtype of what it is the gradient of; those of which nothing is given (no `scale`, no
`bias`) have no elements. `chunks`: the rows are taken in that many pieces of about equal size, of which the last may be shorter; logits
exist for one of them at a time. A target outside is an IndexError, as for `torch.gather`.
"""

from __future__ import annotations

import torch
from torch import Tensor

NAME = "aten.ops.intarsia.linear_cross_entropy.default"

_LIBRARY = torch.library.Library("intarsia", "FRAGMENT")
_LIBRARY.define(
    "linear_cross_entropy(Tensor input, Tensor weight, Tensor? bias, Tensor target, Tensor? scale, int chunks)"
    " -> (Tensor, Tensor, Tensor, Tensor)"
)


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which losses are computed."""
    return torch.promote_types(dtype, torch.float32)


def pieces(rows: int, chunks: int) -> list[tuple[int, int]]:
    """First row and number of rows of each chunk; long ones begin at multiples of 64 rows."""
    size = max(1, -(-rows // chunks))
    size = size if size < 64 else -(-size // 64) * 64
    return [(start, min(size, rows - start)) for start in range(0, rows, size)] or [(0, 0)]


@torch.library.impl(_LIBRARY, "linear_cross_entropy", "CompositeExplicitAutograd")
def linear_cross_entropy(
    input: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, scale: Tensor | None, chunks: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The reference: the formula, chunk by chunk."""
    kind = wide(weight.dtype)
    losses, inputs = [], []
    weights = torch.zeros_like(weight, dtype=kind)
    biases = weight.new_zeros(weight.shape[0] if bias is not None else 0, dtype=kind)
    for start, size in pieces(input.shape[0], chunks):
        rows, classes = input[start : start + size], target[start : start + size]
        logits = torch.nn.functional.linear(rows, weight, bias).to(kind)
        total = torch.logsumexp(logits, 1)
        losses.append(total - logits.gather(1, classes[:, None])[:, 0])
        if scale is None:
            continue
        share = scale[start : start + size, None].to(kind)
        gradient = torch.exp(logits - total[:, None]) * share
        gradient = gradient.scatter_add_(1, classes[:, None], -share).to(weight.dtype)
        inputs.append(gradient @ weight)
        weights += (gradient.t() @ rows).to(kind)
        if bias is not None:
            biases += gradient.to(kind).sum(0)
    if scale is None:
        return torch.cat(losses), weight.new_empty(0), weight.new_empty(0), weight.new_empty(0)
    made = biases.to(weight.dtype if bias is None else bias.dtype)
    return torch.cat(losses), torch.cat(inputs), weights.to(weight.dtype), made


def _fake(
    input: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, scale: Tensor | None, chunks: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    loss = input.new_empty((input.shape[0],), dtype=wide(weight.dtype))
    if scale is None:
        return loss, weight.new_empty(0), weight.new_empty(0), weight.new_empty(0)
    of_bias = weight.new_empty(0) if bias is None else bias.new_empty(bias.shape)
    return loss, input.new_empty(input.shape), weight.new_empty(weight.shape), of_bias


torch.library.register_fake("intarsia::linear_cross_entropy", _fake, lib=_LIBRARY)
