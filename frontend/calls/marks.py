"""Marks on functions that say how capture treats a call of them: our own, and those made for torch.compile."""

from __future__ import annotations

import types
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from ..errors import GraphBreak, UserRaise
from ..guards.source import Const
from ..state import Interpreter
from ..torch_private.dynamo import is_allowed, is_disabled
from ..torch_private.fake import is_foreign_tensor, real_tensors
from ..values.kinds import isinstance

__all__ = ["ALLOWED", "CONSTANT", "DISABLED", "call_marked", "check_disabled"]

DISABLED = "_intarsia_disabled"
ALLOWED = "_intarsia_allowed"
CONSTANT = "_intarsia_constant"


def check_disabled(value: Any, name: str) -> None:
    """Break the graph before a call of a function or module that must not be captured."""
    reason = value.__dict__.get(DISABLED)
    if reason is None and isinstance(value, types.FunctionType) and is_disabled(value):
        reason = True
    if reason is not None:
        why = f": {reason}" if isinstance(reason, str) else ""
        raise GraphBreak(
            f"{name} is marked as not to be compiled{why}", "remove the mark, or move the call out of the function"
        )


def call_marked(vm: Interpreter, function: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of a call of a marked function; `NotImplemented` when it has no mark."""
    namespace = function.__dict__
    check_disabled(function, function.__qualname__)
    if ALLOWED in namespace or is_allowed(function):
        return _one_node(vm, function, tuple(map(vm.materialize, args)), kwargs)
    if CONSTANT in namespace or namespace.get("_dynamo_marked_constant"):
        return _constant(vm, function, tuple(map(vm.materialize, args)), kwargs)
    return NotImplemented


def _one_node(vm: Interpreter, function: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call that the graph holds as it is."""
    name = function.__qualname__
    try:
        result = vm.out.call_function(function, args, kwargs)
    except UserRaise as raised:
        if is_foreign_tensor(raised.value):
            raise GraphBreak(
                f"{name}, which is allowed in graphs, uses a tensor that is not among its arguments",
                "pass it as an argument",
            ) from None
        raise
    if not _is_flat(result):
        raise GraphBreak(
            f"{name}, which is allowed in graphs, returns {type(result).__name__}",
            "let it return a tensor, or a tuple or list of tensors",
        )
    return result


def _is_flat(result: Any) -> bool:
    if isinstance(result, tuple | list):
        return type(result) in (tuple, list) and all(map(_is_flat, result))
    return result is None or isinstance(result, Tensor | int | float | bool | str | torch.SymInt | torch.SymFloat)


def _constant(vm: Interpreter, function: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of the one real call, held by every later one."""
    name = function.__qualname__
    if any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves((args, kwargs))):
        raise GraphBreak(
            f"{name}, whose result is assumed constant, is called with a tensor", "call it with plain values"
        )
    with real_tensors():
        result = vm.native(function, *args, **kwargs)
    return vm.user.wrap(result, Const(result, name))
