"""Nodes that name graphs (`torch.ops.higher_order.cond` ...) in the functional trace: the graphs are made functional, too.

What such a node holds: `cond(pred, true_graph, false_graph, operands)`, where the graphs are `get_attr` nodes of modules, the operands a
tuple of tensors that both graphs take, and the results a tuple of tensors in memory of their own. A graph writes to none of its operands.
`while_loop(condition, body, carried, operands)`: both take what is carried, then the operands. `scan(body, carried, items, operands)`: a
slice of each item between these; it gives what is carried on, then a slice of each result. `map_impl(body, items, operands)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

from ..torch_private.regions import COND, MAP, SCAN, WHILE_LOOP, rounds
from .spec import FunctionalGraph

if TYPE_CHECKING:
    from .trace import Tracer

__all__ = ["REGIONS"]


def _cond(tracer: Tracer, pred: Any, first: Any, second: Any, operands: Sequence[Any] = ()) -> tuple[Tensor, ...]:
    graphs = [_functional(tracer, gm, operands) for gm in (first, second)]
    results = [_results(graph) for graph in graphs]
    if [_kind(r) for r in results[0]] != [_kind(r) for r in results[1]]:
        raise tracer.unsupported("the two sides of a branch give different kinds of tensors")
    return _record(tracer, COND, (pred, *(graph.graph_module for graph in graphs), tuple(operands)), results[0], graphs)


def _while_loop(
    tracer: Tracer, condition: Any, body: Any, carried: Sequence[Any], operands: Sequence[Any] = ()
) -> tuple[Tensor, ...]:
    carried = _dense(tracer, carried)
    given = [*map(_like, carried), *operands]
    graphs = [_functional(tracer, gm, given) for gm in (condition, body)]
    results = _results(graphs[1])
    if [_kind(r) for r in results] != [_kind(c) for c in carried]:
        raise tracer.unsupported("the body of a loop gives other kinds of tensors than it takes")
    args = *(graph.graph_module for graph in graphs), tuple(carried), tuple(operands)
    return _record(tracer, WHILE_LOOP, args, results, graphs)


def _scan(
    tracer: Tracer, body: Any, carried: Sequence[Any], items: Sequence[Any], operands: Sequence[Any] = ()
) -> tuple[Tensor, ...]:
    carried = _dense(tracer, carried)
    graph = _functional(tracer, body, [*map(_like, carried), *map(_slice, items), *operands])
    results = _results(graph)
    if [_kind(r) for r in results[: len(carried)]] != [_kind(c) for c in carried]:
        raise tracer.unsupported("the function of a scan carries on other kinds of tensors than it takes")
    stacked = [
        torch.empty((items[0].shape[0], *y.shape), dtype=y.dtype, device=y.device) for y in results[len(carried) :]
    ]
    args = graph.graph_module, tuple(carried), tuple(items), tuple(operands)
    return _record(tracer, SCAN, args, [*results[: len(carried)], *stacked], [graph])


def _map(tracer: Tracer, body: Any, items: Sequence[Any], operands: Sequence[Any] = ()) -> tuple[Tensor, ...]:
    graph = _functional(tracer, body, [*map(_slice, items), *operands])
    stacked = [torch.empty((items[0].shape[0], *y.shape), dtype=y.dtype, device=y.device) for y in _results(graph)]
    return _record(tracer, MAP, (graph.graph_module, tuple(items), tuple(operands)), stacked, [graph])


REGIONS: dict[Any, Callable[..., Any]] = {COND: _cond, WHILE_LOOP: _while_loop, SCAN: _scan, rounds: _scan, MAP: _map}


def _dense(tracer: Tracer, carried: Sequence[Tensor]) -> list[Tensor]:
    """What is carried into the first round: where its elements lie over each other, a copy in which they do not, as in later rounds."""
    with tracer:
        return [
            torch.clone(c) if any(n != 1 and s == 0 for n, s in zip(c.shape, c.stride(), strict=True)) else c
            for c in carried
        ]


def _like(value: Tensor) -> Tensor:
    """A new fake tensor that lies as this one."""
    return torch.empty_strided(tuple(value.shape), value.stride(), dtype=value.dtype, device=value.device)


def _slice(value: Tensor) -> Tensor:
    """A new fake tensor that lies as a slice of this one."""
    return torch.empty_strided(tuple(value.shape[1:]), value.stride()[1:], dtype=value.dtype, device=value.device)


def _functional(tracer: Tracer, gm: fx.GraphModule, given: Sequence[Any]) -> FunctionalGraph:
    """The functional graph of a body, all results in memory of their own."""
    found = tracer.inner(gm, given)
    kinds = [(spec.kind, spec.index) for spec in found.outputs]
    shared = [k for k, kind in enumerate(kinds) if kind[0] != "value" or kind in kinds[:k]]
    if shared:
        found = tracer.inner(_with_copies(gm, shared), given)
    if found.mutations or any(spec.kind != "value" for spec in found.outputs):
        raise tracer.unsupported("a function that an operator is given writes to its operands, or gives no tensors")
    output = found.graph_module.graph.find_nodes(op="output")[0]
    output.args = (tuple(output.args[0][spec.index] for spec in found.outputs),)  # type: ignore[index]
    found.graph_module.meta["effects"] = found.effects
    return found


def _with_copies(gm: fx.GraphModule, places: Sequence[int]) -> fx.GraphModule:
    """The graph with copies of these results."""
    graph = fx.Graph()
    given: Any = graph.graph_copy(gm.graph, {})
    results = list(given) if isinstance(given, list | tuple) else [given]
    for place in places:
        results[place] = graph.call_function(torch.clone, (results[place],))
    graph.output(tuple(results))
    return fx.GraphModule(gm, graph)


def _results(graph: FunctionalGraph) -> list[Tensor]:
    """New fake tensors that lie as the graph's results."""
    (nodes,) = graph.graph_module.graph.find_nodes(op="output")[0].args
    return [_like(node.meta["val"]) for node in nodes]  # type: ignore[union-attr]


def _kind(value: Tensor) -> tuple[Any, ...]:
    return tuple(value.shape), value.stride(), value.dtype, value.device


def _record(
    tracer: Tracer, target: Any, args: tuple[Any, ...], results: Sequence[Tensor], graphs: Sequence[FunctionalGraph]
) -> tuple[Tensor, ...]:
    def named(value: Any) -> Any:
        if not isinstance(value, fx.GraphModule):
            return value
        name = f"body_{len(list(tracer.root.children()))}"
        tracer.root.add_module(name, value)
        return tracer.note(tracer.graph.get_attr(name), None)

    made = tuple(results)
    tracer.record_region(target, tuple(map(named, args)), made, any(graph.effects for graph in graphs))
    return made
