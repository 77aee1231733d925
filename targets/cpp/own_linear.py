"""The C++ of a product of our own with a packed weight: its sizes, the tiles of rows, and what happens to each sum on its way to memory."""

from __future__ import annotations

import hashlib
import math
from typing import Any

from ...ir.epilogue import PREFIX
from ...ir.syntax import Op
from ...ir.types import RefType
from ...passes.kernels.linear import OPERANDS, row_tiles
from .own_convolution import STEPS

LANES, PANEL = 16, 32  # of intarsia_linear.h


def linear_body(op: Op) -> tuple[str, str]:
    """The statements of the kernel of a `buffer.extern` with own = "linear", and what stands before the kernel."""
    names = list(op["operands"])
    given, weight, bias = OPERANDS[op["target"]]
    refs: list[RefType] = [v.type for v in op.operands if isinstance(v.type, RefType)]
    x, out = refs[names.index(given)], refs[-1]
    rows, outer = math.prod(int(n) for n in out.shape[:-1]), int(out.shape[-1])  # type: ignore[arg-type]  # static
    inner, word = int(x.shape[-1]), x.dtype.cpp  # type: ignore[arg-type]  # static
    tiles, tall, height = row_tiles(rows)
    extras = [name for name in names if name == bias or name.startswith(PREFIX)]
    step, text = _step(op, extras, bias)
    behind = ", ".join(f"in{names.index(name)}" for name in extras)
    rest = 0 < outer % PANEL <= LANES
    sums = [
        f"im::TileSums<{word}, {size}, {vectors}>::of" if needed else "nullptr"
        for vectors, there in ((2, not rest or outer > PANEL), (1, rest))
        for size, needed in ((height, there and tall < tiles), (height + 1, there and tall > 0))
    ]
    sizes = ", ".join(map(str, (rows, inner, outer, tiles, tall, height)))
    lines = [f"  const im::Linear s{{{sizes}}};", f"  const im::Behind<{word}> behind{{out0, {{{behind}}}}};"]
    places = f"in{names.index(given)}, in{names.index(weight)}"
    finish = f"im::finish_tile<{step}, {word}>"
    lines.append(f"  im::linear<{word}>(s, {places}, behind, {finish}, {', '.join(sums)});")
    return "\n".join(lines) + "\n", text


def narrow_body(op: Op) -> tuple[str, str]:
    """The statements of the kernel of a `buffer.extern` with own = "narrow", and what stands before the kernel."""
    names = list(op["operands"])
    places = {name: f"in{k}" for k, name in enumerate(names)}
    refs: list[RefType] = [v.type for v in op.operands if isinstance(v.type, RefType)]
    outer, inner = (int(n) for n in refs[names.index("weight")].shape)  # type: ignore[arg-type]  # static
    rows = math.prod(int(n) for n in refs[-1].shape[:-1])  # type: ignore[arg-type]  # static
    tiles, tall, height = row_tiles(rows)
    extras = [name for name in names if name == "bias"]
    step, text = _step(op, extras, "bias")
    low, high = (
        f"im::TileSums<float, {size}, 2>::of" if needed else "nullptr"
        for size, needed in ((height, tall < tiles), (height + 1, tall > 0))
    )
    scale = places.get("scale", "static_cast<const float*>(nullptr)")
    lines = [
        f"  const im::Linear s{{{rows}, {inner}, {outer}, {tiles}, {tall}, {height}}};",
        f"  const im::Behind<float> behind{{out0, {{{', '.join(places[name] for name in extras)}}}}};",
        f"  im::narrow_linear(s, {places['input']}, {places['weight']}, {scale}, behind, im::finish_tile<{step}, float>, {low}, {high});",
    ]
    return "\n".join(lines) + "\n", text


def _step(op: Op, extras: list[str], bias: str) -> tuple[str, str]:
    """Bias and epilogue as a struct of C++: its name and its text."""
    lines = [f"v = v + float(behind.in[{extras.index(bias)}][column]);"] if bias in extras else []
    for name, *arguments in op.get("epilogue", ()):
        lines.append(f"v = {_expression(extras, name, *arguments)};")
    words = [*(["bias"] if bias in extras else []), *(name for name, *_ in op.get("epilogue", ()))]
    head = "  template <class Given> IM_FN_MEMBER static float of(float v, const Given& behind, int64_t at, int64_t column) {"
    body = "\n".join(
        [head, "    (void)behind, (void)at, (void)column;", *(f"    {x}" for x in lines), "    return v;", "  }"]
    )
    name = "_".join(["row", *(words or ["plain"]), hashlib.sha256(body.encode()).hexdigest()[:6]])
    return name, f"struct {name} {{\n{body}\n}};\n"


def _expression(extras: list[str], name: str, *arguments: Any) -> str:
    if name == "add":
        return f"v + float(behind.in[{extras.index(f'{PREFIX}{arguments[0]}')}][at])"
    return STEPS[name](*arguments)
