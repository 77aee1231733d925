"""What is computed again in backward: `torch.utils.checkpoint` marks nodes, or leaves it to a function of the program's."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy, SelectiveCheckpointContext

from ..torch_private.functions import OpOverload

__all__ = ["RECOMPUTE", "Choice", "decide"]

RECOMPUTE = "recompute"  # in a node's `meta`, which torch's tracers hand on: its value is computed again in backward

_ALWAYS = frozenset({torch.ops.aten.detach.default})  # the program is not asked about them
_SAVED = (CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE)


@dataclass(frozen=True, eq=False)
class Choice:
    """As a mark: the program's function says of each operator whether its value is saved."""

    function: Callable[..., Any]
    name = "CHOICE"  # torch's tracers read it of a mark

    def is_repeated(self, node: fx.Node) -> bool:
        """Whether the value of a call of an operator is computed again."""
        if node.target in _ALWAYS or not isinstance(node.target, OpOverload):
            return True
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
        answer = self.function(SelectiveCheckpointContext(is_recompute=False), node.target, *args, **kwargs)
        return not answer if isinstance(answer, bool) else answer not in _SAVED


def decide(nodes: Iterable[fx.Node]) -> None:
    """Ask the functions of the program about operators of forward, in order: marks of nodes that are saved go."""
    for node in nodes:
        mark = node.meta.get(RECOMPUTE)
        if not isinstance(mark, Choice) or node.meta.get("partitioner_tag") == "is_backward":
            continue
        part = node.target is operator.getitem  # of several results
        if not (RECOMPUTE in node.args[0].meta if part else mark.is_repeated(node)):  # type: ignore[union-attr]
            del node.meta[RECOMPUTE]
