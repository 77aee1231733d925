"""`.grad` as state during capture: read with a guard, written as an effect that is replayed behind the graph."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor, fx

from ..breaks.kernel_warnings import warn_of_gradient
from ..errors import Unsupported
from ..graph.output import GraphInput
from ..guards.emitter import Emitter
from ..guards.source import Attr, Const, Source
from ..state import Interpreter
from ..values.kinds import isinstance

__all__ = ["dropped", "is_unchanged", "read_grad", "takes_gradients", "write_grad"]


def source_of_grad(info: GraphInput) -> Source:
    """Where the gradient of an input is found; a tensor that guards hold by identity is not looked for again."""
    return Attr(Const(info.real, info.source.name()) if info.static else info.source, "grad")


def takes_gradients(gm: fx.GraphModule) -> bool:
    """Whether the `.grad` of a tensor is among the inputs of a captured graph."""
    sources = (node.meta.get("source") for node in gm.graph.find_nodes(op="placeholder"))
    return any(isinstance(source, Attr) and source.attr == "grad" for source in sources)


def read_grad(vm: Interpreter, tensor: Tensor) -> Any:
    """`tensor.grad` where the program has not set it: None, or the tensor, which is an input of its own."""
    info = vm.out.inputs.get(id(tensor))
    if info is None:
        warn_of_gradient(vm, tensor)
        return None
    return vm.user.wrap(info.real.grad, source_of_grad(info))


def write_grad(vm: Interpreter, tensor: Tensor, value: Any) -> None:
    """`tensor.grad = value`, with eager's checks."""
    if id(tensor) not in vm.out.inputs and not tensor.is_leaf:
        raise Unsupported("the .grad of a tensor that the program computed is assigned")
    if value is tensor:
        vm.native(setattr, tensor, "grad", value)  # an error
    elif value is not None:
        with torch.no_grad():
            twin = tensor.detach()
        vm.native(setattr, twin, "grad", value)
    vm.effects.write_attr(tensor, "grad", value)


def is_unchanged(vm: Interpreter, info: GraphInput, value: Any) -> bool:
    """Whether `value` is what guards say that the input's `.grad` is before the call."""
    if value is None:
        part = vm.guards.parts.get(("equals", source_of_grad(info), None))
        return part is not None and part.expected is None
    known = vm.user.by_real.get(id(info.real.grad))
    return isinstance(value, Tensor) and known is not None and known.value is value


def dropped(vm: Interpreter, emit: Emitter, rest: str) -> list[str]:
    """Statements before the graph that let go of gradients which the program replaces unread, as eager has by then.

    `rest` is the code that follows. A gradient that it speaks of, or that the graph takes, is kept.
    """
    lines = []
    for (_, name), (tensor, value) in vm.effects.attrs.items():
        info = vm.out.inputs.get(id(tensor)) if name == "grad" else None
        if info is None or is_unchanged(vm, info, value):
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
