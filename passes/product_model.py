"""What a matrix product costs on a GPU, by the library and by a kernel of our own, and which tile suits a shape."""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace


@dataclass(frozen=True)
class Tile:
    """How a product is laid over a GPU.

    Attributes:
        rows, columns: of the result, that one program computes.
        inner: how much of the inner size is multiplied at a time.
        warps: that work on a tile.
        stages: blocks of operands that are on their way at once.
        split: into how many chunks the inner size is cut; their sums are added up by a second kernel.
    """

    rows: int = 128
    columns: int = 128
    inner: int = 64
    warps: int = 8
    stages: int = 3
    split: int = 1

    @classmethod
    def parse(cls, text: str) -> Tile:
        """The tile of a text such as "128x128x64x8x3x1"; what is left out is as by default."""
        return cls(*map(int, text.split("x")))

    @property
    def text(self) -> str:
        """As `parse` reads it."""
        return "x".join(map(str, astuple(self)))

    @property
    def attribute(self) -> tuple[int, ...]:
        """As `prim.dot` has it."""
        return astuple(self)


@dataclass(frozen=True)
class Shape:
    """What a choice is made for: `batch` products of (rows, inner) by (inner, columns) of a dtype.

    Attributes:
        epilogue: whether a kernel behind it becomes part of it.
        tensors: how many tensors of the result's size that kernel reads and writes beside the product and one result.
        siblings: how many products of the first factor there are; small ones become one launch (`horizontal-fusion`).
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

    @property
    def bucket(self) -> str:
        """The sizes, rows up to the next power of two: shapes of one bucket have the same choice."""
        rows = 1 << max(0, self.rows - 1).bit_length()
        return f"{self.batch}x{rows}x{self.columns}x{self.inner} {self.dtype}{'' if self.by_rows else ' by columns'}"

    def __str__(self) -> str:
        batch = f"{self.batch} of " if self.batch > 1 else ""
        return f"{batch}{self.rows}x{self.inner} by {self.inner}x{self.columns}"


FEW = 256  # rows; the library's kernels for so few are far from the limits as well
CHUNK = 768  # of the inner size, for few rows
NARROW = 256  # an inner size at which a product is bound by memory, as what is behind it


CANDIDATES = (
    *(Tile(*t) for t in ((128, 256, 64, 8, 3), (256, 128, 64, 8, 3), (128, 128, 64, 8, 4), (128, 128, 64, 4, 3))),
    *(Tile(*t) for t in ((64, 128, 64, 4, 3), (128, 64, 64, 4, 4), (64, 64, 64, 4, 4), (64, 32, 128, 4, 4))),
)
SMALL = tuple(
    Tile(*t)
    for t in ((64, 32, 128, 4, 4), (64, 64, 128, 4, 3), (32, 32, 128, 4, 4), (16, 64, 128, 4, 4), (16, 32, 256, 4, 3))
)
SHALLOW = tuple(Tile(*t) for t in ((64, 128, 32, 4, 3), (128, 64, 32, 4, 3), (64, 64, 32, 4, 3), (128, 128, 32, 8, 3)))


def candidates(shape: Shape) -> tuple[Tile, ...]:
    """The tiles that are worth measuring for a shape."""
    return tuple(dict.fromkeys(_fitted(shape, tile) for tile in _candidates(shape)))


def _fitted(shape: Shape, tile: Tile) -> Tile:
    """The tile, half as deep for elements twice as large."""
    return replace(tile, inner=max(16, tile.inner // 2)) if shape.dtype == "f32" else tile


def _candidates(shape: Shape) -> tuple[Tile, ...]:
    if shape.rows == 1 or shape.columns == 1:
        return (Tile(),) if shape.by_rows and shape.batch == 1 else ()
    found = CANDIDATES if shape.rows > FEW else SMALL
    if shape.inner <= NARROW:
        found = (*SHALLOW, *found)
    if shape.rows <= 2 * FEW and shape.columns <= 4 * FEW * 4:
        chunks = [
            Tile(64, 64, 128, 4, 3, k) for k in (2, 4, 8) if shape.inner % (k * 128) == 0 and shape.inner // k >= 256
        ]
        found = (*found, *chunks)
    return tuple(t for t in found if t.rows < 2 * shape.rows or t.rows == 16)


def choose(shape: Shape) -> Tile | None:
    """The tile of a kernel of our own; None where the library is expected to be faster."""
    found = _choose(shape)
    return None if found is None else _fitted(shape, found)


def _choose(shape: Shape) -> Tile | None:
    if shape.rows == 1 and shape.batch == 1:  # a sum over each row of the weight
        return Tile() if shape.by_rows else None
    if shape.batch > 1:
        return None
    if 16 < shape.rows <= FEW and (shape.epilogue or shape.siblings > 1):
        return _few_rows(shape)
    if not shape.epilogue:
        return None
    if shape.inner <= NARROW and shape.rows >= 16 * FEW and shape.columns >= 64:
        return Tile(64, 128, 32, 4, 3)
    return None


def _few_rows(shape: Shape) -> Tile | None:
    """Small tiles, so that there are enough of them; the inner size in chunks where there are not."""
    if shape.inner <= 2 * CHUNK:
        return Tile(64, 32, 128, 4, 4)
    for split in (2, 4, 8):
        size = shape.inner // split
        if size <= CHUNK and shape.inner % (split * 128) == 0 and shape.rows * shape.columns <= 1 << 17:
            return Tile(64, 64, 128, 4, 3, split)
    return None
