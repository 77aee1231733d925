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


def argmax_rows(x: Tensor) -> Tensor:
    """The place of the largest of each row."""
    return x.argmax(-1)


def argmax_columns(x: Tensor) -> Tensor:
    """The place of the largest of each column."""
    return x.argmax(0)


def gather_rows(x: Tensor, places: Tensor) -> Tensor:
    """Elements of a row by number."""
    return torch.gather(x, 1, places) * 2.0


def index_add_rows(x: Tensor, rows: Tensor, ids: Tensor) -> Tensor:
    """Rows added where numbers say, some of them to one place."""
    return x.index_add(0, ids, rows)


def group_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Statistics of blocks of channels, then a pointwise function."""
    return F.silu(F.group_norm(x, 8, weight, bias))


def batch_norm_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of each channel of images."""
    variance, mean = torch.var_mean(x, dim=(0, 2, 3), correction=0)
    return mean, torch.rsqrt(variance + 1e-5)


def cumsum(x: Tensor) -> Tensor:
    """Running sums of rows."""
    return torch.cumsum(x, -1)


def log_softmax(x: Tensor) -> Tensor:
    """Of rows that are larger than the nearest cache."""
    return torch.log_softmax(x, -1)


def one_op(x: Tensor) -> Tensor:
    """Hardly any work: what remains is the call."""
    return torch.sin(x)


def _case(
    fn: Callable[..., Tensor | tuple[Tensor, ...]], *shapes: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> Callable[[], Case]:
    return lambda: Case(fn, tuple(torch.randn(shape).to(dtype) for shape in shapes), {}, None)


def _with_numbers(
    fn: Callable[..., Tensor], at: int, below: int, numbers: tuple[int, ...], *shapes: tuple[int, ...]
) -> Callable[[], Case]:
    """A case with one argument of integers: its place, what they are below, and its shape."""

    def make() -> Case:
        args: list[Tensor] = [torch.randn(shape) for shape in shapes]
        args.insert(at, torch.randint(below, numbers))
        return Case(fn, tuple(args), {}, None)

    return make


KERNELS: dict[str, Callable[[], Case]] = {
    "sin+cos": _case(sin_cos, (2048, 1024), (2048, 1024)),
    "gelu+layer_norm": _case(gelu_layer_norm, (4096, 768), (768,), (768,)),
    "softmax": _case(softmax, (4096, 768)),
    "rms_norm+residual": _case(rms_norm_residual, (4096, 768), (4096, 768), (768,)),
    "cross_entropy": _with_numbers(cross_entropy, 1, 16000, (256,), (256, 16000)),
    "column_sum": _case(column_sum, (4096, 1024)),
    "full_sum": _case(full_sum, (4096, 1024)),
    "transpose+add": _case(transpose_add, (2048, 2048), (2048, 2048)),
    "cat_of_pointwise": _case(cat_pointwise, (2048, 768), (2048, 768)),
    "embedding+norm": _with_numbers(embedding_norm, 0, 30000, (4096,), (30000, 768), (768,), (768,)),
    "argmax_rows": _case(argmax_rows, (4096, 1024)),
    "argmax_columns": _case(argmax_columns, (4096, 1024)),
    "gather": _with_numbers(gather_rows, 1, 1024, (4096, 768), (4096, 1024)),
    "index_add": _with_numbers(index_add_rows, 2, 2048, (4096,), (2048, 768), (4096, 768)),
    "group_norm+silu": _case(group_norm, (16, 64, 56, 56), (64,), (64,)),
    "batch_norm_statistics": _case(batch_norm_statistics, (16, 64, 56, 56)),
    "cumsum": _case(cumsum, (4096, 768)),
    "log_softmax_wide": _case(log_softmax, (128, 32000)),
    "bf16_gelu+layer_norm": _case(gelu_layer_norm, (4096, 768), (768,), (768,), dtype=torch.bfloat16),
    "bf16_rms_norm+residual": _case(rms_norm_residual, (4096, 768), (4096, 768), (768,), dtype=torch.bfloat16),
}

# The same where memory is the limit, not the caches: operands of 64 MiB and more. Each argument is read and each result written once.
MEMORY: dict[str, Callable[[], Case]] = {
    "large_rms_norm+residual": _case(rms_norm_residual, (16384, 2048), (16384, 2048), (2048,)),
    "large_softmax": _case(softmax, (16384, 2048)),
    "large_column_sum": _case(column_sum, (32768, 1024)),
    "large_full_sum": _case(full_sum, (32768, 1024)),
    "large_transpose+add": _case(transpose_add, (4096, 4096), (4096, 4096)),
    "large_cat_of_pointwise": _case(cat_pointwise, (16384, 1024), (16384, 1024)),
    "large_embedding+norm": _with_numbers(embedding_norm, 0, 30000, (32768,), (30000, 768), (768,), (768,)),
    "large_argmax_rows": _case(argmax_rows, (32768, 1024)),
    "large_argmax_columns": _case(argmax_columns, (32768, 1024)),
    "large_gather": _with_numbers(gather_rows, 1, 1024, (32768, 1024), (32768, 1024)),
    "large_index_add": _with_numbers(index_add_rows, 2, 16384, (32768,), (16384, 768), (32768, 768)),
    "large_batch_norm_statistics": _case(batch_norm_statistics, (64, 64, 56, 56)),
    "large_bf16_rms_norm+residual": _case(
        rms_norm_residual, (32768, 2048), (32768, 2048), (2048,), dtype=torch.bfloat16
    ),
}

# Bytes of an argument of which not everything is read once.
_READ: dict[str, dict[int, int]] = {"large_embedding+norm": {1: 32768 * 768 * 4}}


def bytes_moved(name: str, args: tuple[Tensor, ...], results: Tensor | tuple[Tensor, ...]) -> int | None:
    """Bytes that a memory-bound kernel must read and write; None for the others."""
    if name not in MEMORY:
        return None
    partly = _READ.get(name, {})
    written = [results] if isinstance(results, Tensor) else list(results)
    return sum(partly.get(at, t.nbytes) for at, t in enumerate(args)) + sum(t.nbytes for t in written)


CALLS: dict[str, Callable[[], Case]] = {"one_op": _case(one_op, (8,))}
