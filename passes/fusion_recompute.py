"""What is cheaper to compute again in the kernels that read it than to store and load."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.ir import SSAValue

from .fusion_graph import POINTWISE, Access, Graph, Node, size_in_bytes
from .fusion_groups import PER_OPERATION, Group, Groups

LARGEST_CONE = 16  # computations that are repeated for one value


def recompute(graph: Graph, groups: Groups) -> Iterator[tuple[Node, int]]:
    """Repeat pointwise computations in their readers where fewer bytes move so; yields each with its number of readers.

    Later values come first, because what only they needed is then no longer stored either.
    """
    for node in reversed(graph.nodes):
        home = groups.group_of[node.index]
        if node.is_sink or node not in home.stored or node.kind != POINTWISE:
            continue
        outside = [x for x in node.readers if groups.group_of[x.reader.index] is not home]
        if not outside or any(x.indirect for x in outside):
            continue
        cone = _cone(node, home, groups)
        if cone is None:
            continue
        inputs = list(dict.fromkeys(x.base for n in cone for x in n.accesses if x.producer not in cone))
        readers = list(dict.fromkeys(_holders(groups, node, outside)))
        if any(_is_full(groups, group, cone, inputs) for group in readers):
            continue
        if _gain(node, cone, inputs, readers, outside) > 0:
            _repeat(node, cone, home, readers, groups)
            yield node, len(readers)


def _holders(groups: Groups, node: Node, outside: list[Access]) -> Iterator[Group]:
    """The groups that read the value: those of its readers, and those that repeat a reader."""
    for access in outside:
        yield groups.group_of[access.reader.index]
    readers = {x.reader for x in node.readers}
    for group in groups.all():
        if readers & group.clones and node not in group.clones:
            yield group


def _cone(node: Node, home: Group, groups: Groups) -> set[Node] | None:
    """The node and all of its group that it is computed from; None when that is not pointwise, or much."""
    cone: set[Node] = set()
    stack = [node]
    while stack:
        found = stack.pop()
        if found in cone:
            continue
        cone.add(found)
        if found.kind != POINTWISE or len(cone) > LARGEST_CONE or any(x.indirect for x in found.accesses):
            return None
        for access in found.accesses:
            inner = access.producer
            if inner is not None and inner not in home.stored - {node} and groups.group_of[inner.index] is home:
                stack.append(inner)
    return cone


def _is_full(groups: Groups, group: Group, cone: set[Node], inputs: list[SSAValue]) -> bool:
    """Whether the group would pass the limits of one kernel."""
    operations = len(group.nodes) + len(group.clones | cone)
    values = len(group.reads.keys() | set(inputs)) + len(group.stored)
    return operations > groups.max_ops or values > groups.max_values


def _gain(node: Node, cone: set[Node], inputs: list[SSAValue], readers: list[Group], outside: list[Access]) -> float:
    stored = size_in_bytes(node.value)
    read = sum(size_in_bytes(v) for group in readers for v in inputs if v not in group.reads)
    evaluations = max(x.evaluations for x in outside) * len(readers)
    work = sum(n.cost * n.iterations for n in cone) / max(1, node.iterations) * evaluations
    return stored * (1 + len(readers)) - read - work * PER_OPERATION


def _repeat(node: Node, cone: set[Node], home: Group, readers: list[Group], groups: Groups) -> None:
    home.stored.discard(node)
    for group in readers:
        group.clones |= cone
        group.reads.pop(node.value, None)
        for inner in cone:
            for access in inner.accesses:
                if access.producer in cone:
                    continue
                group.reads.setdefault(access.base, []).append(access)
                if access.producer is not None:
                    source = groups.group_of[access.producer.index]
                    group.preds.setdefault(source.index, []).append(access)
                    source.succs.add(group.index)
        if not any(x.base in home_values(home) for x in group.preds.get(home.index, ())):
            group.preds.pop(home.index, None)
            home.succs.discard(group.index)


def home_values(group: Group) -> set[SSAValue]:
    """What a group stores."""
    return {r for n in group.stored for r in n.op.results}
