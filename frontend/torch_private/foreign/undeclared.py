"""Classes of wrapper tensors, and what tensors of those are made of that do not say it (no `__tensor_flatten__`). Tried with torch 2.13.

The parts are the tensors among the attributes. Made again, such a tensor gets the attributes that it had: no constructor runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nested._internal import nested_tensor as jagged

from ..dispatch import CaptureMode
from ..fake import real_tensors
from ..functions import MAKE_WRAPPER, NO_DISPATCH
from .data import copied

__all__ = [
    "OF_TORCH",
    "facts_of",
    "flattened",
    "has_no_memory",
    "is_jagged",
    "is_shelled",
    "is_taken_apart",
    "is_wrapper",
    "made_again",
    "made_whole",
    "reason_against",
]


def is_wrapper(kind: type) -> bool:
    """Whether a class of the program's says what its tensors are made of, and how they are made again."""
    return (
        hasattr(kind, "__tensor_flatten__")
        and hasattr(kind, "__tensor_unflatten__")
        and (kind.__module__.partition(".")[0] != "torch" or is_jagged(kind))
        and kind.__torch_dispatch__ is not NO_DISPATCH  # type: ignore[attr-defined]
    )


def is_jagged(kind: type) -> bool:
    """Whether a class is that of torch's nested tensors in the jagged layout."""
    return kind is jagged.NestedTensor


def is_shelled(kind: type) -> bool:
    """Whether tensors of a class see operators and the class does not say what they are made of, or a class of torch's is like that."""
    module = kind.__module__
    mine = module.partition(".")[0] != "torch" or module == "torch.masked.maskedtensor.core"
    found: Any = kind.__torch_dispatch__  # type: ignore[attr-defined]
    return mine and found is not NO_DISPATCH and not hasattr(kind, "stands_for_others") and not is_wrapper(kind)


def has_no_memory(value: Tensor) -> bool:
    """Whether a tensor is a wrapper: there is nothing where its values would lie."""
    with torch._C.DisableTorchFunctionSubclass():
        try:
            value.untyped_storage().data_ptr()
        except RuntimeError:
            return True
        except NotImplementedError:  # torch has no storage for the layout: only wrappers are told so by another error
            return False
    return False


class _Refused(Exception):
    """A wrapper tensor lets its class answer a question."""


class _Questions(CaptureMode):
    """Sees which questions about itself a wrapper tensor lets its class answer, and asks the class none."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _Refused


_OF_ITSELF: dict[str, Callable[[Tensor], Any]] = {
    "size": lambda value: tuple(value.shape),
    "stride": lambda value: value.stride(),
    "offset": lambda value: value.storage_offset(),
    "device": lambda value: value.device,
    "layout": lambda value: value.layout,
}
_PLAIN: tuple[Callable[[Tensor], Any], ...] = (
    *(lambda value: value.dtype, lambda value: value.requires_grad, lambda value: value.is_leaf),
    *(lambda value: value.is_inference(), lambda value: value._is_view(), lambda value: value.is_conj()),
    *(lambda value: value.is_neg(), lambda value: bool(getattr(value, "_is_param", False))),
)


def _own(value: Tensor) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with real_tensors(), torch._C.DisableTorchFunctionSubclass(), _Questions():
        for name, ask in _OF_ITSELF.items():
            try:
                found[name] = ask(value)
            except _Refused:
                found[name] = None
    return found


def facts_of(value: Tensor) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """What a wrapper tensor is beside its attributes; None of what its class answers, whose code is not asked."""
    found = _own(value)
    with real_tensors(), torch._C.DisableTorchFunctionSubclass(), _Questions():
        return found, tuple(ask(value) for ask in _PLAIN)


def made_whole(kind: type, /, *args: Any, **kwargs: Any) -> Tensor:
    """The wrapper tensor behind a graph, without attributes."""
    with torch._C.DisableTorchFunctionSubclass():
        made: Tensor = MAKE_WRAPPER(kind, *args, **kwargs)
    return made


# ---- taken apart ----

OF_TORCH = frozenset(["_is_param", "_is_buffer"])  # attributes that torch gives tensors


def is_taken_apart(kind: type) -> bool:
    """Whether tensors of a class that `is_shelled` can be taken apart: a masked tensor's operators decide by what its mask holds."""
    return kind.__module__.partition(".")[0] != "torch"


def reason_against(value: Tensor) -> str | None:
    """Why a tensor of such a class is not taken apart, if it is not."""
    own, (_, _, _, inference, view, conj, neg, _) = facts_of(value)
    if own["size"] is None or own["device"] is None:
        return "lets its class say which sizes, or which device, it has"
    if inference or view or conj or neg:
        return "is a view or was made in inference mode"
    if own["layout"] not in (None, torch.strided):
        return f"has the layout {own['layout']}"
    return None


def flattened(value: Tensor) -> tuple[list[str], Any]:
    """The names of the parts, and how the tensor was made: the order of its attributes, and what its class answers."""
    held = object.__getattribute__(value, "__dict__")
    own = _own(value)
    order = tuple(name for name in held if name not in OF_TORCH)
    names = [name for name in order if isinstance(held[name], Tensor)]
    return names, (order, own["offset"], own["stride"] is None, own["layout"] is None)


def made_again(kind: type, parts: dict[str, Tensor], attributes: dict[str, Any], context: Any, facts: Any) -> Tensor:
    """The tensor that `flattened` took apart."""
    (order, offset, asks_strides, asks_layout), (shape, stride, dtype, device) = context, facts
    kwargs: dict[str, Any] = {"dtype": dtype, "device": device}
    kwargs |= (
        {"dispatch_sizes_strides_policy": "strides"} if asks_strides else {"strides": stride, "storage_offset": offset}
    )
    if asks_layout:
        kwargs["dispatch_layout"] = True
    made = made_whole(kind, torch.Size(shape), **kwargs)
    held = object.__getattribute__(made, "__dict__")
    for name in order:
        held[name] = parts[name] if name in parts else copied(attributes[name])
    return made
