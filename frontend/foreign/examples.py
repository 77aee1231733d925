"""Small real tensors with which a library call is tried at capture: what it gives says which results it has, and of which sizes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import sympy
import torch
from torch import Tensor

from ..torch_private.symbols import hint_of, is_unknown

__all__ = ["Assignment", "assignments", "pattern", "put_together"]

Assignment = Mapping[sympy.Symbol, int]

_FACTORS = (
    2,
    3,
    5,
    7,
    11,
    13,
    17,
    19,
)  # what sizes are multiplied with the second time: what divides them divides them still


def assignments(sizes: Iterable[Any]) -> list[Assignment]:
    """Numbers for the symbols in sizes: those of this call and, where there are symbols, others that tell them apart."""
    known: dict[sympy.Symbol, int] = {}
    for size in sizes:
        if isinstance(size, torch.SymInt):
            env = size.node.shape_env
            for symbol in sorted(size.node.expr.free_symbols, key=str):
                if symbol not in known:
                    hint = None if is_unknown(symbol) else hint_of(env.create_symintnode(symbol, hint=None))
                    known[symbol] = int(hint) if hint is not None else 4 + len(known)
    if not known:
        return [{}]
    other = {s: n * f for (s, n), f in zip(known.items(), itertools.cycle(_FACTORS))}
    return [known, other]


def number(size: Any, given: Assignment) -> int:
    """A size, with numbers for its symbols."""
    if not isinstance(size, torch.SymInt):
        return int(size)
    return int(size.node.expr.xreplace({s: sympy.Integer(n) for s, n in given.items()}))


def pattern(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, fill: int, values: int = 3) -> Tensor:
    """A real tensor: zeros and other numbers below `values`, of integers `fill` alone."""
    if dtype.is_floating_point or dtype.is_complex:
        made = torch.arange(torch.Size(shape).numel(), dtype=torch.float64).remainder(values).reshape(shape)
        return made.to(device, dtype)
    if dtype is torch.bool:
        return torch.arange(torch.Size(shape).numel()).remainder(2).bool().reshape(shape).to(device)
    return torch.full(shape, fill, dtype=dtype, device=device)


def put_together(
    structure: tuple[Any, ...],
    size: tuple[int, ...],
    device: torch.device,
    numbers: tuple[float, int] = (1.0, 1),
    place: int = 0,
) -> Tensor:
    """A real foreign tensor of this structure; `numbers`: scale and zero point, where calls differ in them.

    Sparse ones that differ in `place` hold values in other places: what a call makes of two may lie where only one of them has any.
    """
    kind, dtype, *rest = structure
    dtype = getattr(torch, dtype.partition(".")[2])
    if kind == "quantized":
        floats = pattern(size, torch.float32, device, 0)
        if rest[0] is None:
            scale, zero = rest[1] or numbers
            return torch.quantize_per_tensor(floats, scale, zero, dtype)
        channels = size[rest[0]]
        scales = torch.ones(channels, dtype=torch.float64, device=device)
        return torch.quantize_per_channel(floats, scales, scales.long() * 0, rest[0], dtype)
    dense = pattern(size, dtype, device, 1).roll(place)
    if dense.numel() and not bool(dense.any()):
        dense = torch.ones_like(dense)
    if kind == "torch.sparse_coo":
        sparse_dim, coalesced = rest
        made = dense.to_sparse(sparse_dim)
        if coalesced:
            return made
        indices, values = made._indices(), made._values()
        return torch.sparse_coo_tensor(
            torch.cat([indices, indices], 1), torch.cat([values, values]), size, is_coalesced=False
        )
    dense_dim, block = rest
    layout = getattr(torch, kind.partition(".")[2])
    return dense.to_sparse(layout=layout, blocksize=tuple(block) or None, dense_dim=dense_dim)
