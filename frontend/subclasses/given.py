"""What calls of methods of wrapper classes are given: to be compared, copied, or made as a gradient."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..guards.sameness import indistinguishable
from ..torch_private.wrapped import Layout, Wrapped, is_wrapped, layout_of, parts_of
from ..values.kinds import isinstance

__all__ = ["alike", "copied", "deep", "facts_of", "gradient_of", "leaves_in"]


def facts_of(value: Any) -> Any:
    """What a call is given, to be compared: tensors by what their methods may ask."""
    if isinstance(value, list | tuple | dict):
        items = list(value.items()) if isinstance(value, dict) else value
        return type(value), [facts_of(item) for item in items]
    if not isinstance(value, Tensor):
        return value
    if is_wrapped(value):
        layout = layout_of(value)
        return layout, [facts_of(part) for part in parts_of(value, layout)]
    facts = (tuple(value.shape), value.stride(), value.dtype, value.device, value.layout, value.storage_offset())
    return _Plain(type(value), facts, value.requires_grad, value.is_leaf, value._is_view())


@dataclass(frozen=True)
class _Plain:
    kind: type
    facts: tuple[Any, ...]
    requires_grad: bool
    is_leaf: bool
    is_view: bool


def alike(one: Any, other: Any) -> bool:
    """Whether no method can tell two calls apart, by the facts of what they are given."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, _Plain):
        return one == other
    if isinstance(one, Layout):
        return one.requires_grad == other.requires_grad and one.leaf == other.leaf and one.agrees(other)
    return indistinguishable(one, other)


def copied(value: Any) -> Any:
    """Arguments whose tensors are copies."""
    if isinstance(value, list | tuple):
        return type(value)(map(copied, value))
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    if not isinstance(value, Tensor):
        return value
    if is_wrapped(value):
        layout = layout_of(value)
        return Wrapped(layout).made(*map(copied, parts_of(value, layout)))
    made = value.clone()
    if made.stride() == value.stride():
        return made
    with torch.no_grad():  # the class may make its tensors by the strides of what it is given
        laid = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return laid.copy_(made) if value.requires_grad else laid


def gradient_of(tensor: Tensor) -> Tensor:
    """A gradient such as arrives for a tensor."""
    if not is_wrapped(tensor):
        return torch.ones_like(tensor)
    layout = layout_of(tensor)
    with torch.no_grad():
        made: Tensor = Wrapped(layout).made(*map(gradient_of, parts_of(tensor, layout)))
    return made


def deep(tensor: Tensor) -> Iterator[Tensor]:
    """A tensor and what it is made of, down to plain ones."""
    yield tensor
    if is_wrapped(tensor):
        for each in parts_of(tensor, layout_of(tensor)):
            yield from deep(each)


def leaves_in(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from leaves_in(item)
    else:
        yield value
