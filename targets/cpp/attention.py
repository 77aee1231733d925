"""The C++ of an attention of our own: its sizes and strides, and what happens to the scores on their way to the softmax."""

from __future__ import annotations

import hashlib
import math
import re
from typing import cast

from xdsl.ir import SSAValue

from ...ir.dialects import kernel, prim
from ...ir.symbols import Dim, dim, free_symbols, symbol
from ...ir.syntax import Op
from ...ir.types import RefType
from ...passes.kernels.trained_attention import BACKWARD, ROWS
from .tail import MOST_WORDS, Place, Region
from .text import cpp_index

# The names of the operands' strides in the structs of the header.
LETTERS = {"grad_out": "g", "query": "q", "key": "k", "value": "v", "out": "o", "logsumexp": "l"}
AT = ("batch", "head", "row", "column")  # of a score


def attention_body(op: Op) -> tuple[str, list[Dim], str]:
    """The statements of the kernel of a `buffer.extern` with own = "attention", their sizes, and what stands before it."""
    names = list(op["operands"])
    refs = {name: cast(RefType, v.type) for name, v in zip([*names, "out"], op.operands, strict=True)}
    places = {name: f"in{i}" for i, name in enumerate(names)}
    q, k, v, out, mask = refs["query"], refs["key"], refs["value"], refs["out"], refs.get("attn_mask")
    batch, q_heads, queries, depth = q.shape
    heads, keys, width = k.shape[1], k.shape[2], v.shape[3]
    groups = "1" if q_heads == heads else f"{cpp_index(q_heads)} / ({cpp_index(heads)})"
    known = isinstance(queries, int) and isinstance(q_heads, int) and isinstance(heads, int)
    scale = op.get("scale")
    values: dict[str, Dim | str] = {"batch": batch, "heads": heads, "groups": groups, "queries": queries, "keys": keys}
    values |= {"depth": depth, "width": width}
    for letter, ref in (("q", q), ("k", k), ("v", v), ("o", out)):
        values |= {f"{letter}_batch": ref.strides[0], f"{letter}_head": ref.strides[1], f"{letter}_row": ref.strides[2]}
    factor = f"1.0f / __builtin_sqrtf(float({cpp_index(depth)}))"
    if scale is not None or isinstance(depth, int):
        factor = _number(float(scale) if scale is not None else 1 / math.sqrt(int(depth)))
    lines = ["  im::Attention s{};"]
    lines += [f"  s.{name} = {v if isinstance(v, str) else cpp_index(v)};" for name, v in values.items()]
    lines += [f"  s.scale = {factor};", f"  s.causal = {str(bool(op.get('is_causal'))).lower()};"]
    products = op.get("empty_rows") is not None  # the call stands for them, and gives what they give
    nothing = '__builtin_nanf("")' if products else "0.0f"
    forgets = not products and mask is None and depth == width
    lines.append(f"  s.masked = {nothing};")
    lines.append(f"  s.forgets = {str(forgets).lower()};")
    scores, sizes, before = "im::Unchanged{}", list[Dim](), ""
    if op.regions:
        scores, sizes, before = _scores(op, refs, places)
    elif mask is not None:
        strides: list[Dim] = [0] * (4 - len(mask.shape))
        strides += [0 if n == 1 else s for n, s in zip(mask.shape, mask.strides, strict=True)]
        scores, sizes = f"im::Added{{{places['attn_mask']}, {', '.join(map(cpp_index, strides))}}}", strides
    rows = f"im::is_few({groups} * {queries})" if known else "im::either"
    lines.append(f"  im::attention<{rows}>(s, {places['query']}, {places['key']}, {places['value']}, {scores}, out0);")
    sizes += [d for d in values.values() if not isinstance(d, str)]
    return "\n".join(lines) + "\n", [*sizes, q_heads, depth], before


def trained_body(op: Op) -> tuple[str, list[Dim]]:
    """The statements of the kernel of a `buffer.extern` with own = "trained_attention", and their sizes."""
    names = list(op["operands"])
    refs = [cast(RefType, v.type) for v in op.operands]
    given = dict(zip(names, refs, strict=False))
    q, k, v = (given[name] for name in ROWS)
    values: dict[str, Dim] = dict(zip(("batch", "heads", "queries", "depth"), q.shape, strict=True))
    values |= {"keys": k.shape[2], "width": v.shape[3]}
    gradients = op["target"] == BACKWARD
    of = ("gq", "gk", "gv") if gradients else ("o", "l")
    letters = dict(zip((LETTERS[name] for name in names), refs, strict=False)) | dict(
        zip(of, refs[len(names) :], strict=True)
    )
    for letter, ref in letters.items():
        values |= {f"{letter}_{word}": s for word, s in zip(("batch", "head", "row"), ref.strides, strict=False)}
    scale = op.get("scale")
    factor = f"1.0f / __builtin_sqrtf(float({cpp_index(q.shape[3])}))"
    if scale is not None or isinstance(q.shape[3], int):
        factor = _number(float(scale) if scale is not None else 1 / math.sqrt(int(q.shape[3])))
    lines = [f"  im::Attention{'Gradients' * gradients} s{{}};"]
    lines += [f"  s.{name} = {cpp_index(value)};" for name, value in values.items()]
    lines += [f"  s.scale = {factor};", f"  s.causal = {str(bool(op.get('is_causal'))).lower()};"]
    if gradients:
        pointers = [*(f"in{k}" for k in range(len(names))), "out0", "out1", "out2"]
        lines.append(f"  im::attention_gradients(s, {', '.join(pointers)});")
    else:
        lines += ["  s.groups = 1;", "  s.masked = 0.0f;", "  s.forgets = true;", "  s.logs = out1;"]
        few = f"im::is_few({q.shape[2]})" if isinstance(q.shape[2], int) else "im::either"
        lines.append(f"  im::attention<{few}>(s, in0, in1, in2, im::Unchanged{{}}, out0);")
    return "\n".join(lines) + "\n", list(values.values())


def _scores(op: Op, refs: dict[str, RefType], places: dict[str, str]) -> tuple[str, list[Dim], str]:
    """The region as an object of a struct that changes scores of one row, its sizes, and the struct."""
    block = op.block_body
    extents = prim.tensor(block.args[0]).shape
    read = [op["operands"][k] for k in kernel.read_by_region(op)]
    memory: dict[SSAValue, Place] = {
        a: Place(places[n], refs[n].strides) for a, n in zip(block.args[1:], read, strict=True)
    }
    at = tuple(symbol(word) for word in AT)
    region = Region(memory, {v: (0, dim(size - 1)) for v, size in zip(at, extents, strict=True)})
    region.known[block.args[0]] = "score"
    result = region.element(cast(kernel.Yield, block.last_op).operands[0], at)
    alone, each = _hoisted(region.lines)
    sizes = [*extents, *(d for n in read for d in (*refs[n].shape, *refs[n].strides))]
    symbols = sorted(s.name for s in free_symbols(sizes))
    members = [f"  const {refs[n].dtype.cpp}* {places[n]};" for n in read] + [f"  int64_t {s};" for s in symbols]
    steps = ["const int64_t column = key + j;", "const float score = scores[j];", *each, f"scores[j] = {result};"]
    body = [
        *members,
        "  IM_FN_MEMBER void operator()(float* scores, int64_t batch, int64_t head, int64_t row, int64_t key, int64_t count) const {",
        "    (void)batch, (void)head, (void)row, (void)key;",
        *(f"    {line}" for line in alone),
        "    #pragma omp simd",
        "    for (int64_t j = 0; j < count; ++j) {",
        *(f"      {line}" for line in steps),
        "    }",
        "  }",
    ]
    text = "\n".join(body)
    name = "_".join(["scores", *region.words[:MOST_WORDS], hashlib.sha256(text.encode()).hexdigest()[:6]])
    given = ", ".join([*(places[n] for n in read), *symbols])
    return f"{name}{{{given}}}", sizes, f"struct {name} {{\n{text}\n}};\n"


def _hoisted(lines: list[str]) -> tuple[list[str], list[str]]:
    """The statements that are the same for a whole row, and the others."""
    alone, each, changing = list[str](), list[str](), {"score", "column"}
    for line in lines:
        words = re.findall(r"[A-Za-z_]\w*", line)  # const, the type, the name, and what it is computed from
        if changing.isdisjoint(words):
            alone.append(line)
        else:
            each.append(line)
            changing.add(re.match(r"const \S+ (\w+) =", line)[1])  # type: ignore[index]  # as Region writes them
    return alone, each


def _number(value: float) -> str:
    if math.isnan(value) or math.isinf(value):
        return '__builtin_nanf("")' if value != value else f"{'-' if value < 0 else ''}__builtin_inff()"
    return f"{value!r}f"
