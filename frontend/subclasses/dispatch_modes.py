"""Dispatch modes of the program's that are entered inside of the graph: their `__torch_dispatch__` is interpreted, operator by operator.

A call of torch runs on fake tensors under a mode of ours, below autograd, as the program's mode would stand there. What comes to it is
handed to the program's method; what that calls is recorded, the call itself is not.
"""

from __future__ import annotations

from typing import Any

import torch

from ..bytecode import exceptions
from ..errors import GraphBreak, Unsupported, UserRaise
from ..guards.definitions import lookup
from ..state import Interpreter
from ..torch_private.dispatch import ASKED, CaptureMode, DispatchMode
from ..torch_private.dynamo import undisabled
from ..values.kinds import isinstance, tensors_in

__all__ = ["is_plain_dispatch_mode", "run_below"]


def is_plain_dispatch_mode(mode: Any) -> bool:
    """Whether a dispatch mode of the program's is entered and left as torch does it, and sees what every mode sees."""
    kind, base = type(mode), DispatchMode
    if not isinstance(mode, DispatchMode) or kind.__module__.partition(".")[0] == "torch":
        return False
    names = ("__enter__", "__exit__", "is_infra_mode", "ignore_compile_internals", "__init_subclass__")
    return (
        all(lookup(kind, name)[0] is vars(base).get(name) for name in names)
        and mode.__dict__.get("_dispatch_key") is None
    )


class _Catch(CaptureMode):
    """Hands each operator below autograd to the program's mode."""

    def __init__(self, vm: Interpreter, mode: Any, given: bool) -> None:
        super().__init__()
        self.vm, self.mode, self.given = vm, mode, given  # whether the call is given tensors

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in ASKED:
            return func(*args)
        if func is torch.ops.aten.detach.default and not self.given:
            return args[0]  # what C++ does with a fake tensor that a factory gives, and with no real one
        if func._schema.is_mutable:  # below autograd no version tells of a write
            raise GraphBreak(f"a torch dispatch mode sees {func}, which writes to a tensor")
        vm = self.vm
        recording, vm.recording = vm.recording, False
        try:
            result = vm.call(
                undisabled(vm.load_attr(self.mode, "__torch_dispatch__")),
                (func, (), tuple(args), dict(kwargs or {})),
                {},
            )
            return vm.materialize(result)
        except UserRaise as raised:
            vm.carried = exceptions.note(raised.value)
            raise raised.value from None
        finally:
            vm.recording = recording


def run_below(vm: Interpreter, mode: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`function(*args, **kwargs)` where this mode of the program's is the innermost one."""
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors_in((args, kwargs))):
        raise GraphBreak("gradients are wanted of what a torch dispatch mode sees")
    if any(id(t) in vm.overrides.known for t in tensors_in((args, kwargs))):
        raise GraphBreak("a tensor of a class of the program's meets a torch dispatch mode")
    if vm.shape_env is not None:  # other operators come to the mode then
        raise GraphBreak("sizes that change between calls meet a torch dispatch mode")
    with _Catch(vm, mode, any(True for _ in tensors_in((args, kwargs)))):
        result = vm.native(function, *args, **kwargs)
    if any(not vm.out.is_known(t) for t in tensors_in((result,))):
        raise Unsupported(f"{getattr(function, '__name__', function)} makes a tensor that no torch dispatch mode sees")
    return result
