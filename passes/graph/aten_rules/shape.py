"""Views, constants and other operators that move elements without arithmetic."""

from __future__ import annotations

from typing import Any

import sympy

from ....ir.dialects import prim
from ....ir.dtypes import F64, I64
from ....ir.symbols import Dim, dim, known_equal
from .builder import Builder, NotCovered, Result, real, rule
from .formulas import promoted


@rule(
    "view.default", "_unsafe_view.default", "reshape.default", "_reshape_alias.default", "unsqueeze.default",
    "squeeze.default", "squeeze.dim", "squeeze.dims", "flatten.using_ints", "unflatten.int",
    "_reshape_copy.default", "view_copy.default",
)  # fmt: skip
def _view(b: Builder) -> Result:
    if b.type.dtype != b.dtype_of(b.op.operands[0]):
        raise NotCovered("a view as another dtype")
    return b.reshape(b.op.operands[0], b.type.shape)


@rule("ops.intarsia.again.default")
def _again(b: Builder) -> Result:
    """What is computed of it in backward waits for a gradient: no memory of its own is needed for that."""
    return b.add(prim.After.make(b.op.operands, [prim.tensor(b.op.operands[0])]))


@rule("permute.default")
def _permute(b: Builder) -> Result:
    x = b.op.operands[0]
    return b.permute(x, b.get("dims"))


@rule("transpose.int", "t.default", "numpy_T.default", "mT.default", "swapaxes.default")
def _transpose(b: Builder) -> Result:
    x = b.op.operands[0]
    rank = b.rank_of(x)
    perm = list(range(rank))
    if rank == 0:
        return x
    if "transpose" in b.op.target:
        i, j = b.get("dim0"), b.get("dim1")
    elif "swapaxes" in b.op.target:
        i, j = b.get("axis0"), b.get("axis1")
    elif rank < 2:
        return x
    else:
        i, j = rank - 2, rank - 1
        if rank > 2 and "mT" not in b.op.target:
            raise NotCovered("rank")
    perm[i], perm[j] = perm[j], perm[i]
    return b.permute(x, perm)


@rule("expand.default", "expand_as.default", "broadcast_to.default")
def _expand(b: Builder) -> Result:
    return b.to_shape(b.op.operands[0], b.type.shape)


@rule("slice.Tensor")
def _slice(b: Builder) -> Result:
    x = b.op.operands[0]
    d, step = b.get("dim", 0), b.get("step", 1)
    size = b.shape_of(x)[d]
    start = b.get("start", 0) or 0
    if isinstance(start, int):
        if start < 0:
            start = max(0, size + start) if isinstance(size, int) else dim(size + start)
        if isinstance(size, int):
            start = min(start, size)
    elif isinstance(step, int) and sympy.sympify(start).is_nonnegative is not True:
        raise NotCovered("a start whose sign is not known")
    count = b.type.shape[d]
    if not isinstance(size, int) and start != 0 and not known_equal(dim(size - start), count) and step == 1:
        end = b.get("end")
        if end is None or not known_equal(dim(sympy.sympify(end) - start), count):
            raise NotCovered("bounds that may be clamped")
    return b.slice(x, d, start, count, step)


@rule("select.int")
def _select(b: Builder) -> Result:
    x = b.op.operands[0]
    d, index = b.get("dim"), b.get("index")
    size = b.shape_of(x)[d]
    if isinstance(index, int):
        index = dim(size + index) if index < 0 else index
    elif sympy.sympify(index).is_nonnegative is not True:
        raise NotCovered("an index whose sign is not known")
    return b.reshape(b.slice(x, d, index, 1), b.type.shape)


@rule(
    "split.Tensor", "split_with_sizes.default", "chunk.default", "unsafe_split.Tensor", "unbind.int",
    "unsafe_chunk.default", "split_with_sizes_copy.default", "tensor_split.sections",
    "unsafe_split_with_sizes.default",
)  # fmt: skip
def _split(b: Builder) -> Result:
    x = b.op.operands[0]
    d = b.get("dim", 0)
    start: Dim = 0
    pieces = []
    for result in b.op.results:
        shape = prim.tensor(result).shape
        size = 1 if "unbind" in b.op.target else shape[d]
        pieces.append(b.reshape(b.slice(x, d, start, size), shape))
        start = dim(start + size)
    return pieces


@rule("flip.default")
def _flip(b: Builder) -> Result:
    x = b.op.operands[0]
    axes = b.axes(b.get("dims"), b.rank_of(x)) if b.get("dims") else ()
    return x if not axes else b.add(prim.Flip.make([x], [b.type], {"dims": axes}))


@rule("cat.default", "concat.default")
def _cat(b: Builder) -> Result:
    values = [b.cast(v, b.type.dtype) for v in b.tensors("tensors") if b.shape_of(v) != (0,)]
    if not values:
        raise NotCovered("nothing to join")
    return values[0] if len(values) == 1 else b.concat(values, b.get("dim", 0))


@rule("stack.default")
def _stack(b: Builder) -> Result:
    d = b.get("dim", 0)
    values = []
    for v in b.tensors("tensors"):
        shape = b.shape_of(v)
        values.append(b.reshape(b.cast(v, b.type.dtype), (*shape[:d], 1, *shape[d:])))
    return values[0] if len(values) == 1 else b.concat(values, d)


@rule("repeat.default")
def _repeat(b: Builder) -> Result:
    x, repeats = b.op.operands[0], b.get("repeats")
    shape = (1,) * (len(repeats) - b.rank_of(x)) + b.shape_of(x)
    wide = [s for r, n in zip(repeats, shape, strict=True) for s in (r, n)]
    inner = b.reshape(x, shape)
    spread = b.add(prim.broadcast(inner, tuple(wide), tuple(range(1, 2 * len(shape), 2))))
    return b.reshape(spread, b.type.shape)


@rule("roll.default")
def _roll(b: Builder) -> Result:
    x, shifts, dims = b.op.operands[0], b.get("shifts"), b.get("dims", ())
    if not dims:
        raise NotCovered("roll over the flattened tensor")
    for shift, d in zip(shifts, dims, strict=True):
        size = b.shape_of(x)[d]
        if not isinstance(size, int) or not isinstance(shift, int):
            raise NotCovered("a size that is not known")
        k = (-shift) % size if size else 0
        if k:
            x = b.concat([b.slice(x, d, k, size - k), b.slice(x, d, 0, k)], d)
    return x


@rule("constant_pad_nd.default")
def _pad(b: Builder) -> Result:
    x, pad = b.op.operands[0], b.get("pad")
    real(b.type.dtype)
    rank = b.rank_of(x)
    low, high = [0] * rank, [0] * rank
    for k in range(len(pad) // 2):
        low[rank - 1 - k], high[rank - 1 - k] = pad[2 * k], pad[2 * k + 1]
    value = b.operand(b.get("value", 0), b.type.dtype)
    return b.add(prim.Pad.make([x], [b.type], {"low": tuple(low), "high": tuple(high), "value": value}))


@rule(
    "full.default", "zeros.default", "ones.default", "zeros_like.default", "ones_like.default",
    "full_like.default", "new_zeros.default", "new_ones.default", "new_full.default", "scalar_tensor.default",
    "fill.Scalar", "empty.memory_format", "empty_like.default", "new_empty.default", "empty_permuted.default",
    "empty_strided.default", "new_empty_strided.default", "zero.default",
)  # fmt: skip
def _full(b: Builder) -> Result:
    real(b.type.dtype)
    if b.type.device != "cpu" and not b.on_gpu:
        raise NotCovered("another device")
    name = b.op.target.split(".")[1]
    if "full" in name:
        value = b.either("fill_value")
    elif name == "scalar_tensor":
        value = b.either("s")
    elif name == "fill":
        value = b.either("value")
    else:
        value = 1 if "ones" in name else 0
    if not isinstance(value, int | float | bool | sympy.Expr):
        raise NotCovered("a value that is a tensor")
    if isinstance(value, sympy.Expr):
        return b.full(value)
    return b.full(b.operand(value, b.type.dtype))


@rule("arange.default", "arange.start", "arange.start_step")
def _arange(b: Builder) -> Result:
    dtype = b.type.dtype
    start, step = b.get("start", 0), b.get("step", 1)
    if dtype.is_float:
        counter = b.cast(b.iota(b.type.shape[0]), F64)
        value = b.ew("add", b.ew("mul", counter, float(step)), float(start)) if (start, step) != (0, 1) else counter
        return b.cast(value, dtype)
    start, step = (int(n) if isinstance(n, float) else n for n in (start, step))  # cut before they are counted with
    return b.cast(b.iota(b.type.shape[0], I64, start, step), dtype)


def _triangle(b: Builder, rows: Dim, columns: Dim, diagonal: int, lower: bool) -> Any:
    i = b.add(prim.broadcast(b.iota(rows), (rows, columns), (0,)))
    j = b.add(prim.broadcast(b.iota(columns), (rows, columns), (1,)))
    return b.ew("le" if lower else "ge", j, b.ew("add", i, diagonal))


@rule("tril.default", "triu.default")
def _tril(b: Builder) -> Result:
    x = b.op.operands[0]
    shape = b.shape_of(x)
    real(b.type.dtype)
    keep = _triangle(b, shape[-2], shape[-1], b.get("diagonal", 0), "tril" in b.op.target)
    zero = b.full(0 if b.type.dtype.is_integer else 0.0, (), b.type.dtype)
    return b.ew("where", b.to_shape(keep, shape), x, zero)


@rule("eye.default", "eye.m")
def _eye(b: Builder) -> Result:
    rows, columns = b.type.shape
    i = b.add(prim.broadcast(b.iota(rows), (rows, columns), (0,)))
    j = b.add(prim.broadcast(b.iota(columns), (rows, columns), (1,)))
    return b.cast(b.ew("eq", i, j), b.type.dtype)


@rule("slice_scatter.default", "select_scatter.default")
def _slice_scatter(b: Builder) -> Result:
    x, source = b.tensor("self"), b.tensor("src")
    d = b.get("dim", 0)
    if not b.shape_of(x):
        raise NotCovered("a number has no dimensions")
    size = b.shape_of(x)[d]
    if "select" in b.op.target:
        index = b.get("index")
        start: Any = index + size if isinstance(index, int) and index < 0 else index
        shape = b.shape_of(source)
        source, step, count = b.reshape(source, (*shape[:d], 1, *shape[d:])), 1, 1
    else:
        start, step, count = b.get("start", 0) or 0, b.get("step", 1), b.shape_of(source)[d]
    if step != 1 or not isinstance(start, int) or not isinstance(size, int) or not isinstance(count, int):
        raise NotCovered("a step, or a size that is not known")
    start = max(0, start + size) if start < 0 else min(start, size)
    parts = [
        b.slice(x, d, 0, start),
        b.cast(b.to_shape(source, [count if i == d else s for i, s in enumerate(b.shape_of(x))]), b.type.dtype),
        b.slice(x, d, start + count, size - start - count),
    ]
    parts = [p for p in parts if b.shape_of(p)[d] != 0]
    if not parts:  # nothing to write to
        return x
    return parts[0] if len(parts) == 1 else b.concat(parts, d)


@rule("copy.default")
def _copy(b: Builder) -> Result:
    return b.finish(b.tensor("src"))


@rule("pixel_shuffle.default")
def _pixel_shuffle(b: Builder) -> Result:
    x, r = b.op.operands[0], b.get("upscale_factor")
    *lead, c, h, w = b.shape_of(x)
    n = len(lead)
    split = b.reshape(x, (*lead, b.type.shape[-3], r, r, h, w))
    return b.reshape(b.permute(split, [*range(n), n, n + 3, n + 1, n + 4, n + 2]), b.type.shape)


@rule("pixel_unshuffle.default", "channel_shuffle.default")
def _shuffle(b: Builder) -> Result:
    """Blocks of pixels become channels; or channels in groups are dealt out in turn."""
    x = b.tensor("self")
    shape = b.shape_of(x)
    if "channel" in b.op.target:
        groups, (n, c, *rest) = b.get("groups"), shape
        split: list[Any] = [n, groups, _quotient(c, groups), *rest]
        return b.reshape(b.permute(b.reshape(x, split), [0, 2, 1, *range(3, len(split))]), b.type.shape)
    r, (*lead, h, w) = b.get("downscale_factor"), shape
    n = len(lead)
    value = b.reshape(x, (*lead, _quotient(h, r), r, _quotient(w, r), r))
    return b.reshape(b.permute(value, [*range(n), n + 1, n + 3, n, n + 2]), b.type.shape)


def _quotient(size: Dim, parts: int) -> int:
    if not isinstance(size, int) or size % parts:
        raise NotCovered("a size that is not known")
    return size // parts


@rule("linalg_cross.default")
def _cross(b: Builder) -> Result:
    """(y z' - z y', z x' - x z', x y' - y x') along one dimension of 3 elements."""
    x, y = (b.to_shape(v.ssa, b.type.shape) for v in promoted(b, ("self", "other")))
    d = b.get("dim", -1)
    a, c = ([b.slice(v, d, k, 1) for k in range(3)] for v in (x, y))
    parts = [
        b.ew("sub", b.ew("mul", a[(k + 1) % 3], c[(k + 2) % 3]), b.ew("mul", a[(k + 2) % 3], c[(k + 1) % 3]))
        for k in range(3)
    ]
    return b.finish(b.concat(parts, d))
