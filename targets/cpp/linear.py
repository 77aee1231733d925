"""The C++ of a product of our own: its sizes, the tiles of rows, and the weight, packed or computed."""

from __future__ import annotations

import math

from ...ir.syntax import Op
from ...ir.types import RefType
from ...passes.core.clauses import Call
from ...passes.kernels.linear import LINEAR, OPERANDS, row_tiles
from .tail import factor_of, tail_of
from .text import cpp_index

PACKED = "packed"  # the parameter that is the packed weight, null where there is none


def weight_of(op: Op) -> str:
    """The name of the operand that is the weight."""
    return OPERANDS[op["target"]][1]


def computes(op: Op, name: str) -> bool:
    """Whether the kernel computes a factor from what it reads."""
    return name in op.get("computed", ())


def linear_body(op: Op) -> tuple[str, tuple[str, ...]]:
    """The statements of the kernel of a `buffer.extern` with own = "linear", and what stands before the kernel."""
    names = list(op["operands"])
    given, weight, bias = OPERANDS[op["target"]]
    places = {name: f"in{k}" for k, name in enumerate(names)}
    refs: list[RefType] = [v.type for v in op.operands if isinstance(v.type, RefType)]
    out, call = refs[-1], Call.of(op)
    rows, outer = math.prod(int(n) for n in out.shape[:-1]), int(out.shape[-1])  # type: ignore[arg-type]  # static
    inner, word = int(call.shape(given)[-1]), out.dtype.cpp  # type: ignore[arg-type]  # static
    most, panel = op["tile"]
    tiles, tall, height = row_tiles(rows, most)
    rest = 0 < outer % panel <= panel // 2
    sums = [
        f"im::TileSums<{word}, {size}, {vectors}>::of" if needed else "nullptr"
        for vectors, there in ((2, not rest or outer > panel), (1, rest))
        for size, needed in ((height, there and tall < tiles), (height + 1, there and tall > 0))
    ]
    tail = tail_of(op, bias, outer)
    w, sizes = refs[names.index(weight)], ", ".join(map(str, (rows, inner, outer, tiles, tall, height)))
    before = [tail.text]
    for name in op.get("computed", ()):
        step = factor_of(op, name, (rows, inner) if name == given else (outer, inner))
        places[name] = step.statement
        before.append(step.text)
    if computes(op, weight):
        factors = {"": places[weight]}
    else:  # packed, or where copies may take no more memory as it lies
        steps = ", ".join(map(cpp_index, w.strides if op["target"] == LINEAR else w.strides[::-1]))
        factors = {f"if ({PACKED}) ": PACKED, "else ": f"im::Lying<{word}>{{{places[weight]}, {steps}}}"}
    lines = [f"  const im::Linear s{{{sizes}}};", tail.statement]
    for condition, factor in factors.items():
        lines.append(f"  {condition}im::linear<{word}>(s, {places[given]}, {factor}, tail, {', '.join(sums)});")
    return "\n".join(lines) + "\n", tuple(before)
