"""Which products a microkernel of a CPU carries out: what `microkernels`, `contraction-epilogue` and the target agree on.

The kernel (targets/cpp/include/intarsia_linear.h) holds the sums of a few rows and two vectors of columns in registers; the host packs the weight
for it, once for each state of the parameter, as it does for oneDNN.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias, cast

from xdsl.ir import BlockArgument, SSAValue

from ...ir.dialects import buffer, kernel, prim
from ...ir.dialects.kernel import PREFIX
from ...ir.dtypes import BF16, F32
from ...ir.symbols import Dim, contiguous_strides, product
from ...ir.syntax import Op
from ...ir.types import RefType, TensorType
from ..analysis.machine import Machine, Processor
from ..analysis.strides import same_layout
from ..core.clauses import Call, Clauses
from ..core.rewriter import is_kept
from .contractions import Contraction

REGISTER_BYTES = 512  # of all vectors, from which on a tile of sums is worth it: 16 of AVX2, 32 of NEON
MOST_TENSORS = 8  # that `Tail` of intarsia_tail.h holds
# The most rows of x for which reading the weight once, where it lies, beats oneDNN's call on a packed copy. Measured on Zen 4, two threads,
# weights of 2 to 12 MiB from memory, own over oneDNN: f32 1.6, 1.8 and 1.05 for 1, 2 and 4 rows; bf16 1.6, 1.4 and 0.8.
MOST_ROWS = {F32: 4, BF16: 2}
KEPT_BYTES = 1 << 24  # a widened weight up to this size is kept: reading it is faster than widening it in each call
LEAST_ROWS, LEAST_COLUMNS, LEAST_INNER = 8, 16, 16
ON_ELEMENTS = (prim.Elementwise, prim.Cast, prim.Full)

Contract: TypeAlias = kernel.Contract | buffer.Contract


@dataclass(frozen=True)
class Matrices:
    """A contraction as rows of x by columns of a weight, both in two dimensions.

    Attributes:
        x, weight: the factors, inside the region.
        transposed: the weight is (inner, columns), not (columns, inner).
    """

    op: Contract
    x: SSAValue
    weight: SSAValue
    transposed: bool
    rows: Dim
    columns: Dim
    inner: Dim

    @classmethod
    def of(cls, op: Contract) -> Matrices | None:
        """None where one of the factors is no matrix of that kind."""
        found, (x, weight) = op.product, op.product.operands
        *rows, column, walk = names = prim.axes(len(found.sizes))
        if len(found["reduced"]) != 1 or found.get("padded") or tuple(found["maps"][0]) != (*rows, walk):
            return None
        order = tuple(found["maps"][1])
        if order not in ((column, walk), (walk, column)):
            return None
        sizes = dict(zip(names, found.sizes, strict=True))
        count = product([sizes[row] for row in rows])
        return cls(op, x, weight, order[0] == walk, count, sizes[column], sizes[walk])

    def operand(self, value: SSAValue) -> int | None:
        """The number of the kernel's operand that a factor is; None where the region computes it."""
        return value.index if isinstance(value, BlockArgument) else None

    @property
    def packed(self) -> int | None:
        """The number of the operand that the host packs: the weight, unless the kernel computes it."""
        return self.operand(self.weight)

    @cached_property
    def behind(self) -> list[Op]:
        """The operations on the sums, in order."""
        return kernel.computing(self.op.block_body, self.op.block_body.last_op.operands, self.op.product)  # type: ignore[union-attr]

    @cached_property
    def tail(self) -> list[BlockArgument]:
        """The tensors that the operations on the sums read."""
        read = {v for step in self.behind for v in step.operands}
        return [argument for argument in self.op.block_body.args if argument in read]


def has_room(cpu: Processor) -> bool:
    """Whether the registers hold tiles of sums that are worth it."""
    return cpu.vector_bytes * cpu.vector_registers >= REGISTER_BYTES


def is_short(op: Op) -> bool:
    """Whether the tail has room for what a call goes on with: the tensors of the region behind it, and the bias."""
    return len([name for name in op["operands"] if name.startswith(PREFIX)]) < MOST_TENSORS


def takes_registers(op: Contract, machine: Machine) -> Clauses:
    """What `linear` of targets/cpp/include/intarsia_linear.h takes: x @ weight of known sizes; the host packs the weight.

    A factor may be computed, each element by itself, and so may what is stored of a sum.
    """
    yield has_room(machine.cpu), "a CPU with registers for a tile of sums"
    found = Matrices.of(op)
    yield found is not None, "a product with a matrix"
    assert found is not None
    result, dtype = _result(op), prim.tensor(found.x).dtype
    kinds = [cast(TensorType | RefType, v.type) for v in op.operands]
    yield all(kind.device == "cpu" for kind in (*kinds, result)), "memory of the host"
    yield dtype in (F32, BF16) and result.dtype == dtype, "float32 or bfloat16"
    yield dtype == F32 or machine.cpu.dots_bfloat16, "bfloat16 where its dot product is the fastest way to multiply"
    sizes = [n for kind in (*kinds, result) for n in kind.shape]
    yield all(isinstance(n, int) and n > 0 for n in sizes), "known sizes, and none of 0"
    yield dtype == F32 or cast(int, found.inner) % 2 == 0, "pairs of bfloat16"
    in_front = kernel.computing(op.block_body, [found.x, found.weight])
    yield all(isinstance(step, ON_ELEMENTS) or type(step) in prim.VIEWS for step in in_front), "single elements"
    yield (
        all(isinstance(step, (*ON_ELEMENTS, prim.Broadcast)) for step in found.behind),
        "single elements of the result",
    )
    yield len(found.tail) <= MOST_TENSORS, "as many tensors behind the sums as there is room for"
    yield all(_is_spread(found, result.shape)), "a bias with a number for each column"
    yield all(s is None for s in op.get("strides", ())), "a result without gaps"
    others = [kind for k, kind in enumerate(kinds) if k != found.packed]
    yield all(map(_lies_in_order, (*others, result))), "memory without gaps, but for the weight"


def _result(op: Contract) -> TensorType | RefType:
    return cast(TensorType | RefType, op.results[0].type if op.results else op.operands[-1].type)


def _is_spread(found: Matrices, shape: tuple[Dim, ...]) -> Iterator[bool]:
    """Whether what the sums meet has one number, one for each column, or one for each of them."""
    column = len(shape) - 1
    yield from (prim.tensor(argument).shape in ((), shape[column:], shape) for argument in found.tail)
    for step in found.behind:
        if isinstance(step, prim.Broadcast):
            yield tuple(step["dims"]) in ((), (column,), tuple(range(len(shape))))


def _lies_in_order(kind: TensorType | RefType) -> bool:
    return not isinstance(kind, RefType) or same_layout(kind.shape, kind.strides, contiguous_strides(kind.shape))


def takes_rows(op: Op, machine: Machine) -> Clauses:
    """What `rows_product` of targets/cpp/include/intarsia_rows.h takes of `aten.linear`: the weight is read where it lies."""
    call = Call.of(op)
    yield call.names in (("input", "weight"), ("input", "weight", "bias")), "x, a weight and perhaps a bias"
    yield call.are(*MOST_ROWS), "float32 or bfloat16"
    yield call.on_cpu, "memory of the host"
    yield len(call.shape("weight")) == 2 and not call.empty, "a matrix as the weight, nothing empty"
    yield all(isinstance(n, int) for n in (*call.shape("input"), *call.shape("weight"))), "known sizes"
    rows = math.prod(cast(tuple[int, ...], call.shape("input")[:-1]))
    yield rows <= MOST_ROWS[call.tensors["input"].dtype], "few rows"
    yield (
        "bias" not in call.names or call.shape("bias") == call.shape("weight")[:1],
        "a bias with a number for each column",
    )
    yield all(s is None for s in op.get("strides", ())), "a result without gaps"
    yield call.lies_in_order(*call.tensors), "memory without gaps"


def is_worth_packing(found: Contraction, func: prim.Func) -> bool:
    """Whether the weight is a parameter, and there is enough to do with its packed copy.

    Alone, on two Zen 4 cores, the kernel runs at 0.8 to 0.98 of the processor's peak, by shape, where oneDNN's call reaches 0.77 to 0.93.
    """
    sizes, least = (found.rows, found.columns, found.inner), (LEAST_ROWS, LEAST_COLUMNS, LEAST_INNER)
    if not all(isinstance(n, int) and n >= m for n, m in zip(sizes, least, strict=True)):
        return False
    return not found.batched and is_kept(found.b, func)


def register_tile(cpu: Processor) -> tuple[int, int]:
    """Rows and columns whose sums are held in registers, beside two vectors of the weight and a value of x."""
    return (cpu.vector_registers - 3) // 2, 2 * cpu.lanes(F32)


def in_registers(cpu: Processor) -> str:
    """The choice of a contraction that a microkernel carries out."""
    return "registers {}x{}".format(*register_tile(cpu))


def tile_of(op: Contract) -> tuple[int, int]:
    """The rows and columns that a choice names."""
    rows, columns = map(int, op["choice"].removeprefix("registers ").split("x"))
    return rows, columns


def row_tiles(rows: int, most: int) -> tuple[int, int, int]:
    """How many tiles of at most so many rows, how many of them are one row taller, and the height of the others: as even as they come."""
    tiles = -(-rows // most)
    return tiles, rows % tiles, rows // tiles
