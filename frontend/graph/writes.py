"""What operators write to, and how: by name."""

from __future__ import annotations

from functools import cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from ..errors import GraphBreak
from ..torch_private.wrapped import layout_of, parts_of
from ..values.kinds import tensors_in

__all__ = ["WrapperWrites", "count_writes", "in_place_view", "statistics_written"]

_OF_LISTS = ("_foreach_", "_fused_", "_amp_foreach_")


def count_writes(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Operators on lists of tensors count no versions of fake tensors that they write to, and some of real ones neither."""
    for place, argument in _written_lists(name):
        given = args[place] if place < len(args) else kwargs.get(argument)
        torch.autograd.graph.increment_version(list(tensors_in((given,))))


def statistics_written(name: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """The running statistics that a norm writes to without saying so."""
    if name not in _NORMS:
        return []
    first = 1 if isinstance(target, FunctionType) else 3  # torch.nn.functional's order, and that of the operator
    training = (
        args[5] if len(args) > 5 else next((kwargs[n] for n in _TRAINING if n in kwargs), name == "instance_norm")
    )
    given = *args[first : first + 2], kwargs.get("running_mean"), kwargs.get("running_var")
    return [t for t in given if isinstance(t, Tensor)] if training else []


_NORMS = ("batch_norm", "instance_norm", "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm")
_TRAINING = ("training", "train", "use_input_stats")


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


class WrapperWrites:
    """What a call on wrapper tensors writes to: their class says, in operators on what they are made of."""

    def __init__(self, dispatch: Any, wrappers: list[Tensor]) -> None:
        layouts = [(t, layout_of(t)) for t in wrappers]
        self.before = [(t, layout, parts_of(t, layout), t._version) for t, layout in layouts]
        self.dispatch, dispatch.written = dispatch, set()

    def done(self, name: str) -> set[int]:
        """The storages that were written to. Raises GraphBreak where a tensor is made of something else now, or has a history."""
        written, self.dispatch.written = self.dispatch.written, None
        for tensor, layout, parts, version in self.before:
            now, kind = layout_of(tensor), type(tensor).__qualname__
            same = layout.agrees(now) and all(map(_is, parts, parts_of(tensor, now)))
            if not same:
                raise GraphBreak(f"{name} changes what a {kind} is or is made of")
            if tensor._version != version and torch.is_grad_enabled() and (now.requires_grad or layout.requires_grad):
                raise GraphBreak(f"{name} writes to a {kind} that requires gradients")
        return written


def _is(one: Any, other: Any) -> bool:
    return one is other
