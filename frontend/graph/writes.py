"""What operators write to, and how: by name."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from ..values.kinds import tensors_in

__all__ = ["count_writes", "in_place_view"]

_OF_LISTS = ("_foreach_", "_fused_", "_amp_foreach_")


def count_writes(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Operators on lists of tensors count no versions of fake tensors that they write to, and some of real ones neither."""
    for place, argument in _written_lists(name):
        given = args[place] if place < len(args) else kwargs.get(argument)
        torch.autograd.graph.increment_version(list(tensors_in((given,))))


@cache
def _written_lists(name: str) -> tuple[tuple[int, str], ...]:
    """The arguments of an operator that are lists of tensors, or one, which it writes to: place and name."""
    packet = getattr(torch.ops.aten, name, None) if name.endswith("_") and name.startswith(_OF_LISTS) else None
    if packet is None:
        return ()
    arguments = enumerate(getattr(packet, packet.overloads()[0])._schema.arguments)
    return tuple((place, a.name) for place, a in arguments if a.alias_info is not None and a.alias_info.is_write)


@cache
def in_place_view(name: str) -> bool:
    """Whether a method of this name changes a tensor's sizes or strides in place."""
    if not name.endswith("_") or name.endswith("__"):
        return False
    packet = getattr(torch.ops.aten, name, None)
    return packet is not None and any(
        torch.Tag.inplace_view in getattr(packet, overload).tags for overload in packet.overloads()
    )
