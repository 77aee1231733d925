"""NumPy arrays of the caller's as tensors over their memory: inputs of the graph, which the entry makes of the array in each call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..calls.registry import Rows
from ..errors import GraphBreak
from ..guards.source import Fetch
from ..state import Interpreter
from ..torch_private.fake import real_tensors

__all__ = ["ROWS", "as_tensor_of", "is_array"]

ROWS = Rows()

_REASON = "a NumPy array becomes a tensor"


def is_array(value: Any) -> bool:
    """Whether a value is an array of NumPy's own class, without importing NumPy."""
    kind = type(value)
    return kind.__module__ == "numpy" and kind.__qualname__ == "ndarray"


def over_memory(array: Any) -> Tensor | None:
    """The tensor over an array's memory; None of one that torch refuses (a type of NumPy's alone, steps backwards) or warns of."""
    if not is_array(array) or not array.flags.writeable:
        return None
    try:
        with real_tensors():
            return torch.from_numpy(array)
    except (TypeError, ValueError):
        return None


def _input(vm: Interpreter, array: Any) -> Tensor:
    source = vm.user.source_of(array) if is_array(array) else None
    tensor = None if source is None else over_memory(array)
    if source is None or tensor is None or vm.out.inside or vm.overrides.modes:
        raise GraphBreak(_REASON)
    made = Fetch(over_memory, source)
    for info in vm.out.inputs.values():
        if info.source == made:  # another tensor over the same memory
            return vm.out.call_method("detach", (info.fake,), {})  # type: ignore[no-any-return]
    return vm.user.wrap(tensor, made)  # type: ignore[no-any-return]


def as_tensor_of(
    vm: Interpreter, function: Any, array: Any, dtype: Any = None, device: Any = None, requires_grad: Any = False
) -> Tensor:
    """`torch.as_tensor`, `asarray` or `tensor` of an array: over its memory where dtype and device are its own, or a copy."""
    made = _input(vm, array)
    device = vm.device or vm.defaults.placed() if device is None else device
    placed = {k: v for k, v in (("dtype", dtype), ("device", device)) if v is not None}
    if requires_grad is not False:
        raise GraphBreak(_REASON)
    if function is torch.tensor:
        made = vm.call_tensor_method(made, "clone", (), {})
    return vm.call_tensor_method(made, "to", (), placed) if placed else made


@ROWS.rule(torch.from_numpy)
def _from_numpy(vm: Interpreter, array: Any) -> Tensor:
    return _input(vm, array)
