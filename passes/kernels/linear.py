"""Which products with a parameter a kernel of our own carries out: what `contraction-epilogue`, `own-kernels` and the target agree on.

The kernel (targets/cpp/include/intarsia_linear.h) holds the sums of a few rows and two vectors of columns in registers; the host packs the weight
for it, once for each state of the parameter, as it does for oneDNN.
"""

from __future__ import annotations

import math
from typing import cast

from ...ir.dialects import prim
from ...ir.dialects.kernel import PREFIX
from ...ir.dtypes import BF16, F32
from ...ir.syntax import Op
from ..analysis.machine import Machine, Processor
from ..core.clauses import Call, Clauses, broken
from ..core.rewriter import is_static

# The operands that are x, the weight and the bias. The weight of `aten.linear` is (columns, inner), the others' (inner, columns).
LINEAR = "aten.linear.default"
OPERANDS = {
    LINEAR: ("input", "weight", "bias"),
    "aten.addmm.default": ("mat1", "mat2", "self"),
    "aten.mm.default": ("self", "mat2", ""),
}
REGISTER_BYTES = 512  # of all vectors, from which on a tile of sums is worth it: 16 of AVX2, 32 of NEON
MOST_TENSORS = 8  # that `Tail` of intarsia_tail.h holds: the bias, and what is added
# The most rows of x for which reading the weight once, where it lies, beats oneDNN's call on a packed copy. Measured on Zen 4, two threads,
# weights of 2 to 12 MiB from memory, own over oneDNN: f32 1.6, 1.8 and 1.05 for 1, 2 and 4 rows; bf16 1.6, 1.4 and 0.8.
MOST_ROWS = {F32: 4, BF16: 2}
KEPT_BYTES = 1 << 24  # a widened weight up to this size is kept: reading it is faster than widening it in each call
LEAST_ROWS, LEAST_COLUMNS, LEAST_INNER = 8, 16, 16


def has_room(cpu: Processor) -> bool:
    """Whether the registers hold tiles of sums that are worth it."""
    return cpu.vector_bytes * cpu.vector_registers >= REGISTER_BYTES


def is_short(op: Op) -> bool:
    """Whether the tail has room for what the call goes on with: the tensors of the region behind it, and the bias."""
    return len([name for name in op["operands"] if name.startswith(PREFIX)]) < MOST_TENSORS


def takes_linear(op: Op, machine: Machine) -> Clauses:
    """What `linear` of targets/cpp/include/intarsia_linear.h takes: x @ weight + bias of known sizes; the host packs the weight.

    A factor may be computed, each element by itself: the region says from what.
    """
    call = Call.of(op)
    target = op.name if op.name.startswith("aten.") else op["target"]
    yield has_room(machine.cpu), "a CPU with registers for a tile of sums"
    yield target in OPERANDS and not op.get("effect"), "a product with a matrix"
    x, w, b = OPERANDS[target]
    yield set(call.names) in ({x, w}, {x, w, b}), "x, a weight and perhaps a bias"
    yield op.get("beta", 1) == 1 and op.get("alpha", 1) == 1, "no factors"
    yield call.are(F32, BF16), "float32 or bfloat16"
    dtype = call.tensors["result"].dtype
    yield dtype == F32 or machine.cpu.dots_bfloat16, "bfloat16 where its dot product is the fastest way to multiply"
    yield call.on_cpu, "memory of the host"
    sizes = [*call.shape("result"), *call.shape(x), *call.shape(w)]
    yield all(isinstance(n, int) and n > 0 for n in sizes), "known sizes, and none of 0"
    yield len(call.shape(w)) == 2 and len(call.shape("result")) > 0, "a matrix as the weight"
    yield b not in call.names or call.shape(b) == call.shape("result")[-1:], "a bias with a number for each column"
    yield dtype == F32 or cast(int, call.shape(x)[-1]) % 2 == 0, "pairs of bfloat16"
    yield is_short(op), "as many tensors behind the sums as there is room for"
    yield all(s is None for s in op.get("strides", ())), "a result without gaps"
    yield call.lies_in_order(*(name for name in call.tensors if name != w)), "memory without gaps, but for the weight"


def takes_rows(op: Op, machine: Machine) -> Clauses:
    """What `rows_product` of targets/cpp/include/intarsia_rows.h takes of `aten.linear`: the weight is read where it lies."""
    call = Call.of(op)
    yield call.names in (("input", "weight"), ("input", "weight", "bias")), "x, a weight and perhaps a bias"
    yield not op.regions, "nothing behind the sums"
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


def is_own_linear(op: Op, func: prim.Func, machine: Machine) -> bool:
    """Whether our kernel does this call: it takes it, the weight is a parameter, and there is enough to do.

    Alone, on two Zen 4 cores, it runs at 0.8 to 0.98 of the processor's peak, by shape, where oneDNN's call reaches 0.77 to 0.93.
    """
    if broken(takes_linear(op, machine)):
        return False
    x, w, _ = OPERANDS[op.name if op.name.startswith("aten.") else op["target"]]
    *others, columns = cast(tuple[int, ...], prim.tensor(op.results[0]).shape)
    inner = cast(int, Call.of(op).shape(x)[-1])
    if math.prod(others) < LEAST_ROWS or columns < LEAST_COLUMNS or inner < LEAST_INNER:
        return False
    weight = op.operands[list(op["operands"]).index(w)]
    written = [func.block_body.args[argument] for argument, _ in func.get("mutations", ())]
    return is_static(weight, func) and weight not in written


def linear_tile(cpu: Processor) -> tuple[int, int]:
    """Rows and columns whose sums are held in registers, beside two vectors of the weight and a value of x."""
    return (cpu.vector_registers - 3) // 2, 2 * cpu.lanes(F32)


def row_tiles(rows: int, most: int) -> tuple[int, int, int]:
    """How many tiles of at most so many rows, how many of them are one row taller, and the height of the others: as even as they come."""
    tiles = -(-rows // most)
    return tiles, rows % tiles, rows // tiles
