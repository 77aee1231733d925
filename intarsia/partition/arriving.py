"""Backward where not all gradients arrive: what is made of those alone is nothing there, as in eager, and not zeros.

Zero times infinity is no number: of `x.sqrt()`, which nothing that is differentiated uses, no gradient may come at 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

__all__ = ["depends", "without"]


def depends(graph: fx.Graph, arriving: Sequence[fx.Node]) -> dict[fx.Node, frozenset[int]]:
    """For each node of a backward graph, which of the gradients that arrive its values are made of."""
    made_of = {node: frozenset([k]) for k, node in enumerate(arriving)}
    for node in graph.nodes:
        if node not in made_of:
            found = frozenset[int]().union(*(made_of[source] for source in node.all_input_nodes))
            made_of[node] = frozenset() if found and _asks_for_sizes(node) else found
    return made_of


def without(module: fx.GraphModule, arriving: Sequence[fx.Node], missing: frozenset[int]) -> fx.GraphModule:
    """The backward graph, of the same arguments, where these of the gradients that arrive do not.

    A gradient is linear in what arrives: what is made of missing ones alone is left out, where it is added to another it is zero.
    """
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    results = graph.graph_copy(module.graph, copies, return_output_node=True)
    assert isinstance(results, tuple)
    value, output = results
    graph.output(value).meta.update(output.meta)
    made_of = depends(module.graph, arriving)
    nothing = {copies[n]: n for n, found in made_of.items() if found and found <= missing and n in copies}
    for node in list(graph.nodes):
        if node in nothing or node.op == "placeholder":
            continue
        for source in [n for n in node.all_input_nodes if n in nothing]:
            if node.op == "output":
                (given,) = node.args
                node.args = (type(given)(None if entry is source else entry for entry in given),)  # type: ignore
                continue
            with graph.inserting_before(node):
                zeros = graph.call_function(torch.ops.aten.zeros_like.default, (source,))
            zeros.meta = dict(source.meta)
            node.replace_input_with(source, zeros)
    graph.eliminate_dead_code()
    made = fx.GraphModule(module, graph)
    made.meta.update(module.meta)
    return made


def _asks_for_sizes(node: fx.Node) -> bool:
    """Whether a value is made of facts of its operands alone, and not of what they hold."""
    name = getattr(node.target, "__name__", "")
    return (
        not isinstance(node.meta.get("val"), torch.Tensor | tuple | list) or "_like" in name or name.startswith("new_")
    )
