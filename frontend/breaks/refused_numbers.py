"""Numbers that the type of a tensor does not hold. Some of eager's operators refuse them; fake tensors, and kernels, do not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from ..errors import UserRaise
from ..torch_private.fake import FakeTensor
from ..torch_private.symbols import hint_of
from ..values.kinds import isinstance
from .eager_errors import said_by_eager

__all__ = ["check_overflow", "check_written"]

_REFUSED = "without overflow"
_SHAPES = {
    "view",
    "reshape",
    "expand",
    "repeat",
    "narrow",
    "split",
    "select",
    "unflatten",
    "unfold",
    "as_strided",
    "new_zeros",
}
_FILLS = {
    *("fill_", "fill", "full", "full_like", "new_full", "masked_fill", "masked_fill_", "pad", "constant_pad_nd"),
    *("setitem", "clamp", "clamp_", "clamp_min", "clamp_max"),
}  # what takes a number that changes between calls, and refuses what its type does not hold


def check_overflow(op: str, target: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise eager's error where it refuses a number in this call; a number that changes is guarded to be one that is not refused.

    What is asked is eager itself, with zeros, in front of it whether a number is outside of what one of the types holds.
    """
    numbers = [v for v in (*args, *kwargs.values()) if type(v) in _NUMBERS]
    if not numbers or name in _SHAPES:
        return
    for dtype in set(_types(args, kwargs)):
        low, high = _limits(dtype)
        for number in numbers:
            changes = type(number) in (torch.SymInt, torch.SymFloat)
            if changes and (name not in _FILLS or not number.node.has_hint()):
                continue
            value = hint_of(number) if changes else number
            if value - value != 0.0 and dtype.is_floating_point:
                continue
            if not low <= value <= high:
                _ = changes and bool(number == value)  # a guard
                error = said_by_eager(op, target, args, kwargs)
                if error is not None and _REFUSED in str(error):
                    raise UserRaise(error)
            elif changes:
                _ = bool(number <= high), bool(number >= low)  # a guard each


def check_written(op: str, target: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise eager's error where a write would narrow the kind of a number (an int into bools), which not all fake operators refuse."""
    into = args[0] if args else None
    if not name.endswith("_") or type(into) is not FakeTensor or into.dtype.is_complex or into.dtype.is_floating_point:
        return
    if any(_rank(value) > _rank(into) for value in (*args[1:], *kwargs.values())):
        error = said_by_eager(op, target, args, kwargs)
        if error is not None and _NARROWS in str(error):
            raise UserRaise(error)


_NARROWS = "can't be cast to the desired output type"


def _rank(value: Any) -> int:
    """Of kinds of numbers: bools, ints, all others."""
    if isinstance(value, torch.Tensor):
        return 0 if value.dtype == torch.bool else 2 if value.dtype.is_floating_point or value.dtype.is_complex else 1
    return {bool: 0, torch.SymBool: 0, int: 1, torch.SymInt: 1, float: 2, torch.SymFloat: 2, complex: 2}.get(
        type(value), 0
    )


def _types(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[torch.dtype]:
    for value in (*args, *kwargs.values()):
        if type(value) is FakeTensor and value.dtype in _LIMITED:
            yield value.dtype
        elif isinstance(value, torch.dtype) and value in _LIMITED:
            yield value


def _limits(dtype: torch.dtype) -> tuple[float, float]:
    info = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    return info.min, info.max


_NUMBERS = (int, float, torch.SymInt, torch.SymFloat)
_LIMITED = frozenset(
    (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32)
)
