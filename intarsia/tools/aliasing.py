"""How two tensors share memory, in words that can be compared."""

from __future__ import annotations

import torch
from torch import Tensor

from ..frontend.torch_private.dispatch import storage_key

EXACT_OVERLAP = 1 << 16  # up to so many elements, whether two tensors overlap is decided element by element


def has_memory(tensor: Tensor) -> bool:
    """Whether the tensor has strides and elements somewhere."""
    return tensor.layout == torch.strided and tensor.device.type != "meta" and tensor.numel() > 0


def relation(a: Tensor, b: Tensor) -> str:
    """Whether two tensors are the same object, share memory (and how far apart they start), or neither."""
    if a is b:
        return "the same tensor"
    if not _overlap(a, b):
        return "no common memory"
    return f"common memory, {a.data_ptr() - b.data_ptr()} bytes apart"


def _overlap(a: Tensor, b: Tensor) -> bool:
    if storage_key(a) != storage_key(b):
        return False
    starts = a.data_ptr(), b.data_ptr()
    ends = [start + _extent(t) * t.element_size() for start, t in zip(starts, (a, b), strict=True)]
    if ends[0] <= starts[1] or ends[1] <= starts[0]:
        return False
    if a.dtype != b.dtype or max(a.numel(), b.numel()) > EXACT_OVERLAP:
        return True
    return bool(torch.isin(_offsets(a), _offsets(b)).any())


def _extent(tensor: Tensor) -> int:
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _offsets(tensor: Tensor) -> Tensor:
    """Where in its storage each element lies."""
    offsets = torch.tensor(tensor.storage_offset())
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        offsets = offsets[..., None] + torch.arange(size) * stride
    return offsets.flatten()
