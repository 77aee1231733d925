"""Numbers that an operator would bring from the CPU to a GPU are made there: `x[..., 0] = 3`, `torch.where(mask, x, torch.tensor(-1.0))`.

A CUDA graph cannot hold such a copy, and kernels around it could not be one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from ..torch_private.fake import FakeTensorMode
from ..torch_private.functions import OpOverload

__all__ = ["LIFTED", "place_numbers"]

LIFTED = "lifted"  # in a constant's meta: the program wrote it, nobody has the tensor
aten = torch.ops.aten

# Operators that bring a number to their result's device before anything is computed of it, and which of their arguments may be one.
_BRING: dict[OpOverload, tuple[int, ...]] = {
    aten.copy.default: (1,),
    aten.fill.Tensor: (1,),
    aten.masked_fill.Tensor: (2,),
    aten.index_put.default: (2,),
    aten._to_copy.default: (0,),
    aten.where.self: (1, 2),
}


def place_numbers(module: fx.GraphModule, fake_mode: FakeTensorMode) -> None:
    """Let the operators of `_BRING` take a number on the device of what they give."""
    graph = module.graph
    made: dict[tuple[fx.Node, torch.device], fx.Node] = {}
    for node in list(graph.nodes):
        given = node.meta.get("val")
        if node.target not in _BRING or not isinstance(given, Tensor) or given.device.type == "cpu":
            continue
        for place in _BRING[node.target]:
            old = node.args[place]
            if not isinstance(old, fx.Node) or (number := _number(module, old)) is None:
                continue
            new = made.get((old, given.device))
            if new is None:
                settings = {"dtype": old.meta["val"].dtype, "device": given.device}
                with graph.inserting_before(node):
                    new = made[old, given.device] = graph.call_function(aten.full.default, ([], number), settings)
                with fake_mode:
                    new.meta = {**node.meta, "val": aten.full.default([], number, **settings)}
            node.update_arg(place, new)
            if not old.users and old.op == "get_attr":
                graph.erase_node(old)


def _number(module: fx.GraphModule, node: fx.Node) -> Any:
    """What a tensor of one number on the CPU holds, where the program itself says so; None for others."""
    given = node.meta.get("val")
    if not isinstance(given, Tensor) or given.dim() or given.device.type != "cpu" or given.requires_grad:
        return None
    if node.target is aten.full.default:
        return node.args[1] if isinstance(node.args[1], int | float) else None
    if node.op != "get_attr" or not node.meta.get(LIFTED) or given.is_complex():
        return None
    return getattr(module, str(node.target)).item()
