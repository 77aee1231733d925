"""`layout`: decide with which strides each kernel stores its results, and make every view between kernels a strided one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, cast

import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from ...ir.dialects import kernel, prim
from ...ir.symbols import Dim, contiguous_strides, dim
from ...ir.syntax import Op, single_block
from ...ir.types import TensorType
from ..analysis.aliases import shared_operands
from ..analysis.cost import EARLY, MOST_GAPS
from ..analysis.strides import (
    Strides,
    View,
    channels_last,
    dense_like,
    is_dense,
    is_view,
    memory_order,
    memory_strides,
    operand_strides,
    recorded_strides,
    same_layout,
    takes_view,
    view_of,
)
from ..analysis.views import reshape_strides
from ..core.base import Pass
from ..core.context import CompileContext


@dataclass(frozen=True)
class Layout(Pass):
    """Give every stored value its strides; copy where a library call or the caller needs other memory than there is.

    Recorded strides (eager's) are kept, unless no reader wants them. Between kernels a value without any takes the
    channels-last layout when all that its kernel reads in that shape has it. Returned values never share memory with arguments or with each other.
    """

    name: ClassVar[str] = "layout"
    level: ClassVar[str] = "kernel"
    requires: ClassVar[tuple[str, ...]] = ("fuse",)
    after: ClassVar[tuple[str, ...]] = ("fuse",)

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        for func in module.ops:
            if isinstance(func, prim.Func):
                _Layouts(ctx, func).run()


@dataclass
class _Layouts:
    ctx: CompileContext
    func: prim.Func
    copies: dict[tuple[SSAValue, Strides], SSAValue] = field(default_factory=dict)
    early: int = EARLY  # bytes that copies may still take from the beginning on
    done: set[Operation] = field(default_factory=set)  # kernels whose results have their strides

    def run(self) -> None:
        for op in list(self.func.block_body.ops):
            if isinstance(op, kernel.Extern) or (isinstance(op, kernel.Contract) and op.in_registers):
                self._call(op)
            elif isinstance(op, kernel.Fused):
                self._stores(op)
                self.done.add(op)
            elif isinstance(op, prim.Return):
                self._return(op)
        for op in reversed(list(self.func.block_body.ops)):
            if isinstance(op, prim.PrimOp) and not op.results[0].first_use:
                self.func.block_body.erase_op(op)

    def _in_a_grid(self, t: TensorType) -> bool:
        """Whether a grid of programs computes a value: a GPU."""
        return self.ctx.machine.at(t.device).is_grid

    def _stores(self, op: kernel.Fused) -> None:
        """Strides for all results; views that the kernel reads move into it."""
        read = [(prim.tensor(v), view_of(v)) for v in op.operands if isinstance(v.type, TensorType)] + _views_inside(op)
        for i, value in enumerate(op.operands):
            if is_view(value.owner):
                self._take_in(op, i)
        chosen: list[Strides | None] = []
        for result in op.results:
            strides = recorded_strides(result)
            shape = prim.tensor(result).shape
            wishes = list(self._wishes(result))
            if wishes and not any(same_layout(shape, memory_strides(result), w) for w in wishes):
                strides = wishes[0]
            elif strides is None and not wishes:
                strides = self._like_inputs(read, prim.tensor(result))
            elif not wishes and not same_layout(shape, memory_strides(result), contiguous_strides(shape)):
                strides = None if self._among_rows(op, result) else strides
            if strides is not None and repeats(shape, strides):
                strides = dense_like(shape, strides)
            chosen.append(None if strides == contiguous_strides(shape) else strides)
        op.attributes.pop("strides", None)
        if any(s is not None for s in chosen):
            op["strides"] = tuple(chosen)

    def _among_rows(self, op: kernel.Fused, value: SSAValue) -> bool:
        """Whether more of what the kernels that make and read a value touch in its shape is contiguous than lies as the value does in eager.

        Values whose strides are open have no vote.
        """
        shape, votes = prim.tensor(value).shape, 0
        readers = [u.operation for u in value.uses if isinstance(u.operation, kernel.Fused)]
        for kernel_op in dict.fromkeys([op, *readers]):
            for other in (*kernel_op.operands, *kernel_op.results):
                if other is value or prim.tensor(other).shape != shape:
                    continue
                view = view_of(other)
                is_open = view is None or (
                    isinstance(view.base.owner, kernel.Fused) and view.base.owner not in self.done
                )
                found = next(self._wishes(other), None) if is_open else view.strides if view is not None else None
                if found is not None:
                    votes += same_layout(shape, found, contiguous_strides(shape))
                    votes -= same_layout(shape, found, memory_strides(value))
        return votes > 0

    def _take_in(self, op: kernel.Fused, i: int) -> None:
        """The views between memory and operand `i` become part of the kernel."""
        chain, base = view_chain(op.operands[i])
        block = op.block_body
        old = block.args[i]
        new = block.insert_arg(base.type, i)
        inner, steps = _replay(chain, new)
        block.insert_ops_before(steps, cast(Operation, block.first_op))
        old.replace_all_uses_with(inner)
        block.erase_arg(old)
        op.operands[i] = base

    def _wishes(self, value: SSAValue) -> Iterator[Strides]:
        """Strides with which library calls and the caller, taking the value or a view of it, have what they want."""
        shape = prim.tensor(value).shape
        for use in value.uses:
            op = cast(Op, use.operation)
            found: list[Strides | None] = []
            if isinstance(op, kernel.Extern) or (isinstance(op, kernel.Contract) and op.in_registers):
                found = [operand_strides(op, use.index)]
            elif isinstance(op, prim.Return):
                recorded = self.func.get("result_strides") or (None,) * len(op.operands)
                found = [contiguous_strides(shape) if recorded[use.index] is None else recorded[use.index]]
            elif isinstance(op, prim.Reshape):
                inside = [contiguous_strides(op.type.shape)] if self._is_multiplied(op.results[0]) else []
                inside += self._wishes(op.results[0])
                found = [reshape_strides(op.type.shape, inner, shape) for inner in inside]
            elif isinstance(op, prim.Permute):
                places = [op["perm"].index(i) for i in range(len(shape))]
                found = [tuple(inner[i] for i in places) for inner in self._wishes(op.results[0])]
            yield from (s for s in found if s is not None and is_dense(shape, s))

    def _is_multiplied(self, value: SSAValue) -> bool:
        """Whether a product in tiles has the value, or it turned, as a factor: rows that are gathered element by element are slow."""
        for use in value.uses:
            op = use.operation
            if isinstance(op, prim.Permute) and self._is_multiplied(op.results[0]):
                return True
            in_tiles = isinstance(op, kernel.Contract) and not op.in_registers
            if in_tiles and op.block_body.args[use.index] in op.product.operands:
                return True
        return False

    def _like_inputs(self, read: Sequence[tuple[TensorType, View | None]], result: TensorType) -> Strides | None:
        """Channels-last strides when everything of the result's shape that the kernel reads has them.

        On a GPU also where it reads images of other sizes, with as many channels: pools and interpolation are kernels there.
        """
        wanted = channels_last(result.shape)
        same = [each for each in read if each[0].shape == result.shape]
        if not same and self._in_a_grid(result):
            same = [each for each in read if each[0].rank == 4 and each[0].shape[:2] == result.shape[:2]]
        if wanted is None or not same:
            return None
        return wanted if all(_is_last(view) for _, view in same) else None

    def _call(self, op: kernel.Contract | kernel.Extern) -> None:
        actual: list[Strides | None] = []
        for i, value in enumerate(op.operands):
            if not isinstance(value.type, TensorType):
                actual.append(None)
                continue
            shape = value.type.shape
            wanted: Strides = operand_strides(op, i)
            view = view_of(value)
            if view is not None and takes_view(op, i, view):
                wanted = view.strides
            else:
                wanted = wanted if fits_memory(shape, wanted) else dense_like(shape, wanted)
                op.operands[i] = self._strided_copy(value, wanted, op)
            actual.append(None if same_layout(shape, wanted, contiguous_strides(shape)) else wanted)
        op.attributes.pop("operand_strides", None)
        if isinstance(op, kernel.Extern) and any(s is not None for s in actual):
            op["operand_strides"] = tuple(actual)

    def _return(self, op: prim.Return) -> None:
        recorded = self.func.get("result_strides") or (None,) * len(op.operands)
        specs = self.func.get("results")
        mutations = self.func.get("mutations", ())
        received = set(range(len(op.operands)))
        if specs is not None:
            received = {spec[1] for spec in specs if spec[0] in ("value", "alias_output")}
        taken: set[SSAValue] = set()
        copied: dict[SSAValue, set[int]] = {}  # by argument: the results that are copied into it
        for argument, n in mutations:
            copied.setdefault(self.func.block_body.args[argument], set()).add(n)
        for k, value in enumerate(op.operands):
            if not isinstance(value.type, TensorType):
                continue
            shape = value.type.shape
            wanted: Strides = contiguous_strides(shape) if recorded[k] is None else tuple(recorded[k])  # type: ignore[arg-type]
            view = view_of(value)
            root = memory_root(view) if view is not None else value
            if k not in received:  # only copied into an argument: any view does, if no earlier copy writes to it
                if view is None or copied.get(root, set()) - {k}:
                    op.operands[k] = self._copy(value, contiguous_strides(shape), op)
                continue
            is_own = not isinstance(root.owner, Block) and root not in taken
            if is_own and view is not None and same_layout(shape, view.strides, wanted):
                taken.add(root)
            else:
                op.operands[k] = self._strided_copy(value, wanted, op, fresh=True)

    def _strided_copy(self, value: SSAValue, strides: Strides, before: Operation, fresh: bool = False) -> SSAValue:
        """Memory of its own with exactly these strides; where one is 0, one element is stored and seen repeatedly."""
        shape = prim.tensor(value).shape
        if not repeats(shape, strides):
            return self._copy(value, strides, before, fresh)
        kept = [1 if t == 0 and s != 0 else s for s, t in zip(shape, strides, strict=True)]  # of nothing nothing
        zeros, ones = (0,) * len(shape), (1,) * len(shape)
        one = prim.Slice.make([value], [prim.tensor(value).with_(shape=kept)], {"starts": zeros, "steps": ones})
        stored = self._insert(one, before)
        inner = tuple(u if t == 0 else t for t, u in zip(strides, contiguous_strides(kept), strict=True))
        made = self._copy(stored, inner, before, fresh)
        return self._insert(prim.broadcast(made, shape, tuple(range(len(shape)))), before)

    def _insert(self, op: Op, before: Operation) -> SSAValue:
        self.func.block_body.insert_op_before(op, before)
        return op.results[0]

    def _library_copy(self, value: SSAValue, strides: Strides, before: Operation) -> SSAValue:
        """The copy of a complex value, for which there are no loops: ATen makes it contiguous, views do the rest."""
        t = prim.tensor(value)
        view = view_of(value)
        if view is None:
            step = cast(Op, value.owner)
            below = step.operands[0]
            below = self._library_copy(below, contiguous_strides(prim.tensor(below).shape), before)
            value, steps = _replay([step], below)
            self.func.block_body.insert_ops_before(steps, before)
            view = view_of(value)
            assert view is not None, "one view of contiguous memory has strides"
            if same_layout(t.shape, view.strides, strides):
                return value
        order = memory_order(strides)
        turned = self._permuted(value, order, before)
        view = view_of(turned)
        attrs: dict[str, object] = {"target": "aten.clone.default", "operands": ("self",)}
        attrs["memory_format"] = torch.contiguous_format
        if view is not None and view.strides != contiguous_strides(view.shape):
            attrs["operand_strides"] = (view.strides,)
        made = self._insert(kernel.Extern.make([turned], [turned.type], attrs), before)
        return self._permuted(made, [order.index(i) for i in range(t.rank)], before)

    def _permuted(self, value: SSAValue, order: list[int], before: Operation) -> SSAValue:
        if order == list(range(len(order))):
            return value
        return self._insert(prim.permute(value, tuple(order)), before)

    def _copy(self, value: SSAValue, strides: Strides, before: Operation, fresh: bool = False) -> SSAValue:
        """A kernel that writes the value into memory of its own, with these strides; one for all that want the same."""
        known = None if fresh else self.copies.get((value, strides))
        if known is not None:
            return known
        t = prim.tensor(value)
        if t.dtype.kind == "complex":
            return self._library_copy(value, strides, before)
        chain, base = view_chain(value)
        region = single_block(arg_types=[base.type])
        inner, steps = _replay(chain, region.block.args[0])
        region.block.add_ops([*steps, kernel.Yield.make([inner])])
        attrs = {} if strides == contiguous_strides(t.shape) else {"strides": (strides,)}
        location = chain[0].location if chain else before.location
        made = self._insert(kernel.Fused.make([base], [t], attrs, [region], location), self._place(base, t, before))
        self.ctx.diagnostics.count("layout", "copies")
        self.ctx.diagnostics.remark("layout", "copy", lambda: f"{t} is copied into strides {list(strides)}")
        if not fresh:
            self.copies[value, strides] = made
        return made

    def _place(self, base: SSAValue, t: TensorType, before: Operation) -> Operation:
        """Where a copy stands. Small ones of arguments on a GPU (weights) stand together at the beginning, where they become one launch."""
        size = dim(t.numel * t.dtype.bytes) if isinstance(base, BlockArgument) and self._in_a_grid(t) else None
        if not isinstance(size, int) or size > self.early:
            return before
        self.early -= size
        return cast(Operation, self.func.block_body.first_op)


def _views_inside(op: kernel.Fused) -> list[tuple[TensorType, View | None]]:
    """How the kernel's own views show the contiguous memory that it reads: rows of a product as the pixels of an image."""
    rows = {
        arg
        for arg, value in zip(op.block_body.args, op.operands, strict=True)
        if isinstance(value.type, TensorType) and memory_strides(value) == contiguous_strides(value.type.shape)
    }
    found = [(inner.results[0], view_of(inner.results[0])) for inner in op.block_body.ops if is_view(inner)]
    dense = [(v, view) for v, view in found if view is not None and is_dense(view.shape, view.strides)]
    return [(prim.tensor(v), view) for v, view in dense if view.base in rows]


def _is_last(view: View | None) -> bool:
    """Whether memory lies channels-last."""
    last = None if view is None else channels_last(view.shape)
    return view is not None and last is not None and same_layout(view.shape, view.strides, last)


def fits_memory(shape: Sequence[Dim], strides: Sequence[Dim]) -> bool:
    """Whether memory can have these strides without much waste: no two elements at one place but along dimensions of stride 0, few gaps.

    Libraries ask for rows that begin at multiples of 16 bytes: masks of attention have gaps behind their rows.
    """
    if is_dense(shape, strides):
        return True
    if not all(isinstance(n, int) for n in (*shape, *strides)):
        return False
    extent = count = 1
    for t, s in sorted((cast(int, t), cast(int, s)) for s, t in zip(shape, strides, strict=True) if s != 1 and t != 0):
        if t < extent:
            return False
        extent, count = extent + (s - 1) * t, count * s
    return extent <= MOST_GAPS * count


def repeats(shape: Sequence[Dim], strides: Sequence[Dim]) -> bool:
    """Whether some dimension shows the same elements again and again."""
    return any(t == 0 and s != 1 for s, t in zip(shape, strides, strict=True))


def view_chain(value: SSAValue) -> tuple[list[Op], SSAValue]:
    """The views that lead to a value, first one first, and the value that they begin with."""
    chain: list[Op] = []
    while is_view(value.owner):
        chain.append(cast(Op, value.owner))
        value = value.owner.operands[0]  # type: ignore[union-attr]
    return chain[::-1], value


def _replay(chain: Sequence[Op], value: SSAValue) -> tuple[SSAValue, list[Op]]:
    """The same views of another value."""
    made: list[Op] = []
    for op in chain:
        copy = type(op).create(
            operands=[value], result_types=[op.results[0].type], attributes=op.attributes, location=op.location
        )
        made.append(copy)
        value = copy.results[0]
    return value, made


def memory_root(view: View) -> SSAValue:
    """The value whose memory a view shows, looking through library calls that return their operand's memory."""
    base = view.base
    while isinstance(base.owner, Operation) and (shared := shared_operands(base.owner, base)):
        base = shared[0]
    return base
