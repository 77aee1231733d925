"""Calls that take gradients, or say of which tensors: nodes of the graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..calls import contexts
from ..calls.registry import Rows
from ..errors import GraphBreak, Refused, UserRaise
from ..guards import process_state
from ..state import Interpreter
from ..torch_private.autograd_graph import leaf_of, nodes_behind
from ..torch_private.dispatch import storage_key
from ..values.kinds import isinstance
from ..values.tensor import load_tensor_attr, store_tensor_attr
from . import nodes
from .hooks import Called, of_leaf, register_hook, retain_grad

__all__ = ["ROWS", "TENSOR_METHODS"]

ROWS = Rows()


def _call(
    vm: Interpreter, call: Called, function: Callable[..., tuple[Any, ...]], *args: Any, watched: Sequence[Tensor] = ()
) -> tuple[Any, ...]:
    """A node of this function, run on fake tensors."""
    lifted = vm.out.lift(args)
    try:
        result = call.run(function, args, watched)
    except UserRaise:
        vm.gradients.raised = True
        raise
    except GraphBreak as broken:
        broken.split = vm.gradients.calls[-1].split  # before what backward has freed by now
        raise
    if any(isinstance(r, Tensor) and r.layout is not torch.strided for r in result):
        error = GraphBreak("a gradient is sparse")
        error.split = vm.gradients.calls[-1].split  # before what was freed just now
        raise error
    if not call.graphs and not any(isinstance(r, Tensor) for r in result):
        return result
    return call.record(function, lifted, result)


def _listed(vm: Interpreter, given: Any, what: str) -> list[Any]:
    """One tensor or several, as a list of those that this graph knows."""
    given = vm.materialize(given)
    found = [given] if isinstance(given, Tensor) else vm.listed(given)
    for item in found:
        if item is not None and not (isinstance(item, Tensor) and vm.out.is_known(item)):
            raise GraphBreak(f"{what} is given a {type(item).__name__}")
    return found


def _check_around(vm: Interpreter, what: str) -> None:
    """Break where the program watches autograd in a way that a graph does not show."""
    if vm.out.inside:
        raise GraphBreak(f"{what} inside a transform of torch.func")
    if process_state.ask(vm, torch.is_anomaly_enabled, (), {}):
        raise GraphBreak(f"{what} while anomalies are looked for")
    if vm.gradients.is_watched():
        raise GraphBreak(f"{what} under hooks on saved tensors")


def _reached(vm: Interpreter, outputs: Sequence[Tensor], stop: Sequence[Tensor], what: str) -> list[Tensor]:
    """The leaves that backward from the outputs may reach; of an input that has a history, that lies outside of the graph.

    Gradients with respect to such inputs (`stop`) are asked for themselves; anything beyond breaks the graph.
    """
    tensors = [i for i in vm.out.inputs.values() if isinstance(i.fake, Tensor)]
    outside = {node for i in tensors for node in (i.grad_fn, i.history) if node is not None}
    asked = {t.grad_fn for t in stop}
    inputs = [t for t in stop if id(t) in vm.out.inputs or vm.overrides.is_of_caller(t)]
    if stop and not inputs:
        return []  # gradients are taken of what the graph makes: what lies outside leads to none of it
    # Beyond a wrapper tensor are the parts that it is made of, which lead to nothing else that gradients are asked of.
    ends = {t.grad_fn for t in vm.overrides.leaves_of_caller()} if stop else set()
    leaves = []
    for node in nodes_behind(outputs, outside & asked | ends):
        leaf = leaf_of(node)
        if node in outside or leaf is not None and not vm.out.is_known(leaf):
            if node not in asked:
                _take_leaves(vm, what)
                raise GraphBreak(f"{what}, and goes on through what was computed before this graph")
        elif leaf is not None:
            info = vm.out.inputs.get(id(leaf))
            if info is not None and info.temporary:
                _take_leaves(vm, what)
                raise GraphBreak(f"{what}, and reaches a tensor of the caller's that the graph has as its parts")
            leaves.append(leaf)
    return leaves


def _take_leaves(vm: Interpreter, what: str) -> None:
    """Where backward may have come to a leaf that is a wrapper tensor of the caller's, capture starts again: such are then leaves of the graph."""
    overrides = vm.overrides
    held = [tensor for tensor in overrides.leaves_of_caller() if tensor.requires_grad]
    refused = overrides.leaves.refused, overrides.through.refused
    if held and vm.dynamic.marks.gradients and refused == (None, None):
        raise Refused(f"{what}, and comes to a {type(held[0]).__qualname__} of the caller's", "leaves")


@ROWS.rule(torch.autograd.grad)
def _grad(
    vm: Interpreter,
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: Any = None,
    create_graph: Any = False,
    only_inputs: Any = True,
    allow_unused: Any = None,
    is_grads_batched: Any = False,
    materialize_grads: Any = False,
) -> Any:
    what = "torch.autograd.grad is called"
    if only_inputs is not True:
        raise GraphBreak(f"{what} without only_inputs")
    _check_around(vm, what)
    results, given = _listed(vm, outputs, what), _listed(vm, inputs, what)
    arriving = [None] * len(results) if grad_outputs is None else _listed(vm, grad_outputs, what)
    _reached(vm, results, given, what)
    call = Called(vm, what, [hook for tensor in given for hook in of_leaf(vm, tensor, what, False)[0]])
    retain = bool(create_graph) if retain_graph is None else bool(retain_graph)
    vm.gradients.note(vm, what, not retain)
    if allow_unused is False and materialize_grads:
        vm.native(torch.autograd.grad, results, given, allow_unused=False, materialize_grads=True)  # an error
    unused = None if allow_unused is None else bool(allow_unused)
    batched = bool(is_grads_batched)
    if batched and (call.hooks or vm.gradients.regions):
        raise GraphBreak(f"{what} with is_grads_batched, and hooks are to see one gradient of a batch at a time")
    if batched and vm.shape_env is not None:  # torch's loop over a batch takes numbers for sizes
        raise GraphBreak(f"{what} with is_grads_batched, and sizes change between calls")
    options = retain, bool(create_graph), unused, bool(materialize_grads), batched
    return _call(vm, call, nodes.gradients, results, given, arriving, *options)


@ROWS.rule(torch.autograd.backward)
def _backward(
    vm: Interpreter,
    tensors: Any,
    grad_tensors: Any = None,
    retain_graph: Any = None,
    create_graph: Any = False,
    grad_variables: Any = None,
    inputs: Any = None,
) -> None:
    what = "backward() is called"
    if grad_variables is not None:
        raise GraphBreak(f"{what} with grad_variables")
    _check_around(vm, what)
    results = _listed(vm, tensors, what)
    arriving = [None] * len(results) if grad_tensors is None else _listed(vm, grad_tensors, what)
    retain = bool(create_graph) if retain_graph is None else bool(retain_graph)
    wanted = None if inputs is None else _listed(vm, inputs, what)
    leaves = _reached(vm, results, wanted or (), what)
    if wanted is not None:
        if any(vm.overrides.place_of(t) is not None for t in wanted):
            _take_leaves(vm, what)
        if not wanted or not all(t.is_leaf and t.requires_grad for t in wanted):
            raise GraphBreak(f"{what} with inputs that are no leaves")
        leaves = list(dict.fromkeys(wanted))
    if not leaves:
        vm.native(torch.autograd.backward, results, arriving, retain, bool(create_graph))  # mostly an error
        return
    hooks = {leaf: of_leaf(vm, leaf, what) for leaf in leaves}
    call = Called(vm, what, [hook for before, _ in hooks.values() for hook in before])
    watched = [leaf for leaf, (_, behind) in hooks.items() if behind]
    vm.gradients.note(vm, what, not retain)
    present = [load_tensor_attr(vm, leaf, "grad") for leaf in leaves]
    new = [grad is None for grad in present]
    given = results, leaves, arriving, retain, bool(create_graph), new
    found = _call(vm, call, nodes.leaf_gradients, *given, watched=watched)
    if watched and call.changes:
        raise GraphBreak(f"{what}, and hooks of several kinds see each other's changes")
    _refuse_shared(arriving, [g for g, is_new in zip(found, new, strict=True) if is_new], what)
    arrived = {leaf: k for k, leaf in enumerate(call.arrived)}
    parts = zip(leaves, present, found, strict=True)
    with contexts.grad_mode(vm, bool(create_graph)):
        for leaf, grad, gradient in sorted(parts, key=lambda part: arrived.get(part[0], -1)):
            if gradient is None:
                continue
            if grad is None:
                store_tensor_attr(vm, leaf, "grad", gradient)
            elif create_graph:
                store_tensor_attr(vm, leaf, "grad", vm.out.call_function(torch.add, (grad, gradient), {}))
            else:
                vm.out.call_method("add_", (grad, gradient), {})
            for function in hooks[leaf][1]:
                vm.call(function, (leaf,), {})


def _refuse_shared(arriving: Sequence[Any], made: Sequence[Any], what: str) -> None:
    """Eager may let a view of the gradient that it is given become `.grad`."""
    given = {storage_key(t) for t in arriving if t is not None}
    if any(g is not None and storage_key(g) in given for g in made):
        raise GraphBreak(f"{what}, and a gradient shares memory with the one that is given")


def _tensor_backward(
    vm: Interpreter,
    tensor: Tensor,
    gradient: Any = None,
    retain_graph: Any = None,
    create_graph: Any = False,
    inputs: Any = None,
) -> None:
    _backward(vm, tensor, None if gradient is None else [gradient], retain_graph, create_graph, inputs=inputs)


def _requires_grad(vm: Interpreter, tensor: Tensor, requires_grad: bool = True) -> Tensor:
    if tensor.requires_grad == requires_grad:
        return tensor
    if vm.overrides.place_of(tensor) is not None:
        raise GraphBreak(f"requires_grad_ of a {type(tensor).__qualname__} of the caller's is called")
    info = vm.out.inputs.get(id(tensor))
    if info is not None and (info.node is None or not info.node.users):
        vm.native(tensor.requires_grad_, requires_grad)
        info.says = requires_grad  # as good as before the graph: nothing has been made of it
        return tensor
    vm.gradients.note(vm, "requires_grad_ is called")
    node = vm.out.lift((tensor, requires_grad))
    vm.native(nodes.set_requires_grad, tensor, requires_grad)
    vm.out.record(nodes.set_requires_grad, (node, {}), tensor, True)
    if info is not None:
        vm.effects.write_attr(tensor, "requires_grad", requires_grad)
    return tensor


def _detach(vm: Interpreter, tensor: Tensor) -> Tensor:
    if id(tensor) in vm.out.inputs or tensor._is_view():
        raise GraphBreak("detach_ is called on a view, or on a tensor of the caller's")
    lifted: Any = vm.out.lift((tensor,)), {}
    vm.native(tensor.detach_)
    return vm.out.rename(torch.detach, lifted, tensor)


TENSOR_METHODS: dict[str, Any] = {
    "backward": _tensor_backward,
    "detach_": _detach,
    "register_hook": register_hook,
    "requires_grad_": _requires_grad,
    "retain_grad": retain_grad,
}
