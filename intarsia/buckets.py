"""Graphs of data-parallel training are compiled in parts, so that gradients leave while backward still runs.

`DistributedDataParallel` sends gradients in buckets as soon as autograd has made them. One compiled backward would hand over
all of them at its end. So a graph is cut where the parameters that come behind the cut fill a bucket: each part has a
backward of its own, and the processes talk about one bucket while the next part runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from .frontend.distributed.wrappers import BUCKET
from .frontend.graph.output import GRAD_MODE, MUTATES
from .frontend.torch_private.distributed import active_wrapper, bucket_bytes
from .frontend.torch_private.functions import ENTER_AUTOCAST, EXIT_AUTOCAST
from .frontend.torch_private.graphs import lazy_graph_module

__all__ = ["Part", "bucket_of", "compile_parts", "split"]

GraphFunction = Callable[..., Sequence[Any]]


@dataclass(frozen=True)
class Part:
    """Some nodes of a graph in a row.

    Attributes:
        module: a graph of them; its arguments are `takes`, its results `gives`.
        takes: names of values of the whole graph.
        gives: names of values of the whole graph.
    """

    module: fx.GraphModule
    takes: tuple[str, ...]
    gives: tuple[str, ...]

    def examples(self) -> list[Any]:
        """What capture found the arguments to be."""
        return [n.meta["example_value"] for n in self.module.graph.find_nodes(op="placeholder")]


def bucket_of(gm: fx.GraphModule) -> int | None:
    """How many bytes of gradients a bucket has, where the graph is inside of a data-parallel wrapper."""
    found = gm.meta.get(BUCKET)
    if found is not None:
        return int(found)
    wrapper = active_wrapper()
    return None if wrapper is None else bucket_bytes(wrapper)


def split(gm: fx.GraphModule, bucket: int) -> list[Part]:
    """Parts of the graph, in order, so that each but the first begins where a bucket of gradients is full.

    A part may begin where gradients are on, no tensor that autograd follows is written to later through a name of an
    earlier part, and only tensors are handed over. With no such place the graph is one part.
    """
    nodes = [n for n in gm.graph.nodes if n.op not in ("placeholder", "output")]
    place = {n: i for i, n in enumerate(nodes)}
    crossing = _crossing(nodes, place)
    cuts, filled = list[int](), 0
    ready = _gradients_ready(gm, place)
    for at in sorted(ready, reverse=True):
        filled += ready[at]
        if filled < bucket:
            continue
        earlier = max((i for i in ready if i < at), default=-1)
        free = [i for i in range(earlier + 1, at + 1) if i > 0 and crossing[i] is not None]
        if earlier >= 0 and free:
            cuts.append(min(free, key=lambda i: (crossing[i] or 0, -i)))
            filled = 0
    bounds = [0, *sorted(cuts), len(nodes)]
    return [_part(gm, nodes, a, b) for a, b in zip(bounds, bounds[1:], strict=False)] if cuts else []


def _gradients_ready(gm: fx.GraphModule, place: dict[fx.Node, int]) -> dict[int, int]:
    """Bytes of the gradients that backward has finished when it is through with a node: those of parameters first used there."""
    ready: dict[int, int] = {}
    for node in gm.graph.find_nodes(op="placeholder"):
        value = node.meta.get("example_value")
        uses = [place[user] for user in node.users if user in place]
        if isinstance(value, torch.Tensor) and value.requires_grad and node.meta.get("static_input") and uses:
            size = value.numel() * value.itemsize
            ready[min(uses)] = ready.get(min(uses), 0) + int(size)
    return ready


def _crossing(nodes: list[fx.Node], place: dict[fx.Node, int]) -> list[int | None]:
    """For each place the number of tensors that are made before it and used at or behind it; None where no part may begin."""
    count: list[int | None] = [0] * (len(nodes) + 1)
    for node in nodes:
        users = [place.get(user, len(nodes)) for user in node.users]
        last = max(users, default=0)
        value = node.meta.get("example_value")
        plain = isinstance(value, torch.Tensor) or value is None
        written = [place[u] for u in node.users if u in place and u.meta.get(MUTATES)]
        for i in range(place[node] + 1, min(last, len(nodes) - 1) + 1):
            known = count[i]
            count[i] = None if known is None or not plain or any(w >= i for w in written) else known + 1
        if node.meta.get(GRAD_MODE) is False:
            count[place[node]] = None
    return count


def _part(gm: fx.GraphModule, nodes: list[fx.Node], begin: int, end: int) -> Part:
    """The graph of some nodes, under the autocast that is on where it begins."""
    inside = nodes[begin:end]
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    known = set(inside)
    needed = {n for node in inside for n in node.all_input_nodes if n not in known}
    opened = _open_autocast(nodes[:begin])
    needed -= set(opened)
    takes = [n for n in gm.graph.nodes if n in needed]
    for node in takes:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in opened:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    for node in inside:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    for node in reversed(_open_autocast(nodes[:end])):
        if end < len(nodes):
            graph.call_function(EXIT_AUTOCAST, (copies[node],)).meta = {GRAD_MODE: True, "example_value": None}
    gives = [n for n in inside if any(u not in known for u in n.users) and n.target is not ENTER_AUTOCAST]
    graph.output(tuple(copies[n] for n in gives))
    return Part(lazy_graph_module(gm, graph), tuple(n.name for n in takes), tuple(n.name for n in gives))


def _open_autocast(nodes: list[fx.Node]) -> list[fx.Node]:
    """The nodes that entered an autocast which is still on behind `nodes`."""
    opened: list[fx.Node] = []
    for node in nodes:
        if node.target is ENTER_AUTOCAST:
            opened.append(node)
        elif node.target is EXIT_AUTOCAST:
            opened.remove(node.args[0])  # type: ignore[arg-type]
    return opened


def compile_parts(
    gm: fx.GraphModule, parts: Sequence[Part], compile_part: Callable[[fx.GraphModule, Sequence[Any]], GraphFunction]
) -> GraphFunction:
    """The whole graph's function: its parts, compiled one by one, run one after the other."""
    functions = [compile_part(part.module, part.examples()) for part in parts]
    names = [n.name for n in gm.graph.find_nodes(op="placeholder")]
    results = [n.name if isinstance(n, fx.Node) else n for n in gm.graph.find_nodes(op="output")[0].args[0]]
    last = {name: i for i, part in enumerate(parts) for name in part.takes} | dict.fromkeys(results, len(parts))
    done = [[name for name in part.takes if last[name] == i] for i, part in enumerate(parts)]

    def run(*args: Any) -> Sequence[Any]:
        values = dict(zip(names, args, strict=True))
        for part, function, behind in zip(parts, functions, done, strict=True):
            values.update(zip(part.gives, function(*(values[n] for n in part.takes)), strict=True))
            for name in behind:
                del values[name]
        return tuple(values[r] if isinstance(r, str) else r for r in results)

    return run
