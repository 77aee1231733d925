"""Scalar expressions of a kernel: values over loads at symbolic indices. Equal nodes are one object, so common values are visible."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch

from ...ir.dtypes import BOOL, I64, DType
from ...ir.scalars import SCALARS
from ...ir.symbols import Dim, Range, dim, free_symbols, is_nonnegative, simplify_index, substitute, symbol
from ...ir.types import RefType
from ..analysis.views import Index, linear


@dataclass(eq=False)
class Memory:
    """Memory that a kernel reads or writes: an argument (`role` "in" or "out") or its own scratch."""

    name: str
    ref: RefType
    role: str

    def position(self, index: Index) -> Dim:
        """The flat index of an element."""
        return linear(index, self.ref.strides)


@dataclass(eq=False)
class Node:
    """One scalar value in a loop body.

    Kinds: load (data: memory, flat index, mask, other), op (name), cast, const (value), index (expression), select (conditions that are
    all >= 0: operand 0, else 1), bind (variable, size, wrap, mask), reduced (operation, index tuple).
    """

    kind: str
    dtype: DType
    args: tuple[Node, ...]
    data: tuple[Any, ...]
    free: frozenset[sympy.Symbol]  # loop variables on which it depends
    number: int
    cost: int

    def walk(self) -> Iterator[Node]:
        """This node and all below it, each once."""
        seen, stack = {self}, [self]
        while stack:
            node = stack.pop()
            yield node
            for arg in node.args:
                if arg not in seen:
                    seen.add(arg)
                    stack.append(arg)


@dataclass
class Expressions:
    """The scalar expressions of one kernel.

    `ranges`: the inclusive ranges of all variables made so far; `binds`: the nodes of those that are integers from memory.
    """

    ranges: dict[sympy.Symbol, Range] = field(default_factory=dict)
    binds: dict[sympy.Symbol, Node] = field(default_factory=dict)
    _nodes: dict[Any, Node] = field(default_factory=dict)
    _next: dict[str, int] = field(default_factory=dict)
    _inner: dict[tuple[tuple[Dim, Dim], ...], tuple[sympy.Symbol, ...]] = field(default_factory=dict)

    def node(
        self, kind: str, dtype: DType, args: Iterable[Node] = (), data: tuple[Any, ...] = (), exprs: Sequence[Dim] = ()
    ) -> Node:
        """The node with these parts; `exprs` are the index expressions that it reads."""
        args = tuple(args)
        read = free_symbols(exprs)
        free = {s for s in read if s in self.ranges and s not in self.binds}
        if len(free) < len(read):  # the order is that in which they were made, not that of a set
            bound = sorted((self.binds[s] for s in read if s in self.binds), key=lambda node: node.number)
            args = (*args, *(bind for bind in bound if bind not in args))
        key = (kind, dtype.name, tuple(a.number for a in args), tuple(_hashable(d) for d in data))
        found = self._nodes.get(key)
        if found is None:
            frozen = frozenset(free).union(*(a.free for a in args))
            cost = SCALARS[data[0]].cost if kind == "op" else 1 if kind in ("load", "cast", "select") else 0
            found = Node(kind, dtype, args, data, frozen, len(self._nodes), cost)
            self._nodes[key] = found
        return found

    def const(self, value: Any, dtype: DType) -> Node:
        """A number, as a scalar of the dtype in which values of `dtype` are computed."""
        if isinstance(value, sympy.Expr) and value.is_number:
            value = int(value) if value.is_Integer else float(value)
        if isinstance(value, sympy.Expr):
            return self.node("index", dtype.compute, (), (dim(value),), (value,))
        if dtype.is_float:
            value = float(torch.tensor(value, dtype=dtype.torch).item())
        elif dtype == BOOL:
            value = bool(value)
        else:
            value = int(torch.tensor(value).to(dtype.torch).item())
        return self.node("const", dtype.compute, (), (value,))

    def load(self, memory: Memory, index: Index, mask: tuple[Dim, ...], other: Any = None) -> Node:
        """An element of memory, or `other` where an expression of the mask is negative."""
        flat = memory.position(index)
        if mask and other is None:
            other = False if memory.ref.dtype == BOOL else 0.0 if memory.ref.dtype.is_float else 0
        return self.node("load", memory.ref.dtype.compute, (), (memory, flat, mask, other), (flat, *mask))

    def cast(self, x: Node, dtype: DType) -> Node:
        """x in another dtype; nothing when it has it."""
        return x if x.dtype == dtype else self.node("cast", dtype, (x,), (dtype.name,))

    def wide(self, x: Node) -> Node:
        """x in the dtype for arithmetic: half types become f32."""
        return self.cast(x, x.dtype.compute)

    def op(self, name: str, *args: Node) -> Node:
        """A row of the scalar table."""
        return self.node("op", SCALARS[name].result_dtype([a.dtype for a in args]), args, (name,))

    def select(self, conditions: Sequence[Dim], yes: Node, no: Node) -> Node:
        """`yes` where all conditions are >= 0, else `no`."""
        if not conditions:
            return yes
        yes, no = self.wide(yes), self.wide(no)
        return self.node("select", yes.dtype, (yes, no), (tuple(conditions),), conditions)

    def renamed(
        self, node: Node, mapping: Mapping[sympy.Symbol, Dim], known: Mapping[Node, Node] | None = None
    ) -> Node | None:
        """The node with other expressions for its loop variables; None when it depends on an integer from memory or a reduction.

        Args:
            known: what stands for some nodes, such as reductions.
        """
        made: dict[Node, Node] = dict(known or {})
        for below in sorted(node.walk(), key=lambda n: n.number):  # operands are made before what uses them
            if below in made:
                continue
            places = _PLACES.get(below.kind)
            if places is None:
                return None
            data = tuple(
                tuple(simplify_index(substitute(e, mapping), self.ranges) for e in part)
                if k in places and isinstance(part, tuple)
                else simplify_index(substitute(part, mapping), self.ranges)
                if k in places
                else part
                for k, part in enumerate(below.data)
            )
            parts: list[Any] = [data[k] for k in places]
            exprs = [e for part in parts for e in (part if isinstance(part, tuple) else (part,))]
            made[below] = self.node(below.kind, below.dtype, [made[a] for a in below.args], data, exprs)
        return made[node]

    def variable(self, prefix: str, size: Dim) -> sympy.Symbol:
        """A new variable with 0 <= variable < size."""
        number = self._next.get(prefix, 0)
        while symbol(f"{prefix}{number}") in self.ranges:
            number += 1
        self._next[prefix] = number + 1
        found = symbol(f"{prefix}{number}")
        self.ranges[found] = (0, dim(size - 1))
        return found

    def made(self, variable: sympy.Symbol) -> int:
        """The position of a variable among all that were made."""
        return list(self.ranges).index(variable)

    def inner_variables(
        self, bounds: Sequence[tuple[Dim, Dim]], names: Sequence[sympy.Symbol] = ()
    ) -> tuple[sympy.Symbol, ...]:
        """The variables of inner loops from each start below each stop: the same ones for every stage, so that equal bodies are equal nodes.

        Args:
            names: the variables where these loops are the first of their kind; default new ones.
        """
        key = tuple(bounds)
        if key not in self._inner:
            self._inner[key] = tuple(names) or tuple(self.variable("r", stop) for _, stop in key)
            self.ranges.update((v, (a, dim(b - 1))) for v, (a, b) in zip(self._inner[key], key, strict=True))
        return self._inner[key]

    def bind(
        self,
        number: Node,
        size: Dim,
        wrap: bool,
        mask: tuple[Dim, ...] = (),
        inside: bool = False,
        name: sympy.Symbol | None = None,
    ) -> Node:
        """The node that gives an integer from memory a name: an index below `size`, checked where all of the mask is >= 0.

        With `inside` it is known to lie there. `name`: the variable where there is no such node yet; default a new one.
        """
        number = number if inside else self.cast(number, I64)
        key = ("bind", number.number, size, wrap, mask, inside)
        found = self._nodes.get(key)
        if found is None:
            if name is None:
                name = self.variable("at", size)
            self.ranges[name] = (0, dim(size - 1))
            conditions = [self.node("index", I64, (), (m,), (m,)) for m in mask]
            free = number.free.union(*(n.free for n in conditions))
            args = (number, *dict.fromkeys(a for n in conditions for a in n.args))
            found = Node("bind", I64, args, (name, size, wrap, mask, inside), free, len(self._nodes), 1)
            self._nodes[key] = self.binds[name] = found
        return found


def decided(node: Node, conditions: Iterable[Dim], ranges: Mapping[sympy.Symbol, Range]) -> Node | None:
    """The operand that a selection under these conditions takes throughout the ranges, if that is known."""
    conditions = list(conditions)
    if all(is_nonnegative(c, ranges) for c in conditions):
        return node.args[0]
    if any(is_nonnegative(dim(-1 - c), ranges) for c in conditions):
        return node.args[1]
    return None


_PLACES: Mapping[str, tuple[int, ...]] = {  # where a node's data holds index expressions
    "load": (1, 2),
    "op": (),
    "cast": (),
    "const": (),
    "index": (0,),
    "select": (0,),
}


def _hashable(part: Any) -> Any:
    return (
        (type(part).__name__, repr(part))
        if isinstance(part, float)
        else (bool, part)
        if isinstance(part, bool)
        else part
    )
