"""`fuse`: decide which computations run together."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, cast

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue

from ...ir.dialects import kernel, prim
from ...ir.dialects.aten import is_wait
from ...ir.symbols import contiguous_strides, known_equal
from ...ir.syntax import Op, line_of, single_block
from ..analysis.strides import is_view
from ..core.base import Pass, PassError
from ..core.context import CompileContext
from ..core.rewriter import copy_with, erase_dead
from ..memory.kernel_order import kernel_order
from .copies import read_from_copies
from .graph import EXTERN, Access, Graph, Node, is_border, is_free, operands_read, size_in_bytes
from .groups import Group, Groups, Plan
from .recompute import recompute

_WEIGHT: dict[type[Op], int] = {
    prim.Contract: 1000, prim.Reduce: 1000, prim.Bag: 1000, prim.Scan: 900, prim.Take: 800, prim.Gather: 800, prim.Concat: 100,
}  # fmt: skip


@dataclass(frozen=True)
class Fuse(Pass):
    """Group primitive operations into kernels, by bytes moved.

    Groups grow along edges from producer to consumer and among readers of the same memory, where no cycle arises, the
    iteration domains agree, and the bytes saved outweigh what is computed again (see `fusion_groups`).

    Options:
        max_ops: the most operations in one kernel.
        max_values: the most inputs and outputs of one kernel.
        numerics: "float32": inside a kernel intermediates of half types stay in float32; "eager": they are rounded where eager rounds.
    """

    name: ClassVar[str] = "fuse"
    level: ClassVar[str] = "prim"
    gives: ClassVar[str | None] = "kernel"
    after: ClassVar[tuple[str, ...]] = ("decompose", "canonicalize", "cse", "dce", "constant-fold")

    least: ClassVar[Mapping[str, float]] = MappingProxyType({"max_ops": 1, "max_values": 1})
    max_ops: int = 256
    max_values: int = 48
    numerics: str = "float32"

    def worth(self, plan: Plan, a: Group, b: Group) -> float:
        """What the merge of two groups gains, in bytes moved: they merge where it is more than 0. `a` is read by `b`, or both read the same memory.

        Whether they can be one kernel is decided before. A policy of others overrides this.
        """
        return plan.saved - plan.extra

    def turn(self, access: Access) -> float:
        """When a read of what another operation computes is looked at: lower numbers first. A policy of others overrides this."""
        return -bytes_read(access)

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        if self.numerics not in ("float32", "eager"):
            raise PassError(f"fuse: numerics is float32 or eager, not {self.numerics}")
        for func in module.ops:
            if isinstance(func, prim.Func):
                _Fusion(self, ctx, func.block_body).run()


class _Fusion:
    """The fusion of one function."""

    def __init__(self, options: Fuse, ctx: CompileContext, block: Block) -> None:
        self.ctx, self.block, self.rounding = ctx, block, options.numerics == "eager"
        self.graph = Graph(block)
        if read_from_copies(self.graph):
            self.graph = Graph(block)
        self.options = options
        self.groups = Groups(ctx, self.graph, options.max_ops, options.max_values, self._worth)
        effects = (n for n in self.graph.nodes if n.kind == EXTERN and n.op.get("effect"))
        self.groups.link_effects(
            n for n in effects if not is_wait(n.op)
        )  # a wait stands where its result is first read

    def _worth(self, plan: Plan, a: Group, b: Group) -> float:
        """What the policy says, which may be somebody else's."""
        return self._number("worth", self.options.worth(plan, a, b))

    def _number(self, method: str, found: float) -> float:
        if not isinstance(found, int | float) or math.isnan(found):
            raise PassError(f"{type(self.options).__qualname__}.{method} gives {found!r:.60}, which is no number")
        return found

    def run(self) -> None:
        self._count("kernels before", "bytes before")
        edges = [
            (self._number("turn", self.options.turn(x)), x.reader.index, x)
            for n in self.graph.nodes
            for x in n.accesses
            if x.producer
        ]
        # What is put behind rows comes last: the rows are those of what computes them then.
        edges.sort(key=lambda e: (is_border(e[2].reader), *e[:2]))
        pairs = [(cast(Node, x.producer), x.reader) for _, _, x in edges]
        self._merge_all(pairs, siblings=False)
        self._merge_all(list(self._readers_of_one_value()), siblings=True)
        self._merge_all(pairs, siblings=False, last=True)
        for node, readers in recompute(self.graph, self.groups):
            self._remark_recomputed(node, readers)
        self.groups.merge_small()
        _Emitter(self.graph, self.groups, self.block, self.rounding).run()
        self._count("kernels", "bytes")

    def _readers_of_one_value(self) -> Iterator[tuple[Node, Node]]:
        readers: dict[SSAValue, list[Node]] = {}
        for node in self.graph.nodes:
            for access in node.accesses:
                readers.setdefault(access.base, []).append(node)
        for found in readers.values():
            yield from zip(found, found[1:], strict=False)

    def _merge_all(self, pairs: list[tuple[Node, Node]], siblings: bool, last: bool = False) -> None:
        """Merge what can be merged, until nothing changes."""
        of = self.groups.group_of
        refused: dict[tuple[int, int], tuple[int, int]] = {}
        changed = True
        while changed:
            changed = False
            for x, y in pairs:
                a, b = of[x.index], of[y.index]
                if a is b:
                    continue
                key, state = (a.index, b.index), (len(a.nodes), len(b.nodes))
                if refused.get(key) == state:
                    continue
                plan = self.groups.sibling_plan(a, b) if siblings else self.groups.producer_plan(a, b)
                if isinstance(plan, Plan):
                    self._remark_fused(a, b, plan)
                    self.groups.merge(a, b, plan)
                    changed = True
                else:
                    refused[key] = state
        if last and self.ctx.diagnostics.want_remarks:
            self._remark_refused(pairs)

    def _remark_fused(self, a: Group, b: Group, plan: Plan) -> None:
        self.ctx.diagnostics.remark(
            "fuse",
            "fused",
            lambda: (
                f"{_names(a)} with {_names(b)}: saves {plan.saved:.0f} bytes, recomputes {plan.extra:.0f} bytes' worth"
            ),
            line_of(b.nodes[-1].op),
            {"saved": plan.saved, "again": plan.extra},
            lambda: _lines(a, b),
        )

    def _remark_recomputed(self, node: Node, readers: int) -> None:
        self.ctx.diagnostics.remark(
            "fuse",
            "recomputed",
            lambda: f"{node.op.name} is computed again in {readers} kernels rather than stored",
            line_of(node.op),
        )

    def _remark_refused(self, pairs: list[tuple[Node, Node]]) -> None:
        of = self.groups.group_of
        seen: set[tuple[int, int]] = set()
        for x, y in pairs:
            a, b = of[x.index], of[y.index]
            if a is b or EXTERN in (a.kind, b.kind) or (a.index, b.index) in seen:
                continue
            seen.add((a.index, b.index))
            plan = self.groups.producer_plan(a, b)
            if not isinstance(plan, Plan):
                text, lines = f"{_names(a)} with {_names(b)}: {plan.reason}", _lines(a, b)
                between = sum(size_in_bytes(v) for v in {access.base for access in b.preds.get(a.index, ())})
                self.ctx.diagnostics.remark(
                    "fuse",
                    "refused",
                    lambda text=text: text,  # type: ignore[misc]
                    line_of(y.op),
                    {"between": between, **plan.numbers},
                    lambda lines=lines: lines,  # type: ignore[misc]
                )

    def _count(self, kernels: str, moved: str) -> None:
        groups = [g for g in self.groups.all() if g.kind != EXTERN and g.stored]
        self.ctx.diagnostics.count("fuse", kernels, len(groups))
        reads = sum(size_in_bytes(v) for g in groups for v in g.reads)
        writes = sum(size_in_bytes(n.value) for g in groups for n in g.stored)
        self.ctx.diagnostics.count("fuse", moved, reads + writes)


def bytes_read(access: Access) -> int:
    """The bytes that an access reads: all of its base, or only what is gathered, which counts as what is computed with it."""
    whole = size_in_bytes(access.base)
    return min(whole, access.evaluations * prim.tensor(access.base).dtype.compute.bytes) if access.indirect else whole


def _names(group: Group) -> str:
    names = [n.op.name.removeprefix("prim.") for n in group.nodes]
    return "+".join(names) if len(names) <= 6 else "+".join([*names[:3], "...", *names[-2:]])


def _lines(*groups: Group) -> list[str]:
    """The user's lines that groups compute, each once."""
    return list(dict.fromkeys(filter(None, (line_of(node.op) for group in groups for node in group.nodes))))


class _Emitter:
    """Rebuilds the function's body: kernels, library calls, views of memory between them. `rounding`: every one of eager's stays."""

    def __init__(self, graph: Graph, groups: Groups, block: Block, rounding: bool) -> None:
        self.graph, self.groups, self.block, self.rounding = graph, groups, block, rounding
        self.position = {op: i for i, op in enumerate(block.ops)}
        self.new_value: dict[SSAValue, SSAValue] = {v: v for v in block.args}
        self.built: list[Operation] = []
        self.stored = {_unviewed(n.value).owner for g in groups.all() for n in g.stored}

    def run(self) -> None:
        old = list(self.block.ops)
        moved: set[Operation] = {self.graph.returned}
        for group in kernel_order(self.graph, self.groups):
            op = group.nodes[0].op
            if group.kind == EXTERN:
                self._move(op)
                moved.add(op)
            elif group.stored:
                self._build(group)
        self._move(self.graph.returned)
        for left in reversed(old):
            if left not in moved:
                left.detach()
                left.erase(safe_erase=False)
        self.block.add_ops(self.built)

    def _move(self, op: Op) -> None:
        for i, value in enumerate(op.operands):
            op.operands[i] = self._memory(value)
        op.detach()
        self.built.append(op)
        self.new_value.update((r, r) for r in op.results)

    def _memory(self, value: SSAValue) -> SSAValue:
        """The value outside kernels, through views of memory where needed."""
        found = self.new_value.get(value)
        if found is None:
            op = cast(Op, value.owner)
            below = self._memory(op.operands[0])
            if not isinstance(op, prim.After):
                copy = copy_with(op, [below])
                self.built.append(copy)
                below = copy.results[0]
            found = self.new_value[value] = below
        return found

    def _build(self, group: Group) -> None:
        ops = self._operations(group)
        inside = {op.results[0] for op in ops}
        # What a scatter writes to is memory, also where it is a constant that the kernel knows.
        targets = [op.operands[0] for op in ops if isinstance(op, prim.Scatter)]
        inputs = list(dict.fromkeys(v for op in ops for v in operands_read(op) if v not in inside or v in targets))
        region = single_block(arg_types=[v.type for v in inputs])
        block = region.block
        local: dict[SSAValue, SSAValue] = dict(zip(inputs, block.args, strict=True))
        # A sum that other kernels read is one of the numbers that they read: backward subtracts a mean from them, and nothing else cancels.
        kept = self.stored if any(_is_statistic(n.value, inside) for n in group.stored) else ()
        unrounded: set[Op] = set()
        for op in ops:
            if isinstance(op, prim.After):
                local[op.results[0]] = local[op.operands[0]]
                continue
            exact = None if self.rounding else _exact(op, local, block, kept)
            if exact is None:
                operands = [local[v] for v in op.operands]
                if isinstance(op, prim.Scatter):
                    operands[0] = block.args[inputs.index(op.operands[0])]
                if _adds_halves(op) or _decides(op):
                    sums = zip(op.operands, operands, strict=True)
                    operands = [_rounded(v, x, block) if _widening(v) in unrounded else x for v, x in sums]
                copy = copy_with(op, operands)
                block.add_op(copy)
                exact = copy.results[0]
            else:
                unrounded.add(op)
            local[op.results[0]] = exact
        outputs = sorted(group.stored, key=lambda n: n.index)
        block.add_op(kernel.Yield.make([local[n.value] for n in outputs]))
        erase_dead(block)
        strides = tuple(self._strides(n) for n in outputs)
        kind = kernel.Contract if any(isinstance(op, prim.Contract) for op in ops) else kernel.Fused
        fused = kind.make(
            [self._memory(v) for v in inputs],
            [n.value.type for n in outputs],
            {"strides": strides} if any(s is not None for s in strides) else {},
            [region],
            _significant(ops).location,
        )
        self.built.append(fused)
        self.new_value.update(zip((n.value for n in outputs), fused.results, strict=True))

    def _strides(self, node: Node) -> object:
        """The strides that a reader of a materialised view asks for, or eager's; None: contiguous."""
        recorded = node.op.get("strides") or (None,)
        strides = self.graph.materialised.get(node.op, recorded[0])
        return (
            None if strides is None or tuple(strides) == contiguous_strides(prim.tensor(node.value).shape) else strides
        )

    def _operations(self, group: Group) -> list[Op]:
        """The group's operations and the free ones that they need, in program order."""
        found: set[Op] = set()
        stack: list[Op] = [n.op for n in group.stored]
        while stack:
            op = stack.pop()
            if op in found:
                continue
            found.add(op)
            for value in operands_read(op)[isinstance(op, prim.Scatter) :]:
                owner = value.owner
                if not isinstance(owner, Block) and self._is_inside(value, cast(Op, owner), group):
                    stack.append(cast(Op, owner))
        return sorted(found, key=self.position.__getitem__)

    def _is_inside(self, value: SSAValue, owner: Op, group: Group) -> bool:
        node = self.graph.node_of.get(value)
        if node is None:
            return is_free(owner)
        if node in group.clones or self.groups.group_of[node.index] is group:
            return True
        return self.graph.is_transparent(node)


def _exact(
    op: Op, local: dict[SSAValue, SSAValue], block: Block, kept: Collection[Operation | Block]
) -> SSAValue | None:
    """cast<f32>(cast<half>(x: f32)) -> x, also through views: inside one kernel, eager's rounding to a half type is skipped, but for `kept`."""
    if not isinstance(op, prim.Cast):
        return None
    views: list[Op] = []
    value = op.operands[0]
    while value in local and is_view(value.owner) and local[value].owner is not block:
        views.append(cast(Op, value.owner))
        value = value.owner.operands[0]  # type: ignore[union-attr]
    inner = value.owner
    if not isinstance(inner, prim.Cast) or inner in kept or value not in local or local[value].owner is block:
        return None
    x, half = local[inner.operands[0]], inner.type.dtype
    if inner.get("rounds") or not (prim.tensor(x).dtype == op.type.dtype == half.compute != half):
        return None
    for view in reversed(views):
        copy = copy_with(view, [x])
        block.add_op(copy)
        x = copy.results[0]
    return x


def _is_statistic(value: SSAValue, inside: Collection[SSAValue]) -> bool:
    """Whether a stored value is made of a reduction of the same kernel, and not spread again over what was reduced."""
    todo, seen = [value], {value}
    size = prim.tensor(value).numel
    while todo:
        op = todo.pop().owner
        if isinstance(op, prim.Reduce) and op.results[0] in inside:
            return True
        if isinstance(op, Block) or (isinstance(op, Operation) and op.results[0] not in inside):
            continue
        operands = [v for v in op.operands if v not in seen and known_equal(prim.tensor(v).numel, size)]
        seen.update(operands)
        todo += operands
    return False


def _unviewed(value: SSAValue) -> SSAValue:
    """The value that it is a view of."""
    while is_view(value.owner):
        value = value.owner.operands[0]  # type: ignore[union-attr]
    return value


def _adds_halves(op: Op) -> bool:
    """A sum or difference of two values of a half type.

    Such sums often lie halfway between two numbers of the half type. What rounding would take away from an operand, such as a batch norm's
    factor of 0.999995, sends all of them to the same side, and a network of residuals adds up what no single sum shows.
    """
    return op.name in ("prim.add", "prim.sub") and all(_widening(v) is not None for v in op.operands)


def _decides(op: Op) -> bool:
    """Whether the result jumps where an operand crosses a number: values that are equal in eager, rounded, have to be equal here."""
    return op.name in _JUMPS or isinstance(op, prim.Reduce) and op["kind"] in ("argmax", "argmin")


_JUMPS = frozenset(
    f"prim.{n}"
    for n in ("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "round", "floor", "ceil", "trunc", "sign")
)


def _widening(value: SSAValue) -> prim.Cast | None:
    """The conversion from a half type that the value, or what it is a view of, comes from."""
    owner = _unviewed(value).owner
    if not isinstance(owner, prim.Cast):
        return None
    half = prim.tensor(owner.operands[0]).dtype
    return owner if owner.type.dtype == half.compute != half else None


def _rounded(value: SSAValue, x: SSAValue, block: Block) -> SSAValue:
    """x, which stands for the value without eager's rounding, with it."""
    cast_up = _widening(value)
    assert cast_up is not None
    kind = prim.tensor(x)
    half = prim.Cast.make([x], [kind.with_(dtype=prim.tensor(cast_up.operands[0]).dtype)], loc=cast_up.location)
    back = prim.Cast.make([half.results[0]], [kind], loc=cast_up.location)
    block.add_ops([half, back])
    return back.results[0]


def _significant(ops: Iterable[Op]) -> Op:
    """The operation that a reader would name the kernel after: a reduction, a gather, else the dearest."""
    located = [op for op in ops if line_of(op)] or list(ops)
    return max(located, key=lambda op: _WEIGHT.get(type(op), op.row.cost if isinstance(op, prim.Elementwise) else 0))
