"""Operators that change a tensor's sizes or strides in place, in the functional trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..torch_private.functions import OpOverload
from .rules import DETACH_

if TYPE_CHECKING:
    from .trace import Tracer

__all__ = ["rename"]

aten = torch.ops.aten


def rename(tracer: Tracer, func: OpOverload, args: Any, kwargs: Any) -> Any:
    """``t_``, ``squeeze_`` and kin on an intermediate: the object becomes a view of what it was."""
    tensor = args[0]
    value = tracer.value(tensor)
    if func in DETACH_:
        return tensor
    if any(tensor is t for t in tracer.inputs):
        raise tracer.unsupported(f"{func} changes the shape or strides of an input")
    name = func._schema.name.split("::")[1].removesuffix("_")
    packet = getattr(aten, name, None)
    overloads = [getattr(packet, o) for o in packet.overloads()] if packet and func.namespace == "aten" else []
    kinds = [str(a.type) for a in func._schema.arguments]  # transpose_.default goes with transpose.int
    functional = next((o for o in overloads if [str(a.type) for a in o._schema.arguments] == kinds), None)
    if functional is None or not func._schema.name.endswith("_"):
        raise tracer.unsupported(f"{func} changes a tensor's memory or strides")
    with tracer:
        before = aten.alias.default(tensor)
    old = tracer.values[id(before)]
    old.parent, old.view, old.node, old.version = value.parent, value.view, value.node, value.version
    value.val = before
    for node in tracer.graph.nodes:
        given = node.meta.get("val")
        if given is tensor:
            node.meta["val"] = before
        elif isinstance(given, tuple | list):  # one of several results
            node.meta["val"] = type(given)(before if v is tensor else v for v in given)
    if value.storage.base is value:
        value.storage.base = old
    for other in tracer.values.values():
        if other.parent is value:
            other.parent = old
    with tracer:
        after = functional(before, *args[1:], **kwargs)
    func(*args, **kwargs)
    tracer.values[id(tensor)] = tracer.values[id(after)] if after is not before else old
    tracer.values[id(tensor)].val = tensor
    return tensor
