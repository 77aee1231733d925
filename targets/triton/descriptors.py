"""Tensor maps: what Hopper's copies of whole tiles (TMA) are told of an operand. Only products whose programs walk over tiles read through them.

A kernel has one more argument `d0`, `d1` for each such operand, which its launch makes from the operand's address.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import sympy
from xdsl.ir import Block, SSAValue

from ...ir.dialects import loop
from ...ir.dtypes import BY_NAME
from ...ir.symbols import Dim, dim
from ...ir.types import RefType
from ...passes.schedule.nests import coefficient
from .dot import product_in
from .grid import nests_of
from .text import pointer_type

MOST = 256  # elements of a tile along a dimension
ALIGNED = 16  # bytes that rows begin at multiples of
LARGEST = 1 << 31  # elements along a dimension


@dataclass(frozen=True)
class Descriptor:
    """A matrix in memory, whose tiles are copied whole.

    Attributes:
        name: of the kernel's argument.
        load: what reads the matrix.
        position: which argument of the kernel the memory is.
        shape: rows, and how many elements of each, which are neighbours.
        stride: elements from row to row.
        block: how many of both a tile has.
        row: the loop of the result that the matrix depends on.
        inner_last: whether neighbours lie along the inner size of the product.
    """

    name: str
    load: loop.Load
    position: int
    shape: tuple[int, int]
    stride: int
    block: tuple[int, int]
    row: loop.For
    inner_last: bool

    @property
    def bytes(self) -> int:
        """Of an element."""
        return self.load.ref.dtype.bytes

    @property
    def type(self) -> str:
        """What Triton calls the argument's type."""
        return f"tensordesc<{pointer_type(self.load.ref.dtype)[1:]}{list(self.block)}>"


def descriptors(kernel: loop.Kernel) -> list[Descriptor]:
    """Those of a kernel, in the order of its arguments; none where its programs take one tile each."""
    nests = nests_of(kernel)
    if len(nests) != 1 or not nests[0].get("persistent"):
        return []
    rows = [op for op in nests[0].walk() if isinstance(op, loop.For) and op["kind"] == "parallel"]
    found: list[Descriptor] = []
    for op in nests[0].walk():
        join = product_in(op) if isinstance(op, loop.For) else None
        if join is not None and isinstance(op, loop.For):
            for value in join.operands[:2]:
                found += _of(value, op, join, rows, len(found))
    return found


def _of(
    value: SSAValue, walk: loop.For, join: loop.Accumulate, rows: list[loop.For], number: int
) -> Iterator[Descriptor]:
    """The one of an operand, if it is a matrix as it lies in memory."""
    load = value.owner
    if not isinstance(load, loop.Load) or load.get("mask") or not isinstance(load.operands[0].owner, Block):
        return
    ref, index = load.ref, sympy.sympify(load["index"])
    assert isinstance(ref, RefType)
    mine = [row for row in rows if row["var"] in index.free_symbols]
    if ref.dtype != BY_NAME[join["dtype"]] or ref.dtype.bytes not in (2, 4) or len(mine) != 1:
        return
    row = mine[0]
    down, along = coefficient(index, row["var"]), coefficient(index, walk["var"])
    if not isinstance(down, int) or not isinstance(along, int):
        return
    if sympy.expand(index - down * row["var"] - along * walk["var"]) != 0:
        return
    sizes = [_size(row), _size(walk)]
    blocks, strides = [row.get("block", 1), walk.get("block", 1)], [down, along]
    if strides[1] != 1:
        sizes, blocks, strides = sizes[::-1], blocks[::-1], strides[::-1]
    if strides[1] != 1 or None in sizes or strides[0] * ref.dtype.bytes % ALIGNED or strides[0] < 1:
        return
    high, wide = sizes
    assert isinstance(high, int) and isinstance(wide, int)
    if max(blocks) > MOST or min(blocks) < 16 or max(high, wide, high * strides[0]) >= LARGEST:
        return
    position = load.operands[0].index  # type: ignore[attr-defined]  # an argument of a block
    yield Descriptor(f"d{number}", load, position, (high, wide), strides[0], (blocks[0], blocks[1]), row, along == 1)


def _size(op: loop.For) -> int | None:
    """How many iterations a loop from 0 on has, where that is known."""
    stop: Dim = dim(op["stop"])
    return stop if isinstance(stop, int) and op.get("start", 0) == 0 else None
