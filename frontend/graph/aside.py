"""A part of the recorded nodes that becomes a graph of its own; and modules that nodes of a graph name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

from ..torch_private.graphs import lazy_graph_module
from ..values.kinds import isinstance

if TYPE_CHECKING:
    from .output import OutputGraph

__all__ = ["Aside", "module_of", "storage_of"]


def storage_of(tensor: Tensor) -> int:
    """The identity of a tensor's memory; of the tensor, where it has none of its own."""
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)


def module_of(graph: fx.Graph, modules: Mapping[str, fx.GraphModule]) -> fx.GraphModule:
    """A module of a graph, with those modules that its nodes name."""
    root = torch.nn.Module()
    for node in graph.find_nodes(op="get_attr"):
        root.add_module(str(node.target), modules[str(node.target)])
    return lazy_graph_module(root, graph)


def _begins() -> None:
    """Stands where a part begins."""


class Aside:
    """A part of the recorded nodes that becomes a graph of its own; the main graph forgets it."""

    def __init__(self, out: OutputGraph, given: Sequence[Tensor]) -> None:
        self.out, self.given = out, given

    def __enter__(self) -> Aside:
        out = self.out
        out.read.asides += 1
        self._before = dict(out._node_of), dict(out._sym_nodes), set(out._written), out.size, out._first
        self._read = out.read.kept()
        self._writes = len(out.writes)
        self._last = out.mark(_begins, ())  # placeholders of the main graph come before it
        self._inputs = [out._emit("placeholder", f"given_{k}", (), {}, fake) for k, fake in enumerate(self.given)]
        return self

    def __exit__(self, *_: Any) -> None:
        out = self.out
        out.read.asides -= 1
        for node in (*reversed(self._nodes()), self._last):
            out.graph.erase_node(node)
        out._node_of, out._sym_nodes, out._written, out.size, out._first = self._before
        out.read.put_back(self._read)

    def _nodes(self) -> list[fx.Node]:
        nodes, node = [], self._last.next
        while node.op != "root":
            nodes.append(node)
            node = node.next
        return nodes

    def writes(self, given: bool = True) -> bool:
        """Whether something was written to that was there before, or (`given`) was given."""
        memory = {storage_of(t) for t in (*(self.given if given else ()), *self.there())}
        return not memory.isdisjoint(self.written())

    def written(self) -> set[int]:
        """The memory that was written to, by its identity."""
        return set(self.out.writes[self._writes :])

    def there(self) -> list[Tensor]:
        """What was there before: what the graph around has used or made."""
        inside = set(self._nodes())
        found = (n.meta["example_value"] for n in self.out.graph.nodes if n not in inside)
        return [t for t in found if isinstance(t, Tensor)]

    def tensors(self) -> list[Tensor]:
        """What was given, and what was made of it."""
        found = (n.meta["example_value"] for n in self._nodes())
        return list({id(t): t for t in found if isinstance(t, Tensor)}.values())

    def finish(
        self, results: Sequence[Tensor | None], needed: Sequence[fx.Node] | None = None
    ) -> tuple[fx.GraphModule, list[Any]]:
        """A module of what was read of the main graph, then of what was given; and these values, in order.

        `needed`: the operators that it has, if not all.
        """
        nodes = [n for n in self._nodes() if needed is None or n in needed or n in self._inputs]
        inside, graph, copies = set(nodes), fx.Graph(), dict[fx.Node, fx.Node]()
        last = [None if r is None else self.out.node(r) for r in results]
        used = [n for node in nodes for n in node.all_input_nodes] + [n for n in last if n is not None]
        read = list(dict.fromkeys(n for n in used if n not in inside))
        for node in (*read, *self._inputs):
            copies[node] = graph.placeholder(node.name)
        for node in nodes:
            if node not in copies:
                copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(tuple(None if n is None else copies[n] for n in last))
        return module_of(graph, self.out.modules), [n.meta["example_value"] for n in read]
