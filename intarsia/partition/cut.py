"""Which values to save: a minimum cut between what forward has and what backward reads.

Each value is an edge whose capacity is the cost of saving it, with an edge from the source for the cost of computing it again. What is
on the sink's side of the cut is computed again; an edge of a value that is cut is saved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import networkx as nx
from torch import fx

from .costs import Value

__all__ = ["minimum_cut"]

_SCALE = 16  # capacities are whole numbers
Costs = Callable[[Value], float | None]  # None: it is not done

_SOURCE, _SINK = "source", "sink"


def minimum_cut(values: dict[fx.Node, Value], read: Iterable[fx.Node], save: Costs, again: Costs) -> set[fx.Node]:
    """The nodes of `values`, in their order in the graph, whose values are saved so that backward has all of `read`, at the least cost.

    Raises:
        nx.NetworkXUnbounded: a value that can neither be saved nor computed again is read.
    """
    ends: dict[fx.Node, tuple[object, object]] = {}  # of each value's edge
    graph = nx.DiGraph()
    for node, value in values.items():
        cost, repeat = save(value), again(value)
        start: object = _SOURCE if repeat is None else (node, 0)
        end: object = start if cost is None else (node, 1)
        ends[node] = start, end
        if cost is not None:
            _edge(graph, start, end, cost)
        if repeat is None:
            continue
        if repeat:
            _edge(graph, _SOURCE, start, repeat)
        for source in value.sources:
            if source in ends:
                _edge(graph, ends[source][1], start, None)
    for node in read:
        _edge(graph, ends[node][1], _SINK, None)
    ahead = _ahead(graph)
    return {n for n, (start, end) in ends.items() if start is not end and start in ahead and end not in ahead}


def _edge(graph: nx.DiGraph[object], start: object, end: object, cost: float | None) -> None:
    """Add an edge, or to the capacity of one that there is; None has no limit."""
    if start == end:
        return
    if cost is None:
        graph.add_edge(start, end)
        graph[start][end].pop("capacity", None)
    elif not graph.has_edge(start, end):
        graph.add_edge(start, end, capacity=round(cost * _SCALE))
    elif "capacity" in graph[start][end]:
        graph[start][end]["capacity"] += round(cost * _SCALE)


def _ahead(graph: nx.DiGraph[object]) -> set[object]:
    """The source's side of a minimum cut: of each part that hangs together without source and sink, for itself.

    What no path leads from to the sink is on the source's side: it is neither saved nor computed.
    """
    inner = graph.subgraph(n for n in graph if n not in (_SOURCE, _SINK))
    found: set[object] = {_SOURCE}
    if graph.has_edge(_SOURCE, _SINK):
        raise nx.NetworkXUnbounded("a value that backward reads can neither be saved nor computed again")
    if _SINK not in graph:
        return found | set(inner)
    for part in nx.weakly_connected_components(inner):
        piece = graph.subgraph({*part, _SOURCE, _SINK})
        if not piece.in_degree(_SINK):
            found |= part
        elif piece.out_degree(_SOURCE):
            before, behind = _divided(piece)
            found |= before - {_SINK}
    return found


def _divided(piece: nx.DiGraph[object]) -> tuple[set[object], set[object]]:
    _, (before, behind) = nx.minimum_cut(piece, _SOURCE, _SINK)
    return before, behind
