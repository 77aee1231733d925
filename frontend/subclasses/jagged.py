"""Calls on jagged nested tensors that need the lengths of rows, written out on what they are made of."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..state import Interpreter
from ..torch_private.wrapped import is_jagged

__all__ = ["unbind"]


def unbind(vm: Interpreter, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
    """The rows: pieces of the values, as long as numbers say that are read of the offsets. Rows with gaps between them are torch's."""
    rows = is_jagged(type(tensor)) and tensor._lengths is None  # type: ignore[attr-defined]
    if not rows or (args, kwargs) not in (((), {}), ((0,), {}), ((), {"dim": 0})):
        return vm.out.call_method("unbind", (tensor, *args), kwargs)
    values, offsets = (vm.out.call_method(name, (tensor,), {}) for name in ("values", "offsets"))
    lengths = vm.call_tensor_method(vm.out.call_method("diff", (offsets,), {}), "tolist", (), {})
    return vm.out.call_function(torch.split, (values, vm.materialize(lengths), tensor._ragged_idx - 1), {})  # type: ignore[attr-defined]
