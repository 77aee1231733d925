"""The C++ of a product of our own: its sizes, the tiles of rows, and the weight, packed or computed."""

from __future__ import annotations

from ...ir.dialects import buffer
from ...ir.types import RefType
from ...passes.kernels.microkernel import Matrices, row_tiles, tile_of
from .tail import factor_of, tail_of
from .text import cpp_index

PACKED = "packed"  # the parameter that is the packed weight, null where there is none


def matrices(op: buffer.Contract) -> Matrices:
    """The factors as matrices: `takes_registers` has seen to it that they are."""
    found = Matrices.of(op)
    assert found is not None
    return found


def linear_body(op: buffer.Contract) -> tuple[str, tuple[str, ...]]:
    """The statements of the kernel of a contraction in registers, and what stands before the kernel."""
    found, out = matrices(op), op.operands[-1].type
    assert isinstance(out, RefType)
    rows, outer, inner, word = int(found.rows), int(found.columns), int(found.inner), out.dtype.cpp  # type: ignore[arg-type]  # known
    most, panel = tile_of(op)
    tiles, tall, height = row_tiles(rows, most)
    rest = 0 < outer % panel <= panel // 2
    sums = [
        f"im::TileSums<{word}, {size}, {vectors}>::of" if needed else "nullptr"
        for vectors, there in ((2, not rest or outer > panel), (1, rest))
        for size, needed in ((height, there and tall < tiles), (height + 1, there and tall > 0))
    ]
    tail = tail_of(op, outer)
    before, x, weight = [tail.text], f"in{found.operand(found.x)}", found.packed
    if found.operand(found.x) is None:
        computed = factor_of(op, found.x, (rows, inner))
        x, before = computed.statement, [*before, computed.text]
    if weight is None:
        computed = factor_of(op, found.weight, (outer, inner), found.transposed)
        factors, before = {"": computed.statement}, [*before, computed.text]
    else:  # packed, or where copies may take no more memory as it lies
        lies = op.operands[weight].type
        assert isinstance(lies, RefType)
        steps = ", ".join(map(cpp_index, lies.strides[::-1] if found.transposed else lies.strides))
        factors = {f"if ({PACKED}) ": PACKED, "else ": f"im::Lying<{word}>{{in{weight}, {steps}}}"}
    sizes = ", ".join(map(str, (rows, inner, outer, tiles, tall, height)))
    lines = [f"  const im::Linear s{{{sizes}}};", tail.statement]
    for condition, factor in factors.items():
        lines.append(f"  {condition}im::linear<{word}>(s, {x}, {factor}, tail, {', '.join(sums)});")
    return "\n".join(lines) + "\n", tuple(before)
