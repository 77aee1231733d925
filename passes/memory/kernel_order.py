"""The order of kernels: topological, close to the program, with a low peak of live memory."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import cast

import networkx as nx
from xdsl.ir import BlockArgument, SSAValue

from ...ir.dialects import prim
from ...ir.dialects.aten import is_wait
from ...ir.syntax import Op
from ..analysis.cost import TOGETHER_PART, WAITING_PART
from ..core.base import PassError
from ..fusion.graph import Graph, size_in_bytes
from ..fusion.groups import Group, Groups


class _Memory:
    """What is alive while groups run one after another: results, until their last reader has run."""

    def __init__(self, graph: Graph, groups: list[Group], in_place: Iterable[SSAValue] = ()) -> None:
        self.made: dict[int, int] = {}
        self.read: dict[int, list[SSAValue]] = {}
        self.waiting: dict[SSAValue, int] = {}
        self.bytes: dict[SSAValue, int] = {}
        self.readers: dict[SSAValue, list[int]] = defaultdict(list)
        for group in groups:
            values = [v for n in group.stored or group.nodes for v in n.op.results if v in graph.node_of]
            for value in values:
                self.bytes[value] = size_in_bytes(value) if hasattr(value.type, "shape") else 0
        self.bytes.update(dict.fromkeys((v for v in in_place if v in self.bytes), 0))
        for group in groups:
            values = [v for n in group.stored or group.nodes for v in n.op.results if v in graph.node_of]
            self.made[group.index] = sum(self.bytes[v] for v in values)
            self.read[group.index] = [v for v in group.reads if v in self.bytes]
            for read in self.read[group.index]:
                self.readers[read].append(group.index)
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

    Orders are made: on a GPU the program's own with casts for the caller side by side, which are few launches then; the
    program's own; on a GPU the same, but what frees much does not wait for long (updates, for the
    gradients that they read); and one that greedily runs what frees most. The one with the lowest peak wins, the
    first of these when they are equal.
    """
    everything = groups.all()
    order = nx.DiGraph()
    order.add_nodes_from(g.index for g in everything)
    order.add_edges_from((i, g.index) for g in everything for i in g.preds)
    by_index = {g.index: g for g in everything}
    grid = any(g.grid for g in everything)
    written = _written(graph) if grid else {}  # elsewhere arguments are written in place by what comes last alone
    if written:
        order = _with_readers_first(order, everything, graph, written)

    def by(priority: Callable[[_Memory, Group], tuple[int, ...]], limit: int | None = None) -> tuple[int, list[Group]]:
        return _list_schedule(order, by_index, _Memory(graph, everything, written), priority, limit)

    due = {g.index: _due(g, order, by_index) for g in everything}
    plain = by(lambda memory, g: (0, due[g.index]))
    if grid and (together := _together(everything, due, plain[0] // WAITING_PART)):
        due |= together
        plain = by(lambda memory, g: (0, due[g.index]))
    candidates = [plain]
    if grid:
        candidates.append(by(lambda memory, g: (0, due[g.index]), plain[0] // WAITING_PART))
    candidates.append(by(lambda memory, g: (memory.growth(g), due[g.index])))
    if turns := _turns(graph, everything) if grid else {}:
        in_turns = [
            by(lambda memory, g: (turns.get(g.index, 0), due[g.index])),
            by(lambda memory, g: (turns.get(g.index, 0), memory.growth(g), due[g.index])),
        ]
        candidates = [*((peak - peak // TOGETHER_PART, found) for peak, found in in_turns), *candidates]
    return min(candidates, key=lambda c: c[0])[1]


def _turns(graph: Graph, groups: list[Group]) -> dict[int, int]:
    """-1 for what casts arguments for the caller, who keeps that anyway; 1 for what casts other values to wider types for the caller.

    Weights in a half type and gradients in float32 are so a few launches, at the beginning and at the end.
    """
    found: dict[int, int] = {}
    for group in groups:
        casts = [n.op for n in group.nodes]
        given = all(any(u.operation is graph.returned for u in n.value.uses) for n in group.stored)
        if not group.grid or not group.stored or not given or not all(isinstance(op, prim.Cast) for op in casts):
            continue
        if all(isinstance(op.operands[0], BlockArgument) for op in casts):
            found[group.index] = -1
        elif all(_widens_last(op, graph) for op in casts):
            found[group.index] = 1
    return found


def _widens_last(op: Op, graph: Graph) -> bool:
    """Whether a cast makes no narrower value, which nobody but the caller reads (no collective, which would start late)."""
    (result,) = op.results
    wider = prim.tensor(op.operands[0]).dtype.bytes <= prim.tensor(result).dtype.bytes
    return wider and all(use.operation is graph.returned for use in result.uses)


def _together(groups: list[Group], due: dict[int, int], limit: int) -> dict[int, int]:
    """When casts of arguments have their turn: several at once, which are one launch then, of no more bytes than `limit`."""
    found: dict[int, int] = {}
    first = taken = 0
    for group in sorted((g for g in groups if _casts_arguments(g)), key=lambda g: due[g.index]):
        made = sum(size_in_bytes(n.value) for n in group.stored)
        if not taken or taken + made > limit:
            first, taken = due[group.index], 0
        found[group.index] = first
        taken += made
    return found


def _casts_arguments(group: Group) -> bool:
    """Whether a group does no more than that: weights in a half type."""
    casts = all(isinstance(n.op, prim.Cast) for n in group.nodes)
    return casts and bool(group.stored) and all(isinstance(v, BlockArgument) for v in group.reads)


def _due(group: Group, order: nx.DiGraph[int], by_index: dict[int, Group]) -> int:
    """When a group's turn comes: in the program's order, but for a wait, which stands before the first that reads its result."""
    readers = [by_index[i].last for i in order.successors(group.index)] if is_wait(group.nodes[0].op) else []
    return min(readers, default=group.last)


def _written(graph: Graph) -> dict[SSAValue, SSAValue]:
    """The new values of arguments, each with its argument: most of them are written where that is."""
    func = cast(prim.Func, graph.returned.parent_op())
    return {graph.returned.operands[k]: func.block_body.args[i] for i, k in func.get("mutations", ())}


def _with_readers_first(
    order: nx.DiGraph[int], groups: list[Group], graph: Graph, written: dict[SSAValue, SSAValue]
) -> nx.DiGraph[int]:
    """The same order, with what writes an argument behind all that reads it; as it is where that cannot be."""
    readers: dict[SSAValue, list[int]] = defaultdict(list)
    for group in groups:
        for value in group.reads:
            if isinstance(value, BlockArgument):
                readers[value].append(group.index)
    found, index = order.copy(), {n.index: g.index for g in groups for n in g.nodes}
    for value, argument in written.items():
        if value in graph.node_of:
            writer = index[graph.node_of[value].index]
            found.add_edges_from((i, writer) for i in readers[argument] if i != writer)
    return found if nx.is_directed_acyclic_graph(found) else order


def _list_schedule(
    order: nx.DiGraph[int],
    by_index: dict[int, Group],
    memory: _Memory,
    priority: Callable[[_Memory, Group], tuple[int, ...]],
    limit: int | None = None,
) -> tuple[int, list[Group]]:
    """(peak bytes, groups): among those that are ready, the one of lowest priority value runs next.

    With `limit`, all that are ready run at once where they would free more than so many bytes together.
    """
    missing = dict(order.in_degree())
    ready = [(priority(memory, g), i) for i, g in by_index.items() if not missing[i]]
    heapq.heapify(ready)
    result: list[Group] = []
    done, idle = set[int](), set[SSAValue]()  # values that die when what is ready has run
    live = peak = 0

    def run(i: int) -> None:
        nonlocal live, peak
        group = by_index[i]
        done.add(i)
        result.append(group)
        peak = max(peak, live + memory.made[i])
        live += memory.run(group)
        for j in order.successors(i):
            missing[j] -= 1
            if not missing[j]:
                heapq.heappush(ready, (priority(memory, by_index[j]), j))
        if limit is not None:
            idle.difference_update([v for v in memory.read[i] if not memory.waiting[v]])
            for v in (v for j in (i, *order.successors(i)) for v in memory.read[j]):
                if 0 < memory.waiting[v] == sum(not missing[j] and j not in done for j in memory.readers[v]):
                    idle.add(v)

    def overdue() -> list[int]:
        """What would free more than `limit` if it ran now."""
        if limit is None or sum(map(memory.bytes.__getitem__, idle)) <= limit:
            return []
        found = {j for v in idle for j in memory.readers[v] if j not in done}
        freed = sum(map(memory.bytes.__getitem__, idle)) - sum(memory.made[j] for j in found)
        found = {j for j in found if not is_wait(by_index[j].nodes[0].op)}
        return sorted(found, key=lambda j: by_index[j].last) if freed > limit else []

    while ready:
        known, i = heapq.heappop(ready)
        if i in done:
            continue
        now = priority(memory, by_index[i])
        if now > known:  # what it reads is no longer freed by it alone: look again
            heapq.heappush(ready, (now, i))
            continue
        run(i)
        for j in overdue():
            run(j)
    if len(result) < len(by_index):
        waiting = [g.nodes[0].op.name for g in by_index.values() if missing[g.index]]
        raise PassError(f"fuse: kernels wait for each other: {', '.join(waiting[:8])}")
    return peak, result
