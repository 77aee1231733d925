"""Marks on functions that say how capture treats a call of them: our own, and those made for torch.compile."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from . import torch_private
from .errors import GraphBreak

if TYPE_CHECKING:
    from .interpreter import Interpreter

__all__ = ["ALLOWED", "CONSTANT", "DISABLED", "call_marked", "check_disabled"]

DISABLED = "_intarsia_disabled"
ALLOWED = "_intarsia_allowed"
CONSTANT = "_intarsia_constant"


def check_disabled(value: Any, name: str) -> None:
    """Break the graph before a call of a function or module that must not be captured."""
    reason = value.__dict__.get(DISABLED)
    if reason is None and isinstance(value, types.FunctionType) and torch_private.is_disabled(value):
        reason = True
    if reason is not None:
        why = f": {reason}" if isinstance(reason, str) else ""
        raise GraphBreak(f"{name} is marked as not to be compiled{why}", "remove the mark, or move the call out of the function")


def call_marked(vm: Interpreter, function: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of a call of a marked function; `NotImplemented` when it has no mark."""
    namespace = function.__dict__
    check_disabled(function, function.__qualname__)
    if ALLOWED in namespace or torch_private.is_allowed(function):
        return vm.out.call_function(function, tuple(map(vm.settle, args)), kwargs)
    if CONSTANT in namespace or namespace.get("_dynamo_marked_constant"):
        return vm.native(function, *map(vm.settle, args), **kwargs)
    return NotImplemented
