"""Pooling: windows that are read inside kernels. On a CPU most of it is the library's, which is the faster one there."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import SSAValue

from ....ir.dialects import prim
from ....ir.dtypes import F32, F64, I32, I64
from ....ir.scalars import identity
from ....ir.symbols import Dim, dim
from ...analysis.cost import MOST_APART, MOST_SLICES, MOST_TAPS, MOST_TAPS_ON_CPU, MOST_UNEVEN
from ...analysis.strides import recorded_strides
from .builder import CPU_RULES, Builder, NotCovered, Result, real, rule

_ROW = {"max": "max", "sum": "add"}  # what joins two elements


@dataclass(frozen=True)
class Window:
    """What slides along one dimension: element k of window o is at o * step + k * apart - low of `size` elements."""

    size: Dim
    count: Dim  # windows
    taps: int
    step: int
    low: int = 0  # how far the first window begins before the dimension, and the last may end behind it by intent
    apart: int = 1
    ceil: bool = False  # the last window may begin inside and end anywhere

    @property
    def high(self) -> Dim:
        """How many elements behind the dimension are read."""
        if isinstance(self.size, int) and isinstance(self.count, int):
            return max(0, (self.count - 1) * self.step + (self.taps - 1) * self.apart + 1 - self.low - self.size)
        return self.low + self.step - 1 if self.ceil else self.low

    @property
    def is_apart(self) -> bool:
        """Windows side by side."""
        return self.apart == 1 and self.step == self.taps


def _written_out(windows: Sequence[Window]) -> bool:
    most = MOST_APART if all(w.is_apart for w in windows) else MOST_TAPS
    return math.prod(w.taps for w in windows) <= most


def _numbers(b: Builder, name: str, default: tuple[int, ...] = ()) -> tuple[int, ...]:
    """One number for each dimension of the windows; `default` where the operator has no such argument."""
    values: tuple[object, ...] = b.get(name, default)
    if not all(isinstance(v, int) for v in values):
        raise NotCovered("windows of sizes that are not known")
    return values  # type: ignore[return-value]


def _windows(b: Builder, n: int) -> list[Window]:
    """The windows of a pooling along the last n dimensions."""
    x = b.op.operands[0]
    sizes, counts = b.shape_of(x)[-n:], b.type.shape[-n:]
    kernel, stride, padding = (_numbers(b, name) for name in ("kernel_size", "stride", "padding"))
    dilation = _numbers(b, "dilation", (1,) * n)
    ceil = bool(b.get("ceil_mode", False))
    return [
        Window(size, count, taps, step, low, apart, ceil)
        for size, count, taps, step, low, apart in zip(sizes, counts, kernel, stride, padding, dilation, strict=True)
    ]


def _not_empty(b: Builder) -> None:
    if any(s == 0 for r in (*b.op.operands, *b.op.results) for s in prim.tensor(r).shape):
        raise NotCovered("nothing to pool")


def _padded(b: Builder, x: SSAValue, windows: Sequence[Window], value: object) -> SSAValue:
    """x with all that windows reach beyond it."""
    lead = b.rank_of(x) - len(windows)
    low, high = ([0] * lead + [getattr(w, side) for w in windows] for side in ("low", "high"))
    if all(p == 0 for p in (*low, *high)):
        return x
    shape = [dim(s + p + q) for s, p, q in zip(b.shape_of(x), low, high, strict=True)]
    attrs = {"low": tuple(low), "high": tuple(high), "value": value}
    return b.add(prim.Pad.make([x], [prim.tensor(x).with_(shape=shape)], attrs))


def _taps(b: Builder, padded: SSAValue, windows: Sequence[Window]) -> list[SSAValue]:
    """Element k of all windows, for each k in row-major order."""
    lead = b.rank_of(padded) - len(windows)
    found = []
    for offsets in itertools.product(*(range(w.taps) for w in windows)):
        value = padded
        t = prim.tensor(value)
        starts = [0] * lead + [k * w.apart for k, w in zip(offsets, windows, strict=True)]
        shape = [*t.shape[:lead], *(w.count for w in windows)]
        attrs = {"starts": tuple(starts), "steps": (1,) * lead + tuple(w.step for w in windows)}
        found.append(b.add(prim.Slice.make([value], [t.with_(shape=shape)], attrs)))
    return found


def _unfolded(b: Builder, padded: SSAValue, windows: Sequence[Window]) -> SSAValue:
    """The elements of the windows as dimensions of their own: (..., windows, taps, windows, taps)."""
    value, d = padded, b.rank_of(padded) - len(windows)
    for w in windows:
        shape = b.shape_of(value)
        if w.is_apart:
            value = b.slice(value, d, 0, dim(w.count * w.taps))
            value = b.reshape(value, (*shape[:d], w.count, w.taps, *shape[d + 1 :]))
        else:
            value = take(b, value, places(b, w.count, w.taps, w.step, w.apart), d)
        d += 2
    return value


def places(b: Builder, count: Dim, taps: int, step: int, apart: int, start: int = 0) -> SSAValue:
    """The numbers start + o * step + k * apart, for each window o and tap k."""
    window = b.add(prim.broadcast(b.iota(count, I64, start, step), (count, taps), (0,)))
    tap = b.add(prim.broadcast(b.iota(taps, I64, 0, apart), (count, taps), (1,)))
    return b.ew("add", window, tap)


def take(b: Builder, x: SSAValue, index: SSAValue, d: int) -> SSAValue:
    """Elements along d by numbers that are known to lie inside."""
    shape = b.shape_of(x)
    t = prim.tensor(x).with_(shape=(*shape[:d], *b.shape_of(index), *shape[d + 1 :]))
    return b.add(prim.Take.make([x, index], [t], {"dim": d, "inside": True}))


def _join(b: Builder, kind: str, x: SSAValue, windows: Sequence[Window]) -> SSAValue:
    """The largest element, or the sum, of each window."""
    value = b.up(x)
    dtype = b.dtype_of(value)
    padded = _padded(b, value, windows, identity(kind, dtype))
    if _written_out(windows):
        return b.joined(_ROW[kind], _taps(b, padded, windows))
    if not all(w.is_apart for w in windows):
        return _line_by_line(b, kind, padded, windows)
    n = len(windows)
    lead = b.rank_of(x) - n
    return b.reduce(kind, _unfolded(b, padded, windows), [lead + 2 * k + 1 for k in range(n)])


def _line_by_line(b: Builder, kind: str, padded: SSAValue, windows: Sequence[Window]) -> SSAValue:
    """The windows of one dimension after the other: as many elements as the sides of a window have, instead of its area.

    The innermost dimension is last: what is before it reads memory in its order.
    """
    if any(w.taps > MOST_TAPS for w in windows):
        raise NotCovered("large windows that overlap")
    value, lead = padded, b.rank_of(padded) - len(windows)
    for k, w in enumerate(windows):
        parts = [b.slice(value, lead + k, tap * w.apart, w.count, w.step) for tap in range(w.taps)]
        value = b.joined(_ROW[kind], parts)
    return value


@rule("max_pool2d_with_indices.default", "max_pool3d_with_indices.default", "max_pool2d.default", "max_pool3d.default")
def _max_pool(b: Builder) -> Result:
    _not_empty(b)
    x = b.op.operands[0]
    real(b.dtype_of(x))
    windows = _windows(b, 3 if "pool3d" in b.op.target else 2)
    if len(b.op.results) == 1:
        return b.finish(_join(b, "max", x, windows))
    at = b.op.results[1]
    if not at.uses:
        return [b.finish(_join(b, "max", x, windows)), None]
    if not _written_out(windows):
        raise NotCovered("indices of large windows")
    return _max_and_place(b, x, windows)


def _max_and_place(b: Builder, x: SSAValue, windows: Sequence[Window]) -> Result:
    """The largest element of each window and its number within an image: of equal ones the first, but the last nan."""
    value = b.up(x)
    dtype, lead = b.dtype_of(value), b.rank_of(x) - len(windows)
    taps = _taps(b, _padded(b, value, windows, identity("max", dtype)), windows)
    known = all(isinstance(w.size, int) for w in windows)
    number = I32 if known and math.prod(w.size for w in windows if isinstance(w.size, int)) < 2**31 else I64
    starts = [b.iota(w.count, number, -w.low, w.step) for w in windows]
    # the first element inside, which is also the one of a window that has only -inf
    firsts = [b.ew("max", s, b.ew("mod", s, w.apart)) if w.low else s for s, w in zip(starts, windows, strict=True)]
    shape = b.shape_of(taps[0])
    best, at = taps[0], _number(b, firsts, windows, shape, lead)
    offsets = list(itertools.product(*(range(w.taps) for w in windows)))
    for offset, tap in zip(offsets[1:], taps[1:], strict=True):
        better = b.ew("gt", tap, best)
        if dtype.is_float:
            better = b.ew("or", better, b.ew("isnan", tap))
        lines = [b.iota(w.count, number, k * w.apart - w.low, w.step) for k, w in zip(offset, windows, strict=True)]
        best = b.ew("where", better, tap, best)
        at = b.ew("where", better, _number(b, lines, windows, shape, lead), at)
    return [b.finish(best), b.finish(at, 1)]


def _number(
    b: Builder, lines: Sequence[SSAValue], windows: Sequence[Window], shape: Sequence[Dim], lead: int
) -> SSAValue:
    """The numbers, within an image, of the elements at these places along each dimension."""
    parts = (functools.reduce(lambda v, w: b.ew("mul", v, w.size), windows[k + 1 :], v) for k, v in enumerate(lines))
    return b.joined("add", (b.add(prim.broadcast(v, tuple(shape), (lead + k,))) for k, v in enumerate(parts)))


@rule("max_pool2d_with_indices.default", table=CPU_RULES)
def _max_pool1d(b: Builder) -> Result:
    """Windows of one row whose indices nobody reads (max_pool1d): the largest of a few slices; small windows with indices, too."""
    x, (places, at) = b.op.operands[0], b.op.results
    if at.uses and recorded_strides(places) is None and math.prod(b.get("kernel_size")) <= MOST_TAPS_ON_CPU:
        return _max_pool(b)
    kernel, stride, padding, dilation = (b.get(n) for n in ("kernel_size", "stride", "padding", "dilation"))
    width, step = kernel[-1], stride[-1]
    plain = not any(padding) and all(d == 1 for d in dilation) and not b.get("ceil_mode")
    if len(kernel) != 2 or kernel[0] != 1 or not 1 <= width <= MOST_SLICES or not plain or any(at.uses):
        raise NotCovered("windows in two dimensions, or indices")
    if stride[0] != 1 or 0 in prim.tensor(places).shape:
        raise NotCovered("rows that are left out")
    d, count = b.rank_of(x) - 1, b.type.shape[-1]
    value = b.slice(x, d, 0, count, step)
    for k in range(1, width):
        value = b.ew("max", value, b.slice(x, d, k, count, step))
    return [b.finish(value), b.full(0, b.type.shape, I64)]


@rule("avg_pool1d.default", "avg_pool2d.default", "avg_pool3d.default")
def _avg_pool(b: Builder) -> Result:
    """The sum of each window over the number of its elements, those of the padding counted or not."""
    _not_empty(b)
    x = b.op.operands[0]
    if not b.dtype_of(x).is_float:
        raise NotCovered("integers")
    windows = _windows(b, int(b.op.target.split("pool")[1][0]))
    total = _join(b, "sum", x, windows)
    divisor = b.get("divisor_override")
    if divisor is None:
        divisor = _counts(b, total, windows, bool(b.get("count_include_pad", True)))
    else:
        divisor = float(divisor)
    return b.finish(b.ew("div", total, divisor))


def _counts(b: Builder, like: SSAValue, windows: Sequence[Window], padding: bool) -> SSAValue | float:
    """How many elements each window has; one number where all have the same."""
    shape, dtype = b.shape_of(like), b.dtype_of(like)
    lead, total = len(shape) - len(windows), 1.0
    counts: list[SSAValue] = []
    for k, w in enumerate(windows):
        beyond = w.low if padding else 0
        known = isinstance(w.high, int) and not (w.ceil and not isinstance(w.size, int))
        if known and w.high <= beyond and (padding or w.low == 0):
            total *= w.taps
            continue
        start = b.iota(w.count, I32, -w.low, w.step)
        end = b.ew("min", b.ew("add", start, w.taps), dim(w.size + beyond))
        start = start if padding else b.ew("max", start, 0)
        counts.append(b.add(prim.broadcast(b.cast(b.ew("sub", end, start), dtype), shape, (lead + k,))))
    if not counts:
        return total
    product = b.joined("mul", counts)
    return b.ew("mul", product, total) if total != 1 else product


@rule(
    "adaptive_avg_pool1d.default", "adaptive_avg_pool2d.default", "_adaptive_avg_pool2d.default", "adaptive_avg_pool3d.default",
    "_adaptive_avg_pool3d.default", "adaptive_max_pool1d.default", "adaptive_max_pool2d.default", "adaptive_max_pool3d.default",
)  # fmt: skip
def _adaptive_pool(b: Builder) -> Result:
    """Window o of n over s elements goes from floor(o * s / n) up to ceil((o + 1) * s / n)."""
    _not_empty(b)
    x, n = b.op.operands[0], int(b.op.target.split("pool")[1][0])
    is_max = "max" in b.op.target
    real(b.dtype_of(x))
    if not (is_max or b.dtype_of(x).is_float):
        raise NotCovered("integers")
    if is_max and b.op.results[1].uses:
        raise NotCovered("indices")
    sizes, counts = b.shape_of(x)[-n:], b.type.shape[-n:]
    kind = "max" if is_max else "sum"
    if all(isinstance(s, int) and isinstance(c, int) and s % c == 0 for s, c in zip(sizes, counts, strict=True)):
        windows = [Window(s, c, int(s) // int(c), int(s) // int(c)) for s, c in zip(sizes, counts, strict=True)]
        value = _join(b, kind, x, windows)
        if not is_max:
            value = b.ew("div", value, float(math.prod(w.taps for w in windows)))
    else:
        value = _uneven(b, kind, b.up(x), sizes, counts)
    return [b.finish(value), None] if is_max else b.finish(value)


def _uneven(b: Builder, kind: str, x: SSAValue, sizes: Sequence[Dim], counts: Sequence[Dim]) -> SSAValue:
    """Windows of different sizes: all are as long as the longest, what is too much is left out. Small ones are written out."""
    dtype, n = b.dtype_of(x), len(sizes)
    lead, ends, taps = b.rank_of(x) - n, [], []
    for size, count in zip(sizes, counts, strict=True):
        if not isinstance(size, int) or not isinstance(count, int):
            raise NotCovered("sizes that are not known")
        first = b.ew("floordiv", b.iota(count, I64, 0, size), count)
        ends.append((first, b.ew("floordiv", b.iota(count, I64, size + count - 1, size), count)))
        taps.append(max(-(-(o + 1) * size // count) - o * size // count for o in range(count)))
    if math.prod(taps) <= MOST_UNEVEN:
        value = x
        for k in range(n):
            value = _uneven_line(b, kind, value, lead + k, ends[k], taps[k])
    else:
        value = _uneven_reduced(b, kind, x, ends, taps)
    if kind == "max":
        return value
    for k, (first, end) in enumerate(ends):
        number = b.cast(b.ew("sub", end, first), F64 if dtype == F64 else F32)
        value = b.ew("div", value, b.add(prim.broadcast(number, b.shape_of(value), (lead + k,))))
    return value


def _uneven_line(b: Builder, kind: str, x: SSAValue, d: int, ends: tuple[SSAValue, SSAValue], taps: int) -> SSAValue:
    """Windows along d from the first of `ends` up to the second, of at most so many elements."""
    last, dtype = dim(b.shape_of(x)[d] - 1), b.dtype_of(x)
    total = take(b, x, ends[0], d)
    for tap in range(1, taps):
        at = b.ew("add", ends[0], tap)
        value = take(b, x, b.ew("min", at, last), d)
        inside = b.add(prim.broadcast(b.ew("lt", at, ends[1]), b.shape_of(value), (d,)))
        value = b.ew("where", inside, value, b.full(identity(kind, dtype), (), dtype))
        total = b.ew(_ROW[kind], total, value)
    return total


def _uneven_reduced(
    b: Builder, kind: str, x: SSAValue, ends: Sequence[tuple[SSAValue, SSAValue]], taps: Sequence[int]
) -> SSAValue:
    """The same with loops over the elements of a window."""
    dtype, lead = b.dtype_of(x), b.rank_of(x) - len(ends)
    value, used = x, []
    for k, (each, length) in enumerate(zip(ends, taps, strict=True)):
        shape = (*b.shape_of(each[0]), length)
        first, end = (b.add(prim.broadcast(v, shape, (0,))) for v in each)
        at = b.ew("add", first, b.add(prim.broadcast(b.iota(length), shape, (1,))))
        value = take(b, value, b.ew("min", at, dim(b.shape_of(x)[lead + k] - 1)), lead + 2 * k)
        used.append(b.ew("lt", at, end))
    wide, places = b.shape_of(value), [(lead + 2 * k, lead + 2 * k + 1) for k in range(len(ends))]
    inside = b.joined("and", (b.add(prim.broadcast(v, wide, at)) for v, at in zip(used, places, strict=True)))
    value = b.ew("where", inside, value, b.full(identity(kind, dtype), (), dtype))
    return b.reduce(kind, value, [lead + 2 * k + 1 for k in range(len(ends))])


@rule("im2col.default")
def _im2col(b: Builder) -> Result:
    """The elements of each window as a column."""
    _not_empty(b)
    x = b.tensor("self")
    real(b.dtype_of(x))
    if b.rank_of(x) != 4:
        raise NotCovered("one image")
    (n, channels, *sizes) = b.shape_of(x)
    windows = []
    arguments = [_numbers(b, name) for name in ("kernel_size", "stride", "padding", "dilation")]
    for size, taps, step, low, apart in zip(sizes, *arguments, strict=True):
        if not isinstance(size, int):
            raise NotCovered("sizes that are not known")
        windows.append(Window(size, (size + 2 * low - apart * (taps - 1) - 1) // step + 1, taps, step, low, apart))
    columns = _unfolded(b, _padded(b, x, windows, 0.0 if b.dtype_of(x).is_float else 0), windows)
    columns = b.permute(columns, [0, 1, 3, 5, 2, 4])
    rows, count = math.prod(w.taps for w in windows), dim(windows[0].count * windows[1].count)
    return b.finish(b.reshape(columns, (n, dim(channels * rows), count)))


@rule("col2im.default")
def _col2im(b: Builder) -> Result:
    """Each element of the image is the sum of the columns' elements that lie on it; where windows lie side by side there is one."""
    _not_empty(b)
    x, shape = b.tensor("self"), b.type.shape
    real(b.dtype_of(x))
    if b.rank_of(x) != 3 or not all(isinstance(s, int) for s in shape[1:]):
        raise NotCovered("one image, or sizes that are not known")
    arguments = [_numbers(b, name) for name in ("kernel_size", "stride", "padding", "dilation")]
    windows = [
        Window(size, (int(size) + 2 * low - apart * (taps - 1) - 1) // step + 1, taps, step, low, apart)
        for size, taps, step, low, apart in zip(shape[2:], *arguments, strict=True)
    ]
    (rows, columns), counts = windows, [w.count for w in windows]
    value = b.reshape(b.up(x), (*shape[:2], rows.taps, columns.taps, *counts))
    if all(w.is_apart and w.low == 0 and w.size == w.count * w.taps for w in windows):
        return b.finish(b.reshape(b.permute(value, [0, 1, 4, 2, 5, 3]), shape))
    if rows.taps * columns.taps > MOST_TAPS:
        raise NotCovered("large windows")
    nothing = b.full(0, (), b.dtype_of(value))

    def elements(taps: tuple[int, int]) -> SSAValue:
        """The elements at one place of all windows, where they lie in the image."""
        term = b.slice(b.slice(value, 2, taps[0], 1), 3, taps[1], 1)
        term, inside = b.reshape(term, (*shape[:2], *counts)), []
        for d, (w, tap) in enumerate(zip(windows, taps, strict=True), 2):
            beyond = b.iota(w.size, I64, w.low - tap * w.apart)  # the first element of the window in question
            place = b.ew("floordiv", beyond, w.step)
            fine = b.ew("and", b.ew("ge", place, 0), b.ew("lt", place, w.count))
            if w.step > 1:
                fine = b.ew("and", fine, b.ew("eq", b.ew("mod", beyond, w.step), 0))
            term = take(b, term, b.ew("min", b.ew("max", place, 0), dim(w.count - 1)), d)
            inside.append(b.add(prim.broadcast(fine, shape, (d,))))
        return b.ew("where", b.joined("and", inside), term, nothing)

    taps = itertools.product(range(rows.taps), range(columns.taps))
    return b.finish(b.joined("add", map(elements, taps)))
