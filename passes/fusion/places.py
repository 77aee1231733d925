"""What a group of computations would be as one kernel: places at which it reads memory, operations that are written out for them, chains."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import cast

from xdsl.ir import Operation, SSAValue

from ...ir.dialects import prim
from ..analysis.cost import LARGEST_CONE, SMALLER
from ..analysis.strides import is_view
from .graph import POINTWISE, REDUCE, Access, Node, elements


def places_of(accesses: Iterable[Access]) -> int:
    """How many of them read elements beside each other, or at numbers from memory: each at a place of its own."""
    return sum(x.indirect or any(isinstance(v, prim.Slice) for v in x.views) for x in accesses)


def loads_of(nodes: Collection[Node]) -> int:
    """How many elements of one memory the nodes read for each that they make, where they read at several places beside each other."""
    accesses = [x for node in nodes for x in node.accesses]
    beside: dict[SSAValue, int] = {}
    for access in accesses:
        beside[access.base] = beside.get(access.base, 0) + places_of([access])
    found: dict[Node, int] = {}
    for node in sorted(nodes, key=lambda n: n.index):
        below = [max(1, beside[x.base]) * found.get(cast(Node, x.producer), 1) for x in node.accesses]
        found[node] = max(below, default=1)
    return max(found.values())


def written_out(nodes: Collection[Node]) -> int:
    """How many operations the nodes are when each is written once for each place at which it is read.

    Readers that look at a value through other views read it at other places, and so all that it is computed from: the steps of a scan
    that is written as slices and joins of ever shorter parts double at each step.
    """
    places: dict[Node, dict[tuple[int, ...], int]] = {}
    total = 0
    for node in sorted(nodes, key=lambda n: -n.index):
        count = sum(places.get(node, {}).values()) or 1
        total += count
        for access in node.accesses:
            if access.producer is not None:
                seen = places.setdefault(access.producer, {})
                shifts = [node.op] if isinstance(node.op, prim.Movement) else []
                views = tuple(map(id, [*shifts, *access.views]))
                seen[views] = max(seen.get(views, 0), count)
    return total


def walks(nodes: Collection[Node]) -> int:
    """The longest chain of reductions, each of elements that are computed from what the one before gives.

    A variance belongs to its mean, and the sum of a softmax to its maximum: they are computed in one walk over a row (`online`).
    """
    longest: dict[Node, int] = {}
    reductions = [n.op for n in nodes if isinstance(n.op, prim.Reduce)]
    for node in sorted(nodes, key=lambda n: n.index):
        before = max((longest.get(x.producer, 0) for x in node.accesses if x.producer is not None), default=0)
        is_new = node.kind == REDUCE and not any(_in_one_walk(first, node.op) for first in reductions)
        longest[node] = before + is_new
    return max(longest.values(), default=0)


def _in_one_walk(first: prim.Reduce, second: Operation) -> bool:
    """Whether the second reduction adds up (x - m)^2 or exp(x - m), with `m` from the first one, of x."""
    if not isinstance(second, prim.Reduce) or second["kind"] != "sum" or first["kind"] not in ("sum", "max"):
        return False
    owner = _plain(second.operands[0]).owner
    if not isinstance(owner, prim.Elementwise):
        return False
    apart = owner.operands[0] if owner.row.name == "exp" or owner.operands[0] is owner.operands[-1] else None
    difference = None if apart is None else _plain(apart).owner
    if not isinstance(difference, prim.Elementwise) or difference.row.name != "sub":
        return False
    return _plain(difference.operands[0]) is _plain(first.operands[0])


def _plain(value: SSAValue) -> SSAValue:
    """The value without views and casts around it."""
    while isinstance(value.owner, prim.Cast) or is_view(value.owner):
        value = value.owner.operands[0]  # type: ignore[union-attr]
    return value


def is_made_again(node: Node, inside: Callable[[Node], bool]) -> bool:
    """Whether a value that nobody outside sees is a pointwise computation of what comes from elsewhere and of results of whole rows."""
    cone, stack = set[Node](), [node]
    while stack:
        found = stack.pop()
        if found in cone:
            continue
        cone.add(found)
        if found.kind != POINTWISE or found.is_sink or len(cone) > LARGEST_CONE:
            return False
        inner = [x.producer for x in found.accesses if x.producer is not None and inside(x.producer)]
        stack += [n for n in inner if elements(n.value) * SMALLER > elements(node.value)]
    return True
