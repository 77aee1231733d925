"""Wrapper tensors whose class does not say what they are made of, as shells around attributes. Tried with torch 2.13."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from torch import Tensor

from ..dispatch import CaptureMode
from ..fake import real_tensors
from ..functions import MAKE_WRAPPER, NO_DISPATCH, NO_FUNCTION
from ..wrapped import is_wrapper
from .operators import as_called

__all__ = [
    "Asked",
    "Shell",
    "facts_of",
    "has_no_memory",
    "is_shelled",
    "like_eager",
    "made_whole",
    "recorded",
    "shell_of",
]

Asked = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


class Shell(Tensor):
    """What stands for a wrapper tensor in a capture: its sizes and dtype; each operator on it is what `asked` gives."""

    asked: Asked
    __torch_function__ = NO_FUNCTION

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Outside of a call of the graph's, torch asks for facts alone."""
        one = next(value for value in args if type(value) is cls)
        return one.asked(func, tuple(args), dict(kwargs or {}))


def is_shelled(kind: type) -> bool:
    """Whether tensors of a class see operators and the class does not say what they are made of, or a class of torch's is like that."""
    module = kind.__module__
    mine = module.partition(".")[0] != "torch" or module == "torch.masked.maskedtensor.core"
    found: Any = kind.__torch_dispatch__  # type: ignore[attr-defined]
    return mine and found is not NO_DISPATCH and kind is not Shell and not is_wrapper(kind)


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


def facts_of(value: Tensor) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """What a wrapper tensor is beside its attributes; None of what its class answers, whose code is not asked."""
    found: dict[str, Any] = {}
    with real_tensors(), torch._C.DisableTorchFunctionSubclass(), _Questions():
        for name, ask in _OF_ITSELF.items():
            try:
                found[name] = ask(value)
            except _Refused:
                found[name] = None
        return found, tuple(ask(value) for ask in _PLAIN)


def shell_of(args: tuple[Any, ...], kwargs: dict[str, Any], asked: Asked) -> Tensor:
    """The shell of a wrapper tensor that `_make_wrapper_subclass(its class, *args, **kwargs)` makes."""
    made: Any = MAKE_WRAPPER(Shell, *args, **kwargs)
    made.asked = asked
    return made  # type: ignore[no-any-return]


def made_whole(kind: type, /, *args: Any, **kwargs: Any) -> Tensor:
    """The wrapper tensor behind a graph, without attributes."""
    with torch._C.DisableTorchFunctionSubclass():
        made: Tensor = MAKE_WRAPPER(kind, *args, **kwargs)
    return made


class _Seen(CaptureMode):
    """Hands each operator of a call to `asked`."""

    def __init__(self, asked: Asked) -> None:
        super().__init__()
        self.asked = asked

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.asked(func, tuple(args), dict(kwargs or {}))


def like_eager(asked: Asked) -> AbstractContextManager[Any]:
    """Inside, torch takes a call on shells apart in C++, as it does in eager."""
    stack = ExitStack()
    stack.enter_context(torch._C._DisablePythonDispatcher())
    stack.enter_context(_Seen(asked))
    return stack


def recorded(symbolic: bool) -> AbstractContextManager[Any]:
    """Inside of an operator, calls are recorded as those of a program are."""
    stack = ExitStack()
    if symbolic:
        stack.enter_context(torch._C._EnablePythonDispatcher())
    stack.enter_context(as_called())
    return stack
