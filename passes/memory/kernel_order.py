"""The order of kernels: topological, close to the program, with a low peak of live memory."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import networkx as nx
from xdsl.ir import SSAValue

from ...ir.dialects.aten import is_wait
from ..core.base import PassError
from ..fusion.graph import Graph, size_in_bytes
from ..fusion.groups import Group, Groups


class _Memory:
    """What is alive while groups run one after another: results, until their last reader has run."""

    def __init__(self, graph: Graph, groups: list[Group]) -> None:
        self.made: dict[int, int] = {}
        self.read: dict[int, list[SSAValue]] = {}
        self.waiting: dict[SSAValue, int] = {}
        self.bytes: dict[SSAValue, int] = {}
        for group in groups:
            values = [v for n in group.stored or group.nodes for v in n.op.results if v in graph.node_of]
            for value in values:
                self.bytes[value] = size_in_bytes(value) if hasattr(value.type, "shape") else 0
            self.made[group.index] = sum(self.bytes[v] for v in values)
        for group in groups:
            self.read[group.index] = [v for v in group.reads if v in self.bytes]
            for read in self.read[group.index]:
                self.waiting[read] = self.waiting.get(read, 0) + 1
        for node in graph.nodes:  # what is returned stays
            if node.is_sink and any(u.operation is graph.returned for u in node.value.uses):
                self.waiting[node.value] = self.waiting.get(node.value, 0) + 1

    def freed(self, group: Group) -> int:
        """The bytes that die when the group has run."""
        return sum(self.bytes[v] for v in self.read[group.index] if self.waiting[v] == 1)

    def growth(self, group: Group) -> int:
        """By how much the live memory grows when the group has run."""
        return self.made[group.index] - self.freed(group)

    def run(self, group: Group) -> int:
        """Run the group: the growth."""
        growth = self.growth(group)
        for value in self.read[group.index]:
            self.waiting[value] -= 1
        return growth


def kernel_order(graph: Graph, groups: Groups) -> list[Group]:
    """All groups so that each follows what it reads.

    Two orders are made, the program's own and one that greedily runs what frees most; the one with the lower peak wins,
    the program's own when they are equal.
    """
    everything = groups.all()
    order = nx.DiGraph()
    order.add_nodes_from(g.index for g in everything)
    order.add_edges_from((i, g.index) for g in everything for i in g.preds)
    by_index = {g.index: g for g in everything}
    due = {g.index: _due(g, order, by_index) for g in everything}
    candidates = [
        _list_schedule(order, by_index, _Memory(graph, everything), lambda memory, g: (0, due[g.index])),
        _list_schedule(order, by_index, _Memory(graph, everything), lambda memory, g: (memory.growth(g), due[g.index])),
    ]
    return min(candidates, key=lambda c: c[0])[1]


def _due(group: Group, order: nx.DiGraph[int], by_index: dict[int, Group]) -> int:
    """When a group's turn comes: in the program's order, but for a wait, which stands before the first that reads its result."""
    readers = [by_index[i].last for i in order.successors(group.index)] if is_wait(group.nodes[0].op) else []
    return min(readers, default=group.last)


def _list_schedule(
    order: nx.DiGraph[int],
    by_index: dict[int, Group],
    memory: _Memory,
    priority: Callable[[_Memory, Group], tuple[int, int]],
) -> tuple[int, list[Group]]:
    """(peak bytes, groups): among those that are ready, the one of lowest priority value runs next."""
    missing = dict(order.in_degree())
    ready = [(priority(memory, g), i) for i, g in by_index.items() if not missing[i]]
    heapq.heapify(ready)
    result: list[Group] = []
    live = peak = 0
    while ready:
        known, i = heapq.heappop(ready)
        group = by_index[i]
        now = priority(memory, group)
        if now > known:  # what it reads is no longer freed by it alone: look again
            heapq.heappush(ready, (now, i))
            continue
        result.append(group)
        peak = max(peak, live + memory.made[i])
        live += memory.run(group)
        for j in order.successors(i):
            missing[j] -= 1
            if not missing[j]:
                heapq.heappush(ready, (priority(memory, by_index[j]), j))
    if len(result) < len(by_index):
        waiting = [g.nodes[0].op.name for g in by_index.values() if missing[g.index]]
        raise PassError(f"fuse: kernels wait for each other: {', '.join(waiting[:8])}")
    return peak, result
