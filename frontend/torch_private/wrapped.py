"""Wrapper tensors: of a class of the program's that runs operators on other tensors (`__torch_dispatch__`). Tried with torch 2.11 and 2.13."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

__all__ = ["Layout", "Part", "Wrapped", "is_wrapped", "is_wrapper", "layout_of", "parts_of"]


def is_wrapper(kind: type) -> bool:
    """Whether a class of the program's says what its tensors are made of, and how they are made again."""
    return (
        hasattr(kind, "__tensor_flatten__")
        and hasattr(kind, "__tensor_unflatten__")
        and kind.__module__.partition(".")[0] != "torch"
        and kind.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl  # type: ignore[attr-defined]
    )


def is_wrapped(value: Any) -> bool:
    """Whether a tensor is of such a class."""
    kind = type(value)
    return kind is not FakeTensor and issubclass(kind, Tensor) and is_wrapper(kind)


class Layout:
    """What a wrapper tensor is beside the tensors that it is made of."""

    def __init__(self, value: Any) -> None:
        names, context = value.__tensor_flatten__()
        self.kind, self.names, self.context = type(value), tuple(names), copy.deepcopy(context)
        self.attributes = _attributes(value, self.names)
        self.facts = (tuple(value.shape), tuple(value.stride()), value.dtype, value.device, value.requires_grad)
        self.__name__ = f"layout of {self.kind.__name__}"

    def __call__(self, value: Any) -> bool:
        """Whether another tensor has this layout."""
        return Layout(value) == self

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Layout) or (self.kind, self.names) != (other.kind, other.names):
            return False
        if self.facts != other.facts or not _same(self.attributes, other.attributes):
            return False
        return type(self.context) is type(other.context) and bool(self.context == other.context)

    def __hash__(self) -> int:
        return hash((self.kind, self.names))


_OF_TORCH = ("_is_param", "_is_buffer")


def _attributes(value: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """What a wrapper tensor holds beside its parts: `__torch_dispatch__` of its class may read it."""
    held = object.__getattribute__(value, "__dict__")
    return {k: v for k, v in held.items() if k not in names and k not in _OF_TORCH}


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    if one.keys() != other.keys():
        return False
    return all(v is other[k] or _is_equal(v, other[k]) for k, v in one.items())


def _is_equal(one: Any, other: Any) -> bool:
    """Whether two values are plain data and the same."""
    if type(one) is not type(other):
        return False
    if type(one) in (list, tuple):
        return len(one) == len(other) and all(map(_is_equal, one, other))
    if type(one) is dict:
        return one.keys() == other.keys() and all(_is_equal(v, other[k]) for k, v in one.items())
    return type(one) in _COMPARED and bool(one == other)


_COMPARED = (int, float, bool, str, bytes, complex, type(None), torch.Size, torch.dtype, torch.device)


def layout_of(value: Any) -> Layout:
    """The layout of a wrapper tensor."""
    return Layout(value)


def parts_of(value: Any, layout: Layout) -> list[Any]:
    """The tensors that a wrapper tensor is made of."""
    return [getattr(value, name) for name in layout.names]


class Wrapped:
    """The wrapper tensor of other tensors, with a layout that is a constant of the graph."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.__name__ = f"wrapped_{layout.kind.__name__}"

    def __call__(self, *parts: Tensor) -> Any:
        layout = self.layout
        shape, stride = layout.facts[:2]
        inner = dict(zip(layout.names, parts, strict=True))
        made = layout.kind.__tensor_unflatten__(inner, layout.context, torch.Size(shape), stride)  # type: ignore[attr-defined]
        if type(made) is not layout.kind or Layout(made) != layout:
            raise TypeError(
                f"{layout.kind.__qualname__}.__tensor_unflatten__ does not give back what __tensor_flatten__ took apart"
            )
        return made


class Part:
    """One of the tensors that a wrapper tensor is made of, by its name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.__name__ = f"part_{name}"

    def __call__(self, value: Any) -> Any:
        return getattr(value, self.name)
