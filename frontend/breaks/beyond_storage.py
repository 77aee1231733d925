"""`as_strided` beyond the end of a storage: fake tensors have no memory that would end, eager refuses it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from ..errors import GraphBreak
from ..torch_private.symbols import hint_of
from ..values.kinds import SYMBOLIC, isinstance

__all__ = ["check_end"]

_NAMES = ("input", "size", "stride", "storage_offset")


def check_end(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Break in front of a call that shows more than its storage holds: how much that is, no guard says."""
    if name not in ("as_strided", "as_strided_"):
        return
    bound = dict(zip(_NAMES, args, strict=False)) | dict(kwargs)
    tensor, size, stride = (bound.get(n) for n in _NAMES[:3])
    offset = bound.get("storage_offset")
    if not isinstance(tensor, Tensor) or not isinstance(size, list | tuple) or not isinstance(stride, list | tuple):
        return
    offset = tensor.storage_offset() if offset is None else offset
    holds = tensor.untyped_storage().nbytes()
    if len(size) != len(stride) or any(isinstance(n, SYMBOLIC) and hint_of(n) is None for n in (*size, *stride, holds)):
        return  # fake tensors refuse the first; of the second only the running program knows
    if any(n == 0 for n in size):
        return
    last = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    if (last + 1) * tensor.element_size() > holds:
        raise GraphBreak("as_strided shows more than its storage holds", "correct it there: eager refuses the call")
