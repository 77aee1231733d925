"""Integers that the program reads of tensors of the graph (`mask.sum().item()`): symbols without a hint, as sizes that values decide.

The number is read in the middle of the graph, of a copy that nobody writes to.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..state import ASSERTED, Interpreter
from ..torch_private.symbols import unknown_int
from ..torch_private.wrapped import is_wrapped
from ..values.kinds import isinstance

__all__ = ["constant_of", "read_list", "read_number", "read_truth", "with_numbers"]

_WHOLE = frozenset([torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
_MOST = 64  # numbers of one list


def read_number(vm: Interpreter, tensor: Tensor) -> Any:
    """What stands for `tensor.item()`; None where that is no integer of the graph's own."""
    if tensor.dtype not in _WHOLE or not vm.out.is_known(tensor) or is_wrapped(tensor):
        return None
    known = vm.out.read.known(tensor, vm.out.has_written(tensor))
    if known is not None:
        return known
    if not vm.dynamic.may_be_late():
        return None
    if getattr(tensor, "constant", None) is not None or any(type(n) is not int or n != 1 for n in tensor.shape):
        return None
    with torch.no_grad():
        made = vm.out.call_method("reshape", (tensor, ()), {}) if tensor.dim() else tensor
        made = vm.out.call_method("clone", (made,), {})
    return vm.out.read.number(vm.out, tensor, made)


def read_truth(vm: Interpreter, tensor: Tensor) -> Any:
    """`bool(tensor)` as a symbol; None where there can be none."""
    if not vm.out.is_known(tensor) or not vm.dynamic.may_be_late() or any(n != 1 for n in tensor.shape):
        return None
    if is_wrapped(tensor):  # its class says what its numbers are
        return None
    with torch.no_grad():
        made = vm.out.call_method("reshape", (tensor, ()), {}) if tensor.dim() else tensor
        made = vm.out.call_function(torch.ne, (made, 0), {})
    symbol = unknown_int(vm.out.shape_env, 0, 1)
    vm.out.read.late[symbol.node.expr] = vm.out.call_method("to", (made, torch.int64), {}), symbol
    vm.out.read.truths[symbol.node.expr] = made
    return symbol != 0


def constant_of(value: Any) -> Any:
    """The number in a tensor of one element that follows from constants of the program's alone; None for any other value."""
    constant = getattr(value, "constant", None) if isinstance(value, Tensor) else None
    return value.item() if constant is not None and constant.numel() == 1 else None


def read_list(vm: Interpreter, tensor: Tensor, method: str = "tolist") -> Any:
    """`tensor.item()` or `tensor.tolist()` as numbers, or lists of them; None where the graph has to end."""
    if method == "item":
        return vm.dynamic.any_item(tensor)
    if not vm.out.is_known(tensor) or not all(type(n) is int or _is_as_asked(vm, n) for n in tensor.shape):
        return None
    if tensor.numel() > _MOST:
        return None
    if tensor.dtype not in _WHOLE and not tensor.is_floating_point() or not vm.dynamic.may_be_late():
        return None
    if tensor.dim() == 0:
        return vm.dynamic.any_item(tensor)
    parts = vm.out.call_method("unbind", (tensor, 0), {}) if tensor.shape[0] != 0 else ()
    found = [read_list(vm, part) for part in parts]
    return None if any(item is None for item in found) else found


def _is_as_asked(vm: Interpreter, size: Any) -> bool:
    """Take a size, with a check, for the `minlength` that the program gave to `bincount`: how many kinds of things it has counted."""
    least = vm.out.read.least(size)
    if least < 1 or not vm.dynamic.may_be_late():
        return False
    vm.decision(size == least, ASSERTED)
    torch._check(size == least)
    return True


def with_numbers(vm: Interpreter, key: Any) -> Any:
    """The key of a tensor with numbers for tensors of one integer: eager reads these, too, and gives a view."""
    if type(key) is tuple and any(isinstance(entry, Tensor) for entry in key):
        return tuple(with_numbers(vm, entry) for entry in key)
    if not isinstance(key, Tensor) or key.dim() or key.dtype not in _WHOLE or key.dtype == torch.uint8:
        return key
    if type(known := constant_of(key)) is int:
        return known
    number = read_number(vm, key)
    return key if number is None else number
