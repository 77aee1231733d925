"""What a functional graph returns, and how each result of the program is made of that."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import cache
from typing import Any, Protocol

import sympy
import torch
from torch import Tensor, fx

from ..errors import Unsupported
from ..graph.sym_nodes import SymNodes, to_expr
from ..torch_private.dispatch import storage_key
from ..torch_private.functions import OpOverload
from .spec import OutputSpec, Value

__all__ = ["Results", "is_read_alike", "root_of", "same_geometry"]

aten = torch.ops.aten


class Trace(Protocol):
    """The trace whose results are described."""

    gm: fx.GraphModule
    graph: fx.Graph
    inputs: list[Any]
    symbols: SymNodes

    def value(self, tensor: Tensor) -> Value:
        """What is known of a fake tensor."""

    def refresh(self, value: Value) -> fx.Node:
        """The node of a value's contents as they are now."""

    def note(self, node: fx.Node, val: Any) -> fx.Node:
        """Give a node its value."""

    def unsupported(self, reason: str) -> Unsupported:
        """The error of a graph that cannot be expressed."""


class Results:
    """Collects the graph's output nodes while it describes each user output."""

    def __init__(self, tracer: Trace, leaves: list[Any]):
        self.tracer = tracer
        self.leaves = leaves
        self.nodes: list[fx.Node] = []
        self.positions: dict[fx.Node, int] = {}
        self.bases: dict[int, int] = {}  # storage key -> graph output
        storages = [storage_key(t) for t in leaves if isinstance(t, Tensor)]
        self.shared = {s for s in storages if storages.count(s) > 1}

    def emit(self, node: fx.Node) -> int:
        """Add an output; its number."""
        self.nodes.append(node)
        return len(self.nodes) - 1

    def specify(self, position: int) -> OutputSpec:
        """How one user output is made."""
        leaf = self.leaves[position]
        if isinstance(leaf, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return self._symbolic(leaf)
        if not isinstance(leaf, Tensor):
            return OutputSpec("constant", value=leaf)
        tracer = self.tracer
        value = tracer.value(leaf)
        storage = value.storage
        if storage.constant is not None and storage.base is value:
            return OutputSpec("constant", value=operator.attrgetter(storage.constant)(tracer.gm))
        for index, given in enumerate(tracer.inputs):
            if leaf is given:
                return OutputSpec("input", index)
        for index in range(position):
            if leaf is self.leaves[index]:
                return OutputSpec("output", index)
        if storage.input_index is not None:
            return self._view("alias", storage.input_index, tracer.inputs[storage.input_index], leaf)
        if storage.constant is not None:
            raise tracer.unsupported("an output is a view of one of the graph's constants")
        key = storage_key(leaf)
        reinterpreted = leaf.dtype != storage.base.val.dtype and key not in self.shared
        if not reinterpreted and (key in self.shared or not _is_dense(leaf)):
            if key not in self.bases:
                self.bases[key] = self.emit(self._owned(storage.base))
            return self._view("alias_output", self.bases[key], storage.base.val, leaf)
        return self._described("value", self.emit(self._owned(value)), leaf, 0)

    def _symbolic(self, leaf: Any) -> OutputSpec:
        expr = to_expr(leaf)
        if expr.is_number:
            return OutputSpec("constant", value=int(leaf) if isinstance(leaf, torch.SymInt) else leaf.__class__(leaf))
        if isinstance(leaf, torch.SymFloat):  # numbers are arguments: what backward saves of them
            for index, given in enumerate(self.tracer.inputs):
                if isinstance(given, torch.SymFloat) and given.node.expr == leaf.node.expr:
                    return OutputSpec("input", index)
        return OutputSpec("symint", self.emit(self.tracer.symbols.node_for(leaf)), value=expr)

    def _view(self, kind: str, index: int, base: Tensor, leaf: Tensor) -> OutputSpec:
        if not is_read_alike(leaf, base):
            raise self.tracer.unsupported(
                f"an output of dtype {leaf.dtype} is a reinterpreting view of a tensor of dtype {base.dtype}"
            )
        return self._described(kind, index, leaf, leaf.storage_offset() - base.storage_offset())

    @staticmethod
    def _described(kind: str, index: int, leaf: Tensor, offset: Any) -> OutputSpec:
        return OutputSpec(
            kind, index, tuple(map(to_expr, leaf.shape)), tuple(map(to_expr, leaf.stride())), to_expr(offset)
        )

    def detached(self, value: Value) -> fx.Node:
        """The value's node, cloned if it shows an input: that might be overwritten before this one is read."""
        node = self.tracer.refresh(value)
        if root_of(node).op == "placeholder":
            node = self.tracer.note(self.tracer.graph.call_function(aten.clone.default, (node,)), value.val)
        return node

    def _owned(self, value: Value) -> fx.Node:
        """The value's node, or a clone of it when that is an input, a constant or another output in disguise."""
        tracer = self.tracer
        node = tracer.refresh(value)
        if value.val.is_neg():
            raise tracer.unsupported("an output is a lazy negation: the imaginary part of a conjugate")
        if node.meta["val"].is_conj() and not value.val.is_conj():
            node = tracer.note(tracer.graph.call_function(aten.resolve_conj.default, (node,)), value.val)
        root = root_of(node)
        same = same_geometry(node.meta["val"], value.val)
        if root.op in ("placeholder", "get_attr") or root in self.positions or not same:
            node = tracer.note(tracer.graph.call_function(aten.clone.default, (node,)), value.val)
            root = node
        self.positions[root] = len(self.nodes)
        return node


def is_read_alike(tensor: Tensor, other: Tensor) -> bool:
    """Whether both take what lies in memory for the same: neither another type, nor a lazy conjugate or negation."""
    kinds = [(t.dtype, t.is_conj(), t.is_neg()) for t in (tensor, other)]
    return kinds[0] == kinds[1]


def root_of(node: fx.Node) -> fx.Node:
    """The node whose memory a chain of views shows."""
    while node.op == "call_function" and (node.target is operator.getitem or _is_view(node.target)):
        source = node.args[0]
        if node.target is operator.getitem and not _is_view(source.target):  # type: ignore[union-attr]
            break
        node = source  # type: ignore[assignment]
    return node


@cache
def _is_view(func: Any) -> bool:
    if not isinstance(func, OpOverload):
        return False
    if func is aten._unsafe_view.default:
        return True
    return any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)


def same_geometry(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same sizes and strides, symbol by symbol."""
    return _exprs(a.shape) == _exprs(b.shape) and _exprs(a.stride()) == _exprs(b.stride())


def _exprs(sizes: Sequence[Any]) -> list[Any]:
    return [to_expr(s) for s in sizes]


def _is_dense(t: Tensor) -> bool:
    """Whether the elements fill one piece of memory without gap or overlap (no guard is added for symbols)."""
    pairs = sorted(
        ((to_expr(s), to_expr(n)) for n, s in zip(t.shape, t.stride(), strict=True) if to_expr(n) != 1),
        key=lambda pair: _order(t, pair[0]),
    )
    expected: Any = 1
    for stride, size in pairs:
        if sympy.expand(stride - expected) != 0:
            return any(to_expr(n) == 0 for n in t.shape)
        expected = sympy.expand(expected * size)
    return True


def _order(t: Tensor, expr: Any) -> Any:
    if isinstance(expr, int) or expr.is_number:
        return int(expr)
    hints = dict.fromkeys(expr.free_symbols, 7919)  # only orders the strides; equality is checked symbolically
    return expr.xreplace(hints)
