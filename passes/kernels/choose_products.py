"""choose-products: how each contraction on a GPU is carried out: by the library, or by tiles of a kernel of our own.

    %2 = kernel.extern<aten.linear.default>(%x, %w) {choice = "library", why = "nothing behind it", ...}
    %3 = kernel.contract(%x, %v) {choice = "tile 64x32x128x4x5x1", why = "few rows"} ({ ... })

The kernel of a contraction takes in what is computed of the product (its epilogue) and what its factors are computed by
(its prologue): anything done to single elements, with several results. Reductions stay behind, so that no product is
computed twice. Where the library's call is expected to be faster with kernels around it, everything stays as it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from ...ir.dialects import kernel, prim
from ...ir.dtypes import BF16, F16, F32
from ...ir.symbols import Dim
from ...ir.syntax import Op, line_of, single_block
from ..analysis.machine import Machine, Processor
from ..analysis.product_model import FEW, Choice, Front, Shape, Tile, candidates, choose, chunks_for
from ..analysis.sizes import hint
from ..analysis.strides import view_of
from ..core.base import Pass
from ..core.clauses import Clauses, broken
from ..core.context import CompileContext
from ..fusion.join import erase, join, layout_of, uses_of, viewed
from ..fusion.prologue_epilogue import Prologue, first_reader, is_epilogue, prologues, reduces
from .contractions import Contraction, added_chunks, contract_kernel, contraction_of, sums_kernel
from .matmul_activation import is_tanh_gelu, with_gelu


@dataclass(frozen=True)
class ChooseProducts(Pass):
    """Choose between the library and a kernel of our own for each matrix product on a GPU.

    Options:
        tile: this tile for all products that a kernel of ours can compute, as rows x columns x inner size x warps x
            stages x chunks (x programs) ("128x128x64x8x3x1"); the default chooses by shape, and leaves to the library
            what that does faster.
        tiles: false leaves all of them to the library, whose results are rounded as eager's are.
    """

    name: ClassVar[str] = "choose-products"
    level: ClassVar[str] = "kernel"
    after: ClassVar[tuple[str, ...]] = ("fuse",)
    before: ClassVar[tuple[str, ...]] = ("layout",)

    tile: str = ""
    tiles: bool = True

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        for func in [op for op in module.ops if isinstance(op, prim.Func)]:
            calls = [op for op in func.block_body.ops if isinstance(op, kernel.Extern)]
            products = [found for found in map(contraction_of, calls) if found and _is_on_grid(found, ctx.machine)]
            products = [found for found in products if prim.tensor(found.a).rank > 1]
            siblings = [_siblings(found) for found in products]  # of all products, before the first is replaced
            for found, number in zip(products, siblings, strict=True):
                self._choose(ctx, found.op, number)

    def _choose(self, ctx: CompileContext, op: kernel.Extern, siblings: int) -> None:
        found = _product(op)  # its factor may be what a kernel made now gives
        refused = broken(takes_tiles(found, ctx.machine))
        if refused is not None or not self.tiles:
            _by_library(found, f"tiles take {refused}" if self.tiles else "tiles do not round as eager does")
            return
        reader = first_reader(op.results[0])
        behind = reader if reader is not None and is_epilogue(reader, op.results[0]) else None
        if not self.tile and behind is not None and _takes_gelu(found, behind):
            assert found.added is not None
            with_gelu(op, found.a, found.b, found.added, found.transposed, behind)
            ctx.diagnostics.count(self.name, "library calls with gelu")
            erase(op)
            return
        shape = found.shape(behind, siblings, ctx.machine.gpu)
        chunks = chunks_for(shape) if behind is None and reader is not None and not self.tile else None
        if chunks is not None and reader is not None and found.reads_fast and reduces(reader, op.results[0]):
            why = f"its reader adds up {chunks.split} chunks"
            parts = sums_kernel(found, replace(chunks, split=1).choice, why, chunks.split)
            join(added_chunks(found, parts.results[0]), reader)
            ctx.diagnostics.count(self.name, "products in chunks that their reader adds up")
            return
        choice = self._choice(ctx, shape, found, behind)
        tile, where = choice.tile, line_of(op)
        if tile is None:
            _by_library(found, choice.why)
            ctx.diagnostics.remark(
                self.name, "refused", lambda: f"{shape}: the library is expected to be faster ({choice.why})", where
            )
            return
        made: kernel.Fused = contract_kernel(found, tile.choice, choice.why)
        if behind is not None:
            made = join(made, behind)
        for front in found.front if choice.joined else ():
            made = join(front.kernel, made)
        ctx.diagnostics.count(self.name, "products with an epilogue" if behind else "products")
        if choice.joined:
            ctx.diagnostics.count(self.name, "products with a prologue")
        size = f"{tile.rows}x{tile.columns}x{tile.inner}"
        ctx.diagnostics.remark(self.name, "fused", lambda: f"{shape} in tiles of {size} ({choice.why})", where)

    def _choice(self, ctx: CompileContext, shape: Shape, found: Product, behind: kernel.Fused | None) -> Choice:
        if self.tile:
            tile = Tile.parse(self.tile)
            tile = tile if ctx.machine.gpu.tensor_maps else replace(tile, programs=0)
            return Choice(tile, "asked for", bool(found.front))
        if (text := _measured(ctx, shape, found, behind)) is not None:
            return Choice(Tile.parse(text) if text else None, "measured", bool(found.front))
        return choose(shape, found.reads_fast)


@dataclass
class Product(Contraction):
    """A contraction with what is around it.

    Attributes:
        front: kernels before it that this can take in.
        reads_fast: whether the factors lie in memory as tiles of them are read.
    """

    @cached_property
    def front(self) -> tuple[Prologue, ...]:
        return tuple(prologues(self.op, (self.a, self.b), self.added))

    @cached_property
    def reads_fast(self) -> bool:
        return _reads_fast(self.a) and _reads_fast(self.b)

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
            Front(moved, *work),
        )


def _product(op: kernel.Extern) -> Product:
    found = contraction_of(op)
    assert found is not None
    return Product(op, found.a, found.b, found.added)


def _is_on_grid(found: Contraction, machine: Machine) -> bool:
    return machine.at(found.type.device).is_grid


def takes_tiles(found: Product, machine: Machine) -> Clauses:
    """What tiles of a kernel of ours can compute."""
    values = (*found.op.operands, *found.op.results)
    yield len({(prim.tensor(v).dtype, prim.tensor(v).device) for v in values}) == 1, "one dtype on one GPU"
    dtypes = (BF16, F16, F32) if machine.tf32_products else (BF16, F16)
    yield found.type.dtype in dtypes, "half types, and float32 that may be rounded to TF32"
    yield isinstance(found.inner, int) and isinstance(found.columns, int), "known columns and a known inner size"
    inside = [f.kernel for f in found.front]
    in_tiles = (viewed(v, prim.VIEWS)[0].owner in inside or _reads_fast(v) for v in (found.a, found.b))
    yield found.reads_fast or all(in_tiles), "factors in rows at multiples of 16 bytes"


def _by_library(found: Product, why: str) -> None:
    """Leave the product to the library."""
    found.op["choice"], found.op["why"] = "library", why


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


def _siblings(found: Contraction) -> int:
    """How many products there are of the same first factor, this one among them."""
    calls = {u.operation for u in uses_of(viewed(found.a)[0]) if isinstance(u.operation, kernel.Extern)}
    return sum(other["target"] == found.op["target"] for other in calls)


def _reads_fast(value: SSAValue) -> bool:
    """Whether memory is contiguous along one of the last two dimensions, and the other's steps are of 16 bytes."""
    view = view_of(value)
    if view is None:
        return False
    along, across = view.strides[-1], view.strides[-2]
    if along != 1:
        along, across = across, along
    return along == 1 and isinstance(across, int) and across * prim.tensor(value).dtype.bytes % 16 == 0
