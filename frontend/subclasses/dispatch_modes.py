"""Dispatch modes of the program's that are entered inside of the graph: their `__torch_dispatch__` is interpreted, operator by operator.

A call of torch runs on fake tensors under a mode of ours, below autograd, as the program's mode would stand there. What comes to it is
handed to the program's method; what that calls is recorded, the call itself is not.

Where gradients are wanted, or wrapper tensors are given, that would not do: eager's derivative is that of the operator, whatever the mode
computes, and a wrapper's class comes behind the mode. So the method then has to pass each operator on as it is. It is interpreted beside, for
what it notes, and the call itself is recorded as one without a mode.
"""

from __future__ import annotations

import types
from typing import Any

import torch

from ..bytecode import exceptions
from ..errors import GraphBreak, Unsupported, UserRaise
from ..guards.definitions import lookup
from ..state import Interpreter
from ..torch_private.dispatch import ASKED, CaptureMode, DispatchMode
from ..torch_private.dynamo import undisabled
from ..torch_private.functions import OpOverload, OpOverloadPacket
from ..torch_private.wrapped import is_wrapped
from ..values.kinds import isinstance, tensors_in
from . import methods

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


class _Passed(_Catch):
    """Interprets the program's mode beside, and sees that it gives what the operator gives."""

    def __init__(self, vm: Interpreter, mode: Any, given: bool, function: Any) -> None:
        super().__init__(vm, mode, given)
        self.detaches = "detach" in getattr(function, "__name__", "")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in ASKED:
            return func(*args)
        kwargs = dict(kwargs or {})
        if func._schema.is_mutable:
            raise GraphBreak(f"a torch dispatch mode sees {func}, which writes to a tensor")
        vm, outer = self.vm, self.vm.out
        recording, vm.recording = vm.recording, False
        vm.out = beside = methods.Operator(vm.out, (args, kwargs))
        try:
            method = undisabled(vm.load_attr(self.mode, "__torch_dispatch__"))
            kinds = tuple(dict.fromkeys(type(t) for t in tensors_in((args, kwargs)) if is_wrapped(t)))
            if func is torch.ops.aten.detach.default and not self.detaches:  # by C++, which names the class
                kinds = kinds or (torch.Tensor,)
            result = vm.materialize(vm.call(method, (func, kinds, tuple(args), kwargs), {}))
            if not beside.is_call_alone(func, tuple(args), kwargs, result):
                raise GraphBreak(
                    f"a torch dispatch mode makes something else of {func}, and gradients are wanted of it"
                )
        except UserRaise as raised:
            vm.carried = exceptions.note(raised.value)
            raise raised.value from None
        finally:
            vm.out, vm.recording = outer, recording
        return func(*args, **kwargs)


_OF_C = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
_OPERATORS = (OpOverload, OpOverloadPacket)
_IN_PYTHON = ("torch.nn.functional", "torch.functional", "torch._tensor")
_OF_HISTORY = frozenset("backward register_hook retain_grad requires_grad_ detach_ apply".split())  # noqa: SIM905


def _is_operator(function: Any) -> bool:
    """Whether a function of torch's only computes: it neither runs backward nor says what is to be done there."""
    if getattr(function, "__name__", "") in _OF_HISTORY:
        return False
    python = type(function) is types.FunctionType and function.__module__ in _IN_PYTHON
    return python or isinstance(function, (*_OF_C, *_OPERATORS))


def run_below(vm: Interpreter, mode: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`function(*args, **kwargs)` where this mode of the program's is the innermost one."""
    if vm.shape_env is not None:  # other operators come to the mode then
        raise GraphBreak("sizes that change between calls meet a torch dispatch mode")
    given = list(tensors_in((args, kwargs)))
    wanted = torch.is_grad_enabled() and any(t.requires_grad for t in given)
    if wanted and (not _is_operator(function) or vm.overrides.modes):
        raise GraphBreak("gradients are wanted of what a torch dispatch mode sees")
    if vm.overrides.marks(given) or vm.foreign.among(given) or vm.overrides.modes and any(map(is_wrapped, given)):
        raise GraphBreak("a tensor of a class of the program's meets a torch dispatch mode")
    if wanted or any(map(is_wrapped, given)):
        with _Passed(vm, mode, bool(given), function):
            vm.native(function, *args, **kwargs)
        return vm.call(function, args, kwargs)
    with _Catch(vm, mode, any(True for _ in tensors_in((args, kwargs)))):
        result = vm.native(function, *args, **kwargs)
    if any(not vm.out.is_known(t) for t in tensors_in((result,))):
        raise Unsupported(f"{getattr(function, '__name__', function)} makes a tensor that no torch dispatch mode sees")
    return result
