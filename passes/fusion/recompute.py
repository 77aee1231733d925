"""What is cheaper to compute again in the kernels that read it than to store and load."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.ir import SSAValue

from ..analysis.cost import LARGEST_CONE, MOST_LOADS, PER_OPERATION, SMALLER
from .graph import POINTWISE, REDUCE, Access, Graph, Node, elements, size_in_bytes
from .groups import Group, Groups
from .places import loads_of, places_of


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
        if home.grid and places_of(outside) * loads_of(cone) > MOST_LOADS:
            continue
        inputs = list(dict.fromkeys(x.base for n in cone for x in n.accesses if x.producer not in cone))
        rows = {
            x.producer
            for n in cone
            for x in n.accesses
            if x.producer is not None and x.base in inputs and _inside(x, home, groups)
        } - home.stored
        readers = list(dict.fromkeys(_holders(groups, node, outside)))
        if any(_is_full(groups, group, cone, inputs) for group in readers):
            continue
        walk = size_in_bytes(node.value) / 4 if _stores_beside(node, home, groups) else 0
        if walk + _gain(node, cone, inputs, rows, readers, outside) > _scattered(node, cone, len(readers), groups):
            home.stored |= rows
            _repeat(node, cone, home, readers, groups)
            yield node, len(readers)


def _stores_beside(node: Node, home: Group, groups: Groups) -> bool:
    """Whether a GPU's group stores a value beside what it reduces: columns, in chunks. Where both ways move as much, it had better not."""
    if not home.grid or home.kind != REDUCE:
        return False
    columns = set(groups.axes.leaves(home.columns))
    full = [x[0] for v, x in home.reads.items() if elements(v) >= elements(node.value) and not x[0].indirect]
    return bool(full) and groups.orders.innermost(full[0]) not in columns


def _holders(groups: Groups, node: Node, outside: list[Access]) -> Iterator[Group]:
    """The groups that read the value: those of its readers, and those that repeat a reader."""
    for access in outside:
        yield groups.group_of[access.reader.index]
    readers = {x.reader for x in node.readers}
    for group in groups.all():
        if readers & group.clones and node not in group.clones:
            yield group


def _cone(node: Node, home: Group, groups: Groups) -> set[Node] | None:
    """The node and all of its group that it is computed from, up to what is stored; None when that is not pointwise, or much.

    Results of the rows of a reduction, which are small, count as stored: `_repeat` makes it so.
    """
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
            if inner is None or inner in cone or groups.group_of[inner.index] is not home:
                continue
            if inner not in home.stored and not _is_row(inner, node, home, groups):
                stack.append(inner)
    return cone


def _is_row(inner: Node, node: Node, home: Group, groups: Groups) -> bool:
    """Whether a value has one element for each of many in a row, so that storing it costs little."""
    if home.kind != REDUCE or elements(inner.value) * SMALLER > elements(node.value):
        return False
    return set(groups.axes.flat(inner.dims)) == set(groups.axes.leaves(home.rows))


def _is_full(groups: Groups, group: Group, cone: set[Node], inputs: list[SSAValue]) -> bool:
    """Whether the group would pass the limits of one kernel."""
    operations = len(group.nodes) + len(group.clones | cone)
    values = len(group.reads.keys() | set(inputs)) + len(group.stored)
    return operations > groups.max_ops or values > groups.max_values


def _inside(access: Access, home: Group, groups: Groups) -> bool:
    return access.producer is not None and groups.group_of[access.producer.index] is home


def _gain(
    node: Node,
    cone: set[Node],
    inputs: list[SSAValue],
    rows: set[Node],
    readers: list[Group],
    outside: list[Access],
) -> float:
    stored = size_in_bytes(node.value) - sum(size_in_bytes(n.value) for n in rows)
    read = sum(size_in_bytes(v) for group in readers for v in inputs if v not in group.reads)
    evaluations = max(x.evaluations for x in outside) * len(readers)
    work = sum(n.cost * n.iterations for n in cone) / max(1, node.iterations) * evaluations
    return stored * (1 + len(readers)) - read - work * PER_OPERATION


def _scattered(node: Node, cone: set[Node], readers: int, groups: Groups) -> float:
    """The price of reading large inputs in another order than that in which the value would be stored."""
    own = node.dims[groups.orders.contiguous(node.value)] if node.dims else []
    last = groups.axes.leaves(own)[-1] if own else None
    price = 0
    for access in (x for n in cone for x in n.accesses if x.producer not in cone):
        if 2 * elements(access.base) >= elements(node.value) and last not in (None, groups.orders.innermost(access)):
            price += 2 * size_in_bytes(access.base) * readers
    return price


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
