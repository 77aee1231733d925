"""Hooks where backward is part of the graph: the program's functions are interpreted when autograd comes to them on fake tensors.

What a hook computes becomes a graph, which the node of the backward call puts on the same tensor (`nodes.Hooked`); what it changes is
replayed like any effect. Hooks that are called when a gradient has been added to `.grad` are interpreted behind that node, in the order
in which autograd comes to their leaves.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from ..breaks.breaks import Nowhere
from ..calls.registry import Rows, Then
from ..errors import CaptureError, GraphBreak, UserRaise
from ..guards.source import Const, Fetch, Source
from ..state import Interpreter
from ..torch_private.autograd_graph import APPLY_ON_TENSORS, HOOKS_OF_LEAVES, has_leaf_hooks, is_held
from ..torch_private.functions import WITHOUT_SUBCLASSES
from ..values.kinds import isinstance
from . import nodes
from .inside import HOOK, WrapperLeaf, no_hooks_of_wrappers
from .state import VisibleState

__all__ = ["ROWS", "Called", "Hook", "of_leaf", "register_hook", "retain_grad"]

ROWS = Rows()
ROWS.describe(torch.autograd.graph.register_multi_grad_hook, refused="a hook is registered on several tensors")


@dataclass
class Hook:
    """A function of the program's on a tensor, or on the node of autograd's that made it."""

    tensor: Tensor
    function: Any
    on_node: bool = False
    place: Any = None  # the node when the hook was registered
    handle: Any = None


class Called:
    """A call of a function of `nodes` in which hooks are interpreted."""

    def __init__(self, vm: Interpreter, what: str, hooks: Sequence[Hook]) -> None:
        self.vm, self.what = vm, what
        self.hooks: list[Hook] = sorted([*hooks, *vm.gradients.hooks], key=lambda hook: hook.function is KEEP)
        if any(hook.place is not None and hook.place is not hook.tensor.grad_fn for hook in self.hooks):
            raise GraphBreak(f"{what}, and a tensor with a hook has been written to")
        self.graphs: list[nodes.HookGraph] = []
        self.tensors: list[Tensor] = []
        self.read: list[list[Any]] = []
        self.made: list[list[Tensor]] = []
        self.arrived: list[Tensor] = []  # the watched leaves in autograd's order
        self.changes = False  # whether a hook has changed something that the program sees

    def run(self, function: Callable[..., Any], args: Sequence[Any], watched: Sequence[Tensor]) -> Any:
        """The function on fake tensors."""
        listeners: list[tuple[bool, Tensor, Callable[..., Any]]]
        listeners = [(hook.on_node, hook.tensor, partial(self._interpret, hook)) for hook in self.hooks]
        listeners += [(False, leaf, partial(self._arrive, leaf)) for leaf in watched]
        if not listeners:
            return self.vm.native(function, *args)
        return self.vm.native(nodes.hooked, function, args, listeners, self.made)

    def _arrive(self, leaf: Tensor, _: Tensor) -> None:
        self.arrived.append(leaf)

    def _interpret(self, hook: Hook, *gradients: Any) -> Any:
        vm, given = self.vm, nodes.flat(gradients)
        earlier = [t for part in self.made for t in part]
        state = VisibleState(vm)
        with vm.out.beside([*given, *earlier]) as aside:
            result = None
            if hook.function is KEEP:
                _keep(vm, hook.tensor, gradients[0])
            else:
                result = vm.materialize(vm.call(hook.function, gradients, {}))
            if aside.writes(given=False):
                raise GraphBreak(f"{self.what}, and a hook writes to a tensor that it has not made")
            replaced = list(result) if isinstance(result, tuple) else [] if result is None else [result]
            if not all(r is None or isinstance(r, Tensor) for r in replaced):
                return result  # an error
            known = set(map(id, earlier))
            made = [t for t in aside.tensors() if id(t) not in known]
            module, read = aside.finish([*replaced, *made])
        self.graphs.append(nodes.HookGraph(hook.on_node, module, None if result is None else len(replaced)))
        self.tensors.append(hook.tensor)
        self.read.append(read)
        self.made.append(made)
        self.changes = self.changes or state.is_changed()
        return result

    def record(self, function: Callable[..., Any], lifted: Any, result: Any) -> Any:
        """The node of the call."""
        out = self.vm.out
        if not self.graphs:
            return out.record(function, (lifted, {}), result, False)
        args = (*lifted, out.lift(self.tensors), out.lift(self.read))
        made = tuple(map(tuple, self.made))
        found, _ = out.record(nodes.Hooked(function, self.graphs), (args, {}), (result, made), False)
        return found


def _has_hooks(tensor: Tensor) -> bool:
    with WITHOUT_SUBCLASSES():
        return bool(tensor._backward_hooks)


def _check_unhooked(vm: Interpreter, what: str, real: Tensor, source: Source) -> None:
    """Break where a wrapper tensor of the caller's has hooks on its gradient."""
    vm.guards.add("equals", Fetch(_has_hooks, source), _has_hooks(real))
    if _has_hooks(real):
        raise GraphBreak(f"{what}, and a {type(real).__qualname__} of the caller's has hooks")


def of_leaf(vm: Interpreter, leaf: Tensor, what: str, accumulates: bool = True) -> tuple[list[Hook], list[Any]]:
    """The hooks that a leaf has had before the call: on its gradient, and for when that has been added to `.grad`."""
    info = vm.out.inputs.get(id(leaf))
    if (place := vm.overrides.place_of(leaf)) is not None:
        if not accumulates:  # of hooks that are called at the node which accumulates, nothing is seen then
            _check_unhooked(vm, what, *place)
        elif not no_hooks_of_wrappers([place[0]]):
            raise GraphBreak(f"{what}, and a {type(place[0]).__qualname__} of the caller's has hooks")
        else:
            vm.gradients.wrapped[id(leaf)] = WrapperLeaf(*place)
        return [], []
    if info is None:
        return [], []
    if is_held(info.real):
        raise GraphBreak(f"{what}, and the gradient of {info.source.name()} is sent to other processes")
    if not has_leaf_hooks(info.real):
        vm.gradients.leaves[id(leaf)] = info
        return [], []
    vm.gradients.hooked[id(leaf)] = info
    source = Const(info.real, info.source.name()) if info.static else info.source
    before, behind = (_now(vm, info.real, source, *each) for each in HOOKS_OF_LEAVES)
    if not before and info.real._backward_hooks:
        before = [_nothing]  # the program has removed them; they stand until the entry replays that
    return [Hook(leaf, function) for function in before], behind


def _nothing(_: Tensor) -> None:
    """A hook that stands in for those of a leaf that are removed: while it is on, autograd calls no other."""


def _now(vm: Interpreter, leaf: Tensor, source: Source, kept: str, read: Callable[[Tensor], Any]) -> list[Any]:
    """The hooks of one kind that a leaf has by now: those of before the call, or what the program has made of their dict."""
    known = vm.user.by_real.get(id(getattr(leaf, kept, None)))
    if known is None:
        return vm.listed(vm.user.wrap(read(leaf), Fetch(read, source)))
    if not isinstance(known.value, dict):
        raise GraphBreak("backward is called, and the program has looked at the hooks of a tensor")
    return [*known.value.values()]


def register_hook(vm: Interpreter, tensor: Tensor, hook: Any) -> Any:
    """`tensor.register_hook(hook)` of a tensor that the program has computed: it is called in backward calls of the same graph."""
    if id(tensor) in vm.out.inputs or vm.inference:
        raise GraphBreak(HOOK)
    if not tensor.requires_grad:
        vm.native(tensor.register_hook, hook)  # an error
    if vm.gradients.outside and tensor.grad_fn is not None:
        return _attach(vm, tensor, hook)
    _note(vm, HOOK, tensor)
    return _register(vm, Hook(tensor, hook, place=tensor.grad_fn))


def _note(vm: Interpreter, what: str, tensor: Tensor) -> None:
    """The call may be where the graph ends, unless a tensor between two graphs would miss a part of its gradient."""
    node = vm.out.node(tensor)
    if not vm.dynamic.marks.gradients:
        raise _refused(vm.gradients.here(vm, what), node, what)
    vm.gradients.note(vm, what)
    if node.users:
        vm.gradients.calls[-1].split = Nowhere()


def _refused(call: Any, node: Any, why: str) -> GraphBreak:
    """The break at the call; a hook between two graphs would not see what comes through those that have used the tensor before."""
    error = GraphBreak(why)
    error.frames, error.split = call.frames, Nowhere() if node.users else call.split
    return error


def _attach(vm: Interpreter, tensor: Tensor, hook: Any) -> Any:
    """A hook that backward comes to behind the graph: one that only computes becomes part of the graph of backward."""
    state, asked = VisibleState(vm, around="a hook"), len(vm.guards.parts)
    call, made = vm.gradients.here(vm, HOOK), vm.out.node(tensor)
    try:
        with torch.no_grad():
            arriving = torch.empty_like(tensor)
        with vm.out.beside([arriving]) as aside, torch.no_grad():
            result = vm.call(hook, (arriving,), {})
            if state.is_changed() or aside.writes() or any(map(_is_read, list(vm.guards.parts.values())[asked:])):
                raise GraphBreak("it changes something, or reads what may be something else by then")
            if result is not None and not isinstance(result, Tensor):
                raise GraphBreak(f"it gives a {type(result).__name__}")
            module, read = aside.finish([result])
    except (CaptureError, UserRaise) as error:
        why = error.reason if isinstance(error, CaptureError) else f"{type(error.value).__name__}: {error.value}"
        raise _refused(call, made, f"{HOOK}, and called later than in this graph: {why}") from None
    kept = _refused(call, made, f"{HOOK}, and its handle is kept")
    attached = nodes.Attached(nodes.HookGraph(False, module, 1), getattr(hook, "__name__", "hook"))
    real = vm.native(attached.put, tensor, *read)
    node = vm.out.mark(attached, vm.out.lift((tensor, *read)))
    vm.out.meta[nodes.WHOLE] = True
    handle = _handle(vm)
    vm.gradients.attached.append(Outer(handle, kept, node, real))
    return handle


@dataclass
class Outer:
    """A hook that backward comes to behind the graph: the node, the hook on the fake tensor, the program's handle, and the break
    where that is kept.
    """

    handle: Any
    kept: GraphBreak
    node: Any
    real: RemovableHandle


def _is_read(part: Any) -> bool:
    """Whether a guard is on a value, and not on what is called."""
    return part.kind == "equals"


def _register(vm: Interpreter, hook: Hook) -> Any:
    hook.handle = _handle(vm)
    vm.gradients.hooks.append(hook)
    return hook.handle


def _handle(vm: Interpreter) -> Any:
    handle = vm.create(spent_handle())
    vm.recipes[id(handle)] = (spent_handle, (), {})
    return handle


KEEP = (
    object()
)  # as the function of a hook: what arrives is `.grad` of a tensor that is no leaf, behind all other hooks


def retain_grad(vm: Interpreter, tensor: Tensor) -> None:
    """`tensor.retain_grad()` of a tensor that the program has computed, where backward is part of the graph."""
    what, gradients = "retain_grad is called", vm.gradients
    if id(tensor) in vm.out.inputs or vm.inference:
        raise GraphBreak(what)
    if not tensor.requires_grad:
        vm.native(tensor.retain_grad)  # an error
    if tensor.is_leaf:
        return
    if gradients.outside:
        raise _refused(gradients.here(vm, what), vm.out.node(tensor), what)
    if any(hook.function is KEEP and hook.tensor is tensor for hook in gradients.hooks):
        return
    _note(vm, what, tensor)
    gradients.hooks.append(Hook(tensor, KEEP, place=tensor.grad_fn))


def _keep(vm: Interpreter, tensor: Tensor, gradient: Tensor) -> None:
    _, before = vm.effects.attr(tensor, "grad")
    if before is None:
        kept = vm.out.call_method("clone", (gradient,), {})
    else:
        kept = vm.out.call_function(torch.add, (before, gradient), {})
    vm.effects.write_attr(tensor, "grad", kept)


def spent_handle() -> RemovableHandle:
    """The handle of a hook whose tensor has no place in autograd's graph any more."""
    return RemovableHandle(OrderedDict())


@ROWS.rule(RemovableHandle.remove)
def _remove(vm: Interpreter, handle: Any) -> Any:
    for outer in [o for o in vm.gradients.attached if o.handle is handle]:
        outer.real.remove()
        vm.out.graph.erase_node(outer.node)
        vm.gradients.attached.remove(outer)
        return None
    known = [hook for hook in vm.gradients.hooks if hook.handle is handle]
    if not known:
        return Then(RemovableHandle.remove, (handle,), {}, body=True)
    vm.gradients.hooks.remove(known[0])
    return None


class Node:
    """A node of autograd's, for torch's code that puts the hooks of a module on it."""

    def __init__(self, result: Tensor) -> None:
        self.result = result

    def register_hook(self, hook: Any) -> Any:
        """As a node's."""
        raise NotImplementedError  # capture has a rule


@ROWS.rule(Node.register_hook)
def _register_on_node(vm: Interpreter, node: Node, hook: Any) -> Any:
    return _register(vm, Hook(node.result, hook, True, node.result.grad_fn))


@ROWS.rule(APPLY_ON_TENSORS)
def _apply_on_tensors(vm: Interpreter, hook: Any, function: Any, args: Any) -> Any:
    args = vm.materialize(args)
    places = [i for i, a in enumerate(args) if isinstance(a, Tensor)]
    if not (torch.is_grad_enabled() and any(args[i].requires_grad for i in places)):
        return args, None
    results = vm.out.call_function(nodes.together, tuple(args[i] for i in places), {})
    found = next(r for r in results if r.requires_grad)
    vm.call(function, (vm.create(Node(found)),), {})
    changed = list(args)
    for i, result in zip(places, results, strict=True):
        changed[i] = result
    return (tuple(changed) if type(args) is tuple else type(args)(*changed)), places
