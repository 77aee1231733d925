"""Foreign tensors, which the IR cannot hold: quantized ones and those in sparse layouts, as the plain tensors that they are made of."""

from __future__ import annotations

import functools
import operator
import weakref
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "argument",
    "constant",
    "is_foreign",
    "is_laid_as",
    "noted",
    "parts_of",
    "structure_of",
    "text_of",
    "whole",
    "with_numbers",
]

_COMPRESSED = {
    torch.sparse_csr: (Tensor.crow_indices, Tensor.col_indices),
    torch.sparse_csc: (Tensor.ccol_indices, Tensor.row_indices),
    torch.sparse_bsr: (Tensor.crow_indices, Tensor.col_indices),
    torch.sparse_bsc: (Tensor.ccol_indices, Tensor.row_indices),
}
_STORED = {torch.quint8: torch.uint8, torch.qint8: torch.int8, torch.qint32: torch.int32}
_PER_TENSOR, _PER_CHANNEL = torch.per_tensor_affine, torch.per_channel_affine


def is_foreign(tensor: Tensor) -> bool:
    """Whether a tensor is one that stands in graphs as its parts."""
    layout = tensor.layout
    if layout in _COMPRESSED or layout is torch.sparse_coo:
        return True
    return tensor.is_quantized and tensor.dtype in _STORED and tensor.qscheme() in (_PER_TENSOR, _PER_CHANNEL)


def structure_of(tensor: Tensor) -> tuple[Any, ...]:
    """What a foreign tensor is beside its sizes and parts, as plain data; the first item says of which kind it is."""
    dtype = _TEXTS(tensor.dtype)
    if tensor.is_quantized:
        axis = tensor.q_per_channel_axis() if tensor.qscheme() is _PER_CHANNEL else None
        return "quantized", dtype, axis, None
    layout = _TEXTS(tensor.layout)
    if tensor.layout is torch.sparse_coo:
        return layout, dtype, tensor.sparse_dim(), tensor.is_coalesced()
    block = tensor.values().shape[-2 - tensor.dense_dim() :][:2] if "bs" in layout else ()
    return layout, dtype, tensor.dense_dim(), tuple(block)


def is_laid_as(one: Tensor, other: Tensor) -> bool:
    """Whether two foreign tensors have the same structure, and values at the same places."""
    if not is_foreign(one) or structure_of(one) != structure_of(other):
        return False
    pairs = zip(parts_of(one), parts_of(other), strict=True)
    return all(p.is_floating_point() or p.is_complex() or torch.equal(p, q) for p, q in pairs)


def with_numbers(tensor: Tensor) -> tuple[Any, ...]:
    """The structure of a quantized tensor with its scale and zero point, where one has the same in all calls."""
    kind, dtype, axis, _ = structure_of(tensor)
    return kind, dtype, axis, None if axis is not None else (tensor.q_scale(), tensor.q_zero_point())


def parts_of(tensor: Tensor, structure: Any = None) -> list[Tensor]:
    """The plain tensors that a foreign one is made of, over its memory where it has them; values have gradients where they can."""
    if tensor.is_quantized:
        if structure is not None and structure[3] is not None:
            return [tensor.int_repr()]
        if tensor.qscheme() is _PER_CHANNEL:
            return [tensor.int_repr(), tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()]
        return [tensor.int_repr(), _number(tensor.q_scale()).detach(), _number(tensor.q_zero_point()).detach()]
    if tensor.layout is torch.sparse_coo:
        known = tensor.is_coalesced()
        return [tensor.indices(), tensor.values()] if known else [tensor._indices(), tensor._values()]
    rows, columns = _COMPRESSED[tensor.layout]
    return [rows(tensor), columns(tensor), tensor.values()]


@functools.lru_cache(maxsize=1024, typed=True)
def _number(value: float) -> Tensor:
    """A scale or a zero point, which nobody writes to."""
    with torch.inference_mode(False):
        return torch.scalar_tensor(value, dtype=torch.int64 if type(value) is int else torch.float64)


def noted(tensor: Tensor, parts: list[Tensor]) -> list[Tensor]:
    """Parts that were just taken of a tensor, by which `argument` finds it again: those of uncoalesced ones live as long as it does, and may change."""
    if tensor.layout is not torch.sparse_coo or tensor.is_coalesced():
        parts[-1]._intarsia_of = weakref.ref(tensor), *parts[:-1]  # type: ignore[attr-defined]
    return parts


def argument(structure: Any, size: tuple[int, ...], parts: list[Tensor]) -> Tensor:
    """`whole` for a call that only reads it: the very tensor of which these parts were taken, where it is one."""
    found = getattr(parts[-1], "_intarsia_of", None)
    if found is None or len(found) != len(parts) or any(map(operator.is_not, found[1:], parts)):
        return whole(structure, size, parts)
    tensor = found[0]()
    if tensor is None or tensor.shape != size or tensor.requires_grad:
        return whole(structure, size, parts)
    if structure[0] == "quantized":  # its parts are copies, made in this call, in which nothing writes to it
        return tensor if tensor.is_quantized else whole(structure, size, parts)  # type: ignore[no-any-return]
    if tensor.layout is not constant(structure[0]):
        return whole(structure, size, parts)
    if structure[0] == "torch.sparse_coo" and tensor.is_coalesced() is not structure[3]:
        return whole(structure, size, parts)
    return tensor  # type: ignore[no-any-return]


def whole(structure: tuple[Any, ...], size: tuple[int, ...], parts: list[Tensor]) -> Tensor:
    """The foreign tensor of these parts."""
    kind, dtype, *rest = structure
    if kind == "quantized" and rest[0] is None:
        scale, zero = parts[1:] if rest[1] is None else rest[1]
        return torch._make_per_tensor_quantized_tensor(parts[0], float(scale), int(zero))
    if kind == "quantized":
        return torch._make_per_channel_quantized_tensor(*parts, rest[0])  # type: ignore[call-arg, arg-type]
    if kind == "torch.sparse_coo":
        return torch.sparse_coo_tensor(parts[0], parts[1], size, is_coalesced=rest[1], check_invariants=False)
    layout = constant(kind)
    made: Tensor = torch.sparse_compressed_tensor(
        parts[0], parts[1], parts[2], size, layout=layout, check_invariants=False
    )
    return made


def text_of(value: Any) -> str:
    """A dtype, a layout, a device, a memory format or a qscheme as text that `constant` reads."""
    return f"device:{value}" if isinstance(value, torch.device) else _TEXTS(value)


_TEXTS = functools.cache(str)  # of the few dtypes and layouts that there are


@functools.cache
def constant(text: str) -> Any:
    """What `text_of` wrote."""
    if text.startswith("device:"):
        return torch.device(text.removeprefix("device:"))
    return getattr(torch, text.removeprefix("torch."))
