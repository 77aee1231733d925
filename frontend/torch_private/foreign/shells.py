"""Wrapper tensors whose class does not say what they are made of, as shells around attributes. Tried with torch 2.13."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from torch import Tensor

from ..dispatch import CaptureMode
from ..functions import MAKE_WRAPPER, NO_FUNCTION
from .operators import as_called

__all__ = [
    "Asked",
    "Shell",
    "like_eager",
    "recorded",
    "shell_of",
]

Asked = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


class Shell(Tensor):
    """What stands for a wrapper tensor in a capture: its sizes and dtype; each operator on it is what `asked` gives."""

    asked: Asked
    stands_for_others = True  # whoever asks what kind of class this is, is told so
    __torch_function__ = NO_FUNCTION

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Outside of a call of the graph's, torch asks for facts alone."""
        one = next(value for value in args if type(value) is cls)
        return one.asked(func, tuple(args), dict(kwargs or {}))


def shell_of(args: tuple[Any, ...], kwargs: dict[str, Any], asked: Asked) -> Tensor:
    """The shell of a wrapper tensor that `_make_wrapper_subclass(its class, *args, **kwargs)` makes."""
    made: Any = MAKE_WRAPPER(Shell, *args, **kwargs)
    made.asked = asked
    return made  # type: ignore[no-any-return]


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
