"""tile-products: how a matrix product with its epilogue is laid over a GPU: a program takes a tile of the result, walks over the inner size, and stores.

The nest is one like any other: rows, a stage that accumulates, and stages that store what follows. Rows that only the first operand depends
on are one loop in blocks, those of the second one another, what both depend on is a batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp

from ....ir.dialects import loop
from ....ir.dtypes import BY_NAME
from ....ir.scalars import DOT
from ....ir.symbols import Dim, product
from ...analysis.affine import accesses, merge
from ...analysis.cost import GROUP, WARPS_OF_A_ROW
from ...analysis.product_model import Tile
from ...core.base import Pass
from ...core.context import CompileContext
from ..expressions import Expressions
from ..nests import Join, Nest, Nests, Stage, by_stride
from .blocks import Blocker
from .grid_kernels import divide, grid_kernels


@dataclass(frozen=True)
class TileProducts(Pass):
    """Lay matrix products over a GPU, each in the tile that was chosen for it."""

    name: ClassVar[str] = "tile-products"
    level: ClassVar[str] = "loop"
    after: ClassVar[tuple[str, ...]] = ("split-launches",)
    requires: ClassVar[tuple[str, ...]] = ("split-launches",)

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        """A product of a single row or column is a sum, in blocks as any other."""
        for kernel, calls in grid_kernels(module, ctx.machine):
            if any(isinstance(op, loop.Accumulate) and op["kind"] == DOT for op in kernel.walk()):
                divide(kernel, calls, lambda found: _tiled(ctx, found))


def _tiled(ctx: CompileContext, found: Nests) -> list[Nest] | None:
    blocker = Blocker(ctx.machine.gpu, found.expressions, found.scratch)
    (nest,) = found.nests
    if not is_product(nest):
        return None
    tiled = product_tiles(blocker, nest)
    if tiled is None:
        tiled = blocker.row_blocks(summed(found.expressions, nest))
        tiled.warps = min(tiled.warps, WARPS_OF_A_ROW)
    return [tiled]


def is_product(nest: Nest) -> bool:
    """Whether the first stage adds up products of two operands."""
    return any(join.kind == DOT for join in nest.stages[0].joins)


def tile_of(nest: Nest) -> Tile:
    """The tile that the product asks for."""
    given = nest.stages[0].joins[0].attrs.get("tile")
    return Tile.parse(str(given)) if given else Tile()


def split_of(nest: Nest) -> int:
    """How many chunks the inner size is cut into; more than one only where these are equal blocks."""
    tile, loops = tile_of(nest), nest.stages[0].loops
    size = loops[0].size if len(loops) == 1 else 0
    even = isinstance(size, int) and size > 0 and size % (tile.split * tile.inner) == 0
    return tile.split if even and len(nest.stages[0].joins) == 1 else 1


def product_tiles(blocker: Blocker, nest: Nest) -> Nest | None:
    """The loops of the nest with their blocks; None where it is no product of a row and a column with operations on the result behind it."""
    lowering, flat = blocker.lowering, blocker.flat
    first, *rest = nest.stages
    if len(first.joins) != 1 or len(first.loops) != 1 or any(s.joins or s.loops for s in rest):
        return None
    a, b = first.joins[0].args
    used = accesses([n for s in nest.stages for n in s.nodes], [t for s in rest for t in s.stores], lowering.ranges)
    tall = [r for r in nest.rows if r.var in a.free and r.var not in b.free]
    wide = [r for r in nest.rows if r.var in b.free and r.var not in a.free]
    if not tall or not wide:
        return None
    batch = [r for r in nest.rows if r not in tall and r not in wide]
    tile = tile_of(nest)
    loads = accesses([a], [], lowering.ranges).loads
    tall, env = merge(by_stride(tall, used.stores, loads), used.all, lowering.ranges, blocker.merged)
    wide, more = merge(by_stride(wide, used.stores, used.loads), used.all, lowering.ranges, blocker.merged)
    env |= more
    spec = Nest([], [], env, warps=tile.warps, pipeline=tile.stages)
    spec.rows += flat(batch, env, 1, "parallel")
    group = _group(
        tile, first.loops[0].size, product([r.size for r in wide]), _bytes(nest), blocker.processor.stays_cached // 2
    )
    spec.rows += [replace(each, group=group) for each in flat(tall, env, tile.rows, "parallel")]
    spec.rows += flat(wide, env, tile.columns, "parallel")
    if tile.programs and not batch and all(isinstance(each.stop, int) and each.start == 0 for each in spec.rows):
        spec.rows[0] = replace(spec.rows[0], persistent=tile.programs)
    walk = first.loops[0]
    spec.stages = [Stage([replace(walk, block=tile.inner)], first.joins), *rest]
    return spec


def _bytes(nest: Nest) -> int:
    """Of an element of the factors."""
    return BY_NAME[str(nest.stages[0].joins[0].attrs["dtype"])].bytes


def _group(tile: Tile, inner: Dim, columns: Dim, size: int, cached: int) -> int:
    """How many blocks of rows programs take with each block of columns: for each group a second factor that stays in no cache is read again.

    Args:
        size: bytes of an element. cached: bytes of a factor that stay in the cache while the other one passes by.
    """
    if not isinstance(inner, int) or not isinstance(columns, int) or columns * inner * size <= cached:
        return GROUP
    fits = cached // (tile.rows * inner * size)
    return max(GROUP, 1 << max(0, fits.bit_length() - 1))


def summed(lowering: Expressions, nest: Nest) -> Nest:
    """The product as a plain sum, which a single row or column is computed by."""

    def plain(join: Join) -> Join:
        if join.kind != DOT:
            return join
        a, b = join.args
        return replace(join, kind="sum", args=(lowering.op("mul", a, b),), attrs={})

    return Nest(nest.rows, [Stage(s.loops, [plain(j) for j in s.joins], s.stores) for s in nest.stages])
