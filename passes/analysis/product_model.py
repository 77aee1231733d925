"""What a matrix product costs on a GPU, by the library and by a kernel of our own, and which tile suits a shape."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass, replace

from ...ir.symbols import power_of_two


@dataclass(frozen=True)
class Tile:
    """How a product is laid over a GPU.

    Attributes:
        rows, columns: of the result, that one program computes.
        inner: how much of the inner size is multiplied at a time.
        warps: that work on a tile.
        stages: blocks of operands that are on their way at once.
        split: into how many chunks the inner size is cut; their sums are added up by a second kernel.
        programs: at most so many walk over the tiles, one after another, and read through tensor maps (TMA); 0: one for
            each tile. In the lists below: on a multiprocessor.
    """

    rows: int = 128
    columns: int = 128
    inner: int = 64
    warps: int = 8
    stages: int = 3
    split: int = 1
    programs: int = 0

    @classmethod
    def parse(cls, text: str) -> Tile:
        """The tile of a text such as "128x128x64x8x3x1"; what is left out is as by default."""
        return cls(*map(int, text.split("x")))

    @property
    def text(self) -> str:
        """As `parse` reads it."""
        return "x".join(map(str, astuple(self) if self.programs else astuple(self)[:-1]))

    @property
    def choice(self) -> str:
        """As `kernel.contract` has it."""
        return f"tile {self.text}"


@dataclass(frozen=True)
class Front:
    """What is computed in front of a product.

    Attributes:
        moved: bytes that each kernel of its own reads and writes.
        first, second: operations for an element of the first factor, and of the second one.
    """

    moved: tuple[int, ...] = ()
    first: float = 0.0
    second: float = 0.0


@dataclass(frozen=True)
class Shape:
    """What a choice is made for: `batch` products of (rows, inner) by (inner, columns) of a dtype.

    Attributes:
        epilogue: whether a kernel behind it becomes part of it.
        tensors: how many tensors of the result's size that kernel reads and writes beside the product and one result.
        narrow: whether all that it reads and writes is in half types; float32 needs more memory beside the next tile's operands than there is.
        siblings: how many products of the first factor there are; small ones become one launch (`horizontal-fusion`).
        shared_bytes: memory of a multiprocessor that a program may use.
        multiprocessors: how many there are.
        tensor_maps: whether there are any (Hopper), and the sizes that they are made of are known.
        front: what its factors are computed by, where that can be part of a kernel of ours.
        by_rows: whether the second factor lies contiguously along the inner size.
    """

    batch: int
    rows: int
    columns: int
    inner: int
    dtype: str
    epilogue: bool = False
    tensors: int = 0
    by_rows: bool = True
    siblings: int = 1
    shared_bytes: int = 227 * 1024
    multiprocessors: int = 132
    tensor_maps: bool = True
    narrow: bool = True
    front: Front = Front()

    @property
    def size(self) -> int:
        """Bytes of an element of the factors."""
        return 4 if self.dtype == "f32" else 2

    @property
    def speed(self) -> float:
        """Of the GPU, where that of the measured one is 1."""
        return self.multiprocessors / MEASURED_ON

    @property
    def is_uneven(self) -> bool:
        """Whether the result's rows do not begin at multiples of 16 bytes, as the library's fast kernels ask for."""
        return self.dtype != "f32" and self.columns % MULTIPLE != 0

    def holds(self, tile: Tile) -> bool:
        """Whether a multiprocessor has room for a tile's operands, a little more, and the result beside the next tile's."""
        if tile.programs and (not self.tensor_maps or not self.narrow or self.dtype == "f32"):
            return False
        operands = tile.stages * (tile.rows + tile.columns) * tile.inner * self.size
        result = tile.rows * tile.columns if tile.programs else 0
        return operands + result + 1024 <= self.shared_bytes

    @property
    def bucket(self) -> str:
        """The sizes, rows up to the next power of two: shapes of one bucket have the same choice."""
        rows = power_of_two(self.rows)
        return f"{self.batch}x{rows}x{self.columns}x{self.inner} {self.dtype}{'' if self.by_rows else ' by columns'}"

    def __str__(self) -> str:
        batch = f"{self.batch} of " if self.batch > 1 else ""
        return f"{batch}{self.rows}x{self.inner} by {self.inner}x{self.columns}"


FEW = 256  # rows; the library's kernels for so few are far from the limits as well
VERY_FEW = 8  # rows for which the library's kernels are hard to beat
CHUNK = 768  # of the inner size, for few rows
VOCABULARY = 1024  # columns; the library's kernels for fewer were not measured
SHALLOW_ROWS, SHALLOW_INNER = 1 << 15, 128  # of products without anything behind them that are kernels of ours
NARROW = 256  # an inner size at which a product is bound by memory, as what is behind it

# Measured on an H200 (132 multiprocessors) in bfloat16; times in microseconds. The model is good to about a tenth; ratios of its terms are
# about the same on other GPUs with as much memory bandwidth for each operation: rates are of that many multiprocessors.
MEASURED_ON = 132
OPERATIONS = 800e6  # a microsecond, of the library's large products
BYTES = 4.26e6  # a microsecond, of copies
LIBRARY_FIXED, FIXED = 3.5, 3.0  # of a product by the library, and of our kernels
KERNEL_FIXED, LEAST_KERNEL, KERNEL_BYTES = 0.5, 1.8, 4.3e6  # of an elementwise kernel behind a product
# Operations on single numbers a microsecond, of a multiprocessor, by the data sheet: lanes and clock.
SCALAR = 128 * 1755
HIDDEN = 1500  # an inner size from which on the library hides that it writes its result
CACHED, FROM_MEMORY = 16 << 20, 1.13  # a second factor larger than this does not stay in the cache, and what that costs
MARGIN = 0.99
# Of rows that begin anywhere: the library's kernels for these, from how many operations on it gets longer rows instead
# (`pad-products`), and the copy that cuts off what is too much, in bytes.
UNEVEN, PADDED, CUT = 100e6, 1 << 33, 1.8e6
ANYWHERE = 4.0  # times the time of a kernel that reads rows element by element (391 us for 412 MB of logits on an H200, 2026-11-23)
MULTIPLE = 8  # elements of a half type: 16 bytes, which the matrix units' loads ask rows to begin at


@dataclass(frozen=True)
class _Cost:
    """What a program with a tile takes: for each element of the inner size where others run beside it, and alone; else.

    `beside`: how many run on a multiprocessor at once. `behind`: for what is computed from the product, where `rest` does not have that.
    `tensor`: for another tensor that this reads.
    """

    tile: Tile
    inner: float
    alone: float
    rest: float
    beside: int
    behind: float = 0.0
    tensor: float = 0.0


_COSTS = (
    _Cost(Tile(128, 256, 64, 8, 3), 9.8e-3, 9.8e-3, 5.5, 1),
    _Cost(Tile(128, 128, 64, 4, 3), 5.17e-3, 7.5e-3, 2.9, 2),
    _Cost(Tile(64, 128, 64, 4, 3), 3.73e-3, 6.7e-3, 1.15, 3),
    _Cost(Tile(128, 64, 64, 4, 3), 3.67e-3, 6.7e-3, 1.2, 3),
    _Cost(Tile(64, 64, 64, 4, 4), 2.77e-3, 4.4e-3, 0.6, 3),
    _Cost(Tile(128, 64, 32, 4, 3), 5.7e-3, 8.0e-3, 0.82, 4),
    _Cost(Tile(128, 256, 64, 8, 4, 1, 1), 1.0e-2, 1.0e-2, 2.9, 1, 1.9, 2.7),
    _Cost(Tile(128, 256, 64, 8, 3, 1, 1), 1.02e-2, 1.02e-2, 2.4, 1, 1.9, 2.7),
    _Cost(Tile(128, 128, 64, 4, 3, 1, 2), 5.2e-3, 7.5e-3, 1.4, 2, 1.3, 0.6),
)


def library_time(shape: Shape) -> float:
    """Microseconds of the library's call with an elementwise kernel behind it."""
    rows, columns, inner, size = shape.rows, shape.columns, shape.inner, shape.size
    work = 2 * rows * columns * inner / OPERATIONS * (2 if shape.dtype == "f32" else 1)
    written = rows * columns * size / BYTES * min(1.0, HIDDEN / inner)
    read = 0.5 * rows * inner * size / BYTES * min(1.0, HIDDEN / inner)
    moved = (2 + shape.tensors) * shape.batch * rows * columns * size
    behind = kernel_time(shape, moved) if shape.epilogue else 0.0
    if shape.is_uneven:
        work = 2 * rows * columns * inner / UNEVEN
    return LIBRARY_FIXED + shape.batch * (work + written + read) / shape.speed + behind


def kernel_time(shape: Shape, moved: int) -> float:
    """Microseconds of an elementwise kernel that reads and writes so many bytes."""
    return max(LEAST_KERNEL, KERNEL_FIXED + moved / KERNEL_BYTES / shape.speed)


def pays_padding(rows: int, columns: int, inner: int, copied: int = 0) -> bool:
    """Whether the library multiplies faster by factors with rows at multiples of 16 bytes, for which so many bytes are copied.

    Copies are made in every call, so that they are never stale.
    """
    work = 2 * rows * columns * inner
    return work >= PADDED and copy_time(copied) < work / UNEVEN - work / OPERATIONS


def copy_time(copied: int) -> float:
    """Microseconds of a kernel that reads and writes so many bytes; none takes none."""
    return max(LEAST_KERNEL, copied / BYTES) if copied else 0.0


def cut_time(shape: Shape, size: int) -> float:
    """Microseconds of the copy that cuts off what is too much of a result of so many bytes."""
    return 2 * size / CUT / shape.speed


def pays_longer_rows(shape: Shape, copied: int, read: int, cut: int = 0, tiles: bool = True) -> bool:
    """Whether a product is expected to be faster with a result whose rows begin at multiples of 16 bytes.

    For it so many bytes of factors are `copied`. Kernels read so many of the result (element by element, where its rows begin anywhere); of a
    result that has to be contiguous so many are `cut` off by a copy. `tiles`: kernels of ours may multiply.
    """
    longer = library_time(replace(shape, columns=shape.columns + -shape.columns % MULTIPLE)) + copy_time(copied)
    plain = min(library_time(shape), tiles_time(shape) if tiles else math.inf)
    behind = cut_time(shape, cut) if cut else read / BYTES
    return longer + behind < plain + ANYWHERE * read / BYTES


def tiles_time(shape: Shape) -> float:
    """Microseconds of our fastest kernel; infinite where no tile fits."""
    costs = [cost for cost in _COSTS if shape.holds(_fitted(shape, cost.tile))]
    return min((tile_time(shape, cost) for cost in costs), default=math.inf)


def tile_time(shape: Shape, cost: _Cost) -> float:
    """Microseconds of our kernel with what is behind it."""
    blocks = shape.batch * -(-shape.rows // cost.tile.rows) * -(-shape.columns // cost.tile.columns)
    programs = -(-blocks // shape.multiprocessors)
    walk = max(programs * cost.inner, -(-programs // cost.beside) * cost.alone) * shape.inner
    if shape.columns * shape.inner * 2 > CACHED and programs > 2 and not cost.tile.programs:
        walk *= FROM_MEMORY
    more = max(0, shape.tensors - 1) * shape.batch * shape.rows * shape.columns * 2 / BYTES / shape.speed
    rest = cost.rest + shape.epilogue * cost.behind + min(1, shape.tensors) * cost.tensor
    return FIXED + walk * (2 if shape.dtype == "f32" else 1) + programs * rest + more


def front_time(shape: Shape) -> float:
    """Microseconds of the kernels in front of a product as kernels of their own."""
    return sum(kernel_time(shape, moved) for moved in shape.front.moved)


def again_time(shape: Shape, tile: Tile) -> float:
    """Microseconds of computing factors in each program: the first for all blocks of columns, the second for those of rows."""
    rows, columns = (1, 1) if shape.rows == 1 else (tile.rows, tile.columns)
    first = shape.front.first * shape.rows * -(-shape.columns // columns)
    second = shape.front.second * shape.columns * -(-shape.rows // rows)
    return shape.batch * shape.inner * (first + second) / SCALAR / shape.multiprocessors


def _tiles(texts: str) -> tuple[Tile, ...]:
    return tuple(map(Tile.parse, texts.split()))


LARGE = _tiles("128x256x64x8x3 256x128x64x8x3 128x128x64x8x4 128x128x64x4x3")
PERSISTENT = _tiles("128x256x64x8x3x1x1 128x256x64x8x4x1x1 128x128x64x4x3x1x2")
MIDDLE = _tiles("64x128x64x4x3 128x64x64x4x3 64x64x64x4x4")
SMALL = _tiles("64x32x128x4x4 64x32x128x4x5 64x64x128x4x3 32x32x128x4x4 16x64x128x4x4 16x32x128x4x5")
SHALLOW = _tiles("128x64x32x4x3 64x128x32x4x3 64x64x32x4x3 128x128x32x8x3")


def candidates(shape: Shape) -> tuple[Tile, ...]:
    """The tiles that are worth measuring for a shape."""
    fitted = (_fitted(shape, tile) for tile in _candidates(shape))
    return tuple(dict.fromkeys(tile for tile in fitted if shape.holds(tile)))


def _fitted(shape: Shape, tile: Tile) -> Tile:
    """The tile, half as deep for elements twice as large, and its programs on all multiprocessors."""
    if shape.dtype == "f32":
        tile = replace(tile, inner=max(16, tile.inner // 2))
    return replace(tile, programs=tile.programs * shape.multiprocessors)


def _candidates(shape: Shape) -> tuple[Tile, ...]:
    if shape.rows == 1 or shape.columns == 1:
        return (Tile(),) if shape.by_rows and shape.batch == 1 else ()
    found = SMALL if shape.rows <= FEW else (*LARGE, *PERSISTENT, *MIDDLE)
    if shape.inner <= NARROW:
        found = (*SHALLOW, *found)
    if shape.rows <= 2 * FEW and shape.columns <= 4 * FEW * 4:
        splits = [k for k in (2, 4, 8) if shape.inner % (k * 128) == 0 and shape.inner // k >= 256]
        found = (*found, *(Tile(64, 64, 128, 4, 3, k) for k in splits))
    return tuple(t for t in found if t.rows < 2 * shape.rows or t.rows == 16)


@dataclass(frozen=True)
class Choice:
    """How a product is carried out.

    Attributes:
        tile: of a kernel of ours; None: by the library.
        why: the times that are expected, or the rule.
        joined: whether the kernel computes what is in front of the product, too.
    """

    tile: Tile | None
    why: str
    joined: bool = False


def choose(shape: Shape, reads_fast: bool = True) -> Choice:
    """What is expected to be the fastest.

    Args:
        reads_fast: whether the factors lie in memory as tiles of them are read.
    """
    found = _joined(shape)
    if found is not None:
        return found
    return _alone(shape) if reads_fast else Choice(None, "tiles of the factors are slow to read")


def _joined(shape: Shape) -> Choice | None:
    """A kernel that computes its factors itself; None where kernels in front of the product are faster."""
    if not shape.front.moved:
        return None
    if shape.batch == 1 and shape.rows <= FEW:
        return _few_joined(shape)
    costs = [cost for cost in _COSTS if shape.holds(_fitted(shape, cost.tile))]
    apart = front_time(shape) + min([library_time(shape), *(tile_time(shape, cost) for cost in costs)])
    plain = [cost for cost in costs if not cost.tile.programs]  # tensor maps read what lies in memory
    joined = {cost.tile: tile_time(shape, cost) + again_time(shape, cost.tile) for cost in plain}
    if not joined:
        return None
    best = min(joined, key=lambda tile: joined[tile])
    return _with_front(_fitted(shape, best), joined[best], apart) if joined[best] < MARGIN * apart else None


def _with_front(tile: Tile, joined: float, apart: float) -> Choice:
    return Choice(tile, f"{joined:.1f} us with what computes its factors, {apart:.1f} us behind it", joined=True)


def _few_joined(shape: Shape) -> Choice | None:
    """Of few rows: where the product is ours anyway, computing again is the cost; else the weight is read as well."""
    plain = _by_shape(shape).tile
    found = plain or (None if shape.rows == 1 or shape.is_uneven else _few_rows(shape))
    tile = found and replace(_fitted(shape, found), programs=0)
    if tile is None or not (shape.holds(tile) or shape.rows == 1):
        return None
    apart, joined = front_time(shape), again_time(shape, tile)
    if plain is None:
        programs = -(-shape.rows // tile.rows) * -(-shape.columns // tile.columns) * tile.split
        read = shape.columns * shape.inner * shape.size / BYTES
        apart += library_time(shape)
        joined += FIXED + read * MEASURED_ON / min(shape.multiprocessors, programs)
        return _with_front(tile, joined, apart) if joined < apart else None
    why = f"{joined:.1f} us to compute factors again, {apart:.1f} us in front"
    return Choice(tile, why, joined=True) if joined < apart else None


def _alone(shape: Shape) -> Choice:
    found = _by_shape(shape)
    if found.tile is None:
        return found
    tile = _fitted(shape, found.tile)
    fits = shape.holds(tile) or shape.rows == 1
    return replace(found, tile=tile) if fits else Choice(None, f"tiles of {tile.text} do not fit")


def _by_shape(shape: Shape) -> Choice:
    """By rules for what was not fitted, else by time; the tile is that of half types."""
    if shape.rows == 1 and shape.batch == 1:  # a sum over each row of the weight
        return Choice(Tile() if shape.by_rows else None, "one row")
    if shape.batch == 1 and shape.rows <= FEW and shape.is_uneven and shape.columns >= VOCABULARY:
        return Choice(_few_rows_of_many(shape), "few rows of many columns")
    if shape.batch > 1 or shape.rows <= VERY_FEW:
        return Choice(None, "a batch" if shape.batch > 1 else "very few rows")
    if shape.rows <= FEW:
        found = _few_rows(shape) if shape.epilogue or shape.siblings > 1 else None
        return Choice(found, "few rows" if found else "few rows and nothing behind them that suits a tile")
    if not shape.epilogue and not shape.is_uneven:
        found = _shallow(shape)
        return Choice(found, "bound by memory" if found else "nothing behind it")
    costs = [cost for cost in _COSTS if shape.holds(_fitted(shape, cost.tile))]
    # Programs that walk over tiles are never slower than one for each of these tiles.
    walked = {(cost.tile.rows, cost.tile.columns) for cost in costs if cost.tile.programs}
    costs = [cost for cost in costs if cost.tile.programs or (cost.tile.rows, cost.tile.columns) not in walked]
    if not costs:
        return Choice(None, "no tile fits")
    best = min(costs, key=lambda cost: tile_time(shape, cost))
    ours, library = tile_time(shape, best), library_time(shape)
    why = f"{ours:.1f} us in tiles, {library:.1f} us by the library"
    return Choice(best.tile if ours < MARGIN * library else None, why)


def _few_rows_of_many(shape: Shape) -> Tile:
    """For few rows and many columns whose rows begin anywhere: the weight is read once, 2.5 to 6 times as fast as the library does."""
    if shape.rows <= 16:
        return Tile(16, 128, 64, 4, 4)
    if shape.rows <= 64 or not shape.tensor_maps:
        return Tile(64, 128, 64, 4, 3)
    return Tile(128, 128, 64, 4, 3, 1, 2)


def _shallow(shape: Shape) -> Tile | None:
    """Without anything behind it: products of many rows that are bound by memory, where the library takes 1.2 times as long."""
    if shape.rows < SHALLOW_ROWS or shape.inner > SHALLOW_INNER or shape.columns < 64 or shape.dtype == "f32":
        return None
    return Tile(128, 128, 32, 4, 3, 1, 2 if shape.columns > 128 and shape.tensor_maps else 0)


def chunks_for(shape: Shape) -> Tile | None:
    """The tile of a product in chunks that the kernel behind it adds up: few rows of a large inner size, where the library needs two kernels as well."""
    if not 16 < shape.rows <= FEW or shape.batch > 1 or shape.inner <= 2 * CHUNK:
        return None
    found = _few_rows(shape)
    return found if found is not None and found.split > 1 and shape.holds(found) else None


def _few_rows(shape: Shape) -> Tile | None:
    """Small tiles, so that there are enough of them; the inner size in chunks where there are not."""
    if shape.rows <= 16:
        return Tile(16, 32, 128, 4, 5)
    if shape.inner <= 2 * CHUNK:
        blocks = shape.siblings * -(-shape.rows // 64) * -(-shape.columns // 32)
        return Tile(64, 32, 128, 4, 5 if blocks <= shape.multiprocessors else 4)
    for split in (2, 4, 8):
        size = shape.inner // split
        if size <= CHUNK and shape.inner % (split * 128) == 0 and shape.rows * shape.columns <= 1 << 17:
            return Tile(64, 64, 128, 4, 3, split)
    return None
