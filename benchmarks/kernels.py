"""Kernels of a few million float32 elements, by name; each takes the inputs that its case makes."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from models import Case
from torch import Tensor


def sin_cos(x: Tensor, y: Tensor) -> Tensor:
    """Two pointwise functions and a sum."""
    return torch.sin(x) + torch.cos(y)


def gelu_layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A pointwise function into a normalisation of rows."""
    return F.layer_norm(F.gelu(x), (x.shape[-1],), weight, bias)


def softmax(x: Tensor) -> Tensor:
    """Over the last dimension."""
    return torch.softmax(x, dim=-1)


def rms_norm_residual(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The sum is an output too, as in a decoder's layer."""
    total = x + residual
    return total * torch.rsqrt(total.square().mean(-1, keepdim=True) + 1e-6) * weight, total


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Mean over rows of a vocabulary's size."""
    return F.cross_entropy(logits, target)


def column_sum(x: Tensor) -> Tensor:
    """A reduction across rows."""
    return (x * x).sum(0)


def full_sum(x: Tensor) -> Tensor:
    """A reduction to one number."""
    return (x * 2 + 1).sum()


def transpose_add(x: Tensor, y: Tensor) -> Tensor:
    """One operand is read across its rows."""
    return x.t() + y


def cat_pointwise(x: Tensor, y: Tensor) -> Tensor:
    """Results that are written straight to their places."""
    return torch.cat([torch.relu(x), torch.sigmoid(y), x * y], dim=-1)


def embedding_norm(ids: Tensor, table: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Rows taken by number, then normalised."""
    return F.layer_norm(F.embedding(ids, table), (table.shape[-1],), weight, bias)


def one_op(x: Tensor) -> Tensor:
    """Hardly any work: what remains is the call."""
    return torch.sin(x)


def _case(fn: Callable[..., Tensor | tuple[Tensor, ...]], *shapes: tuple[int, ...]) -> Callable[[], Case]:
    return lambda: Case(fn, tuple(torch.randn(shape) for shape in shapes), {}, None)


def _with_numbers(
    fn: Callable[..., Tensor], at: int, numbers: tuple[int, int], *shapes: tuple[int, ...]
) -> Callable[[], Case]:
    """A case with one integer argument: `numbers` is (how many, below what)."""

    def make() -> Case:
        args: list[Tensor] = [torch.randn(shape) for shape in shapes]
        args.insert(at, torch.randint(numbers[1], numbers[:1]))
        return Case(fn, tuple(args), {}, None)

    return make


KERNELS: dict[str, Callable[[], Case]] = {
    "sin+cos": _case(sin_cos, (2048, 1024), (2048, 1024)),
    "gelu+layer_norm": _case(gelu_layer_norm, (4096, 768), (768,), (768,)),
    "softmax": _case(softmax, (4096, 768)),
    "rms_norm+residual": _case(rms_norm_residual, (4096, 768), (4096, 768), (768,)),
    "cross_entropy": _with_numbers(cross_entropy, 1, (256, 16000), (256, 16000)),
    "column_sum": _case(column_sum, (4096, 1024)),
    "full_sum": _case(full_sum, (4096, 1024)),
    "transpose+add": _case(transpose_add, (2048, 2048), (2048, 2048)),
    "cat_of_pointwise": _case(cat_pointwise, (2048, 768), (2048, 768)),
    "embedding+norm": _with_numbers(embedding_norm, 0, (4096, 30000), (30000, 768), (768,), (768,)),
}

CALLS: dict[str, Callable[[], Case]] = {"one_op": _case(one_op, (8,))}
