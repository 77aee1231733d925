"""The graph that fusion works on: which computation reads which value, through which views, over which axes.

Views, constants and casts that do not shrink their operand are no nodes: they lie on the way of an `Access` and are cloned into every
kernel that uses them. A view that must be materialised, because a library call or the caller wants it in another layout,
becomes a node of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, cast

from xdsl.ir import Block, Operation, SSAValue

from ...ir.binding import late_names, mentioned
from ...ir.dialects import kernel, prim
from ...ir.symbols import Dim, contiguous_strides
from ...ir.syntax import Op
from ...ir.types import TensorType
from ..analysis.axes import Axes, Dims
from ..analysis.sizes import hint
from ..analysis.strides import is_view, operand_strides, same_layout, takes_view, view_of
from ..analysis.views import stored_behind, view_strides

EXTERN, POINTWISE, REDUCE, SCAN, CONTRACT = "extern", "pointwise", "reduce", "scan", "contract"
_KINDS: dict[type[Operation], str] = {
    kernel.Contract: EXTERN,
    kernel.Extern: EXTERN,
    prim.Reduce: REDUCE,
    prim.Bag: REDUCE,
    prim.Scan: SCAN,
    prim.Contract: CONTRACT,
}
_MOVED = frozenset(
    (prim.Take, prim.Gather, prim.Bag, prim.Contract, prim.Concat, prim.Pad)
)  # not read by their own loops
_COSTS: dict[type[Operation], float] = {
    prim.Cast: 1,
    prim.Take: 4,
    prim.Gather: 4,
    prim.Scatter: 4,
    prim.Concat: 2,
    prim.Pad: 2,
    prim.Reduce: 1,
    prim.Bag: 4,
    prim.Contract: 2,
    prim.Scan: 4,
}


_FREE = frozenset((*prim.VIEWS, *prim.SOURCES))


@lru_cache(maxsize=1 << 14)
def _count(shape: tuple[Dim, ...]) -> int:
    return math.prod(map(hint, shape))


def elements(value: SSAValue) -> int:
    """The number of elements of a tensor, symbols guessed."""
    return _count(cast(TensorType, value.type).shape)


def size_in_bytes(value: SSAValue) -> int:
    """The memory that a tensor takes, symbols guessed."""
    return elements(value) * cast(TensorType, value.type).dtype.bytes


@dataclass(eq=False, slots=True)
class Access:
    """One operand of a node: `base` (memory, or another node's result) read through views.

    `dims` are the axes of the base's dimensions, in classes with the axes of the reader's loops; an axis that is in no class
    with them is shifted, reversed or indirect. `evaluations`: how often an element is read. `views`: the operations on the way.
    `seen`: the axes of what the reader sees behind the views, where one of these is a slice.
    """

    reader: Node
    base: SSAValue
    producer: Node | None
    dims: Dims
    evaluations: int
    indirect: bool
    views: list[Op]
    seen: Dims | None = None


@dataclass(eq=False, slots=True)
class Node:
    """One computation. `loops` are the axes over which it iterates, `dims` those of its result."""

    index: int
    op: Op
    value: SSAValue  # the first result
    kind: str
    loops: Dims = field(default_factory=list)
    dims: Dims = field(default_factory=list)
    cost: float = 0.0
    iterations: int = 1
    accesses: list[Access] = field(default_factory=list)
    readers: list[Access] = field(default_factory=list)
    waits: list[Node] = field(default_factory=list)  # what has to be known before it (`prim.after`)
    is_sink: bool = False  # a library call or the caller reads it
    is_position: bool = False  # computed from constants and positions alone: it reads no memory


class Graph:
    """All nodes of a function, in program order.

    `materialised`: the free operations that are nodes, with the strides in which their values are wanted.
    """

    def __init__(self, block: Block) -> None:
        self.axes = Axes()
        self.nodes: list[Node] = []
        self.node_of: dict[SSAValue, Node] = {}
        self.returned = cast(prim.Return, block.last_op)
        operations = [cast(Op, op) for op in block.ops]
        self._late: dict[str, Node] = {}  # the library calls that bind sizes, by name
        self.materialised = self._find_materialised(operations)
        for op in operations:
            if op is not self.returned and (not is_free(op) or op in self.materialised):
                self._add(op)
        for value in self.returned.operands:
            self._mark_sink(value)

    def _find_materialised(self, operations: Sequence[Op]) -> dict[Operation, Sequence[Dim]]:
        """Free operations whose value a library call or the caller needs, and that are no strided view as wanted.

        With each, the strides that are wanted.
        """
        wanted: list[tuple[SSAValue, Sequence[Dim]]] = []
        for op in operations:
            if isinstance(op, prim.Scatter):
                wanted.append((op.operands[0], contiguous_strides(op.type.shape)))
            if isinstance(op, kernel.Contract | kernel.Extern):
                any_view = isinstance(op, kernel.Contract) or op.get("own") or op.get("backend")
                wanted += [
                    (v, operand_strides(op, i))
                    for i, v in enumerate(op.operands)
                    if isinstance(v.type, TensorType) and not (any_view and _lies(op, i))
                ]
        func = cast(Op, self.returned.parent_op())
        recorded = func.get("result_strides") or (None,) * len(self.returned.operands)
        for value, strides in zip(self.returned.operands, recorded, strict=True):
            if isinstance(value.type, TensorType):
                wanted.append((value, contiguous_strides(value.type.shape) if strides is None else strides))
        found: dict[Operation, Sequence[Dim]] = {}
        for value, strides in wanted:
            if isinstance(value.owner, Block) or not is_free(value.owner):
                continue
            if prim.tensor(value).dtype.kind == "complex" and is_view(value.owner):
                continue  # `layout` lets the library copy it
            view = view_of(value)
            is_memory = view is not None and (isinstance(view.base.owner, Block) or not is_free(view.base.owner))
            if view is None or not is_memory or not same_layout(view.shape, view.strides, strides):
                found.setdefault(value.owner, strides)
        return {op: strides for op, strides in found.items() if not _lies_in(op, strides, found)}

    def _mark_sink(self, value: SSAValue) -> None:
        while value not in self.node_of and not isinstance(value.owner, Block):
            value = value.owner.operands[0]
        if value in self.node_of:
            self.node_of[value].is_sink = True

    def _add(self, op: Op) -> None:
        first = cast(SSAValue, op.results[0] if op.results else None)  # nobody asks for that of a call without results
        node = Node(len(self.nodes), op, first, _KINDS.get(type(op), POINTWISE))
        self.nodes.append(node)
        for result in op.results:
            self.node_of[result] = node
        self._wait_for_sizes(node, op)
        self._late.update(dict.fromkeys(late_names(op), node))
        if node.kind == EXTERN:
            node.accesses = [self._plain_access(node, v) for v in op.operands]
            for access in node.accesses:
                if access.producer is not None:
                    access.producer.is_sink = True
        else:
            shape = _domain(op)
            node.loops = node.dims = self.axes.dims(shape)
            kind, scatters = type(op), type(op) is prim.Scatter
            if kind is prim.Reduce:
                node.dims = [axes for i, axes in enumerate(node.loops) if i not in op["dims"]]
            elif kind is prim.Bag or kind is prim.Contract:
                node.dims = node.loops[: prim.tensor(first).rank]
            elif scatters:
                node.dims = self.axes.dims(prim.tensor(first).shape)
            node.iterations = _count(shape)
            node.cost = op.row.cost if isinstance(op, prim.Elementwise) else _COSTS.get(kind, 0)
            if scatters:  # what it writes to is memory
                node.accesses.append(self._plain_access(node, op.operands[0]))
                if node.accesses[0].producer is not None:
                    node.accesses[0].producer.is_sink = True
            for i, value in enumerate(operands_read(op)):
                if (i or not scatters) and (found := self._access(node, i, value)) is not None:
                    node.accesses.append(found)
        node.is_position = node.kind == POINTWISE and all(x.producer and x.producer.is_position for x in node.accesses)
        for access in node.accesses:
            if access.producer is not None:
                access.producer.readers.append(access)

    def _plain_access(self, node: Node, value: SSAValue) -> Access:
        """What a library call reads: memory, wherever the views begin."""
        while value not in self.node_of and not isinstance(value.owner, Block):
            self._wait(node, value.owner)
            value = value.owner.operands[0]
        return Access(node, value, self.node_of.get(value), [], 0, True, [])

    def _wait(self, node: Node, view: Operation) -> None:
        """What a view on a node's way has to wait for, the node has to."""
        self._wait_for_sizes(node, view)
        if not isinstance(view, prim.After):
            return
        for value in view.operands[1:]:
            while value not in self.node_of and not isinstance(value.owner, Block) and value.owner.operands:
                value = value.owner.operands[0]
            if value in self.node_of:
                node.waits.append(self.node_of[value])

    def _wait_for_sizes(self, node: Node, op: Operation) -> None:
        """An operation over sizes that a library call binds comes behind that call, read or not."""
        if self._late:
            binders = (self._late[name] for name in sorted(mentioned(op) & self._late.keys()))
            node.waits += [binder for binder in binders if binder is not node and binder not in node.waits]

    def _access(self, node: Node, index: int, operand: SSAValue) -> Access | None:
        """The access of operand `index`, its axes joined with those of the node; None for a constant."""
        value, views = operand, list[Op]([node.op] if is_free(node.op) else ())
        self._wait(node, node.op)
        producer = self.node_of.get(value)
        while producer is None or self.is_transparent(producer):
            owner = value.owner
            if isinstance(owner, Block):
                break
            self._wait(node, owner)
            if not owner.operands:
                return None
            views.append(cast(Op, owner))
            value = owner.operands[0]
            producer = self.node_of.get(value)
        base_dims = self.axes.dims(cast(TensorType, value.type).shape)
        dims: Dims | None = base_dims
        for op in reversed(views):
            if dims is not None and type(op) in prim.VIEWS:
                dims = self.axes.through(cast(prim.PrimOp, op), dims)
        wanted, indirect = _operand_dims(node, index)
        if wanted is not None and dims is not None:
            for given, taken in zip(dims, wanted, strict=True):
                if taken is not None:
                    for a, b in self.axes.align(given, taken) or ():
                        self.axes.union(a, b)
        evaluations = elements(operand) if type(node.op) in (prim.Concat, prim.Pad) else node.iterations
        seen = dims if any(type(op) is prim.Slice for op in views) else None
        return Access(node, value, producer, base_dims, evaluations, indirect, views, seen)

    def is_transparent(self, node: Node) -> bool:
        """Whether readers look through a materialised view at the memory behind it."""
        if node.op not in self.materialised:
            return False
        return not node.accesses or isinstance(node.accesses[0].base.owner, Block | kernel.Contract | kernel.Extern)


def _lies_in(op: Operation, strides: Sequence[Dim], materialised: Mapping[Operation, Sequence[Dim]]) -> bool:
    """Whether a view that is wanted with `strides` is one of memory that has to be made anyway: a product reads a matrix and its transpose."""
    chain: list[prim.PrimOp] = []
    at: Operation | Block = op
    while is_view(at) and (at is op or at not in materialised):
        chain.append(cast(prim.PrimOp, at))
        at = chain[-1].operands[0].owner
    if at is op or isinstance(at, Block) or at not in materialised:
        return False
    lies: Sequence[Dim] = materialised[at]
    offset: Dim = 0
    for view in reversed(chain):
        found = view_strides(view, tuple(lies), offset)
        if found is None:
            return False
        lies, offset = found
    return same_layout(prim.tensor(op.results[0]).shape, lies, strides)


def operands_read(op: Op) -> Sequence[SSAValue]:
    """The operands whose elements an operation reads."""
    return op.operands[:1] if isinstance(op, prim.After) else op.operands


def is_free(op: object) -> bool:
    """Whether an operation costs nothing to repeat: views, constants, casts that do not shrink their operand."""
    if type(op) is prim.Cast:
        return prim.tensor(op.operands[0]).dtype.bytes <= prim.tensor(op.results[0]).dtype.bytes
    return type(op) in _FREE


def is_border(node: Node) -> bool:
    """Whether a node puts something behind a value along one dimension, for library calls alone."""
    is_pad = isinstance(node.op, prim.Pad) and stored_behind(node.op)
    return is_pad and all(x.reader.kind == EXTERN for x in node.readers)


def _domain(op: Op) -> tuple[Dim, ...]:
    """The sizes of the loops over which an operation iterates."""
    kind = type(op)
    if kind is prim.Contract:
        return tuple(cast(prim.Contract, op).sizes)
    if kind is prim.Bag:
        return (*prim.tensor(op.results[0]).shape, _rows_of_a_bag(cast(prim.Bag, op)))
    source = op.operands[0] if kind in (prim.Reduce, prim.Scan) else op.operands[2] if kind is prim.Scatter else None
    return prim.tensor(op.results[0] if source is None else source).shape


def _rows_of_a_bag(op: prim.Bag) -> int:
    """How many rows a bag has in the mean, sizes guessed."""
    return max(1, elements(op.operands[1]) // max(1, elements(op.operands[3])))


def _operand_dims(node: Node, index: int) -> tuple[list[Any] | None, bool]:
    """The loops that index each dimension of an operand (None: shifted or indirect), and whether the access is indirect."""
    op, loops = node.op, node.loops
    if type(op) not in _MOVED:
        return loops, False
    if isinstance(op, prim.Take):
        d, rank = op["dim"], prim.tensor(op.operands[1]).rank
        return (loops[d : d + rank], False) if index else ([*loops[:d], None, *loops[d + rank :]], True)
    if isinstance(op, prim.Gather):
        if index:
            return loops, False
        shapes = zip(prim.tensor(op.operands[0]).shape, op.type.shape, strict=True)
        return [None if i == op["dim"] or a != b else loops[i] for i, (a, b) in enumerate(shapes)], True
    if isinstance(op, prim.Bag):
        if index in (2, 3):  # where bags begin, and how many rows they have
            return loops[:1], False
        return ([None], False) if index else ([None, *loops[1:-1]], True)
    if isinstance(op, prim.Contract):
        names = dict(zip(prim.axes(len(loops)), loops, strict=True))
        return [names.get(place) for place in op["maps"][index]], False
    if isinstance(op, prim.Concat):
        shift = None if len(op.operands) > 1 else loops[op["dim"]]
        return [shift if i == op["dim"] else axes for i, axes in enumerate(loops)], False
    pads = zip(op["low"], op["high"], strict=True)
    return [axes if low == high == 0 else None for axes, (low, high) in zip(loops, pads, strict=True)], False


def _lies(op: kernel.Contract | kernel.Extern, index: int) -> bool:
    """Whether operand `index` is a view of memory that the call can read as it is."""
    value = op.operands[index]
    view = view_of(value)
    if view is None or not (isinstance(view.base.owner, Block) or not is_free(view.base.owner)):
        return False
    return takes_view(op, index, view)
