"""choose-products: how each contraction on a GPU is carried out: by the library, or by tiles of a kernel of our own.

The kernel of a contraction takes in what is computed of the product (its epilogue) and what its factors are computed by
(its prologue): anything done to single elements, with several results. Reductions stay behind, so that no product is
computed twice. Where the library's call is expected to be faster with kernels around it, everything stays as it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue

from ...ir.dialects import kernel, prim
from ...ir.dtypes import BF16, F16, F32
from ...ir.symbols import Dim
from ...ir.syntax import Op, location_of, single_block
from ...ir.types import is_gpu
from ..analysis.machine import Processor
from ..analysis.product_model import FEW, Front, Shape, Tile, candidates, choose, choose_joined, chunks_for
from ..analysis.sizes import hint
from ..analysis.strides import view_of
from ..core.base import Pass
from ..core.context import CompileContext
from ..fusion.join import ONE_TO_ONE, erase, join, layout_of, uses_of, viewed
from .contractions import Contraction, added_chunks, contract_kernel, contraction_of, sums_kernel
from .matmul_activation import is_tanh_gelu, with_gelu

ELEMENTWISE = (prim.Elementwise, prim.Cast)
# Beside operations on single elements, what a factor may be computed by: elements at places that an index says.
PARTS = (prim.Slice, prim.Take, prim.Gather)  # each is one more place at which memory is read
MOVED = (*PARTS, prim.Reshape, prim.Permute, prim.Flip, prim.Pad, prim.Concat)
IN_FRONT = (prim.Cast, *MOVED, prim.Broadcast, *prim.SOURCES, kernel.Yield)
MOST_WORK = 128  # operations for an element; windows of pixels and the like are worth a kernel of their own
READ = 16  # operations in whose time an element at a place of its own is read; assumed, not measured


@dataclass(frozen=True)
class ChooseProducts(Pass):
    """Choose between the library and a kernel of our own for each matrix product on a GPU.

    Options:
        tile: this tile for all products that a kernel of ours can compute, as rows x columns x inner size x warps x
            stages x chunks (x programs) ("128x128x64x8x3x1"); the default chooses by shape, and leaves to the library
            what that does faster.
    """

    name: ClassVar[str] = "choose-products"
    level: ClassVar[str] = "kernel"
    after: ClassVar[tuple[str, ...]] = ("fuse",)
    before: ClassVar[tuple[str, ...]] = ("layout",)

    tile: str = ""

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        for func in [op for op in module.ops if isinstance(op, prim.Func)]:
            calls = [op for op in func.block_body.ops if isinstance(op, kernel.Extern) and contraction_of(op)]
            siblings = [_siblings(op) for op in calls]  # of all products, before the first is replaced
            for op, number in zip(calls, siblings, strict=True):
                found = _product(op, ctx.machine.tf32_products)  # its factor may be what a kernel made now gives
                if found is not None:
                    self._choose(ctx, found, number)

    def _choose(self, ctx: CompileContext, found: Product, siblings: int) -> None:
        op, reader = found.op, _reader(found.op)
        behind = reader if reader is not None and _is_elementwise(reader, op.results[0]) else None
        if not self.tile and behind is not None and _takes_gelu(found, behind):
            assert found.added is not None
            with_gelu(op, found.a, found.b, found.added, found.transposed, behind)
            ctx.diagnostics.count(self.name, "library calls with gelu")
            erase(op)
            return
        shape = found.shape(behind, siblings, ctx.machine.gpu)
        chunks = chunks_for(shape) if behind is None and reader is not None and not self.tile else None
        if chunks is not None and reader is not None and found.reads_fast and _sums(reader, op.results[0]):
            parts = sums_kernel(found, replace(chunks, split=1).choice, chunks.split)
            join(added_chunks(found, parts.results[0]), reader)
            ctx.diagnostics.count(self.name, "products in chunks that their reader adds up")
            return
        tile, joined = self._tile(ctx, shape, found, behind)
        place = location_of(op)
        where = f"{place[0]}:{place[1]}" if place else ""
        if tile is None:
            ctx.diagnostics.remark(
                self.name, "refused", lambda: f"{shape}: the library is expected to be faster", where
            )
            return
        made: kernel.Fused = contract_kernel(found, tile.choice)
        if behind is not None:
            made = join(made, behind)
        for front in found.front if joined else ():
            made = join(front.kernel, made)
        ctx.diagnostics.count(self.name, "products with an epilogue" if behind else "products")
        if joined:
            ctx.diagnostics.count(self.name, "products with a prologue")
        ctx.diagnostics.remark(
            self.name, "fused", lambda: f"{shape} in tiles of {tile.rows}x{tile.columns}x{tile.inner}", where
        )

    def _tile(
        self, ctx: CompileContext, shape: Shape, found: Product, behind: kernel.Fused | None
    ) -> tuple[Tile | None, bool]:
        """The tile (None: the library's call), and whether the kernel computes what is in front of the product."""
        joined = bool(found.front)
        if self.tile:
            tile: Tile | None = Tile.parse(self.tile)
        elif (text := _measured(ctx, shape, found, behind)) is not None:
            tile = Tile.parse(text) if text else None
        else:
            tile = choose_joined(shape)
            joined = tile is not None
            if tile is None and found.reads_fast:
                tile = choose(shape)
        if tile is not None and not ctx.machine.gpu.tensor_maps:
            tile = replace(tile, programs=0)
        return tile, joined


@dataclass
class _InFront:
    """A kernel that computes factors of a product alone, and the operations for an element of either factor."""

    kernel: kernel.Fused
    work: tuple[float, float]


@dataclass
class Product(Contraction):
    """A contraction that a kernel of ours can carry out.

    Attributes:
        front: kernels before it that this can take in.
        reads_fast: whether the factors lie in memory as tiles of them are read.
    """

    front: tuple[_InFront, ...] = ()
    reads_fast: bool = True

    def hint(self, size: Dim) -> int:
        """What a size is likely to be, if it is not known: what it was when the program was captured, but never 1."""
        func = self.op.parent_op()
        found = hint(size, dict(func.get("size_hints", ())) if isinstance(func, prim.Func) else None)
        return found if isinstance(size, int) else max(2, found)

    def bytes(self, value: SSAValue) -> int:
        """That a tensor is likely to take."""
        return self.hint(prim.tensor(value).numel) * prim.tensor(value).dtype.bytes

    def shape(self, behind: kernel.Fused | None, siblings: int, gpu: Processor) -> Shape:
        """What decides how fast it is."""
        extra = 0
        if behind is not None:
            whole = self.hint(self.type.numel)
            touched = [*behind.operands, *behind.results]
            extra = sum(2 * self.hint(prim.tensor(v).numel) >= whole for v in touched) - 2  # the product, and a result
        view = view_of(self.b)
        by_rows = view is not None and view.strides[-1 if self.transposed else -2] == 1
        batch, rows, columns, inner = (self.hint(n) for n in (self.batch, self.rows, self.columns, self.inner))
        moved = tuple(sum(map(self.bytes, (*f.kernel.operands, *f.kernel.results))) for f in self.front)
        work = tuple(sum(f.work[k] for f in self.front) for k in (0, 1))
        return Shape(
            batch,
            rows,
            columns,
            inner,
            self.type.dtype.name,
            behind is not None,
            max(0, extra),
            by_rows,
            siblings,
            gpu.shared_bytes,
            gpu.multiprocessors,
            gpu.tensor_maps and isinstance(self.rows, int),
            behind is None or all(prim.tensor(v).dtype.bytes <= 2 for v in (*behind.operands, *behind.results)),
            Front(moved, *work) if self.front else None,
        )


def _product(op: kernel.Extern, tf32: bool) -> Product | None:
    """The product, where a kernel of ours can compute it: half types on one GPU, known columns and inner size."""
    found = contraction_of(op)
    if found is None:
        return None
    result = found.type
    kinds = {(prim.tensor(v).dtype, prim.tensor(v).device) for v in (*op.operands, *op.results)}
    halves = (BF16, F16, F32) if tf32 else (BF16, F16)  # float32 may be rounded to TF32, or is the library's
    if len(kinds) != 1 or not is_gpu(result.device) or result.dtype not in halves:
        return None
    if not isinstance(found.inner, int) or not isinstance(found.columns, int):
        return None
    made = Product(op, found.a, found.b, found.added)
    made.front = tuple(_in_front(made))
    made.reads_fast = _reads_fast(made.a) and _reads_fast(made.b)
    inside = [f.kernel for f in made.front]
    fine = made.reads_fast or all(viewed(v, prim.VIEWS)[0].owner in inside or _reads_fast(v) for v in (made.a, made.b))
    return made if fine else None


def _in_front(found: Product) -> Iterator[_InFront]:
    """The kernels that compute a factor element by element, and nothing that others read."""
    bases = [viewed(v, prim.VIEWS)[0] for v in (found.a, found.b)]
    for op in dict.fromkeys(base.owner for base in bases):
        if type(op) is not kernel.Fused or not all(map(_may_stand_in_front, op.block_body.ops)):
            continue
        if any(use.operation is not found.op for result in op.results for use in uses_of(result, prim.VIEWS)):
            continue
        if found.added is not None and viewed(found.added, prim.VIEWS)[0].owner is op:
            continue
        work = [_work(op, base.index) if base.owner is op else 0.0 for base in bases]  # type: ignore[attr-defined]
        if max(work) <= MOST_WORK:
            yield _InFront(op, (work[0], work[1]))


def _may_stand_in_front(op: Operation) -> bool:
    return type(op) in IN_FRONT or isinstance(op, prim.Elementwise)


def _work(op: kernel.Fused, number: int) -> float:
    """Operations for an element of a result, with those of reading what it is made of."""
    yielded = op.block_body.last_op.operands[number]  # type: ignore[union-attr]  # a kernel ends in what it yields
    needed, stack = {yielded}, [yielded]
    while stack:
        owner = stack.pop().owner
        operands = owner.operands if isinstance(owner, Operation) else ()
        stack += [v for v in operands if v not in needed]
        needed.update(operands)
    owners = [v.owner for v in needed]
    read = READ if any(type(each) in MOVED for each in owners) else 1
    reads = sum(isinstance(each, (Block, *PARTS)) for each in owners)
    costs = [
        each.row.cost if isinstance(each, prim.Elementwise) else 1 for each in owners if isinstance(each, ELEMENTWISE)
    ]
    return float(sum(costs) + read * reads)


def _takes_gelu(found: Product, behind: kernel.Fused) -> bool:
    """Whether the library's product with a bias can carry out the kernel behind it as well."""
    if found.added is None or found.hint(found.rows) <= FEW or prim.tensor(found.a).rank != 2:
        return False
    result = found.op.results[0]
    alone = prim.tensor(found.added).shape == (found.columns,) and all(u.operation is behind for u in uses_of(result))
    kept = behind.get("strides") is None and layout_of(result) is None
    return alone and kept and is_tanh_gelu(behind)


def _measured(ctx: CompileContext, shape: Shape, found: Product, behind: kernel.Fused | None) -> str | None:
    """The tile that was measured to be the fastest, "" for the library's call; None where nothing is measured."""
    tiles = candidates(shape) if ctx.tuner is not None else ()
    calls: list[Op] = [*(f.kernel for f in found.front), found.op, *([] if behind is None else [behind])]
    sizes = [n for call in calls for v in (*call.operands, *call.results) for n in prim.tensor(v).shape]
    if ctx.tuner is None or not tiles or not all(isinstance(n, int) for n in sizes):
        return None
    bias = "" if found.added is None else " bias"
    words = f"{found.op['target'].removeprefix('aten.').removesuffix('.default')}{bias}"
    behind_it = "" if behind is None else f" {_digest([behind])}"
    before = f" after {_digest([f.kernel for f in found.front])}" if found.front else ""
    key = f"matmul {shape.bucket} {words}{behind_it}{before}"
    return ctx.tuner.pick(key, lambda: _isolated(calls), [t.text for t in tiles])


def _digest(kernels: Sequence[kernel.Fused]) -> str:
    """What kernels compute, without sizes."""
    lines = []
    for inner in (inner for each in kernels for inner in each.block_body.ops):
        lines.append(f"{inner.name}:{','.join(prim.tensor(r).dtype.name for r in inner.results)}")
    return hashlib.sha256(" ".join(lines).encode()).hexdigest()[:8]


def _isolated(calls: Sequence[Op]) -> ModuleOp:
    """A module whose function does only these calls, on arguments that lie in memory as what they are called with."""
    last, inside = calls[-1], list[Op]()
    for call in calls:
        chains = [viewed(v, prim.VIEWS) for v in call.operands]
        inside += [view for base, views in chains if base.owner in calls for view in views if view not in inside]
        inside.append(call)
    made = {r for op in inside for r in op.results}
    given = list(dict.fromkeys(v for op in inside for v in op.operands if v not in made))
    region = single_block(arg_types=[v.type for v in given])
    mapping: dict[SSAValue, SSAValue] = dict(zip(given, region.block.args, strict=True))
    for op in inside:
        copy = op.clone(mapping)
        region.block.add_op(copy)
        mapping |= dict(zip(op.results, copy.results, strict=True))
    region.block.add_op(prim.Return.make([mapping[r] for r in last.results]))
    views = [view_of(v) for v in given]
    attrs: dict[str, object] = {"sym_name": "main", "arg_names": tuple(f"x{k}" for k in range(len(given)))}
    attrs["arg_strides"] = tuple(view.strides if view is not None else None for view in views)
    return ModuleOp([prim.Func.make([], [], attrs, [region])])


def _siblings(op: kernel.Extern) -> int:
    """How many products there are of the same first factor, this one among them."""
    found = contraction_of(op)
    assert found is not None
    calls = {u.operation for u in uses_of(viewed(found.a)[0]) if isinstance(u.operation, kernel.Extern)}
    return sum(other["target"] == op["target"] for other in calls)


def _reads_fast(value: SSAValue) -> bool:
    """Whether memory is contiguous along one of the last two dimensions, and the other's steps are of 16 bytes."""
    view = view_of(value)
    if view is None:
        return False
    along, across = view.strides[-1], view.strides[-2]
    if along != 1:
        along, across = across, along
    return along == 1 and isinstance(across, int) and across * prim.tensor(value).dtype.bytes % 16 == 0


def _reader(op: kernel.Extern) -> kernel.Fused | None:
    """The first kernel that reads the product, if nothing else needs the product earlier."""
    result = op.results[0]
    found: kernel.Fused | None = None
    for use in uses_of(result):
        user = use.operation
        if isinstance(user, kernel.Fused) and (found is None or user is found or _before(user, found)):
            found = user
    if found is None:
        return None
    others = [use.operation for use in uses_of(result) if use.operation is not found]
    return None if any(_before(other, found) for other in others) else found


def _before(a: Operation, b: Operation) -> bool:
    return a is not b and a.is_before_in_block(b)


def _computes_elements(op: Operation) -> bool:
    """Whether each element of the result is computed from one of each operand; views of all of it among them."""
    return type(op) in (prim.Cast, *ONE_TO_ONE) or isinstance(op, prim.Elementwise)


def _is_elementwise(fused: kernel.Fused, result: SSAValue) -> bool:
    """Whether a kernel computes single elements from single elements of the value, and nothing else."""
    block = fused.block_body
    depends: set[SSAValue] = {arg for arg, v in zip(block.args, fused.operands, strict=True) if viewed(v)[0] is result}
    for op in block.ops:
        if isinstance(op, (*prim.JOINS, prim.Scan)):
            return False
        if isinstance(op, kernel.Yield):
            return all(v in depends for v in op.operands)
        if any(v in depends for v in op.operands):
            if not _computes_elements(op):
                return False
            depends.update(op.results)
    return False


def _sums(fused: kernel.Fused, result: SSAValue) -> bool:
    """Whether a kernel reads each element of the value at one place only, to compute with it and to reduce."""
    block = fused.block_body
    depends: set[SSAValue] = {arg for arg, v in zip(block.args, fused.operands, strict=True) if viewed(v)[0] is result}
    for op in block.ops:
        if isinstance(op, kernel.Yield) or not any(v in depends for v in op.operands):
            continue
        if _computes_elements(op):
            depends.update(op.results)
        elif not isinstance(op, prim.Reduce):
            return False
    return True
