"""Wrapper tensors whose class does not say what they are made of (no `__tensor_flatten__`): the program sees a shell with attributes.

Nothing in the graph stands for one. torch takes a call on it apart in C++, as eager does, and `__torch_dispatch__` of its class is
interpreted with each operator that comes to it: what that calls on plain tensors is recorded, what it changes is an effect of the capture's.
That happens below autograd in eager. Where something that requires gradients is among the arguments, capture starts again, and takes the
tensors apart into those among their attributes: from then on they are treated as those whose class says it (`subclasses/wrappers.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..bytecode import exceptions
from ..calls.tables import is_answer, is_guarded
from ..errors import CaptureError, GraphBreak, Refused, Unsupported, UserRaise
from ..guards.definitions import lookup
from ..guards.source import Fetch, Source
from ..state import Interpreter
from ..torch_private.dispatch import ASKED, DispatchMode
from ..torch_private.dynamo import undisabled
from ..torch_private.foreign.shells import Shell, like_eager, recorded, shell_of
from ..torch_private.foreign.undeclared import facts_of, has_no_memory, is_shelled, is_taken_apart, made_whole
from ..values.kinds import isinstance, tensors_in

__all__ = ["Shelled", "begun", "call", "load", "taken_in"]

_ADVICE = "give the class __tensor_flatten__ and __tensor_unflatten__, by which a graph takes its tensors apart"
_REFUSED = frozenset("data grad grad_fn _base _version names output_nr retains_grad".split())  # noqa: SIM905


@dataclass
class Shelled:
    """One such tensor: what stands for it, its class, and how it is made."""

    stand_in: Tensor
    of: type
    made: tuple[tuple[Any, ...], dict[str, Any]] = field(repr=False)
    source: Source | None = None
    parts: tuple[Tensor, ...] = ()
    size: tuple[Any, ...] = ()
    requires_grad: bool = False
    rooted: bool = False

    @property
    def kind(self) -> str:
        """What it is, for messages."""
        return f"{self.of.__qualname__} (a wrapper tensor)"

    def given_out(self, residual: Any) -> str:
        """The expression that makes it again behind the graph."""
        if self.stand_in._is_view():
            raise Unsupported(f"a {self.kind} that is a view of another is given out")
        args, kwargs = self.made
        parts = [residual.emit.constant(self.of, self.of.__name__), *map(residual.value, args)]
        parts += [f"{name}={residual.value(value)}" for name, value in kwargs.items()]
        return f"{residual.emit.constant(made_whole, 'made_whole')}({', '.join(parts)})"


def _with_gradients(vm: Interpreter, error: CaptureError, kind: type) -> BaseException:
    """Where gradients are wanted, capture starts again and takes these tensors apart; where that was refused, this is the error."""
    again = vm.foreign.apart.refused is None and is_taken_apart(kind)
    return Refused(error.reason, "shells") if again else error


# ---- in ----


class _Facts:
    """The guard that a wrapper tensor is as one was, but for its attributes."""

    def __init__(self, facts: Any) -> None:
        self.facts = facts
        self.__name__ = "facts"

    def __call__(self, value: Any) -> bool:
        return has_no_memory(value) and bool(facts_of(value) == self.facts)


def taken_in(vm: Interpreter, value: Any, source: Source) -> Tensor:
    """The shell for one of the caller's; its attributes come in where they are read."""
    kind, name = type(value), source.name()
    facts = facts_of(value)
    own, (dtype, requires_grad, _, inference, view, conj, neg, _) = facts
    what = f"{name}, a {kind.__qualname__} (a wrapper tensor whose class has no __tensor_flatten__),"
    if not has_no_memory(value):
        raise Unsupported(
            f"{name} is a tensor subclass ({kind.__qualname__}) that sees operators and has memory of its own"
        )
    if own["size"] is None or own["device"] is None:
        raise Unsupported(f"{what} lets its class say which sizes, or which device, it has", _ADVICE)
    if requires_grad:
        raise _with_gradients(vm, Unsupported(f"{what} requires gradients", _ADVICE), kind)
    if inference or view or conj or neg:
        raise Unsupported(f"{what} is a view or was made in inference mode", _ADVICE)
    vm.guards.add("type", source, kind)
    vm.guards.add("equals", Fetch(_Facts(facts), source), True)
    vm.definitions.note(kind)
    kwargs = {"dtype": dtype, "device": own["device"]}
    if own["stride"] is not None:
        kwargs |= {"strides": own["stride"], "storage_offset": own["offset"]}
    else:
        kwargs["dispatch_sizes_strides_policy"] = "strides"
    if own["layout"] is None:
        kwargs["dispatch_layout"] = True
    elif own["layout"] is not torch.strided:
        raise Unsupported(f"{what} has the layout {own['layout']}")
    made = _added(vm, kind, (torch.Size(own["size"]),), kwargs, source, value)
    vm.user.track(value, made, source)
    vm.overrides.begun[id(made)] = made._version, None, False
    return made


def _added(
    vm: Interpreter, kind: type, args: tuple[Any, ...], kwargs: dict[str, Any], source: Any = None, real: Any = None
) -> Tensor:
    made = vm.native(shell_of, args, kwargs, _Method(vm))
    vm.foreign.add(Shelled(made, kind, (args, kwargs), source))
    vm.foreign.shelled = True
    return vm.overrides.mark(made, kind, real, source)  # type: ignore[no-any-return]


def begun(vm: Interpreter, cls: Any, *args: Any, **kwargs: Any) -> Tensor:
    """`Tensor._make_wrapper_subclass(cls, ...)` in a constructor that the program calls."""
    args, kwargs = tuple(map(vm.materialize, args)), {k: vm.materialize(v) for k, v in kwargs.items()}
    policy, layout = kwargs.get("dispatch_sizes_strides_policy"), kwargs.get("layout")
    if kwargs.get("requires_grad") or len(args) > 9:
        error = GraphBreak(f"a {cls.__qualname__} (a wrapper tensor) is made that requires gradients", _ADVICE)
        raise _with_gradients(vm, error, cls)
    if policy not in (None, "strides") or kwargs.get("dispatch_device") or layout not in (None, torch.strided):
        raise GraphBreak(f"a {cls.__qualname__} is made whose class says which sizes, device or layout it has", _ADVICE)
    if any(isinstance(value, Tensor) for value in (*args, *kwargs.values())):
        raise GraphBreak(f"a {cls.__qualname__} (a wrapper tensor) is made of a tensor")
    if vm.inference or torch.is_inference_mode_enabled():
        raise GraphBreak(f"a {cls.__qualname__} (a wrapper tensor) is made in inference mode")
    vm.definitions.note(cls)
    return _added(vm, cls, args, kwargs)


# ---- what is asked of one ----


def load(vm: Interpreter, known: Shelled, name: str) -> Any:
    """An attribute that is torch's; NotImplemented for methods and facts."""
    if name in _REFUSED:
        raise GraphBreak(f"{name} of a {known.kind} is read")
    return NotImplemented


def call(vm: Interpreter, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call of torch's that is given shells; NotImplemented for others."""
    given = [t for t in tensors_in((args, kwargs)) if type(t) is Shell]
    wanted = torch.is_grad_enabled() and any(t.requires_grad for t in tensors_in((args, kwargs)))
    if not given:
        if wanted and vm.foreign.inside:
            what = "__torch_dispatch__ of a wrapper tensor's class calls torch with what requires gradients"
            raise _with_gradients(vm, GraphBreak(what), vm.foreign.inside[-1])
        return NotImplemented
    known = vm.foreign.of(given[0])
    name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
    what = f"{name} of a {known.kind}"
    if wanted:
        raise _with_gradients(vm, GraphBreak(f"{what} is called with what requires gradients", _ADVICE), known.of)
    if any(map(torch.is_autocast_enabled, ("cpu", "cuda"))) or vm.inference or torch.is_inference_mode_enabled():
        raise GraphBreak(f"{what} is called under autocast or in inference mode")
    if vm.out.inside or any(isinstance(mode, DispatchMode) for mode in vm.overrides.modes):
        raise GraphBreak(f"{what} is called inside a transform or a dispatch mode")
    others = [t for t in tensors_in((args, kwargs)) if type(t) is not Shell and id(t) in vm.foreign.known]
    if others or len({vm.foreign.of(t).of for t in given}) > 1 or vm.overrides.parts:
        raise GraphBreak(f"{what} is called, which meets tensors of other classes")
    function = getattr(args[0], target) if op == "call_method" else target
    run_args = args[1:] if op == "call_method" else args
    with like_eager(_Method(vm)):
        result = _run(vm, function, run_args, kwargs, what, known.of)
    for tensor in tensors_in((result,)):
        base = tensor._base
        if type(tensor) is not Shell and (not vm.out.is_known(tensor) or type(base) is Shell):
            raise GraphBreak(f"{what} gives a tensor that __torch_dispatch__ has not made")
    if is_answer(result) and not is_guarded(op, target):
        raise GraphBreak(f"{what} asks a tensor for what guards do not cover")
    return result


def _run(vm: Interpreter, function: Any, args: Any, kwargs: Any, what: str, kind: type) -> Any:
    try:
        return vm.native(function, *args, **kwargs)
    except UserRaise as raised:
        # A view of what has a history: in eager it has none there.
        if vm.carried is None and "differentiable view" in str(raised.value):
            reason = f"{what} gives a view of what requires gradients, or has done so"
            raise _with_gradients(vm, GraphBreak(reason, _ADVICE), kind) from None
        raise


class _Method:
    """`__torch_dispatch__` of the class of the shells among an operator's arguments, interpreted; other operators are recorded as they are."""

    def __init__(self, vm: Interpreter) -> None:
        self.vm = vm

    def __call__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        vm = self.vm
        kinds = tuple(dict.fromkeys(vm.type_of(t) for t in tensors_in((args, kwargs)) if type(t) is Shell))
        if not kinds and func in ASKED:
            return func(*args, **kwargs)
        recording, vm.recording = vm.recording, False
        vm.foreign.inside.append(kinds[0] if kinds else Tensor)
        try:
            with recorded(vm.shape_env is not None), vm.overrides.left():
                if not kinds:
                    return vm.call(func, args, kwargs)
            if len(kinds) > 1:
                raise GraphBreak(f"{func} is called on tensors of several classes")
            with recorded(vm.shape_env is not None):
                result = vm.call(
                    undisabled(vm.load_attr(kinds[0], "__torch_dispatch__")), (func, kinds, args, kwargs), {}
                )
            if result is NotImplemented:
                raise GraphBreak(f"__torch_dispatch__ of {kinds[0].__qualname__} does not take {func}")
            return vm.materialize(result)
        except UserRaise as raised:
            vm.carried = exceptions.note(raised.value)
            raise raised.value from None
        finally:
            vm.foreign.inside.pop()
            vm.recording = recording


def takes(kind: type) -> bool:
    """Whether tensors of a class, if they have no memory, come into a graph as shells."""
    raw, owner = lookup(kind, "__torch_dispatch__")
    if not is_shelled(kind) or not isinstance(raw, classmethod | staticmethod) or owner is None:
        return False
    slots = any(vars(base).get("__slots__") for base in kind.__mro__ if base not in Tensor.__mro__)
    return not slots and not issubclass(kind, torch.nn.Parameter)
