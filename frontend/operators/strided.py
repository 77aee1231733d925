"""`as_strided` and its kin count from the beginning of a storage: where an argument lies in its storage, and how large that is, is relied on.

Nothing else in a program depends on either, and no other guard asks for them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..calls.registry import Rows
from ..calls.torch_calls import torch_call
from ..errors import GraphBreak
from ..graph.aside import storage_of
from ..guards.source import Fetch
from ..state import Interpreter
from ..torch_private.fake import is_fake
from ..torch_private.symbols import hint_of
from ..values.kinds import SYMBOLIC, isinstance

__all__ = ["METHODS", "ROWS"]

ROWS = Rows()

_NAMES = {  # the names of what follows the tensor
    "as_strided": ("size", "stride", "storage_offset"),
    "as_strided_": ("size", "stride", "storage_offset"),
    "as_strided_copy": ("size", "stride", "storage_offset"),
    "as_strided_scatter": ("src", "size", "stride", "storage_offset"),
}


def bytes_of(tensor: Tensor) -> int:
    """How large a tensor's storage is."""
    return tensor.untyped_storage().nbytes()


def _relied(
    vm: Interpreter, name: str, tensor: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Guard where the tensor lies, if the memory is the caller's, and check that the storage holds what the call shows.

    Returns arguments to add: an offset that is a symbol has to be among what the graph is given.
    """
    if not is_fake(tensor) or tensor.layout is not torch.strided:
        return {}
    holds: Any = None
    for info in list(vm.out.inputs.values()):
        if not isinstance(info.fake, Tensor) or storage_of(info.fake) != storage_of(tensor):
            continue
        if type(offset := vm.dynamic.offset(info)) is int:
            vm.guards.add("equals", Fetch(Tensor.storage_offset, info.source), offset)
        source, holds = Fetch(bytes_of, info.source), bytes_of(info.real)
        symbol = vm.dynamic.number(holds, source, always=any(isinstance(n, torch.SymInt) for n in tensor.shape))
        if symbol is None:
            vm.guards.add("equals", source, holds)
        holds = holds if symbol is None else symbol
    given = dict(zip(_NAMES[name], args, strict=False)) | kwargs
    _check_end(tensor, bytes_of(tensor) if holds is None else holds, given)
    offset = tensor.storage_offset()
    absent = given.get("storage_offset") is None and len(args) < len(_NAMES[name])
    return {"storage_offset": offset} if absent and isinstance(offset, torch.SymInt) else {}


def _check_end(tensor: Tensor, holds: Any, given: dict[str, Any]) -> None:
    """Break in front of a call that shows more than its storage holds: fake tensors have no memory that would end, eager refuses it."""
    size, stride, offset = (given.get(n) for n in ("size", "stride", "storage_offset"))
    if not isinstance(size, list | tuple) or not isinstance(stride, list | tuple) or len(size) != len(stride):
        return  # fake tensors refuse it
    if any(isinstance(n, SYMBOLIC) and hint_of(n) is None for n in (*size, *stride, offset, holds)):
        return  # only the running program knows
    if any(n == 0 for n in size):
        return
    offset = tensor.storage_offset() if offset is None else offset
    last = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    if (last + 1) * tensor.element_size() > holds:
        raise GraphBreak("as_strided shows more than its storage holds", "correct it there: eager refuses the call")


def _method(name: str) -> Any:
    def apply(vm: Interpreter, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        more = _relied(vm, name, tensor, args, kwargs)
        return vm.out.call_method(name, (tensor, *args), kwargs | more)

    return apply


def _function(name: str, function: Any) -> Any:
    def apply(vm: Interpreter, *args: Any, **kwargs: Any) -> Any:
        rest = dict(kwargs)
        tensor = args[0] if args else rest.pop("input", rest.pop("self", None))
        more = _relied(vm, name, tensor, args[1:], rest) if isinstance(tensor, Tensor) else {}
        return torch_call(vm, function, args, kwargs | more)

    return apply


METHODS = {name: _method(name) for name in _NAMES if hasattr(Tensor, name)}
for _name in _NAMES:
    _packet = getattr(torch.ops.aten, _name)
    for _each in (getattr(torch, _name, None), _packet, _packet.default):
        if _each is not None:
            ROWS.rule(_each)(_function(_name, _each))
