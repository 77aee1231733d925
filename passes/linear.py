"""Which products with a parameter a kernel of our own carries out: what `linear-epilogue`, `own-kernels` and the target agree on.

The kernel (targets/cpp/intarsia_linear.h) holds the sums of up to 14 rows and 32 columns in registers; the host packs the weight for it, once for each
state of the parameter, as it does for oneDNN.
"""

from __future__ import annotations

import math
from typing import cast

from ..ir.dialects import prim
from ..ir.dtypes import BF16, F32
from ..ir.epilogue import PREFIX
from ..ir.syntax import Op
from .context import Target
from .rules import is_static

# The operands that are x, the weight and the bias. The weight of `aten.linear` is (columns, inner), the others' (inner, columns).
OPERANDS = {
    "aten.linear.default": ("input", "weight", "bias"),
    "aten.addmm.default": ("mat1", "mat2", "self"),
    "aten.mm.default": ("self", "mat2", ""),
}
TILE_ROWS = 14  # `most_rows` of the header
LEAST_ROWS, LEAST_COLUMNS, LEAST_INNER = 8, 16, 16


def is_own_linear(op: Op, target: str, func: prim.Func, machine: Target) -> bool:
    """Whether our kernel does this call: float32, or bfloat16 where the processor has no tiles, sizes known, by a parameter.

    Alone, on two Zen 4 cores, it runs at 0.8 to 0.98 of the processor's peak, by shape, where oneDNN's call reaches 0.77 to 0.93.

    Args:
        op: the call; tensors of its epilogue are not looked at.
        target: the ATen operator.
    """
    if machine.name != "cpp" or machine.isa != "avx512" or target not in OPERANDS or op.get("effect"):
        return False
    names = [name for name in op["operands"] if not name.startswith(PREFIX)]
    x, w, b = OPERANDS[target]
    if set(names) not in ({x, w}, {x, w, b}) or op.get("beta", 1) != 1 or op.get("alpha", 1) != 1:
        return False
    kinds = {name: prim.tensor(v) for name, v in zip(op["operands"], op.operands, strict=True)}
    result = prim.tensor(op.results[0])
    dtype, sizes = result.dtype, [n for t in (result, kinds[x], kinds[w]) for n in t.shape]
    if dtype != F32 and not (dtype == BF16 and machine.dots_bfloat16):
        return False
    if any(kinds[name].dtype != dtype or kinds[name].device != "cpu" for name in names) or any(
        s is not None for s in op.get("strides", ())
    ):
        return False
    if not all(isinstance(n, int) and n > 0 for n in sizes) or kinds[w].rank != 2:
        return False
    rows, columns = cast(int, math.prod(result.shape[:-1])), cast(int, result.shape[-1])
    inner = cast(int, kinds[x].shape[-1])
    if b in kinds and kinds[b].shape != (columns,):
        return False
    if rows < LEAST_ROWS or columns < LEAST_COLUMNS or inner < LEAST_INNER or (dtype == BF16 and inner % 2):
        return False
    weight = op.operands[list(op["operands"]).index(w)]
    written = [func.block_body.args[argument] for argument, _ in func.get("mutations", ())]
    return is_static(weight, func) and weight not in written


def row_tiles(rows: int) -> tuple[int, int, int]:
    """How many tiles, how many of them are one row taller, and the height of the others: as even as they come."""
    tiles = -(-rows // TILE_ROWS)
    return tiles, rows % tiles, rows // tiles
