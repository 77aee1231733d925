"""The nests of a plain `loop.kernel`, read back from its text: loops, stages and the expressions in them.

`lower` writes a kernel so that its structure is its loops: every loop on the outside that is `parallel` is a row loop, and stages stand in the
body of the rows one after another, each of them one loop nest (or none) with reductions or stores in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
from xdsl.ir import Block, Operation, SSAValue

from ...ir.dialects import loop
from ...ir.dtypes import I64, DType
from ...ir.scalars import DOT, JOINT
from ...ir.symbols import Dim, dim, free_symbols, substitute, symbol
from ...ir.types import RefType
from .expressions import Expressions, Memory, Node
from .nests import Join, Loop, Nest, Nests, Stage, Store


def read(kernel: loop.Kernel) -> Nests:
    """The nests of a kernel that `lower` has written (or a pass that keeps its form)."""
    reader = _Reader(Expressions())
    inputs = kernel["inputs"]
    for k, arg in enumerate(kernel.block_body.args):
        assert isinstance(arg.type, RefType)
        name, role = (f"in{k}", "in") if k < inputs else (f"out{k - inputs}", "out")
        reader.memories[arg] = Memory(name, arg.type, role)
    arguments = list(reader.memories.values())
    nests = reader.nests(kernel.block_body)
    return Nests(nests, reader.expressions, arguments, [m for m in reader.memories.values() if m.role == "scratch"])


@dataclass
class _Reader:
    expressions: Expressions
    memories: dict[SSAValue, Memory] = field(default_factory=dict)
    accumulators: dict[SSAValue, Node] = field(default_factory=dict)
    values: dict[SSAValue, Node] = field(default_factory=dict)
    variables: dict[sympy.Symbol, Dim] = field(default_factory=dict)  # of the text, as those of the expressions
    rows: list[Loop] = field(default_factory=list)  # of the nest that is being read
    scans: dict[SSAValue, Store] = field(default_factory=dict)
    kept: dict[SSAValue, Node | None] = field(default_factory=dict)  # scratch of a row, and the value in it
    stored: dict[Memory, tuple[Stage, Store]] = field(default_factory=dict)  # in the nest that is being read
    lent: dict[Node, Memory] = field(default_factory=dict)

    def nests(self, block: Block) -> list[Nest]:
        """The nests of a kernel's block."""
        found: list[Nest] = []
        single: Stage | None = None  # of a nest without any loop
        for op in block.ops:
            self.stored = {}  # what another nest has stored is memory like any other
            if isinstance(op, loop.Store | loop.Atomic):
                if single is None:
                    single = Stage([])
                    found.append(Nest([], [single]))
                self._store(op, single)
            elif isinstance(op, loop.For):
                single = None
                self.rows, self.kept, self.lent = [], {}, {}
                found.append(self._nest(op) if op["kind"] == "parallel" else Nest([], [self._stage(op)]))
            elif isinstance(op, loop.Local):
                self._scratch(op)
            else:
                self._scalar(op)
        return found

    def _nest(self, op: loop.For) -> Nest:
        while True:
            if op["stop"] != 1:  # a single row is none
                row = Loop(symbol(str(op["var"])), op["stop"])
                self.expressions.ranges[row.var] = (0, dim(row.stop - 1))
                self.rows.append(row)
            inner = [o for o in op.block_body.ops if isinstance(o, loop.For) and o["kind"] == "parallel"]
            if not inner:
                stages = self._stages(op.block_body.ops)
                scratch = {node: local.owner["size"] for local, node in self.kept.items() if node is not None}  # type: ignore[index]
                return Nest(self.rows, stages, scratch=scratch, lent=self.lent)
            for other in op.block_body.ops:
                if other is not inner[0]:
                    self._scalar(other)
            op = inner[0]

    # Stages.

    def _stages(self, ops: Any) -> list[Stage]:
        found: list[Stage] = []
        for op in ops:
            if isinstance(op, loop.Local) and op.get("value") is None:
                self.kept[op.results[0]] = None
            elif isinstance(op, loop.Local):
                self._accumulator(op)
            elif isinstance(op, loop.For):
                found.append(self._stage(op))
            elif isinstance(op, loop.Store | loop.Atomic | loop.Accumulate):
                if not found or found[-1].loops or isinstance(op, loop.Accumulate):
                    found.append(Stage([]))
                self._body(op, found[-1])
            else:
                self._scalar(op)
        return found

    def _stage(self, op: loop.For) -> Stage:
        loops = [op]
        while inner := [o for o in loops[-1].block_body.ops if isinstance(o, loop.For)]:
            loops += inner
        bounds = [(self._index(each.get("start", 0)), self._index(each["stop"])) for each in loops]
        names = [symbol(str(each["var"])) for each in loops]
        stage = Stage([])
        for each, name, variable in zip(loops, names, self.expressions.inner_variables(bounds, names), strict=True):
            if name != variable:
                self.variables[name] = variable
            stage.loops.append(Loop(variable, self._index(each["stop"]), self._index(each.get("start", 0))))
            for other in each.block_body.ops:
                if not isinstance(other, loop.For):
                    self._body(other, stage)
        stage.numbers = self._numbers(stage, bounds)
        return stage

    def _numbers(self, stage: Stage, bounds: Sequence[tuple[Dim, Dim]]) -> tuple[Node, ...]:
        """The integers from memory by which the loops go: those in their bounds, and where the bags that they join begin."""
        binds = self.expressions.binds
        found = dict.fromkeys(
            sorted(
                (binds[s] for pair in bounds for s in free_symbols(pair) if s in binds), key=lambda node: node.number
            )
        )
        inner = {each.var for each in stage.loops}
        for join in stage.joins:
            if join.attrs.get("bag"):
                below = [n for a in join.args for n in a.walk() if n.kind == "bind"]
                found |= dict.fromkeys(n for n in below if n.data[4] and not n.free & inner)
        return tuple(found)

    def _body(self, op: Operation, stage: Stage) -> None:
        if isinstance(op, loop.Accumulate):
            self._accumulate(op, stage)
        elif isinstance(op, loop.Store | loop.Atomic):
            self._store(op, stage)
        else:
            self._scalar(op)

    def _store(self, op: loop.Store | loop.Atomic, stage: Stage) -> None:
        scan = self.scans.get(op.operands[0])
        flat, place = self._index(op["index"]), op.operands[1]
        if place in self.kept:
            node = self.kept[place] = self.values[op.operands[0]]
            stage.scratch.append((node, flat))
            return
        memory = self.memories[place]
        if scan is not None and scan.passes:  # the value of the scan itself
            scan.memory, scan.flat, scan.passes = memory, flat, False
            return
        binds = self.expressions.binds
        bind = next((binds[s] for s in sorted(free_symbols([flat]), key=str) if s in binds), None)
        kind = str(op["kind"]) if isinstance(op, loop.Atomic) else ""
        stage.stores.append(Store(memory, flat, self.values[op.operands[0]], bind=bind, atomic=kind))
        self.stored[memory] = stage, stage.stores[-1]
        if stage.stores[0].scan:
            stage.stores[-1].follows = stage.stores[0].memory

    def _accumulate(self, op: loop.Accumulate, stage: Stage) -> None:
        kind, operands = str(op["kind"]), op.operands
        if operands[-1] in self.accumulators and any(
            isinstance(u.operation, loop.Load) and u.operation.parent is op.parent for u in operands[-1].uses
        ):
            self._scan(op, stage)
            return
        count = 2 if kind == DOT or kind.startswith("arg") else 1
        args = tuple(self.values[v] for v in operands[:count])
        target = self.accumulators[operands[-1]]
        attrs = {name: value for name, value in op.literals.items() if name not in ("kind", "index")}
        beside: tuple[Node | None, ...] = ()
        if kind.startswith("arg"):
            dtype = self._dtype(operands[2])
            self.accumulators[operands[2]] = self.expressions.node(
                "reduced", dtype, (), (target, "values"), target.data[1]
            )
        elif kind in JOINT:
            beside = tuple(self.accumulators[v] if v.uses else None for v in operands[1:-1])
        stage.joins.append(Join(target, kind, args, beside, attrs))

    def _scan(self, op: loop.Accumulate, stage: Stage) -> None:
        """A scan, its value where it is read in the same body, and where that is stored."""
        local, node = op.operands[-1], self.values[op.operands[0]]
        (load,) = [u.operation for u in local.uses if isinstance(u.operation, loop.Load)]
        ref = local.type
        assert isinstance(ref, RefType)
        block = op.parent
        assert block is not None
        flat = next((self._index(o["index"]) for o in block.ops if isinstance(o, loop.Store)), 0)  # as what follows it
        store = Store(Memory("scan", ref, "scratch"), flat, node, str(op["kind"]), passes=True)
        stage.stores.append(store)
        variables = [each.var for each in (*self.rows, *stage.loops)]
        result = self.expressions.node("load", node.dtype, (), (store.memory, flat, (), None), variables)
        store.result = self.values[load.results[0]] = result
        self.scans[load.results[0]] = store

    # Memory.

    def _scratch(self, op: loop.Local) -> None:
        ref = op.results[0].type
        assert isinstance(ref, RefType)
        self.memories[op.results[0]] = Memory(f"tmp{len(self.memories)}", ref, "scratch")

    def _accumulator(self, op: loop.Local) -> None:
        index = op.get("element")
        index = tuple(self._index(i) for i in index) if index is not None else tuple(r.var for r in self.rows)
        local = op.results[0]
        data = (len(self.accumulators), index)
        self.accumulators[local] = self.expressions.node("reduced", self._dtype(local), (), data, index)

    @staticmethod
    def _dtype(local: SSAValue) -> DType:
        """The dtype in which a reduction's result is read."""
        reads = [u.operation for u in local.uses if isinstance(u.operation, loop.Load)]
        found: DType = (reads[0].results[0] if reads else local).type.dtype  # type: ignore[attr-defined]
        return found

    # Scalars.

    def _index(self, value: Any) -> Dim:
        return substitute(value, self.variables) if self.variables else value

    def _scalar(self, op: Operation) -> None:
        rule = _RULES.get(op.name)
        if rule is not None:
            self.values[op.results[0]] = rule(self, op)
        elif isinstance(op, loop.ScalarOp):
            self.values[op.results[0]] = self._operation(op)
        elif isinstance(op, loop.Bind):
            self._bind(op)

    def _operation(self, op: loop.ScalarOp) -> Node:
        args = [self.values[v] for v in op.operands]
        if op.row.name == "where":
            conditions = _index_conditions(args[0])
            if conditions:
                return self.expressions.select(conditions, args[1], args[2])
        return self.expressions.op(op.row.name, *args)

    def _load(self, op: Any) -> Node:
        place = op.operands[0]
        if place in self.accumulators:
            known = self.values.get(op.results[0])
            return self.accumulators[place] if known is None else known
        if place in self.kept or self.memories[place] in self.stored:
            return self.kept.get(place) or self._kept_in_result(self.memories[place])
        flat, mask = self._index(op["index"]), tuple(self._index(m) for m in op.get("mask") or ())
        data = (self.memories[place], flat, mask, op.get("other"))
        return self.expressions.node("load", op.results[0].type.dtype, (), data, (flat, *mask))

    def _kept_in_result(self, memory: Memory) -> Node:
        """The value that an earlier stage has put where a result will be written."""
        stage, store = self.stored[memory]
        if memory not in self.lent.values():
            stage.stores = [s for s in stage.stores if s is not store]
            stage.scratch.append((store.node, store.flat))
            self.lent[store.node] = memory
        return store.node

    def _cast(self, op: Any) -> Node:
        dtype: DType = op.results[0].type.dtype
        checked = tuple(self._index(symbol(str(s))) for s in op.get("checked") or ())
        return self.expressions.node("cast", dtype, (self.values[op.operands[0]],), (dtype.name,), checked)

    def _constant(self, op: Any) -> Node:
        return self.expressions.node("const", op.results[0].type.dtype, (), (op["value"],))

    def _expression(self, op: Any) -> Node:
        value = self._index(op["value"])
        return self.expressions.node("index", op.results[0].type.dtype, (), (value,), (value,))

    def _bind(self, op: loop.Bind) -> None:
        mask = tuple(self._index(m) for m in op.get("mask") or ())
        wrap, inside = bool(op.get("wrap")), bool(op.get("inside"))
        found = self.expressions.bind(
            self.values[op.operands[0]], self._index(op["size"]), wrap, mask, inside, symbol(str(op["var"]))
        )
        name = symbol(str(op["var"]))
        if found.data[0] != name:
            self.variables[name] = found.data[0]


def _index_conditions(node: Node) -> tuple[Dim, ...]:
    """The index expressions that must be >= 0 where that is all that a condition says, else nothing."""
    if node.kind != "op" or node.data[0] not in ("and", "ge"):
        return ()
    if node.data[0] == "and":
        parts = [_index_conditions(a) for a in node.args]
        return tuple(c for part in parts for c in part) if all(parts) else ()
    number, zero = node.args
    plain = number.kind == "index" and number.dtype == I64 and zero.kind == "const" and zero.data[0] == 0
    return (number.data[0],) if plain else ()


_RULES: Mapping[str, Callable[[_Reader, Any], Node]] = {
    "loop.load": _Reader._load,
    "loop.index": _Reader._expression,
    "scalar.cast": _Reader._cast,
    "scalar.constant": _Reader._constant,
}
