"""`.grad` as state during capture: read with a guard, written as an effect that is replayed behind the graph."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor, fx

from ..breaks.kernel_warnings import warn_of_gradient
from ..errors import GraphBreak, Unsupported
from ..graph.output import GraphInput
from ..guards.emitter import Emitter
from ..guards.source import Attr, Const, Fetch, Source
from ..state import Interpreter
from ..torch_private.autograd_graph import is_leaf
from ..torch_private.dtensor import is_composite
from ..torch_private.functions import WITHOUT_SUBCLASSES
from ..values.kinds import isinstance

__all__ = ["assignment", "dropped", "is_unchanged", "read_grad", "takes_gradients", "write_grad"]


def source_of_grad(info: GraphInput) -> Source:
    """Where the gradient of an input is found; a tensor that guards hold by identity is not looked for again."""
    return Attr(Const(info.real, info.source.name()) if info.static else info.source, "grad")


def _grad_of(tensor: Tensor) -> Any:
    """`tensor.grad` of a wrapper tensor, of which its class is not asked."""
    with WITHOUT_SUBCLASSES():
        return tensor.grad


def _set_grad_of(tensor: Tensor, value: Any) -> None:
    """`tensor.grad = value` of a wrapper tensor, of which its class is not asked."""
    with WITHOUT_SUBCLASSES():
        tensor.grad = value


def _place_of(vm: Interpreter, tensor: Tensor) -> tuple[Tensor, Source] | None:
    """Of an input, or a leaf that is a wrapper tensor of the caller's: the tensor itself, and where its gradient is found."""
    info = vm.out.inputs.get(id(tensor))
    if info is not None:
        return info.real, source_of_grad(info)
    place: tuple[Tensor, Source] | None = vm.overrides.place_of(tensor)
    if place is None:
        return None
    real, source = place
    if not is_leaf(real):
        kind = type(real).__qualname__
        raise GraphBreak(f"grad of a {kind} of the caller's that has a history is read or assigned")
    return real, Fetch(_grad_of, source)


def takes_gradients(gm: fx.GraphModule) -> bool:
    """Whether the `.grad` of a tensor is among the inputs of a captured graph."""
    sources = (node.meta.get("source") for node in gm.graph.find_nodes(op="placeholder"))
    return any(isinstance(source, Attr) and source.attr == "grad" for source in sources)


def read_grad(vm: Interpreter, tensor: Tensor) -> Any:
    """`tensor.grad` where the program has not set it: None, or the tensor, which is an input of its own."""
    place = _place_of(vm, tensor)
    if place is None:
        warn_of_gradient(vm, tensor)
        return None
    return vm.user.wrap(_grad_of(place[0]), place[1])


def write_grad(vm: Interpreter, tensor: Tensor, value: Any) -> None:
    """`tensor.grad = value`, with eager's checks."""
    if _place_of(vm, tensor) is None and not tensor.is_leaf:
        raise Unsupported("the .grad of a tensor that the program computed is assigned")
    if is_composite(tensor) and value is not None and value is not tensor:
        facts = [(t.shape, t.dtype, t.device, t.layout) if isinstance(t, Tensor) else None for t in (tensor, value)]
        if facts[0] != facts[1]:  # eager's error
            raise GraphBreak(f"grad of a {type(tensor).__qualname__} is assigned, which does not look as it does")
    elif value is tensor:
        vm.native(setattr, tensor, "grad", value)  # an error
    elif value is not None:
        with torch.no_grad():
            twin = tensor.detach()
        vm.native(setattr, twin, "grad", value)
    vm.effects.write_attr(tensor, "grad", value)


def is_unchanged(vm: Interpreter, tensor: Tensor, value: Any) -> bool:
    """Whether `value` is what guards say that the `.grad` of a tensor of the caller's is before the call."""
    place = _place_of(vm, tensor)
    if place is None:
        return True
    if value is None:
        part = vm.guards.parts.get(("equals", place[1], None))
        return part is not None and part.expected is None
    known = vm.user.by_real.get(id(_grad_of(place[0])))
    return isinstance(value, Tensor) and known is not None and known.value is value


def assignment(vm: Interpreter, body: Any, tensor: Tensor, value: Any) -> str:
    """The statement behind the graph by which a tensor of the caller's gets its gradient."""
    target, made = body.value(tensor), body.value(value)
    if vm.overrides.place_of(tensor) is None:
        return f"{target}.grad = {made}"
    return f"{body.emit.constant(_set_grad_of, 'set_grad_of')}({target}, {made})"


def dropped(vm: Interpreter, emit: Emitter, rest: str) -> list[str]:
    """Statements before the graph that let go of gradients which the program replaces unread, as eager has by then.

    `rest` is the code that follows. A gradient that it speaks of, or that the graph takes, is kept.
    """
    lines = []
    for (_, name), (tensor, value) in vm.effects.attrs.items():
        info = vm.out.inputs.get(id(tensor)) if name == "grad" else None
        if info is None or is_unchanged(vm, tensor, value):
            continue
        source = source_of_grad(info)
        if ("equals", source, None) in vm.guards.parts:  # it is None
            continue
        known = vm.user.by_real.get(id(info.real.grad))
        held = None if known is None else emit.known(known.source)
        taking = None if known is None else vm.out.inputs.get(id(known.value))
        taken = known is not None and (taking is None or taking.node is not None)  # of a sparse one its parts are taken
        if taken or held is not None and re.search(rf"\b{held}\b", rest):
            continue
        target = emit.constant(info.real, info.source.name()) if info.static else emit.fetch(info.source)
        lines.append(f"{target}.grad = None")
        if held is not None:
            lines.append(f"{held} = None")
    return lines
