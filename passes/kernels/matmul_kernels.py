"""matmul-kernels: matrix products on a GPU become kernels of their own, together with what is computed from them.

A library call stays where it is expected to be faster, its result stored and read again by a kernel behind it. Otherwise product and kernel
become one `kernel.contract`. What reads the product may do anything with single elements of it and give several
results; reductions stay behind, so no product is computed twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, cast

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue

from ...ir.dialects import kernel, prim
from ...ir.dtypes import BF16, F16, F32, DType
from ...ir.symbols import Dim, known_equal, product
from ...ir.syntax import Op, location_of, single_block
from ...ir.types import TensorType, is_gpu
from ..analysis.affine import hint
from ..analysis.machine import Processor
from ..analysis.product_model import FEW, Shape, Tile, candidates, choose, chunks_for
from ..analysis.strides import view_of
from ..core.base import Pass
from ..core.context import CompileContext
from .matmul_activation import is_tanh_gelu, with_gelu

# The operands that are the factors and what is added. The second factor of `aten.linear` is (columns, inner), the others' (inner, columns).
FACTORS = {
    "aten.linear.default": ("input", "weight", "bias"),
    "aten.addmm.default": ("mat1", "mat2", "self"),
    "aten.mm.default": ("self", "mat2", ""),
    "aten.bmm.default": ("self", "mat2", ""),
    "aten.baddbmm.default": ("batch1", "batch2", "self"),
}
ONE_TO_ONE = prim.Reshape | prim.Permute  # views with as many elements as there are


@dataclass(frozen=True)
class MatmulKernels(Pass):
    """Make one kernel of a matrix product on a GPU and the elementwise operations behind it, where that is expected to be faster.

    Options:
        tile: this tile for all products that a kernel of ours can compute, as rows x columns x inner size x warps x stages x chunks
            (x programs) ("128x128x64x8x3x1"); the default chooses by shape, and leaves to the library what that does faster.
    """

    name: ClassVar[str] = "matmul-kernels"
    level: ClassVar[str] = "kernel"
    after: ClassVar[tuple[str, ...]] = ("fuse",)
    before: ClassVar[tuple[str, ...]] = ("layout",)

    tile: str = ""

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        for func in [op for op in module.ops if isinstance(op, prim.Func)]:
            calls = [op for op in func.block_body.ops if isinstance(op, kernel.Extern) and op["target"] in FACTORS]
            products = [p for op in calls if (p := product_of_call(op, ctx.machine.tf32_products)) is not None]
            siblings = [_siblings(p) for p in products]  # of all products, before the first is replaced
            for op, number in zip([p.op for p in products], siblings, strict=True):
                found = product_of_call(
                    op, ctx.machine.tf32_products
                )  # anew: its factor may be what a kernel made now gives
                if found is not None:
                    found.siblings = number
                    self._replace(ctx, found)

    def _replace(self, ctx: CompileContext, found: Product) -> None:
        op = found.op
        behind = _epilogue(op)
        if not self.tile and behind is not None and _takes_gelu(found, behind):
            assert found.added is not None
            with_gelu(op, found.a, found.b, found.added, found.transposed, behind)
            ctx.diagnostics.count(self.name, "library calls with gelu")
            _erase(op)
            return
        shape = found.shape(behind, ctx.machine.gpu)
        reader = _reader(op)
        chunks = chunks_for(shape) if behind is None and reader is not None and not self.tile else None
        if chunks is not None and reader is not None and _sums(reader, op.results[0]):
            _merge_chunks(found, chunks, reader)
            ctx.diagnostics.count(self.name, "products in chunks that their reader adds up")
            _erase(op)
            return
        tile = Tile.parse(self.tile) if self.tile else _chosen(ctx, shape, op, behind)
        if tile is not None and not ctx.machine.gpu.tensor_maps:
            tile = replace(tile, programs=0)
        place = location_of(op)
        where = f"{place[0]}:{place[1]}" if place else ""
        if tile is None:
            ctx.diagnostics.remark(
                self.name, "refused", lambda: f"{shape}: the library is expected to be faster", where
            )
            return
        _merge(found, tile, behind)
        ctx.diagnostics.count(self.name, "products with an epilogue" if behind else "products")
        ctx.diagnostics.remark(
            self.name, "fused", lambda: f"{shape} in tiles of {tile.rows}x{tile.columns}x{tile.inner}", where
        )
        _erase(op)


def _erase(op: kernel.Extern) -> None:
    """Remove a call that nothing reads, and its views."""
    for view in _views(op.results[0])[::-1]:
        view.detach()
        view.erase()
    op.detach()
    op.erase()


def _takes_gelu(found: Product, behind: kernel.Fused) -> bool:
    """Whether the library's product with a bias can carry out the kernel behind it as well."""
    if found.added is None or found.hint(found.rows) <= FEW or prim.tensor(found.a).rank != 2:
        return False
    alone = prim.tensor(found.added).shape == (found.columns,) and all(
        u.operation is behind for u in _uses(found.op.results[0])
    )
    kept = behind.get("strides") is None and found.op.get("strides") is None
    return alone and kept and is_tanh_gelu(behind)


def _chosen(ctx: CompileContext, shape: Shape, op: kernel.Extern, behind: kernel.Fused | None) -> Tile | None:
    """The tile that was measured to be the fastest, or is expected to be; None: the library's call."""
    found = candidates(shape) if ctx.tuner is not None else ()
    calls = [op] if behind is None else [op, behind]
    sizes = [n for call in calls for v in (*call.operands, *call.results) for n in prim.tensor(v).shape]
    if ctx.tuner is None or not found or not all(isinstance(n, int) for n in sizes):
        return choose(shape)
    told = _words(calls)
    text = ctx.tuner.pick(f"matmul {shape.bucket} {told}", lambda: _isolated(calls), [t.text for t in found])
    return Tile.parse(text) if text else None


def _words(calls: Sequence[Op]) -> str:
    """What is computed, without sizes: the operator, and a digest of what is behind it."""
    op, lines = calls[0], []
    for call in calls[1:]:
        for inner in call.block_body.ops:
            kinds = ",".join(prim.tensor(r).dtype.name for r in inner.results)
            lines.append(f"{inner.name}:{kinds}")
    bias = " bias" if len(op.operands) > 2 else ""
    behind = f" {hashlib.sha256(' '.join(lines).encode()).hexdigest()[:8]}" if lines else ""
    return f"{op['target'].removeprefix('aten.').removesuffix('.default')}{bias}{behind}"


def _isolated(calls: Sequence[Op]) -> ModuleOp:
    """A module whose function does only these calls, on arguments that lie in memory as what they are called with."""
    first, last = calls[0], calls[-1]
    assert first.parent is not None
    between = [op for op in _views(first.results[0]) if last is not first and op.is_before_in_block(last)]
    inside = [first, *between, *calls[1:]]
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


@dataclass
class Product:
    """A library call that is a matrix product: its factors and what is added to it."""

    op: kernel.Extern
    a: SSAValue
    b: SSAValue
    added: SSAValue | None
    transposed: bool  # b is (columns, inner)
    dtype: str = ""
    rows: Dim = 1
    columns: Dim = 1
    inner: Dim = 1
    batch: Dim = 1
    siblings: int = 1

    def hint(self, size: Dim) -> int:
        """What a size is likely to be, if it is not known: what it was when the program was captured, but never 1."""
        func = self.op.parent_op()
        found = hint(size, dict(func.get("size_hints", ())) if isinstance(func, prim.Func) else None)
        return found if isinstance(size, int) else max(2, found)

    def shape(self, behind: kernel.Fused | None, gpu: Processor) -> Shape:
        """What decides how fast it is."""
        extra = 0
        if behind is not None:
            whole = self.hint(prim.tensor(self.op.results[0]).numel)
            touched = [*behind.operands, *behind.results]
            extra = max(
                0, sum(2 * self.hint(prim.tensor(v).numel) >= whole for v in touched) - 2
            )  # it reads the product, and writes
        view = view_of(self.b)
        by_rows = view is not None and view.strides[-1 if self.transposed else -2] == 1
        batch, rows, columns, inner = (self.hint(n) for n in (self.batch, self.rows, self.columns, self.inner))
        return Shape(
            batch,
            rows,
            columns,
            inner,
            self.dtype,
            behind is not None,
            extra,
            by_rows,
            self.siblings,
            gpu.shared_bytes,
            gpu.multiprocessors,
            gpu.tensor_maps and isinstance(self.rows, int),
            behind is None or all(prim.tensor(v).dtype.bytes <= 2 for v in (*behind.operands, *behind.results)),
        )


def _siblings(found: Product) -> int:
    """How many products there are of the same first factor, this one among them."""
    base = found.a
    while isinstance(base.owner, ONE_TO_ONE):
        base = base.owner.operands[0]
    calls = {u.operation for u in _uses(base) if isinstance(u.operation, kernel.Extern)}
    return sum(op["target"] == found.op["target"] for op in calls)


def product_of_call(op: kernel.Extern, tf32: bool = False) -> Product | None:
    """The product, where a kernel of ours can compute it: half types on one GPU, inner size and columns known, rows without gaps.

    Args:
        tf32: whether operands in float32 may be rounded to TF32; else these are the library's.
    """
    names = list(op["operands"])
    a, b, added = FACTORS[op["target"]]
    if not {a, b} <= set(names) <= {a, b, added} or op.get("beta", 1) != 1 or op.get("alpha", 1) != 1:
        return None
    if op.get("own") or op.get("epilogue") or op.get("effect"):
        return None
    values = dict(zip(names, op.operands, strict=True))
    x, y, result = prim.tensor(values[a]), prim.tensor(values[b]), prim.tensor(op.results[0])
    kinds = {(prim.tensor(v).dtype, prim.tensor(v).device) for v in (*op.operands, *op.results)}
    if len(kinds) != 1 or not is_gpu(result.device) or result.dtype not in ((BF16, F16, F32) if tf32 else (BF16, F16)):
        return None
    transposed = op["target"] == "aten.linear.default"
    found = Product(op, values[a], values[b], values.get(added), transposed, result.dtype.name)
    if x.rank < 2 or y.rank != (2 if transposed else x.rank) or 0 in (*x.shape, *y.shape):
        return None
    found.inner, found.columns = x.shape[-1], result.shape[-1]
    found.batch = product(x.shape[:-2]) if y.rank > 2 else 1
    found.rows = x.shape[-2] if y.rank > 2 else product(x.shape[:-1])
    if not isinstance(found.inner, int) or not isinstance(found.columns, int):
        return None
    if found.added is not None and not _spreads(prim.tensor(found.added), result):
        return None
    return found if _reads_fast(found.a) and _reads_fast(found.b) else None


def _spreads(added: TensorType, result: TensorType) -> bool:
    """Whether a tensor is broadcast to the result's shape by the usual rule."""
    if added.rank > result.rank:
        return False
    pairs = zip(reversed(added.shape), reversed(result.shape), strict=False)
    return all(s == 1 or known_equal(s, t) for s, t in pairs)


def _reads_fast(value: SSAValue) -> bool:
    """Whether memory is contiguous along one of the last two dimensions, and 16 bytes of it lie in a row of the other one."""
    view = view_of(value)
    if view is None:
        return False
    along, across = view.strides[-1], view.strides[-2]
    if along != 1:
        along, across = across, along
    return along == 1 and isinstance(across, int) and across * prim.tensor(value).dtype.bytes % 16 == 0


def _epilogue(op: kernel.Extern) -> kernel.Fused | None:
    """The kernel that reads the product, if all that it computes are single elements of it."""
    found = _reader(op)
    return found if found is not None and _is_elementwise(found, op.results[0]) else None


def _reader(op: kernel.Extern) -> kernel.Fused | None:
    """The first kernel that reads the product, if nothing else needs the product earlier."""
    result = op.results[0]
    found: kernel.Fused | None = None
    for use in _uses(result):
        user = use.operation
        if isinstance(user, kernel.Fused) and (found is None or user is found or _before(user, found)):
            found = user
    if found is None:
        return None
    others = [use.operation for use in _uses(result) if use.operation is not found]
    return None if any(_before(other, found) for other in others) else found


def _uses(value: SSAValue) -> list:  # type: ignore[type-arg]
    """The uses of a value, also through views that keep all of its elements."""
    found = []
    for use in value.uses:
        if isinstance(use.operation, ONE_TO_ONE):
            found += _uses(use.operation.results[0])
        else:
            found.append(use)
    return found


def _before(a: Operation, b: Operation) -> bool:
    return a is not b and a.is_before_in_block(b)


def _chain(value: SSAValue, base: SSAValue) -> list[Op] | None:
    """The views that lead from `base` to a value, first one first; None where the value is no view of it."""
    steps: list[Op] = []
    while value is not base:
        if not isinstance(value.owner, ONE_TO_ONE):
            return None
        steps.append(value.owner)
        value = value.owner.operands[0]
    return steps[::-1]


def _is_elementwise(fused: kernel.Fused, result: SSAValue) -> bool:
    """Whether a kernel computes single elements from single elements of the value, and nothing else."""
    block = fused.block_body
    depends: set[SSAValue] = {
        arg for arg, v in zip(block.args, fused.operands, strict=True) if _chain(v, result) is not None
    }
    for op in block.ops:
        if isinstance(op, (*prim.JOINS, prim.Scan)):
            return False
        if isinstance(op, kernel.Yield):
            return all(v in depends for v in op.operands)
        if any(v in depends for v in op.operands):
            if not isinstance(op, prim.Elementwise | prim.Cast | ONE_TO_ONE):
                return False
            depends.update(op.results)
    return False


def _sums(fused: kernel.Fused, result: SSAValue) -> bool:
    """Whether a kernel reads each element of the value at one place only, to compute with it and to reduce."""
    block = fused.block_body
    depends: set[SSAValue] = {
        arg for arg, v in zip(block.args, fused.operands, strict=True) if _chain(v, result) is not None
    }
    for op in block.ops:
        if isinstance(op, kernel.Yield) or not any(v in depends for v in op.operands):
            continue
        if isinstance(op, prim.Elementwise | prim.Cast | ONE_TO_ONE):
            depends.update(op.results)
        elif not isinstance(op, prim.Reduce):
            return False
    return True


@dataclass
class _Builder:
    """Builds the region of the kernel that replaces a product and what reads it."""

    block: Block
    inputs: list[SSAValue] = field(default_factory=list)
    made: dict[SSAValue, SSAValue] = field(default_factory=dict)  # values outside -> inside
    wide: dict[SSAValue, SSAValue] = field(default_factory=dict)  # values of the old kernel -> in float32, not rounded

    def argument(self, value: SSAValue) -> SSAValue:
        if value not in self.made:
            self.inputs.append(value)
            self.made[value] = self.block.insert_arg(value.type, len(self.block.args))
        return self.made[value]

    def add(self, op: Op) -> SSAValue:
        self.block.add_op(op)
        return op.results[0]

    def again(self, op: Op, operands: Sequence[SSAValue], dtype: object = None) -> SSAValue:
        types = [prim.tensor(r).with_(dtype=dtype) if dtype is not None else r.type for r in op.results]  # type: ignore[arg-type]
        attributes = {k: v for k, v in op.attributes.items() if k != "strides"}
        return self.add(
            type(op).create(operands=operands, result_types=types, attributes=attributes, location=op.location)
        )


def _merge(found: Product, tile: Tile, behind: kernel.Fused | None) -> kernel.Fused:
    """The kernel that computes a product and what reads it, in the place of the latter."""
    region = single_block(arg_types=[])
    builder = _Builder(region.block)
    wide = builder.add(_contract(found, builder))
    return _finish(builder, region, found, behind, wide, tile)


def _merge_chunks(found: Product, tile: Tile, reader: kernel.Fused) -> None:
    """Two kernels: products over chunks of the inner size, and what reads the product, which adds these up."""
    op, chunks = found.op, tile.split
    assert op.parent is not None
    region = single_block(arg_types=[])
    builder = _Builder(region.block)
    parts = builder.add(_contract(found, builder, chunks))
    builder.block.add_op(kernel.Yield.make([parts]))
    choice = {"choice": replace(tile, split=1).choice}
    first = kernel.Contract.make(builder.inputs, [parts.type], choice, [region], op.location)
    op.parent.insert_op_before(first, op)
    region = single_block(arg_types=[])
    builder = _Builder(region.block)
    whole = builder.argument(first.results[0])
    kind = prim.tensor(whole)
    wide: SSAValue | None = None
    for k in range(chunks):
        attrs = {"starts": (k, *[0] * (kind.rank - 1)), "steps": (1,) * kind.rank}
        part = builder.add(prim.Slice.make([whole], [kind.with_(shape=(1, *kind.shape[1:]))], attrs))
        part = builder.add(prim.reshape(part, kind.shape[1:]))
        wide = part if wide is None else builder.add(prim.elementwise("add", wide, part))
    assert wide is not None
    _finish(builder, region, found, reader, wide)


def _contract(found: Product, builder: _Builder, chunks: int = 1) -> prim.Contract:
    """The sums of products; where there are chunks, one result for each of them, with the chunks as its first dimension."""
    a, b = builder.argument(found.a), builder.argument(found.b)
    shape, inner = prim.tensor(found.op.results[0]).shape, found.inner
    *rows, column, walk = prim.axes(len(shape) + 1)
    if chunks > 1:
        first, *rows, column, walk = prim.axes(len(shape) + 2)
        shape, inner = (chunks, *shape), found.inner // chunks
        walk = inner * first + walk
    outer = rows[:-1] if prim.tensor(b).rank > 2 else []
    maps = ((*rows, walk), (*outer, column, walk) if found.transposed else (*outer, walk, column))
    attrs = {"tf32": True} if prim.tensor(a).dtype == F32 else {}
    made = prim.contract(a, b, maps, shape, (inner,), **attrs)
    made.location = found.op.location
    return made


def _finish(
    builder: _Builder,
    region: Region,
    found: Product,
    behind: kernel.Fused | None,
    wide: SSAValue,
    tile: Tile | None = None,
) -> kernel.Fused:
    """The kernel of what is computed from a product, without what is added to it, in the place of `behind`; with a tile it has the product."""
    op, result = found.op, found.op.results[0]
    narrow = prim.tensor(result).dtype
    if found.added is not None:
        shift = builder.argument(found.added)
        if narrow != F32:
            shift = builder.add(prim.cast(shift, F32))
        kind, rank = prim.tensor(shift), prim.tensor(wide).rank
        spread = prim.broadcast(shift, prim.tensor(wide).shape, tuple(range(rank - kind.rank, rank)))
        total = prim.elementwise("add", wide, builder.add(spread))
        total.location = op.location
        wide = builder.add(total)
    yielded: list[SSAValue] = []
    olds: list[SSAValue] = []
    strides: list[object] = []
    if behind is not None:
        _replay(builder, behind, result, wide, narrow)
        last = cast(kernel.Yield, behind.block_body.last_op)
        yielded += [builder.made[v] for v in last.operands]
        olds += behind.results
        strides += behind.get("strides") or [None] * len(behind.results)
    if behind is None or any(use.operation is not behind for use in _uses(result)):
        yielded.append(wide if narrow == F32 else builder.add(prim.cast(wide, narrow)))
        olds.append(result)
        strides += op.get("strides") or [None]
    builder.block.add_op(kernel.Yield.make(yielded))
    attrs: dict[str, object] = {"strides": tuple(strides)} if any(s is not None for s in strides) else {}
    made = (kernel.Fused if tile is None else kernel.Contract).make(
        builder.inputs,
        [v.type for v in olds],
        attrs if tile is None else {"choice": tile.choice, **attrs},
        [region],
        op.location,
    )
    before = behind or op
    assert before.parent is not None
    before.parent.insert_op_before(made, before)
    views = _views(result) if result in olds else []
    for old, new in zip(olds, made.results, strict=True):
        new.name_hint = old.name_hint
        old.replace_all_uses_with(new)
    if behind is not None:
        behind.detach()
        behind.erase()
    for view in reversed(views):  # the product is there later than before
        view.detach()
        made.parent.insert_op_after(view, made)  # type: ignore[union-attr]  # it was put there
    return made


def _views(value: SSAValue) -> list[Op]:
    """The views of all elements of a value, in an order in which each follows what it is a view of."""
    found: list[Op] = []
    for use in value.uses:
        if isinstance(use.operation, ONE_TO_ONE):
            found += [use.operation, *_views(use.operation.results[0])]
    return found


def _replay(builder: _Builder, behind: kernel.Fused, result: SSAValue, wide: SSAValue, narrow: DType) -> None:
    """The operations of the kernel behind a product; what eager rounds of the product is not rounded."""
    block = behind.block_body
    for arg, value in zip(block.args, behind.operands, strict=True):
        chain = _chain(value, result)
        if chain is None:
            builder.made[arg] = builder.argument(value)
            continue
        seen = wide
        for view in chain:
            seen = builder.again(view, [seen], F32)
        builder.wide[arg] = seen
    for op in block.ops:
        assert isinstance(op, Op)
        exact = [builder.wide.get(v) for v in op.operands]
        if isinstance(op, ONE_TO_ONE) and exact[0] is not None:
            builder.wide[op.results[0]] = builder.again(op, [exact[0]], F32)
            continue
        if isinstance(op, prim.Cast) and exact[0] is not None and op.type.dtype == F32:
            builder.made[op.results[0]] = exact[0]
            continue
        for value, sum_ in zip(op.operands, exact, strict=True):
            if sum_ is not None and value not in builder.made:
                builder.made[value] = sum_ if narrow == F32 else builder.add(prim.cast(sum_, narrow))
        if not isinstance(op, kernel.Yield):
            builder.made[op.results[0]] = builder.again(op, [builder.made[v] for v in op.operands])
