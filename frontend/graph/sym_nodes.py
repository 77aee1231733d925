"""FX nodes for symbolic sizes: a sympy expression over the placeholders' symbols becomes a few operator nodes."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import reduce
from typing import Any

import sympy
import torch
from torch import Tensor, fx

from ..torch_private import sym_sqrt

aten = torch.ops.aten
Symbolic = (torch.SymInt, torch.SymFloat, torch.SymBool)


def to_expr(size: Any) -> Any:
    """An int, or the sympy expression of a symbolic size (an int again when that is a number)."""
    if not isinstance(size, Symbolic):
        return size
    expr = size.node.expr
    return int(expr) if expr.is_Integer else expr


class SymNodes:
    """Makes each symbolic expression once; a symbol comes from the first input that shows it."""

    def __init__(self, graph: fx.Graph):
        self.graph = graph
        self.nodes: dict[Any, fx.Node] = {}
        self.sources: dict[Any, tuple[Any, ...]] = {}  # symbol -> call that reads it from a tensor's sizes

    def bind(self, value: Any, node: fx.Node) -> None:
        """``node`` computes the SymInt ``value``; anything else is ignored."""
        if isinstance(value, Symbolic) and not value.node.expr.is_number:
            self.nodes.setdefault(value.node.expr, node)

    def bind_sizes(self, tensor: Tensor, node: fx.Node) -> None:
        """``node`` computes ``tensor``, whose sizes, strides and offset may show symbols."""
        for dim, size in enumerate(tensor.shape):
            self._offer(size, aten.sym_size.int, node, dim)
        for dim, stride in enumerate(tensor.stride()):
            self._offer(stride, aten.sym_stride.int, node, dim)
        self._offer(tensor.storage_offset(), aten.sym_storage_offset.default, node)

    def _offer(self, size: Any, *call: Any) -> None:
        if isinstance(size, Symbolic) and size.node.expr.is_Symbol:
            self.sources.setdefault(size.node.expr, (size, *call))

    def node_for(self, value: Any) -> Any:
        """A node (or plain number) that computes the SymInt, SymFloat or SymBool ``value``."""
        expr = value.node.expr
        node = self._build(expr, value)
        if isinstance(node, fx.Node):
            node.meta["val"] = value
        return node

    def _build(self, expr: Any, value: Any = None) -> Any:
        if expr.is_Integer:
            return int(expr)
        if expr.is_number:
            return float(expr) if expr.is_Boolean is not True else bool(expr)
        if expr in (sympy.true, sympy.false):
            return bool(expr)
        if expr in self.nodes:
            return self.nodes[expr]
        if expr in self.sources:
            size, func, *args = self.sources[expr]
            node = self.graph.call_function(func, tuple(args))
            node.meta["val"] = size
        else:
            node = self._compute(expr)
        self.nodes[expr] = node
        return node

    def _compute(self, expr: Any) -> fx.Node:
        function = _FUNCTIONS.get(type(expr).__name__)
        if function is None:
            raise NotImplementedError(f"no operator for the size {expr}")
        args = [self._build(a) for a in expr.args]
        if len(args) == 1:
            return self._call(function, args[0])
        return reduce(lambda a, b: self._call(function, a, b), args)

    def _call(self, function: Callable[..., Any], *args: Any) -> fx.Node:
        node = self.graph.call_function(function, args)
        if all(not isinstance(a, fx.Node) or "val" in a.meta for a in args):
            node.meta["val"] = function(*[a.meta["val"] if isinstance(a, fx.Node) else a for a in args])
        return node


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Add": operator.add,
    "Mul": operator.mul,
    "Pow": operator.pow,
    "PowByNatural": operator.pow,
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "Max": torch.sym_max,
    "Min": torch.sym_min,
    "ToFloat": torch.sym_float,
    "IntTrueDiv": operator.truediv,
    "FloatTrueDiv": operator.truediv,
    "FloatPow": operator.pow,
    "TruncToInt": math.trunc,
    "FloorToInt": math.floor,
    "CeilToInt": math.ceil,
    "OpaqueUnaryFn_sqrt": sym_sqrt,
    "Equality": operator.eq,
    "Unequality": operator.ne,
    "StrictLessThan": operator.lt,
    "LessThan": operator.le,
    "StrictGreaterThan": operator.gt,
    "GreaterThan": operator.ge,
    "Not": torch.sym_not,
    "And": operator.and_,
    "Or": operator.or_,
}
