"""From tensors to scalars: one element of a value as an expression over loads, at an index that is itself an expression.

`Lowering.lower(value, index)` walks down from a value to memory. Views vanish into the index, elementwise operations become scalar
operations, gathers bind an integer read from memory to a name, and reductions stop the walk: they stand as `reduced` nodes whose
bodies the planner turns into loops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
from xdsl.ir import Block, SSAValue

from ....ir.dialects import prim
from ....ir.dtypes import BOOL, F64, I64, DType
from ....ir.scalars import DOT, identity
from ....ir.symbols import Dim, FloorDiv, Mod, dim, free_symbols, interval, is_nonnegative, simplify_index
from ...analysis import indexing
from ...analysis.views import Index
from ..expressions import Expressions, Memory, Node

EXACT = {"where", "max", "min", "neg", "abs", "sign", "copysign", "floor", "ceil", "trunc", "round"}


@dataclass
class Body:
    """What a reduction joins: `args` (value, or value and position), one element for each point of `loops`."""

    op: prim.Reduce | prim.Bag | prim.Contract | prim.Scan
    index: Index
    args: tuple[Node, ...]
    variables: tuple[sympy.Symbol, ...]
    sizes: tuple[Dim, ...]
    numbers: tuple[Node, ...] = ()  # integers from memory: over how many elements it goes, and where they begin

    @property
    def kind(self) -> str:
        """The kind of reduction."""
        found: str = DOT if isinstance(self.op, prim.Contract) else self.op["kind"]
        return found

    @property
    def dtype(self) -> DType:
        """The dtype in which it accumulates."""
        return self.args[0].dtype


@dataclass
class Lowering(Expressions):
    """The scalar expressions of one fused kernel. `memories`: values that can be read from memory."""

    memories: dict[SSAValue, Memory] = field(default_factory=dict)
    bodies: dict[Node, Body] = field(default_factory=dict)
    stored: frozenset[SSAValue] = frozenset()  # reductions and scans that are read from memory
    remainders: bool = False  # a grid's: a roll is a remainder in the addresses, gaps may be read
    _memo: dict[Any, Node] = field(default_factory=dict)
    _ancestors: dict[SSAValue, frozenset[SSAValue]] = field(default_factory=dict)

    # Values.

    def lower(self, value: SSAValue, index: Index, mask: tuple[Dim, ...] = ()) -> Node:
        """The element of `value` at `index`, used only where all expressions of `mask` are >= 0."""
        key = (value, index, mask, self.stored)
        found = self._memo.get(key)
        if found is None:
            found = self._memo[key] = self._lower(value, index, mask)
        return found

    def _lower(self, value: SSAValue, index: Index, mask: tuple[Dim, ...]) -> Node:
        owner = value.owner
        if isinstance(owner, Block) or value in self.stored:
            return self.load(self.memories[value], index, self._needed(mask, index, self.memories[value]))
        if isinstance(owner, prim.Elementwise):
            return self._elementwise(owner, index, mask)
        rule = _RULES.get(type(owner))
        if rule is not None:
            return rule(self, owner, index, mask)
        assert isinstance(owner, prim.PrimOp)
        return self.lower(owner.operands[0], indexing.operand_indices(owner, index, self.ranges)[0], mask)

    def _needed(self, mask: tuple[Dim, ...], index: Index, memory: Memory) -> tuple[Dim, ...]:
        """What of a mask says whether there is an element at an index: conditions on other variables do not."""
        moving = free_symbols(index)
        if not mask or not moving.isdisjoint(self.binds):
            return mask
        needed = tuple(c for c in mask if not moving.isdisjoint(free_symbols([c])))
        return () if needed and self._reads_gaps(needed, index, memory) else needed

    def _reads_gaps(self, mask: tuple[Dim, ...], index: Index, memory: Memory) -> bool:
        """Whether all that a mask keeps from being read is the gap behind a row of the same memory, less than 16 bytes.

        A mask that ends within what a thread loads at once would make all loads of a grid single elements.
        """
        ref, ranges = memory.ref, self.ranges
        if not self.remainders or len(index) != len(ref.shape):
            return False
        gap = 16 // ref.dtype.bytes - 1
        return self._is_inside(index, ref.shape) and all(is_nonnegative(dim(c + gap), ranges) for c in mask)

    def _is_inside(self, index: Index, shape: Sequence[Dim]) -> bool:
        """Whether there is such an element of a value of this shape, whatever a mask says."""
        return all(
            is_nonnegative(dim(at), self.ranges) and is_nonnegative(dim(size - 1 - at), self.ranges)
            for at, size in zip(index, shape, strict=True)
        )

    def _elementwise(self, owner: prim.Elementwise, index: Index, mask: tuple[Dim, ...]) -> Node:
        name = owner.row.name
        args = [self.wide(self.lower(v, index, mask)) for v in owner.operands]
        if name == "div" and args[1].kind == "reduced" and _sums_powers(args[1].data[0]):
            name, args[1] = "mul", self.op("div", self.const(1.0, args[1].dtype), args[1])
        result = self.op(name, *args)
        if owner.type.dtype != result.dtype and name not in EXACT:
            result = self.cast(result, owner.type.dtype)
        return result

    def _cast(self, owner: prim.Cast, index: Index, mask: tuple[Dim, ...]) -> Node:
        x, dtype = self.lower(owner.operands[0], index, mask), owner.type.dtype
        if dtype.compute == dtype:
            return self.cast(self.wide(x), dtype)
        if prim.tensor(owner.operands[0]).dtype == dtype:
            return x
        return self.cast(self.cast(self.wide(x), dtype.compute), dtype)

    def _full(self, owner: prim.Full, index: Index, mask: tuple[Dim, ...]) -> Node:
        return self.const(owner["value"], owner.type.dtype)

    def _iota(self, owner: prim.Iota, index: Index, mask: tuple[Dim, ...]) -> Node:
        at, start, step, dtype = index[owner["dim"]], owner["start"], owner["step"], owner.type.dtype.compute
        if isinstance(start, float) or isinstance(
            step, float
        ):  # index expressions are integers: compute as torch does, in f64
            place = self.node("index", F64, (), (dim(at),), (at,))
            return self.cast(
                self.op("add", self.op("mul", place, self.const(step, F64)), self.const(start, F64)), dtype
            )
        value = dim(start + step * at)
        return self.node("index", dtype, (), (value,), (value,))

    def _pad(self, owner: prim.Pad, index: Index, mask: tuple[Dim, ...]) -> Node:
        inner, conditions = indexing.pad_index(owner, index, self.ranges)
        x = self.lower(owner.operands[0], inner, (*mask, *conditions))
        fill = self.const(owner["value"], owner.type.dtype)
        if conditions and x.kind == "load" and x.data[2] == tuple(conditions):
            memory, flat, inside, _ = x.data
            return self.node("load", x.dtype, (), (memory, flat, inside, fill.data[0]), (flat, *inside))
        return self.select(conditions, x, fill)

    def _concat(self, owner: prim.Concat, index: Index, mask: tuple[Dim, ...]) -> Node:
        at = index[owner["dim"]]
        found_roll = indexing.rolled(owner) if self.remainders else None
        if found_roll is not None:
            source, amount = found_roll
            whole = sympy.sympify(owner.type.shape[owner["dim"]])
            place = simplify_index(dim(Mod(sympy.sympify(at + amount), whole)), self.ranges)
            return self.lower(source, (*index[: owner["dim"]], place, *index[owner["dim"] + 1 :]), mask)
        parts: list[tuple[Dim, Node]] = []
        for operand, (inner, start, stop) in zip(owner.operands, indexing.concat_parts(owner, index), strict=True):
            above, below = dim(at - start), dim(stop - 1 - at)
            never = is_nonnegative(dim(-1 - above), self.ranges) or is_nonnegative(dim(-1 - below), self.ranges)
            if never:
                continue
            inside = tuple(c for c in (above, below) if not is_nonnegative(c, self.ranges))
            parts.append((below, self.lower(operand, inner, (*mask, *inside))))
        if not parts:  # no element at all
            return self.const(0, owner.type.dtype)
        found = parts[-1][1]
        for below, node in reversed(parts[:-1]):
            found = self.select([below], node, found)
        return found

    def bound(self, owner: prim.PrimOp, size: Dim, index: Index, mask: tuple[Dim, ...]) -> Dim:
        """The integer that the index operand holds at `index`: an expression over loop variables, or the name of one from memory."""
        number, inside = self.lower(owner.operands[1], index, mask), bool(owner.get("inside", False))
        place = self.expression(number)
        if place is not None:
            ranges = self.ranges
            place = simplify_index(place, ranges)
            if inside or is_nonnegative(place, ranges) and is_nonnegative(dim(size - 1 - place), ranges):
                return place
        variable: sympy.Symbol = self.bind(number, size, bool(owner.get("wrap", False)), mask, inside).data[0]
        return variable

    def expression(self, node: Node, floats: bool = False) -> Dim | None:
        """The index expression that is an integer's value; None when it takes more than loop variables and numbers.

        Expressions have no width: a step enters where its dtype holds all that it can be, so that nothing wraps or is rounded.
        With `floats`, numbers that are computed as floats may be integers, too.
        """
        found = self._exact(node, floats)
        if found is None:
            return None
        ends, (least, most) = interval(found, self.ranges), node.dtype.exact
        return found if ends is not None and least <= ends[0] and ends[1] <= most else None

    def _exact(self, node: Node, floats: bool) -> Dim | None:
        if node.dtype == BOOL or not (node.dtype.is_integer or (floats and node.dtype.is_float)):
            return None
        if node.kind == "const" and isinstance(node.data[0], float):
            return int(node.data[0]) if node.data[0].is_integer() else None
        if node.kind in ("index", "const"):
            found: Dim = node.data[0]
            return found
        parts = [self.expression(a, floats) for a in node.args] if node.kind in ("op", "cast") else []
        rule = _AS_EXPRESSION.get(node.data[0]) if node.kind == "op" else None
        if any(p is None for p in parts) or (node.kind == "op" and rule is None) or not parts:
            return None
        found_by = parts[0] if rule is None else rule(*parts)
        return None if found_by is None else dim(found_by)

    def _take(self, owner: prim.Take, index: Index, mask: tuple[Dim, ...]) -> Node:
        where, place = indexing.take_index(owner, index)
        size = prim.tensor(owner.operands[0]).shape[owner["dim"]]
        found = self.bound(owner, size, where, mask)
        return self._checked(self.lower(owner.operands[0], place(found), mask), found)

    def _gather(self, owner: prim.Gather, index: Index, mask: tuple[Dim, ...]) -> Node:
        size = prim.tensor(owner.operands[0]).shape[owner["dim"]]
        found = self.bound(owner, size, index, mask)
        return self._checked(self.lower(owner.operands[0], indexing.gather_index(owner, index)(found), mask), found)

    def _checked(self, value: Node, at: Dim) -> Node:
        """The value, made to depend on the index that selected it: a source that repeats does not, but the index is still checked."""
        if at not in self.binds or self.binds[at].data[4]:
            return value
        bind, seen, stack = self.binds[at], set(), [value]
        while stack:
            node = stack.pop()
            if node is bind:
                return value
            if node not in seen:
                seen.add(node)
                stack.extend(node.args)
        value = self.wide(value)
        return self.node("cast", value.dtype, (value,), (value.dtype.name,), (at,))

    def _reduce(self, owner: prim.Reduce, index: Index, mask: tuple[Dim, ...]) -> Node:
        if not owner["dims"] and not owner["kind"].startswith("arg"):
            return self.lower(owner.operands[0], index, mask)
        data = (owner, index, self._doubtful(owner, index, mask), self.stored & self._above(owner.results[0]))
        found = self.node("reduced", owner.type.dtype, (), data, index)
        if found not in self.bodies:
            sizes = indexing.reduced_sizes(owner)
            variables = self.inner_variables([(0, s) for s in sizes])
            inner = indexing.reduce_index(owner, index, variables)
            args = [self.wide(self.lower(owner.operands[0], inner))]
            if owner["kind"].startswith("arg"):
                args.append(self.node("index", I64, (), (variables[0],), (variables[0],)))
            self.bodies[found] = Body(owner, index, tuple(args), variables, sizes)
        return found

    def _doubtful(
        self, owner: prim.Reduce | prim.Bag | prim.Contract, index: Index, mask: tuple[Dim, ...]
    ) -> tuple[Dim, ...]:
        """The mask; nothing where there is such an element whatever the mask says, so that a window reads one value, not one a place."""
        return () if self._is_inside(index, owner.type.shape) else mask

    def _bag(self, owner: prim.Bag, index: Index, mask: tuple[Dim, ...]) -> Node:
        data = (owner, index, self._doubtful(owner, index, mask), self.stored & self._above(owner.results[0]))
        found = self.node("reduced", owner.type.dtype, (), data, index)
        if found not in self.bodies:
            table, numbers, start, count, *scale = owner.operands
            size = prim.tensor(numbers).shape[0]
            first, length = (self._known(self.lower(v, index[:1]), dim(size + 1)) for v in (start, count))
            variables = self.inner_variables([(0, length)])
            place = dim(first + variables[0])
            number = self.lower(numbers, (place,))
            at: sympy.Symbol = self.bind(number, prim.tensor(table).shape[0], wrap=False).data[0]
            value = self._checked(self.wide(self.lower(table, (at, *index[1:]))), at)
            if scale:
                value = self.op("mul", value, self.cast(self.wide(self.lower(scale[0], (place,))), value.dtype))
            if owner.get("padding") is not None:
                nothing = self.const(identity(owner["kind"], value.dtype), value.dtype)
                kept = self.op("ne", number, self.const(owner["padding"], number.dtype))
                value = self.op("where", kept, value, nothing)
            read = tuple(self.binds[s] for s in (first, length) if s in self.binds)
            self.bodies[found] = Body(owner, index, (value,), variables, (length,), read)
        return found

    def _known(self, number: Node, size: Dim) -> Dim:
        """An integer below `size`: an expression over loop variables, or the name of one from memory."""
        place = self.expression(number)
        variable: Dim = self.bind(number, size, wrap=False, inside=True).data[0] if place is None else place
        return variable

    def _contract(self, owner: prim.Contract, index: Index, mask: tuple[Dim, ...]) -> Node:
        data = (owner, index, self._doubtful(owner, index, mask), self.stored & self._above(owner.results[0]))
        found = self.node("reduced", owner.type.dtype, (), data, index)
        if found not in self.bodies:
            sizes = owner["reduced"]
            variables = self.inner_variables([(0, s) for s in sizes])
            at = dict(zip(prim.axes(len(owner.sizes)), (*index, *variables), strict=True))
            args = tuple(self._factor(owner, k, at) for k in (0, 1))
            self.bodies[found] = Body(owner, index, args, variables, sizes)
        return found

    def _factor(self, owner: prim.Contract, number: int, at: Mapping[sympy.Symbol, Dim]) -> Node:
        """An element of an operand of a contraction, where each dimension of the iteration is at this place."""
        value = owner.operands[number]
        place, conditions = indexing.contracted_index(owner, number, at, self.ranges)
        return self.select(
            conditions, self.wide(self.lower(value, place, tuple(conditions))), self.const(0, owner.type.dtype)
        )

    def reduces(self, value: SSAValue) -> bool:
        """Whether a value is a reduction or a scan, or computed from one."""
        return isinstance(value.owner, (*prim.JOINS, prim.Scan)) or bool(self._above(value))

    def _above(self, value: SSAValue) -> frozenset[SSAValue]:
        """The reductions and scans that a value is computed from."""
        found = self._ancestors.get(value)
        if found is None:
            values: set[SSAValue] = set()
            for v in value.owner.operands if isinstance(value.owner, prim.PrimOp) else ():
                values |= self._above(v)
                if isinstance(v.owner, (*prim.JOINS, prim.Scan)):
                    values.add(v)
            found = self._ancestors[value] = frozenset(values)
        return found

    def scan_body(self, owner: prim.Scan, index: Index) -> Node:
        """The element that a scan joins at `index`."""
        return self.wide(self.lower(owner.operands[0], index))

    def reached(self, node: Node) -> list[Node]:
        """All reductions that a node depends on, also through the bodies of others; outer ones first."""
        found: dict[Node, None] = {}
        stack = [node]
        while stack:
            for inner in stack.pop().walk():
                if inner.kind == "reduced" and inner not in found:
                    found[inner] = None
                    stack += (*self.bodies[inner].args, *self.bodies[inner].numbers)
        return list(found)


def _divided(a: Dim, b: Dim) -> Dim | None:
    return dim(FloorDiv(sympy.sympify(a), sympy.Integer(b))) if isinstance(b, int) and b > 0 else None


def _rest(a: Dim, b: Dim) -> Dim | None:
    return dim(Mod(sympy.sympify(a), sympy.Integer(b))) if isinstance(b, int) and b > 0 else None


# Integer operations that index expressions have.
_AS_EXPRESSION: Mapping[str, Callable[..., Dim | None]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "neg": lambda a: -a,
    "abs": lambda a: sympy.Max(a, -a),
    "max": lambda a, b: sympy.Max(a, b),
    "min": lambda a, b: sympy.Min(a, b),
    "floordiv": _divided,
    "mod": _rest,
}


def _sums_powers(op: Any) -> bool:
    """sum(exp(a - max(a))): between 1 and the number of terms, so that its reciprocal is no worse than a division by it."""
    exp = op.operands[0].owner if isinstance(op, prim.Reduce) and op["kind"] == "sum" else None
    sub = exp.operands[0].owner if isinstance(exp, prim.Elementwise) and exp.row.name == "exp" else None
    if not isinstance(sub, prim.Elementwise) or sub.row.name != "sub":
        return False
    spread = sub.operands[1].owner
    if not isinstance(spread, prim.Broadcast):
        return False
    largest, shape = spread.operands[0].owner, prim.tensor(sub.operands[0]).shape
    places = tuple(d for d in range(len(shape)) if d not in op["dims"])
    if isinstance(largest, prim.Reshape):  # reduced dimensions of size 1 are kept
        if largest.type.shape != tuple(s if d in places else 1 for d, s in enumerate(shape)):
            return False
        largest, places = largest.operands[0].owner, tuple(range(len(shape)))
    return (
        isinstance(largest, prim.Reduce)
        and (largest["kind"], tuple(largest["dims"])) == ("max", tuple(op["dims"]))
        and largest.operands[0] is sub.operands[0]
        and tuple(spread["dims"]) == places
    )


_RULES: Mapping[type, Callable[[Lowering, Any, Index, tuple[Dim, ...]], Node]] = {
    prim.Cast: Lowering._cast,
    prim.Full: Lowering._full,
    prim.Iota: Lowering._iota,
    prim.Pad: Lowering._pad,
    prim.Concat: Lowering._concat,
    prim.Take: Lowering._take,
    prim.Gather: Lowering._gather,
    prim.Reduce: Lowering._reduce,
    prim.Bag: Lowering._bag,
    prim.Contract: Lowering._contract,
}
