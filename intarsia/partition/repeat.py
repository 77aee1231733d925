"""Values that backward computes again, as nodes of their own in the graph of forward and backward.

In a graph that is one program backward must not begin in forward either: what a copy reads comes through `intarsia::again`, which waits
for a gradient. So no pass takes a copy for the node that it is a copy of, and none of forward's kernels computes for backward what then
lies in memory in between.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from ..frontend.functional import again as _  # noqa: F401  (the operator)
from .costs import Kind, Value
from .norms import formula_of

__all__ = ["of_formulas", "recomputed", "repeat"]


def recomputed(values: Mapping[fx.Node, Value], read: Iterable[fx.Node], saved: Collection[fx.Node]) -> set[fx.Node]:
    """What backward computes of what is saved, to have all of `read`."""
    found, waiting = set[fx.Node](), list(read)
    while waiting:
        node = waiting.pop()
        if node not in found and node not in saved and values[node].again is not None:
            found.add(node)
            waiting += values[node].sources
    return found


def of_formulas(values: Mapping[fx.Node, Value], nodes: Collection[fx.Node]) -> set[fx.Node]:
    """Which of the nodes are not computed as in forward, because they, or what they are computed of, have a formula."""
    found = set[fx.Node]()
    for node, value in values.items():
        if node in nodes and (value.formula or not found.isdisjoint(value.sources)):
            found.add(node)
    return found


def repeat(
    graph: fx.Graph,
    late: Collection[fx.Node],
    nodes: Collection[fx.Node],
    values: Mapping[fx.Node, Value],
    *,
    wait: bool,
    together: int = 0,
) -> None:
    """Let backward, `late`, read copies of `nodes`; with `wait`, what it reads of forward at all waits for a gradient.

    What is computed of inputs alone waits for the same one, up to as many bytes as `together` says: it may share a launch.
    """
    copies = _Copies(graph, nodes, values, wait, together)
    newest: fx.Node | None = None
    for reader in [n for n in graph.nodes if n in late and n.op == "call_function"]:
        arriving = [n for n in reader.all_input_nodes if n in late and isinstance(n.meta.get("val"), Tensor)]
        after = arriving[0] if arriving else newest
        for node in reader.all_input_nodes:
            if node in nodes and (after is not None or not wait):
                reader.replace_input_with(node, copies.of(node, after, reader))
            elif wait and after is not None and node in values and _may_begin_early(reader, values[node]):
                with graph.inserting_before(reader):
                    reader.replace_input_with(node, copies.delayed(node, after))
        if arriving:
            newest = reader if isinstance(reader.meta.get("val"), Tensor) else newest


def _may_begin_early(reader: fx.Node, value: Value) -> bool:
    """Whether forward could compute part of what backward does of a value that is saved, by elements."""
    target: Any = reader.target
    return value.bytes > 0 and value.kind is not Kind.NUMBER and torch.Tag.pointwise in getattr(target, "tags", ())


class _Copies:
    """The copies that have been made.

    Attributes:
        made: of each node; one that depends on nothing stands for itself.
        waits: what is read of forward, as it comes through `intarsia::again`.
    """

    def __init__(
        self,
        graph: fx.Graph,
        nodes: Collection[fx.Node],
        values: Mapping[fx.Node, Value],
        wait: bool,
        together: int,
    ) -> None:
        self.graph, self.nodes, self.values, self.wait, self.together = graph, nodes, values, wait, together
        self.first: fx.Node | None = None  # what copies of inputs wait for
        self.bytes = 0  # of those that do
        self.order = {node: place for place, node in enumerate(values)}
        self.made: dict[fx.Node, fx.Node] = {}
        self.waits: dict[fx.Node, fx.Node] = {}

    def of(self, last: fx.Node, after: fx.Node | None, reader: fx.Node) -> fx.Node:
        """The copy of a node, and of what it needs, in front of the reader."""
        needed, waiting = set[fx.Node](), [last]
        while waiting:
            node = waiting.pop()
            if node not in needed and node not in self.made:
                needed.add(node)
                waiting += [n for n in self.values[node].sources if n in self.nodes]
        with self.graph.inserting_before(reader):
            for node in sorted(needed, key=self.order.__getitem__):
                self.made[node] = self._copy(node, after)
        return self.made[last]

    def _copy(self, node: fx.Node, after: fx.Node | None) -> fx.Node:
        value = self.values[node]
        given = {n: self.made.get(n, n) for n in value.sources}
        if self.wait and after is not None and all(new is old for old, new in given.items()):
            first = self._smallest(given)
            if first is None:
                return node
            given[first] = self.delayed(first, self._of_inputs(value, after))
        if value.formula:
            return formula_of(node, given.__getitem__)
        made = self.graph.node_copy(node, given.__getitem__)
        made.meta = dict(node.meta)
        return made

    def _of_inputs(self, value: Value, after: fx.Node) -> fx.Node:
        """What a copy waits for, if not for `after`: that of the copy before."""
        if any(self.values[n].kind is not Kind.GIVEN for n in value.sources):
            return after
        if self.first is None or self.bytes + value.bytes > self.together:
            self.first, self.bytes = after, 0
        self.bytes += value.bytes
        return self.first

    def delayed(self, node: fx.Node, after: fx.Node) -> fx.Node:
        """The value, once `after` is known."""
        if node not in self.waits:
            made = self.graph.call_function(torch.ops.intarsia.again.default, (node, after))
            made.meta = {key: value for key, value in node.meta.items() if key != "static_input"}
            self.waits[node] = made
        return self.waits[node]

    def _smallest(self, nodes: Iterable[fx.Node]) -> fx.Node | None:
        tensors: Sequence[fx.Node] = [n for n in nodes if isinstance(n.meta.get("val"), Tensor)]
        return min(tensors, key=lambda n: len(n.meta["val"].shape) and _elements(n), default=None)


def _elements(node: fx.Node) -> int:
    shape = node.meta["val"].shape
    return int(shape.numel()) if all(isinstance(n, int) for n in shape) else 1 << 62
