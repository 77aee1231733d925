"""What `torch.utils.checkpoint` ran is computed again in backward: in a graph that takes its gradients itself, by copies of the nodes.

Backward reads the copies. Their first operands come through `intarsia::again`, which waits for a gradient: so no pass takes a copy
for the node that it is a copy of, and none is computed before backward has come to it. What draws random numbers, has an effect, or
depends on parameters alone is not copied.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from ..graph.recompute import RECOMPUTE, decide
from ..torch_private.joint import is_view, may_repeat

__all__ = ["LATE", "compute_again"]

LATE = "late"  # in a node's `meta`: it is part of backward

_LIBRARY = torch.library.Library("intarsia", "FRAGMENT")
_LIBRARY.define("again(Tensor value, Tensor after) -> Tensor")


@torch.library.impl(_LIBRARY, "again", "CompositeExplicitAutograd")
def again(value: Tensor, after: Tensor) -> Tensor:
    """The value in memory of its own, once `after` is known."""
    return value.clone()


def compute_again(graph: fx.Graph, captured: fx.Graph) -> None:
    """Change the graph in place, which was traced of `captured`; the first nodes may be without a reader then."""
    decide(graph.nodes)
    if not any(RECOMPUTE in node.meta for node in graph.nodes):
        return
    inputs = zip(graph.find_nodes(op="placeholder"), captured.find_nodes(op="placeholder"), strict=True)
    copies = _Copies(graph, {made for made, given in inputs if _is_parameter(given)})
    last: fx.Node | None = None  # the newest value of backward
    for node in list(graph.nodes):
        if LATE not in node.meta:
            continue
        read = [n for n in node.all_input_nodes if copies.is_repeated(n)]
        arriving = [n for n in node.all_input_nodes if LATE in n.meta and isinstance(n.meta["val"], Tensor)]
        after = arriving[0] if arriving else last
        if after is not None:
            for value in read:
                node.replace_input_with(value, copies.of(value, after, node))
        if node.all_input_nodes and isinstance(node.meta["val"], Tensor):
            last = node


def _is_parameter(given: fx.Node) -> bool:
    return given.meta.get("static_input", False) or getattr(given.meta.get("example_value"), "_is_param", False)


class _Copies:
    def __init__(self, graph: fx.Graph, parameters: set[fx.Node]) -> None:
        self.graph, self.parameters = graph, parameters
        self.order = {node: place for place, node in enumerate(graph.nodes)}
        self.made: dict[fx.Node, fx.Node] = {}  # a node without a copy stands for itself
        self.delayed: dict[fx.Node, fx.Node] = {}

    def is_repeated(self, node: fx.Node) -> bool:
        """Whether backward computes a node for itself: one that is marked, or a view of such."""
        if node.op != "call_function" or LATE in node.meta or not may_repeat(node):
            return False
        return RECOMPUTE in node.meta or (is_view(node) and self.is_repeated(node.all_input_nodes[0]))

    def of(self, last: fx.Node, after: fx.Node, reader: fx.Node) -> fx.Node:
        """The copy of a node, and of what it needs, in front of the reader."""
        needed, waiting = set[fx.Node](), [last]
        while waiting:
            node = waiting.pop()
            if node not in needed and node not in self.made:
                needed.add(node)
                waiting += [n for n in node.all_input_nodes if self.is_repeated(n)]
        with self.graph.inserting_before(reader):
            for node in sorted(needed, key=self.order.__getitem__):
                self.made[node] = self._copy(node, after)
        return self.made[last]

    def _copy(self, node: fx.Node, after: fx.Node) -> fx.Node:
        given = {n: self.made.get(n, n) for n in node.all_input_nodes}
        if all(new is old for old, new in given.items()):
            entries = [n for n in given if self._is_entry(n)]
            if not entries:
                return node
            first = min(entries, key=lambda n: n.meta["val"].numel() if _is_static(n) else 0)
            given[first] = self._delayed(first, after)
        made = self.graph.node_copy(node, given.__getitem__)
        made.meta = {key: value for key, value in node.meta.items() if key != RECOMPUTE}
        return made

    def _is_entry(self, node: fx.Node) -> bool:
        """Whether a value is an activation, which lies in memory without gaps."""
        value: Any = node.meta["val"]
        if not isinstance(value, Tensor) or node in self.parameters or node.op == "get_attr":
            return False
        return bool(value.clone().stride() == value.stride())

    def _delayed(self, node: fx.Node, after: fx.Node) -> fx.Node:
        if node not in self.delayed:
            made = self.graph.call_function(torch.ops.intarsia.again.default, (node, after))
            made.meta = {key: value for key, value in node.meta.items() if key not in (RECOMPUTE, "static_input")}
            made.meta["val"] = node.meta["val"].clone()
            self.delayed[node] = made
        return self.delayed[node]


def _is_static(node: fx.Node) -> bool:
    return all(isinstance(n, int) for n in node.meta["val"].shape)
