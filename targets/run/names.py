"""What a host program calls beside kernels and operators: memory, and checks of what libraries and kernels give."""

from __future__ import annotations

import torch

from ..errors import Unassumed, UnplannedResult
from ..host.pool import want_huge_pages
from ..torch_private import empty_strided_cpu


def empty(size: int) -> torch.Tensor:
    """Memory for an arena: bytes, aligned to a cache line by torch's allocator."""
    arena = empty_strided_cpu((size,), (1,), torch.uint8)
    want_huge_pages(arena)
    return arena


def over(
    arena: torch.Tensor, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    """A tensor over part of the arena; `offset` in bytes, a multiple of the element size."""
    typed = torch.empty(0, dtype=dtype)
    return typed.set_(arena, offset // typed.element_size(), shape, strides)  # type: ignore[call-overload]  # known since 2.1


def fit(
    value: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...], late: bool, operator: str
) -> torch.Tensor:
    """The same values with the strides that were planned; free where only dimensions of size 1 differ.

    Raises:
        UnplannedResult: dtype or shape differ.
        RuntimeError: they do, when arguments may have been written to (`late`), so that eager cannot begin again.
    """
    if value.dtype != dtype or value.shape != shape:
        found, planned = (value.dtype, list(value.shape)), (dtype, list(shape))
        text = f"the library call {operator} gave {found[0]}{found[1]} where {planned[0]}{planned[1]} was planned"
        other = operator.partition("aten.ops.")[2].removesuffix(".default")
        if other:
            text = f"the operator {other} gave {found[0]}{found[1]}, its fake implementation (register_fake) {planned[0]}{planned[1]}"
        raise RuntimeError(f"{text}; an argument may have been written to") if late else UnplannedResult(text)
    if value.numel() == 0 or all(
        s == 1 or a == b for s, a, b in zip(value.shape, value.stride(), strides, strict=True)
    ):
        return value.as_strided(value.shape, strides)
    fixed = torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device)
    return fixed.copy_(value)


def not_assumed(late: bool, line: str) -> None:
    """A size that values decide is another than the program relies on.

    Raises:
        Unassumed: eager is to say what that means.
        RuntimeError: arguments may have been written to (`late`), so that eager cannot begin again.
    """
    text = f"{line + ': ' if line else ''}a size that a tensor's values decide is not what the program relies on"
    raise RuntimeError(f"{text}; an argument may have been written to") if late else Unassumed(text)


def failed(code: int, *lines: str) -> None:
    """What a kernel's code says: memory was lacking, or an index lies outside its dimension, as eager raises."""
    if code & 2:
        raise MemoryError(f"not enough memory for the scratch of a kernel{f' (from {lines[0]})' if lines else ''}")
    where = f" (from {', '.join(lines)})" if lines else ""
    raise IndexError(f"index out of range in self{where}")
