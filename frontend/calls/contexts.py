"""Context managers: torch's own change real thread state while capturing and leave a node; the rest is interpreted."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..errors import GraphBreak, Unsupported, UserRaise
from ..graph.sym_nodes import concrete
from ..guards import process_state
from ..modes.autocast import Casts
from ..modes.locks import LOCKS, is_callers, is_taken
from ..runtime import profiling
from ..state import Interpreter
from ..subclasses.dispatch_modes import is_plain_dispatch_mode
from ..torch_private.autograd_graph import hook_keeper, pop_hooks
from ..torch_private.dynamo import break_switch
from ..torch_private.functions import (
    ENTER_AUTOCAST,
    EXIT_AUTOCAST,
    SET_GRAD_MODE,
    WITHOUT_OVERRIDES,
    WITHOUT_SUBCLASSES,
)
from ..values import object as objects
from ..values.kinds import c_name, isinstance
from .registry import Rows, row_of

__all__ = [
    "GradMode",
    "RealContext",
    "Scope",
    "changes_modes",
    "enter",
    "grad_mode",
    "is_torch_context",
    "make",
    "mode_keeper",
    "set_grad",
]

ROWS = Rows()

_GRAD = (torch.no_grad, torch.enable_grad, torch.set_grad_enabled)
_SILENT = (torch.profiler.record_function, torch.autograd.profiler.record_function)
_OVERRIDES = {WITHOUT_SUBCLASSES: 1, WITHOUT_OVERRIDES: 2}  # what each switches off
_CLASSES = (*_GRAD, *_SILENT, torch.autocast, *_OVERRIDES)


def is_torch_context(cls: type) -> bool:
    """Whether instances of `cls` are handled here."""
    return issubclass(cls, _CLASSES)


def make(vm: Interpreter, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Construct one of torch's contexts; `set_grad_enabled` changes the mode at once."""
    if cls not in _OVERRIDES:
        _check_unseen(vm, cls)
    before = torch.is_grad_enabled()
    args, kwargs = concrete(args), concrete(kwargs)  # a mode is one or the other: which way a size decides is guarded
    made = vm.create(vm.native(cls, *args, **kwargs))
    if isinstance(made, torch.autocast):
        process_state.ask(vm, torch.get_autocast_dtype, (made.device,), {})
    after = torch.is_grad_enabled()
    vm.out.modes += issubclass(cls, torch.set_grad_enabled)
    if after is not before:
        SET_GRAD_MODE(before)
        _check_recorded(vm, after)
        set_grad(vm, after)
    return made


class Scope:
    """An entered context; calling it is `__exit__`. `rebuild` is (function, arguments) that make its manager again."""

    def __init__(
        self, vm: Interpreter, leave: Callable[[], None], rebuild: tuple[Any, tuple[Any, ...]] | None = None
    ) -> None:
        self.vm, self._leave, self.rebuild = vm, leave, rebuild
        vm.scopes.append(self)

    def __call__(self, *_: Any) -> None:
        if self in self.vm.scopes:
            self.vm.scopes.remove(self)
            self._leave()


class RealContext:
    """A real context manager that is entered while capturing and leaves no node (a preference, not an effect)."""

    def __init__(self, manager: Any) -> None:
        self.manager = manager


def enter(vm: Interpreter, manager: Any) -> tuple[Any, Any]:
    """Enter `manager`: what to call on exit, and the value of `__enter__`."""
    if isinstance(manager, _SILENT):
        where = profiling.flag()
        if not vm.splits:
            vm.ranges.append((manager.name, manager.args))
        elif where is not None:
            vm.guards.add("is", where, profiling.is_active())
            if profiling.is_active():
                raise GraphBreak("a range of the profiler begins, and a profiler is active")
        return Scope(vm, lambda: None, (type(manager), (manager.name, manager.args))), manager
    if type(manager) in _OVERRIDES:
        return _enter_without(vm, type(manager)), manager
    if type(manager) is break_switch():
        return _enter_break_switch(vm, manager), None
    if isinstance(manager, TorchFunctionMode) and _is_plain_mode(type(manager)):
        return _enter_mode(vm, manager), manager
    if is_plain_dispatch_mode(manager):
        return _enter_mode(vm, manager), manager
    if isinstance(manager, (*_GRAD, torch.autocast)):
        _check_unseen(vm, type(manager))
    if isinstance(manager, _GRAD):
        return _enter_grad(vm, manager), None
    if isinstance(manager, torch.autocast):
        return _enter_autocast(vm, manager), manager
    if isinstance(manager, torch.inference_mode):
        return _enter_inference(vm, manager), None
    if isinstance(manager, torch.device):
        return _enter_device(vm, manager), manager
    if type(manager) is RealContext:
        value = vm.native(manager.manager.__enter__)
        return Scope(vm, lambda: manager.manager.__exit__(None, None, None)), value
    if isinstance(manager, LOCKS):
        if is_callers(vm, manager):
            raise GraphBreak("a lock is taken")
        if is_taken(manager):
            raise GraphBreak("a lock is waited for that is held")
        manager.acquire()  # it was made in this call, and nobody else has it
        return Scope(vm, manager.release, (_itself, (manager,))), True
    kind = type(manager)
    leave, start = objects.lookup(kind, "__exit__")[0], objects.lookup(kind, "__enter__")[0]
    if objects.find_method(kind, "__exit__") is None or objects.find_method(kind, "__enter__") is None:
        if not hasattr(kind, "__enter__"):
            raise UserRaise(TypeError(f"'{c_name(kind)}' object does not support the context manager protocol"))
        if leave is objects.MISSING:
            text = f"'{c_name(kind)}' object does not support the context manager protocol (missed __exit__ method)"
            raise UserRaise(TypeError(text))
        if vm.is_created(manager) and row_of(start) is not None and row_of(leave) is not None:
            return manager.__exit__, vm.call(manager.__enter__, (), {})  # of a file in memory
        raise Unsupported(f"the context manager {kind.__module__}.{kind.__name__} is used")
    value = vm.call(types.MethodType(start, manager), (), {})
    return types.MethodType(leave, manager), value


_RANGE = torch.profiler.record_function
ROWS.describe(
    _RANGE.__enter__, _RANGE.__exit__, refused="a range of the profiler that began before this graph ends here"
)


def _switch_ends(vm: Interpreter, *_: Any) -> Any:
    vm.strict = False  # this break is no error
    raise GraphBreak("error_on_graph_break ends, which began before this graph")


@ROWS.late
def _of_switch(rows: Rows) -> None:
    if (switch := break_switch()) is not None:
        rows.rule(switch.__exit__)(_switch_ends)


def _check_unseen(vm: Interpreter, cls: type) -> None:
    """A function mode of the program's sees that the grad mode is set, and when autocast begins."""
    if vm.overrides.off < 2 and any(isinstance(mode, TorchFunctionMode) for mode in vm.overrides.modes):
        raise GraphBreak(f"{cls.__name__} is entered inside a torch function mode")


def _is_plain_mode(cls: type) -> bool:
    """Whether a function mode is entered and left as torch does it."""
    base = TorchFunctionMode
    return all(objects.lookup(cls, n)[0] is vars(base)[n] for n in ("__enter__", "__exit__"))


ROWS.describe(
    TorchFunctionMode.__enter__,
    TorchFunctionMode.__exit__,
    refused="a torch function mode is entered or left by a call, or by a class that does more than that",
)


def _enter_mode(vm: Interpreter, mode: Any) -> Scope:
    kinds = {isinstance(other, TorchFunctionMode) for other in (*vm.overrides.modes, mode)}
    if len(kinds) > 1 or kinds == {False} and (vm.overrides.off or vm.overrides.known):
        raise GraphBreak("a torch dispatch mode meets a torch function mode, or tensors of a class of the program's")
    vm.overrides.push(mode)
    return Scope(vm, vm.overrides.pop, (_itself, (mode,)))


def _enter_without(vm: Interpreter, cls: Any) -> Scope:
    before = vm.overrides.switch(max(vm.overrides.off, _OVERRIDES[cls]))
    return Scope(vm, functools.partial(vm.overrides.switch, before), (cls, ()))


def _enter_break_switch(vm: Interpreter, manager: Any) -> Scope:
    """`torch._dynamo.error_on_graph_break`."""
    before, vm.strict = vm.strict, bool(vm.load_attr(manager, "error_on_graph_break"))
    again = break_switch(), (vm.strict,)
    return Scope(vm, lambda: setattr(vm, "strict", before), again)


def _enter_grad(vm: Interpreter, manager: Any) -> Scope:
    before = manager.prev if isinstance(manager, torch.set_grad_enabled) else torch.is_grad_enabled()
    mode = {torch.no_grad: False, torch.enable_grad: True}.get(type(manager))
    wanted = manager.mode if mode is None else mode
    _check_recorded(vm, wanted)
    vm.out.modes += 1
    set_grad(vm, wanted)
    again = (type(manager), ()) if mode is not None else (GradMode, (wanted,))
    return Scope(vm, lambda: set_grad(vm, before), again)


def _check_recorded(vm: Interpreter, wanted: bool) -> None:
    """In inference mode autograd records nothing, whatever the grad mode is; capture, which runs outside of it, would."""
    if wanted and (vm.inference or vm.inferred.on):
        raise GraphBreak("gradients are switched on in inference mode")


def _enter_inference(vm: Interpreter, manager: torch.inference_mode) -> Scope:
    """Leaving an inner block brings back what was there before it; entering one turns gradients off, or on."""
    if vm.inference and not manager.mode:
        raise GraphBreak("inference mode, in which the call began, is turned off inside the captured code")
    on, grad = vm.inferred.on, torch.is_grad_enabled()
    vm.out.modes += 1
    vm.out.asked = True
    vm.inferred.switch(manager.mode and not vm.inference)
    set_grad(vm, not manager.mode)

    def leave() -> None:
        vm.inferred.switch(on)
        set_grad(vm, grad)

    return Scope(vm, leave, (torch.inference_mode, (manager.mode,)))


class GradMode:
    """`torch.set_grad_enabled` that changes the mode when it is entered, not when it is made."""

    def __init__(self, mode: bool) -> None:
        self.mode = mode
        self.before = mode

    def __enter__(self) -> None:
        self.before = torch.is_grad_enabled()
        SET_GRAD_MODE(self.mode)

    def __exit__(self, *_: object) -> None:
        SET_GRAD_MODE(self.before)


def _enter_device(vm: Interpreter, device: torch.device) -> Scope:
    before, vm.device = vm.device, device

    def leave() -> None:
        vm.device = before

    return Scope(vm, leave, (_itself, (device,)))


def _itself(manager: Any) -> Any:
    return manager


def set_grad(vm: Interpreter, mode: bool) -> None:
    """Change the grad mode of capture, with a node that changes the graph's."""
    if torch.is_grad_enabled() != mode:
        SET_GRAD_MODE(mode)
        vm.out.mark(SET_GRAD_MODE, (mode,))


@contextmanager
def grad_mode(vm: Interpreter, mode: bool) -> Iterator[None]:
    """A piece in this grad mode; behind it is the mode from before, however the piece ends: the program may catch what it raises."""
    before = torch.is_grad_enabled()
    set_grad(vm, mode)
    try:
        yield
    finally:
        set_grad(vm, before)


def changes_modes(graph: torch.fx.Graph) -> bool:
    """Whether a graph enters autocast, sets the grad mode or hooks on saved tensors on its way."""
    return any(node.target in _MARKS for node in graph.nodes if node.op == "call_function")


_MARKS = frozenset({SET_GRAD_MODE, ENTER_AUTOCAST, pop_hooks})


def mode_keeper() -> Callable[[], None]:
    """What brings grad mode, autocast and hooks of the thread back to what they are now, wherever a graph was left by an exception."""
    grad, cache = torch.is_grad_enabled(), torch.is_autocast_cache_enabled()
    states = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")]
    nesting = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    without_hooks = hook_keeper()

    def restore() -> None:
        without_hooks()
        SET_GRAD_MODE(grad)
        torch.set_autocast_cache_enabled(cache)
        for device, enabled, dtype in states:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        while torch.autocast_increment_nesting() > nesting + 1:
            torch.autocast_decrement_nesting(), torch.autocast_decrement_nesting()
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()

    return restore


def _enter_autocast(vm: Interpreter, manager: Any) -> Scope:
    args = (manager.device, manager.fast_dtype, manager._enabled, manager._cache_enabled)
    real = torch.autocast(*args)
    real.__enter__()
    node, vm.out.casts = vm.out.mark(ENTER_AUTOCAST, args), vm.out.casts or Casts(vm)

    def leave() -> None:
        real.__exit__(None, None, None)
        vm.out.casts.leave()
        vm.out.mark(EXIT_AUTOCAST, (node,))

    return Scope(vm, leave, (torch.autocast, args))
