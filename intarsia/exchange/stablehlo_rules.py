"""Our tensor operations and the library calls that are left, in StableHLO: a function each, and the tables of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..ir.dialects import prim
from ..ir.scalars import identity
from ..ir.syntax import Op
from .stablehlo_text import Rule, Value, Writer, dtype_named, tensor_text

JOINED = {"sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum", "any": "or", "all": "and"}


def _result(f: Writer, op: Op) -> tuple[tuple[int, ...], str]:
    return f.kind(op.results[0])


def _full(f: Writer, op: Any) -> Value:
    value = op["value"]
    if not isinstance(value, int | float):
        raise f.refused(f"the value {value}")
    return f.full(value, *_result(f, op))


def _iota(f: Writer, op: Any) -> Value:
    """Numbers are exact before they become the result's dtype, as in ours."""
    shape, element = _result(f, op)
    start, step = op["start"], op["step"]
    if not isinstance(start, int | float) or not isinstance(step, int | float):
        raise f.refused("a start or step that is a symbol")
    made = f.iota(shape, op["dim"], "f64" if dtype_named(element).is_float else element)
    if step != 1:
        made = f.same("multiply", made, f.like(step, made))
    if start != 0:
        made = f.same("add", made, f.like(start, made))
    return f.convert(made, element)


def _cast(f: Writer, op: Any) -> Value:
    return f.convert(f.known[op.operands[0]], _result(f, op)[1])


def _broadcast(f: Writer, op: Any) -> Value:
    return f.spread(f.known[op.operands[0]], _result(f, op)[0], op["dims"])


def _reshape(f: Writer, op: Any) -> Value:
    return f.reshape(f.known[op.operands[0]], _result(f, op)[0])


def _permute(f: Writer, op: Any) -> Value:
    return f.transpose(f.known[op.operands[0]], op["perm"])


def _after(f: Writer, op: Any) -> Value:
    return f.known[op.operands[0]]


def _slice(f: Writer, op: Any) -> Value:
    x, (shape, _) = f.known[op.operands[0]], _result(f, op)
    starts, steps = f.numbers(op["starts"]), f.numbers(op["steps"])
    rows = zip(starts, steps, shape, x.shape, strict=True)
    stops = [a + (n - 1) * s + 1 if n else min(a, size) for a, s, n, size in rows]
    starts = tuple(min(a, b) if not n else a for a, b, n in zip(starts, stops, shape, strict=True))
    return f.slice(x, starts, stops, steps)


def _flip(f: Writer, op: Any) -> Value:
    x = f.known[op.operands[0]]
    return f.line(f"stablehlo.reverse {x.name}, dims = {list(op['dims'])} : {x.type}", x.shape, x.element)


def _pad(f: Writer, op: Any) -> Value:
    x, (shape, element) = f.known[op.operands[0]], _result(f, op)
    if not isinstance(op["value"], int | float):
        raise f.refused(f"the value {op['value']}")
    low, high = f.numbers(op["low"]), f.numbers(op["high"])
    more = f", low = {list(low)}, high = {list(high)}, interior = {[0] * len(low)}"
    return f.other("stablehlo.pad", [x, f.full(op["value"], (), element)], shape, element, more)


def _concat(f: Writer, op: Any) -> Value:
    return f.other("stablehlo.concatenate", f.operands(op), *_result(f, op), f", dim = {op['dim']}")


def _wrapped(f: Writer, op: Any, index: Value, size: int) -> Value:
    """The index, where negative ones count from the end."""
    if not op.get("wrap", False) or index.kind == "uint":
        return index
    moved = f.same("add", index, f.like(size, index))
    return f.select(f.compare("LT", index, f.like(0, index)), moved, index)


def _gathered(f: Writer, x: Value, index: Value, shape: Sequence[int], sizes: Sequence[int], dims: str) -> Value:
    words = f"dimension_numbers = #stablehlo.gather<{dims}>, indices_are_sorted = false"
    text = (
        f'"stablehlo.gather"({x.name}, {index.name}) <{{{words}, slice_sizes = {_array(sizes)}}}> : '
        f"({x.type}, {index.type}) -> {tensor_text(shape, x.element)}"
    )
    return f.line(text, shape, x.element)


def _array(values: Sequence[int]) -> str:
    return f"array<i64{': ' if values else ''}{', '.join(map(str, values))}>"


def _take(f: Writer, op: Any) -> Value:
    (x, index), d, (shape, _) = f.operands(op), op["dim"], _result(f, op)
    index = _wrapped(f, op, index, x.shape[d])
    rank = len(index.shape)
    offsets = [*range(d), *range(d + rank, len(shape))]
    dims = f"offset_dims = {offsets}, collapsed_slice_dims = [{d}], start_index_map = [{d}], index_vector_dim = {rank}"
    return _gathered(f, x, index, shape, [1 if k == d else n for k, n in enumerate(x.shape)], dims)


def _gather(f: Writer, op: Any) -> Value:
    (x, index), d, (shape, _) = f.operands(op), op["dim"], _result(f, op)
    index = _wrapped(f, op, index, x.shape[d])
    if any(a != b for k, (a, b) in enumerate(zip(x.shape, shape, strict=True)) if k != d):
        stops = [n if k == d else m for k, (n, m) in enumerate(zip(x.shape, shape, strict=True))]
        x = f.slice(x, [0] * len(shape), stops, [1] * len(shape))
    batch = [k for k in range(len(shape)) if k != d]
    dims = (
        f"collapsed_slice_dims = [{d}], operand_batching_dims = {batch}, start_indices_batching_dims = {batch}, "
        f"start_index_map = [{d}], index_vector_dim = {len(shape)}"
    )
    return _gathered(f, x, index, shape, [1] * len(shape), dims)


def _scatter(f: Writer, op: Any) -> Value:
    """Each element of the source with all its places: those along `dim` are the index's, others its own."""
    (x, index, source), d = f.operands(op), op["dim"]
    index = _wrapped(f, op, index, x.shape[d])
    rank = len(x.shape)
    whole = f.convert(index, "i64")
    columns = [whole if k == d else f.iota(index.shape, k, "i64") for k in range(rank)]
    parts = [f.reshape(c, (*index.shape, 1)) for c in columns]
    places = parts[0]
    if rank > 1:
        places = f.other("stablehlo.concatenate", parts, (*index.shape, rank), "i64", f", dim = {rank}")
    every = list(range(rank))
    numbers = f"inserted_window_dims = {every}, scatter_dims_to_operand_dims = {every}, index_vector_dim = {rank}"
    a, b, made = f.names(3)
    element = tensor_text((), x.element)
    joined = f"{made} = stablehlo.add {a}, {b} : {element}"
    body = (
        [joined, f"stablehlo.return {made} : {element}"]
        if op["kind"] == "sum"
        else [f"stablehlo.return {b} : {element}"]
    )
    return f.with_region(
        f'"stablehlo.scatter"({x.name}, {places.name}, {source.name}) <{{indices_are_sorted = false, '
        f"scatter_dimension_numbers = #stablehlo.scatter<{numbers}>, unique_indices = false}}> ({{",
        [f"^bb0({a}: {element}, {b}: {element}):", *(f"  {line}" for line in body)],
        f"}}) : ({x.type}, {places.type}, {source.type}) -> {x.type}",
        [(x.shape, x.element)],
    )[0]


def _start(f: Writer, kind: str, element: str) -> Value:
    return f.full(identity(kind, dtype_named(element)), (), element)


def _reduce(f: Writer, op: Any) -> Value:
    x, kind, dims = f.known[op.operands[0]], str(op["kind"]), list(op["dims"])
    shape, element = _result(f, op)
    if kind.startswith("arg"):
        return _extreme_place(f, x, kind, dims, shape, element)
    if x.element != element:
        raise f.refused("a reduction that changes its dtype")
    if element == "i1" and kind in ("sum", "prod"):
        raise f.refused("this of booleans")
    start = _start(f, kind, element)
    return f.line(
        f"stablehlo.reduce({x.name} init: {start.name}) applies stablehlo.{JOINED[kind]} across dimensions = {dims} : "
        f"({x.type}, {start.type}) -> {tensor_text(shape, element)}",
        shape,
        element,
    )


def _extreme_place(f: Writer, x: Value, kind: str, dims: list[int], shape: Sequence[int], element: str) -> Value:
    """The first place of the extreme; NaN is one. The better of two is the same in whatever order they are joined."""
    (d,) = dims
    places = f.iota(x.shape, d, element)
    start, zero = _start(f, kind, x.element), f.full(0, (), element)
    number, place, bit = (tensor_text((), e) for e in (x.element, element, "i1"))
    a, b, i, j, *n = f.names(15)
    word = {"float": "FLOAT", "int": "SIGNED"}.get(x.kind, "UNSIGNED")

    def compared(how: str, p: str, q: str, kind: str, of: str) -> str:
        return f"stablehlo.compare {how}, {p}, {q}, {kind} : ({of}, {of}) -> {bit}"

    body = [
        f"{n[0]} = {compared('GT' if kind == 'argmax' else 'LT', a, b, word, number)}",
        f"{n[1]} = {compared('NE', a, a, word, number)}",
        f"{n[2]} = {compared('EQ', b, b, word, number)}",
        f"{n[3]} = stablehlo.and {n[1]}, {n[2]} : {bit}",  # NaN alone on the left
        f"{n[4]} = stablehlo.or {n[0]}, {n[3]} : {bit}",
        f"{n[5]} = {compared('EQ', a, b, word, number)}",
        f"{n[6]} = {compared('NE', b, b, word, number)}",
        f"{n[7]} = stablehlo.and {n[1]}, {n[6]} : {bit}",
        f"{n[8]} = stablehlo.or {n[5]}, {n[7]} : {bit}",
        f"{n[9]} = {compared('LT', i, j, 'SIGNED', place)}",
        f"{n[10]} = stablehlo.and {n[8]}, {n[9]} : {bit}",
    ]
    best, value, found = f.names(3)
    body += [
        f"{best} = stablehlo.or {n[4]}, {n[10]} : {bit}",
        f"{value} = stablehlo.select {best}, {a}, {b} : {bit}, {number}",
        f"{found} = stablehlo.select {best}, {i}, {j} : {bit}, {place}",
        f"stablehlo.return {value}, {found} : {number}, {place}",
    ]
    made = f.with_region(
        f"stablehlo.reduce({x.name} init: {start.name}), ({places.name} init: {zero.name}) across dimensions = [{d}] : "
        f"({x.type}, {places.type}, {start.type}, {zero.type}) -> "
        f"({tensor_text(shape, x.element)}, {tensor_text(shape, element)})",
        [f" reducer({a}: {number}, {b}: {number}) ({i}: {place}, {j}: {place})  {{", *(f"  {line}" for line in body)],
        "}",
        [(tuple(shape), x.element), (tuple(shape), element)],
    )
    return made[1]


def _scan(f: Writer, op: Any) -> Value:
    """A window over all elements in front of each one."""
    x, kind, d = f.known[op.operands[0]], str(op["kind"]), op["dim"]
    rank, size = len(x.shape), x.shape[d]
    if 0 in x.shape:
        return x
    start = _start(f, kind, x.element)
    ones = _array([1] * rank)
    padding = "[" + ", ".join(f"[{size - 1 if k == d else 0}, 0]" for k in range(rank)) + "]"
    a, b, made = f.names(3)
    number = tensor_text((), x.element)
    return f.with_region(
        f'"stablehlo.reduce_window"({x.name}, {start.name}) <{{base_dilations = {ones}, padding = dense<{padding}> : '
        f"tensor<{rank}x2xi64>, window_dilations = {ones}, window_dimensions = "
        f"{_array([size if k == d else 1 for k in range(rank)])}, window_strides = {ones}}}> ({{",
        [
            f"^bb0({a}: {number}, {b}: {number}):",
            f"  {made} = stablehlo.{JOINED[kind]} {a}, {b} : {number}",
            f"  stablehlo.return {made} : {number}",
        ],
        f"}}) : ({x.type}, {start.type}) -> {x.type}",
        [(x.shape, x.element)],
    )[0]


def _contract(f: Writer, op: Any) -> Value:
    """Sums of products whose maps are dimensions: dot_general, and a transposition where the order is another."""
    (x, y), (shape, element) = f.operands(op), _result(f, op)
    rank, names = len(shape), [str(a) for a in prim.axes(len(shape) + len(op["reduced"]))]
    maps = [[str(place) for place in index] for index in op["maps"]]
    if any(p not in names for index in maps for p in index) or any(len(set(m)) != len(m) for m in maps):
        raise f.refused("a product whose indices are computed")
    a, b = ([names.index(p) for p in index] for index in maps)
    batch = [p for p in range(rank) if p in a and p in b]
    added = [p for p in range(rank, len(names)) if p in a and p in b]
    if len(added) != len(op["reduced"]):
        raise f.refused("a product that adds up one operand alone")
    order = [*batch, *(p for p in a if p not in b), *(p for p in b if p not in a)]
    made_shape = [shape[p] for p in order]
    sides = [[a.index(p) for p in batch], [b.index(p) for p in batch]]
    inner = [[a.index(p) for p in added], [b.index(p) for p in added]]
    batching = f"batching_dims = {sides[0]} x {sides[1]}, " if batch else ""
    more = f", {batching}contracting_dims = {inner[0]} x {inner[1]}, precision = [HIGHEST, HIGHEST]"
    made = f.other("stablehlo.dot_general", [x, y], made_shape, element, more)
    return f.transpose(made, [order.index(p) for p in range(rank)])


# ---- library calls ------------------------------------------------------------------------------------------------------


def _convolution(f: Writer, op: Any) -> Value:
    given = dict(zip(op["operands"], f.operands(op), strict=True))
    x, w, (shape, element) = given["input"], given["weight"], _result(f, op)
    rank = len(x.shape) - 2
    if rank < 1 or len(w.shape) != rank + 2 or not x.is_float:
        raise f.refused("a convolution of one image or of integers")
    stride, dilation, groups = f.numbers(op["stride"]), f.numbers(op["dilation"]), int(op["groups"])
    pads = [[p, p] for p in f.numbers(op["padding"])]
    axes = ", ".join(map(str, range(rank)))
    ones, kernel = [1] * rank, f"[o, i, {axes}]"
    steps, spread, turned = list(stride), ones, "false"
    if op["transposed"]:
        more = f.numbers(op["output_padding"])
        rows = zip(w.shape[2:], dilation, pads, more, strict=True)
        pads = [[d * (k - 1) - p[0], d * (k - 1) - p[1] + extra] for k, d, p, extra in rows]
        steps, spread, turned = ones, list(stride), "true"
        inputs, outputs = w.shape[0] // groups, w.shape[1]
        if groups > 1:  # (groups of inputs, outputs) -> inputs of one group, outputs of all
            w = f.reshape(w, (groups, inputs, outputs, *w.shape[2:]))
            w = f.transpose(w, [1, 0, *range(2, rank + 3)])
            w = f.reshape(w, (inputs, groups * outputs, *w.shape[3:]))
        kernel = f"[i, o, {axes}]"
    window = (
        f"{{stride = {steps}, pad = {pads}, lhs_dilate = {spread}, rhs_dilate = {list(dilation)}, "
        f"reverse = [{', '.join([turned] * rank)}]}}"
    )
    text = (
        f"stablehlo.convolution({x.name}, {w.name}) dim_numbers = [b, f, {axes}]x{kernel}->[b, f, {axes}], "
        f"window = {window} {{batch_group_count = 1 : i64, feature_group_count = {groups} : i64, "
        "precision_config = [#stablehlo<precision HIGHEST>, #stablehlo<precision HIGHEST>]} : "
        f"({x.type}, {w.type}) -> {tensor_text(shape, element)}"
    )
    made = f.line(text, shape, element)
    bias = given.get("bias")
    return made if bias is None else f.same("add", made, f.spread(bias, shape, [1]))


def _sorted(f: Writer, x: Value, d: int, down: bool) -> list[Value]:
    """Values and places, equal ones in their order. NaN counts as the largest."""
    places = f.iota(x.shape, d, "i64")
    a, b, i, j, *n = f.names(9)
    number, place, bit = (tensor_text((), e) for e in (x.element, "i64", "i1"))
    word = {"float": "FLOAT", "int": "SIGNED"}.get(x.kind, "UNSIGNED")
    large, small = (a, b) if down else (b, a)
    body = [
        f"{n[0]} = stablehlo.compare {'GT' if down else 'LT'}, {a}, {b}, {word} : ({number}, {number}) -> {bit}",
        f"{n[1]} = stablehlo.compare NE, {large}, {large}, {word} : ({number}, {number}) -> {bit}",
        f"{n[2]} = stablehlo.compare EQ, {small}, {small}, {word} : ({number}, {number}) -> {bit}",
        f"{n[3]} = stablehlo.and {n[1]}, {n[2]} : {bit}",
        f"{n[4]} = stablehlo.or {n[0]}, {n[3]} : {bit}",
        f"stablehlo.return {n[4]} : {bit}",
    ]
    return f.with_region(
        f'"stablehlo.sort"({x.name}, {places.name}) <{{dimension = {d} : i64, is_stable = true}}> ({{',
        [
            f"^bb0({a}: {number}, {b}: {number}, {i}: {place}, {j}: {place}):",
            *(f"  {line}" for line in body),
        ],
        f"}}) : ({x.type}, {places.type}) -> ({x.type}, {places.type})",
        [(x.shape, x.element), (x.shape, "i64")],
    )


def _sort(f: Writer, op: Any) -> list[Value]:
    x = f.known[op.operands[0]]
    if not x.shape:
        raise f.refused("a sort of one number")
    return _sorted(f, x, int(op.get("dim", len(x.shape) - 1)), bool(op.get("descending", False)))


def _topk(f: Writer, op: Any) -> list[Value]:
    x = f.known[op.operands[0]]
    if not x.shape:
        raise f.refused("the largest of one number")
    d, (count,) = int(op["dim"]), f.numbers([op["k"]])
    stops = [count if k == d else n for k, n in enumerate(x.shape)]
    rest = [0] * len(stops), stops, [1] * len(stops)
    return [f.slice(v, *rest) for v in _sorted(f, x, d, bool(op["largest"]))]


PRIMS: dict[type, Rule] = {
    prim.Full: _full,
    prim.Iota: _iota,
    prim.Cast: _cast,
    prim.Broadcast: _broadcast,
    prim.Reshape: _reshape,
    prim.Permute: _permute,
    prim.After: _after,
    prim.Slice: _slice,
    prim.Flip: _flip,
    prim.Pad: _pad,
    prim.Concat: _concat,
    prim.Take: _take,
    prim.Gather: _gather,
    prim.Scatter: _scatter,
    prim.Reduce: _reduce,
    prim.Scan: _scan,
    prim.Contract: _contract,
}
CALLS: dict[str, Rule] = {
    "aten.convolution.default": _convolution,
    "aten.sort.default": _sort,
    "aten.sort.stable": _sort,
    "aten.topk.default": _topk,
}
