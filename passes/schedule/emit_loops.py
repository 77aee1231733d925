"""From a tiled nest to `loop` operations: opens and closes loops, and puts every scalar operation into the outermost loop it can stand in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import sympy
from xdsl.ir import Block, Operation, Region, SSAValue

from ...ir.dialects import loop as ir
from ...ir.dtypes import BOOL, BY_NAME, I64, DType
from ...ir.scalars import DOT, JOINT, identity
from ...ir.symbols import Dim, Range, dim, free_symbols, is_nonnegative, simplify_index, substitute, symbol, symbols_of
from ...ir.syntax import Op
from ...ir.types import RefType, ref_type, scalar_type
from ..core.rewriter import erase_dead
from .expressions import Memory, Node, decided
from .nests import Join, Loop, Nest, Nests, Segment, Stage, Store


@dataclass
class _Scope:
    block: Block
    depth: int
    made: dict[Node, SSAValue] = field(default_factory=dict)
    runs: Dim = 0  # not negative when the loop has an iteration


def write(found: Nests) -> Block:
    """The block of a plain kernel with these nests: what `read` makes of it is the same again."""
    block, places = kernel_block(found.arguments, found.scratch)
    emitter = LoopEmitter(block, places, found.expressions.ranges, in_order=True, plain=True)
    for nest in found.nests:
        emitter.nest(nest)
    erase_dead(block)
    return block


def kernel_block(arguments: Sequence[Memory], scratch: Sequence[Memory]) -> tuple[Block, dict[Memory, SSAValue]]:
    """The block of a kernel with its memory alone, and where each memory is."""
    block = Block(arg_types=[m.ref for m in arguments])
    places: dict[Memory, SSAValue] = dict(zip(arguments, block.args, strict=True))
    for memory in scratch:
        local = ir.Local.make([], [memory.ref], {"size": memory.ref.numel})
        block.add_op(local)
        places[memory] = local.results[0]
    return block, places


class LoopEmitter:
    """Writes the nests of one kernel into its block."""

    def __init__(
        self,
        block: Block,
        places: Mapping[Memory, SSAValue],
        ranges: Mapping[sympy.Symbol, Range],
        in_order: bool = False,
        plain: bool = False,
    ) -> None:
        self.plain = plain  # all that `read` needs is written
        self.in_order = (
            in_order  # operands from left to right: few loads of a long sum wait in registers for their turn
        )
        self.places = dict(places)
        self.ranges = dict(ranges)
        self.scopes = [_Scope(block, 0)]
        self.outermost = 0
        self.env: dict[sympy.Symbol, Dim] = {}
        self.depths: dict[sympy.Symbol, int] = {}
        self.accumulators: dict[Node, tuple[SSAValue, Dim]] = {}
        self.kept_values: dict[
            Node, tuple[SSAValue, Dim]
        ] = {}  # of argmax and argmin; `accumulators` has the positions
        self.kept: dict[Node, SSAValue] = {}
        self.keeping: dict[Node, Dim] = {}
        self.joint: dict[Node, list[SSAValue]] = {}  # of kinds that give several values
        self.used_names: set[str] = set()
        self.plan_names = {s.name for s in ranges}  # a loop's name must not be taken for another variable of the plan
        self.binds: dict[sympy.Symbol, sympy.Symbol] = {}

    # Loops.

    def nest(self, nest: Nest) -> None:
        """Write one nest."""
        self.env = dict(nest.env)
        self.accumulators, self.kept, self.keeping = {}, {}, {}
        self.kept = {node: self.places[memory] for node, memory in nest.lent.items()}
        rows = nest.rows
        if self.plain and not rows and (len(nest.stages) > 1 or any(s.kind != "serial" for s in nest.stages)):
            rows = [Loop(symbol("o"), 1)]  # so that `read` knows which stages belong together
        self.outermost = int(rows is not nest.rows)  # what belongs to the nest's single row says so by no variable
        self._loops(rows, "parallel" if self.plain else "serial", lambda: self._stages(nest))

    def _loops(self, loops: Sequence[Loop], kind: str, body: Callable[[], None]) -> None:
        if not loops:
            body()
            return
        spec = loops[0]
        var = self._fresh(spec.var)
        start, stop = self.index(spec.start), self.index(spec.stop)
        old_range, old_env = self.ranges.get(var), dict(self.env)
        self.ranges[var] = spec.within or (start, dim(stop - 1))
        if var != spec.var:
            self.env = {v: substitute(e, {spec.var: var}) for v, e in self.env.items()}
        self.env[spec.var] = var
        scope = _Scope(Block(), len(self.scopes), runs=dim(stop - start - 1))
        self.scopes.append(scope)
        self.depths[var] = scope.depth
        self._loops(loops[1:], kind, body)
        self.scopes.pop()
        self.env = old_env
        if old_range is not None:
            self.ranges[var] = old_range
        attrs: dict[str, object] = {"kind": spec.kind or kind, "var": var}
        if start != 0:
            attrs["start"] = start
        attrs["stop"] = stop
        if spec.step != 1:
            attrs["step"] = spec.step
        if spec.block > 1:
            attrs["block"] = spec.block
        if spec.apart:
            attrs["apart"] = True
        if spec.cooperative:
            attrs["cooperative"] = True
        if spec.group > 1:
            attrs["group"] = spec.group
        if spec.persistent:
            attrs["persistent"] = spec.persistent
        self._add(self.scopes[-1], ir.For.make([], [], attrs, [Region(scope.block)]))

    def _fresh(self, var: sympy.Symbol) -> sympy.Symbol:
        name, k = var.name, 0
        base = name.rstrip("0123456789")
        while name in self.used_names or (name in self.plan_names and name != var.name):
            name, k = f"{base}{k}", k + 1
        self.used_names.add(name)
        return symbol(name)

    def _stages(self, nest: Nest) -> None:
        row = self.scopes[-1]
        for node, size in nest.scratch.items():
            self.kept[node] = self._local(row, size, node.dtype)
        for stage in nest.stages:
            for number in stage.numbers:
                self.value(number)
            for join in () if stage.declared else stage.joins:
                if join.beside:
                    self._declare_joint(row, join, nest)
                else:
                    self._declare(row, join.target, join.kind, join.args, nest)
            self.accumulators |= {node: self.accumulators[target] for node, target in stage.running.items()}
            scans = {id(s): self._scan_memory(row, s, nest) for s in stage.stores if s.scan}
            for segment in stage.segments or [Segment(stage.loops)]:
                outer = dict(self.env)
                self.env |= segment.env
                self._loops(segment.loops, stage.kind, lambda s=stage, m=scans: self._body(s, m, nest))  # type: ignore[misc]
                self.env = outer
            for node, position in stage.scratch:
                self.keeping[node] = position
            if stage.exchange:
                self._exchange(row, stage)

    def _exchange(self, row: _Scope, stage: Stage) -> None:
        """Programs that share a row get what all of them have accumulated."""
        given = [m for j in stage.joins for m in self.joint.get(j.target, [self.accumulators[j.target][0]])]
        operands = [*given, *(self.places[m] for m in stage.exchange)]
        (walk,) = [each for segment in stage.segments for each in segment.loops if each.cooperative]
        self._add(row, ir.Exchange.make(operands, [], {"count": walk.stop}))

    def _declare(self, row: _Scope, target: Node, kind: str, args: Sequence[Node], nest: Nest) -> None:
        index = tuple(map(self.index, target.data[1])) if self.plain else ()
        rows = {self.env[s.var] for s in nest.rows if s.stop != 1}
        element = index if {i for i in index if not isinstance(i, int)} != rows else ()
        memory = self._local(row, nest.lanes, args[0].dtype, identity(kind, args[0].dtype), element)
        self.accumulators[target] = (memory, nest.lane)
        if len(args) == 2 and kind != DOT:
            places = self._local(row, nest.lanes, I64, 0, element)
            self.accumulators[target] = (places, nest.lane)
            self.kept_values[target] = (memory, nest.lane)

    def _declare_joint(self, row: _Scope, join: Join, nest: Nest) -> None:
        memories = [self._local(row, nest.lanes, join.args[0].dtype, first) for first in JOINT[join.kind]]
        self.joint[join.target] = memories
        for node, memory in zip((*join.beside, join.target), memories, strict=True):
            if node is not None:
                self.accumulators[node] = (memory, nest.lane)

    def _scan_memory(self, row: _Scope, store: Store, nest: Nest) -> SSAValue:
        return self._local(row, nest.lanes, store.node.dtype, identity(store.scan, store.node.dtype))

    def _local(
        self, scope: _Scope, size: Dim, dtype: DType, value: object = None, element: Sequence[Dim] = ()
    ) -> SSAValue:
        attrs: dict[str, object] = {"size": size} if value is None else {"size": size, "value": value}
        attrs |= {"element": element} if element else {}
        return self._add(scope, ir.Local.make([], [ref_type([size], None, dtype)], attrs)).results[0]

    def _body(self, stage: Stage, scans: Mapping[int, SSAValue], nest: Nest) -> None:
        if stage.inside:
            self._stages(Nest([], stage.inside))
            return
        for node, position in stage.scratch:
            value = self.value(node)
            self._add(self.scopes[-1], ir.Store.make([value, self.kept[node]], [], {"index": self.index(position)}))
        for join in stage.joins:
            values = [self.value(a) for a in join.args]
            memory, lane = self.accumulators[join.target]
            operands = [values[0], *self.joint.get(join.target, [memory])]
            attrs: dict[str, object] = {"kind": join.kind, "index": self.index(lane)}
            attrs |= {name: value for name, value in join.attrs.items() if self.plain or name not in _PLANNED}
            if join.kind == DOT:
                operands = [*values, memory]
            elif len(values) == 2:
                operands = [*values, self.kept_values[join.target][0], memory]
            self._add(self.scopes[-1], ir.Accumulate.make(operands, [], attrs))
        if nest.lent:  # all values before the first store: it may overwrite what another result waits in
            values = [self._value_of(store, scans.get(id(store)), nest) for store in stage.stores]
            for store, value in zip(stage.stores, values, strict=True):
                self._store(store, value)
        else:
            for store in stage.stores:
                self._store(store, self._value_of(store, scans.get(id(store)), nest))

    def _value_of(self, store: Store, scan: SSAValue | None, nest: Nest) -> SSAValue:
        """What a store writes; a scan joins it to what came before, and those that follow in the same body find its value."""
        node = self._stored(store)
        value = self.value(node)
        if store.bind is not None:
            self.value(store.bind)
        scope = self.scopes[-1]
        if scan is not None:
            lane = {"index": self.index(nest.lane)}
            self._add(scope, ir.Accumulate.make([value, scan], [], {"kind": store.scan, **lane}))
            load = ir.Load.make([scan], [scalar_type(node.dtype)], lane)
            value = self._add(scope, load).results[0]
            if store.result is not None:
                scope.made[store.result] = value
        return value

    def _store(self, store: Store, value: SSAValue) -> None:
        if store.passes:
            return
        scope = self.scopes[-1]
        place = self.places[store.memory]
        if store.atomic:
            joined = {"kind": store.atomic, "index": self.index(store.flat)}
            self._add(scope, ir.Atomic.make([value, place], [], joined))
            return
        self._add(scope, ir.Store.make([value, place], [], {"index": self.index(store.flat)}))

    def _stored(self, store: Store) -> Node:
        """The value that a store takes: without a cast where the store itself rounds, and the cast value is not there already."""
        node, dtype = store.node, store.memory.ref.dtype
        while not self.plain and node.kind == "cast" and node.dtype == dtype and dtype.compute != dtype:
            if node in self.keeping or self._made(node) is not None:
                break
            node = node.args[0]
        return node

    # Scalars.

    def index(self, value: Dim) -> Dim:
        """An index expression in the variables of the open loops."""
        if isinstance(value, int):
            return value
        found = substitute(substitute(value, self.env), self.binds)
        return simplify_index(found, self.ranges)

    def _depth(self, node: Node) -> int:
        depth = self.outermost
        for s in node.free:
            expr = self.env.get(s, s)
            if isinstance(expr, sympy.Expr):
                depth = max([depth, *(self.depths.get(v, 0) for v in symbols_of(expr))])
        bound = bool(node.args)  # an index at a bound position stands behind its bind
        return depth if node.kind in ("const", "index") and not bound else max(depth, self._may_not_run(depth))

    def _may_not_run(self, depth: int) -> int:
        """The depth of the innermost open loop that may have no iteration: nothing is read in front of it, its memory may be empty.

        Loops over a part of another loop's range (tiles) run whenever that one does.
        """
        for inner in reversed(self.scopes[depth + 1 :]):
            over_sizes = all(v not in self.depths for v in free_symbols([inner.runs]))
            if over_sizes and not is_nonnegative(inner.runs, self.ranges):
                return inner.depth
        return depth

    def value(self, node: Node) -> SSAValue:
        """The SSA value of a node in the loops that are open."""
        found = self._made(node)
        if found is not None:
            return found
        stack = [node]
        while stack:
            top = stack[-1]
            if self._made(top) is not None:
                stack.pop()
                continue
            if top.kind == "select":
                known = decided(top, map(self.index, top.data[0]), self.ranges)
                if known is not None:
                    below = self._made(known)
                    if below is None:
                        stack.append(known)
                    else:
                        stack.pop()
                        self.scopes[self._depth(top)].made[top] = below
                    continue
            waiting = [] if top in self.keeping else [a for a in top.args if self._made(a) is None]
            if waiting:
                stack += waiting[::-1] if self.in_order else waiting
                continue
            stack.pop()
            scope = self.scopes[self._depth(top)]
            scope.made[top] = self._emit(top, scope)
        result = self._made(node)
        assert result is not None
        return result

    def _made(self, node: Node) -> SSAValue | None:
        for scope in reversed(self.scopes):
            found = scope.made.get(node)
            if found is not None:
                return found
        return None

    def _emit(self, node: Node, scope: _Scope) -> SSAValue:
        if node in self.keeping:
            load = ir.Load.make([self.kept[node]], [scalar_type(node.dtype)], {"index": self.index(self.keeping[node])})
            return self._add(scope, load).results[0]
        args = [self._made(a) for a in node.args]
        operands = [a for a in args if a is not None]
        return _EMIT[node.kind](self, node, scope, operands)

    def _load(self, node: Node, scope: _Scope, operands: list[SSAValue]) -> SSAValue:
        memory, flat, mask, other = node.data
        # An index outside counts as 0, and there may be no element 0.
        conditions = [*dict.fromkeys(self.index(c) for c in (*mask, *(dim(bind.data[1] - 1) for bind in node.args)))]
        if any(is_nonnegative(dim(-1 - c), self.ranges) for c in conditions):
            return self._constant(scope, self._nothing(node.dtype) if other is None else other, node.dtype)
        conditions = [c for c in conditions if not is_nonnegative(c, self.ranges)]
        attrs: dict[str, object] = {"index": self.index(flat)}
        if conditions:
            attrs |= {"mask": conditions, "other": self._nothing(node.dtype) if other is None else other}
        load = ir.Load.make([self.places[memory]], [scalar_type(node.dtype)], attrs)
        return self._add(scope, load).results[0]

    @staticmethod
    def _nothing(dtype: DType) -> object:
        return False if dtype == BOOL else 0.0 if dtype.is_float else 0

    def _op(self, node: Node, scope: _Scope, operands: list[SSAValue]) -> SSAValue:
        return self._add(scope, ir.scalar_op(node.data[0], *operands)).results[0]

    def _cast(self, node: Node, scope: _Scope, operands: list[SSAValue]) -> SSAValue:
        checked = [self.binds[bind.data[0]] for bind in node.args[1:]] if self.plain else []
        attrs = {"checked": checked} if checked else {}
        return self._add(scope, ir.ScalarCast.make(operands[:1], [scalar_type(BY_NAME[node.data[0]])], attrs)).results[
            0
        ]

    def _const(self, node: Node, scope: _Scope, operands: list[SSAValue]) -> SSAValue:
        return self._constant(scope, node.data[0], node.dtype)

    def _constant(self, scope: _Scope, value: object, dtype: DType) -> SSAValue:
        return self._add(scope, ir.Constant.make([], [scalar_type(dtype)], {"value": value})).results[0]

    def _index(self, node: Node, scope: _Scope, operands: list[SSAValue]) -> SSAValue:
        attrs = {"value": self.index(node.data[0])}
        return self._add(scope, ir.Index.make([], [scalar_type(node.dtype)], attrs)).results[0]

    def _select(self, node: Node, scope: _Scope, operands: list[SSAValue]) -> SSAValue:
        conditions = [self.index(c) for c in node.data[0]]
        chosen: SSAValue | None = None
        for condition in conditions:
            if is_nonnegative(condition, self.ranges):
                continue
            number = self._add(scope, ir.Index.make([], [scalar_type(I64)], {"value": condition})).results[0]
            zero = self._constant(scope, 0, I64)
            fine = self._add(scope, ir.scalar_op("ge", number, zero)).results[0]
            chosen = fine if chosen is None else self._add(scope, ir.scalar_op("and", chosen, fine)).results[0]
        assert chosen is not None and chosen.type == scalar_type(BOOL)
        return self._add(scope, ir.scalar_op("where", chosen, operands[0], operands[1])).results[0]

    def _bind(self, node: Node, scope: _Scope, operands: list[SSAValue]) -> SSAValue:
        var, size, wrap, mask, inside = node.data
        conditions = [c for c in map(self.index, mask) if not is_nonnegative(c, self.ranges)]
        name = self._fresh(var)
        self.binds[var] = name
        self.ranges[name] = self.ranges[var]
        attrs: dict[str, object] = {"var": name, "size": self.index(size)}
        if wrap:
            attrs["wrap"] = True
        if inside:
            attrs["inside"] = True
        if conditions:
            attrs["mask"] = conditions
        self._add(scope, ir.Bind.make([operands[0]], [], attrs))
        return operands[0]

    def _reduced(self, node: Node, scope: _Scope, operands: list[SSAValue]) -> SSAValue:
        values = node.data[-1] == "values"
        memory, lane = self.kept_values[node.data[0]] if values else self.accumulators[node]
        load = ir.Load.make([memory], [scalar_type(node.dtype)], {"index": self.index(lane)})
        return self._add(scope, load).results[0]

    @staticmethod
    def _add(scope: _Scope, op: Op) -> Operation:
        scope.block.add_op(op)
        return op


_PLANNED = ("tile", "bag")  # attributes of `loop.accumulate` that only choose its loops

_EMIT: dict[str, Callable[[LoopEmitter, Node, _Scope, list[SSAValue]], SSAValue]] = {
    "load": LoopEmitter._load,
    "op": LoopEmitter._op,
    "cast": LoopEmitter._cast,
    "const": LoopEmitter._const,
    "index": LoopEmitter._index,
    "select": LoopEmitter._select,
    "bind": LoopEmitter._bind,
    "reduced": LoopEmitter._reduced,
}


def kernel_symbols(kernel: ir.Kernel, memory: bool) -> list[str]:
    """The size symbols that a kernel is given.

    Args:
        memory: whether those of its memory are among them, if there are any: 32 bits count all memory of a GPU's kernel, which a launch checks.
    """
    symbols = _symbols(kernel.block_body)
    if symbols and memory:
        symbols |= _sizes(kernel.block_body)
    return sorted(map(str, symbols))


def _sizes(block: Block) -> set[sympy.Symbol]:
    """The size symbols of a kernel's memory."""
    refs = [a.type for a in block.args if isinstance(a.type, RefType)]
    return free_symbols([d for ref in refs for d in (*ref.shape, *ref.strides)])


def _symbols(block: Block) -> set[sympy.Symbol]:
    """The size symbols that a kernel's loops use."""
    used: set[sympy.Symbol] = set()
    bound: set[sympy.Symbol] = set()
    for op in block.walk():
        if not isinstance(op, Op):
            continue
        for name, value in op.literals.items():
            if name == "var":
                bound.add(value)
            else:
                used |= free_symbols(_exprs(value))
        if isinstance(op, ir.Local):
            used |= free_symbols(op.results[0].type.shape)  # type: ignore[attr-defined]
    return used - bound


def _exprs(value: object) -> list[Dim]:
    if isinstance(value, tuple):
        return [e for v in value for e in _exprs(v)]
    return [value] if isinstance(value, sympy.Expr) else []
