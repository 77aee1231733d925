"""Interpolation, and padding by reflection or by the edge: elements are read at places computed as eager computes them. On a CPU the library does it."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from xdsl.ir import SSAValue

from ....ir.dialects import prim
from ....ir.dtypes import F32, I32, I64, DType
from ....ir.symbols import Dim, dim
from .builder import Builder, NotCovered, Result, real, rule
from .windows import take

SHARPNESS = -0.75  # of the cubic convolution: the number that torch and OpenCV take (Keys 1981 has -0.5)


def _not_empty(b: Builder) -> None:
    if any(s == 0 for v in (b.op.operands[0], b.op.results[0]) for s in prim.tensor(v).shape):
        raise NotCovered("nothing to read")


# ---- interpolation --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Axis:
    """One dimension that is resized: from `size` elements to `count`. `factor`: what the caller gave instead of a ratio of sizes."""

    size: Dim
    count: Dim
    factor: float | None


def _axes(b: Builder) -> list[Axis]:
    """The dimensions behind the first two."""
    sizes, counts = b.shape_of(b.op.operands[0])[2:], b.type.shape[2:]
    n = len(sizes)
    factors = b.get("scale_factors")
    if factors is None:
        names = ("scales",) if n == 1 else ("scales_d", "scales_h", "scales_w")[-n:]
        factors = tuple(b.get(name) for name in names)
    found = []
    for size, count, factor in zip(sizes, counts, factors, strict=True):
        if factor is not None and not isinstance(factor, int | float):
            raise NotCovered("a factor that is not known")
        found.append(Axis(size, count, float(factor) if factor is not None and factor > 0 else None))
    return found


def _single(value: float) -> float:
    """Rounded to float32."""
    found: float = struct.unpack("f", struct.pack("f", value))[0]
    return found


def _number(b: Builder, value: Dim, dtype: DType, shape: Sequence[Dim]) -> SSAValue:
    """A size as a float."""
    return b.full(float(value) if isinstance(value, int) else value, tuple(shape), dtype)


def _ratio(b: Builder, axis: Axis, dtype: DType, corners: bool = False) -> SSAValue:
    """How far apart in the source neighbours in the result are, for each element of the result."""
    line = (axis.count,)
    if corners:
        if axis.count == 1:
            return b.full(0.0, line, dtype)
        if not isinstance(axis.count, int):
            raise NotCovered("corners of a size that is not known")
        return b.ew("div", _number(b, dim(axis.size - 1), dtype, line), float(axis.count - 1))
    if axis.factor is not None:
        value = 1.0 / axis.factor
        return b.full(_single(value) if dtype == F32 else value, line, dtype)
    if isinstance(axis.size, int) and isinstance(axis.count, int):
        value = axis.size / axis.count
        return b.full(_single(value) if dtype == F32 else value, line, dtype)
    return b.ew("div", _number(b, axis.size, dtype, line), _number(b, axis.count, dtype, line))


@lru_cache(maxsize=1024)
def _nearest_is_exact(axis: Axis, middle: bool) -> bool:
    """Whether rounding leaves the integer quotient: floor(o * size / count), or floor((2o + 1) * size / (2 count)) from the middle."""
    if not isinstance(axis.size, int) or not isinstance(axis.count, int) or axis.count > 1 << 16:
        return False
    ratio = _single(1.0 / axis.factor if axis.factor is not None else axis.size / axis.count)
    for o in range(axis.count):
        found = int(_single((o + 0.5 if middle else float(o)) * ratio))
        quotient = (2 * o + 1) * axis.size // (2 * axis.count) if middle else o * axis.size // axis.count
        if min(found, axis.size - 1) != quotient:
            return False
    return True


@rule(*(f"{name}{n}d.{form}" for name in ("upsample_nearest", "_upsample_nearest_exact") for n in (1, 2, 3) for form in ("default", "vec")))  # fmt: skip
def _nearest(b: Builder) -> Result:
    """Element o of the result is element floor(o * ratio) of the source, in float32; of `exact` floor((o + 0.5) * ratio)."""
    _not_empty(b)
    value = b.op.operands[0]
    real(b.type.dtype)
    middle = "exact" in b.op.target
    for k, axis in enumerate(_axes(b)):
        if _nearest_is_exact(axis, middle):
            if axis.size == axis.count:
                continue
            at = b.iota(axis.count, I64, axis.size if middle else 0, (2 if middle else 1) * axis.size)
            at = b.ew("floordiv", at, (2 if middle else 1) * axis.count)
        else:
            place = b.iota(axis.count, F32, 0, 1)
            if middle:
                place = b.ew("add", place, 0.5)
            at = b.cast(b.ew("floor", b.ew("mul", place, _ratio(b, axis, F32))), I32)
            at = b.ew("min", at, dim(axis.size - 1))
        value = take(b, value, at, k + 2)
    return b.finish(value)


def _source(b: Builder, axis: Axis, dtype: DType, corners: bool, cubic: bool = False) -> SSAValue:
    """The place in the source of each element of the result."""
    place, ratio = b.iota(axis.count, dtype, 0, 1), _ratio(b, axis, dtype, corners)
    if corners:
        return b.ew("mul", place, ratio)
    found = b.ew("sub", b.ew("mul", b.ew("add", place, 0.5), ratio), 0.5)
    return found if cubic else b.ew("max", found, 0.0)


def _along(b: Builder, line: SSAValue, like: SSAValue, d: int) -> SSAValue:
    """One number for each place along d."""
    return b.add(prim.broadcast(line, b.shape_of(like), (d,)))


def _mixed(b: Builder, x: SSAValue, axes: Sequence[tuple[list[SSAValue], list[SSAValue]]], d: int) -> SSAValue:
    """The sum of weight * element over the places of all dimensions from d on; the last dimension is summed first."""
    (places, weights), *rest = axes

    def term(place: SSAValue, weight: SSAValue) -> SSAValue:
        value = take(b, x, place, d)
        value = _mixed(b, value, rest, d + 1) if rest else b.up(value)
        return b.ew("mul", value, _along(b, weight, value, d))

    return b.joined("add", map(term, places, weights))


def _in_turn(b: Builder, x: SSAValue, axes: Sequence[tuple[list[SSAValue], list[SSAValue]]], d: int) -> SSAValue:
    """The same, the last dimension for all places of the others first: few elements of the source take part in many sums."""
    for k, axis in reversed(list(enumerate(axes, d))):
        x = _mixed(b, x, [axis], k)
    return x


def _float_image(b: Builder) -> tuple[SSAValue, DType]:
    x = b.op.operands[0]
    if not b.dtype_of(x).is_float:
        raise NotCovered("integers")
    return x, b.dtype_of(x).compute


def _keeps_sizes(b: Builder) -> bool:
    """Whether no dimension is resized: eager's kernels on a GPU copy then, whatever the factor; zero times an infinite neighbour is no number."""
    return all(axis.size == axis.count for axis in _axes(b))


@rule(*(f"upsample_{name}d.{form}" for name in ("linear1", "bilinear2", "trilinear3") for form in ("default", "vec")))
def _linear(b: Builder) -> Result:
    """Between the two elements on either side, along each dimension."""
    _not_empty(b)
    x, dtype = _float_image(b)
    if _keeps_sizes(b):
        return b.finish(x)
    corners = bool(b.get("align_corners"))
    axes = []
    for axis in _axes(b):
        place = _source(b, axis, dtype, corners)
        low = b.ew("min", b.cast(place, I32), dim(axis.size - 1))
        high = b.ew("min", b.ew("add", low, 1), dim(axis.size - 1))
        share = b.ew("min", b.ew("sub", place, b.cast(low, dtype)), 1.0)
        axes.append(([low, high], [b.ew("sub", b.full(1.0, (axis.count,), dtype), share), share]))
    return b.finish(_mixed(b, x, axes, 2))


@rule("upsample_bicubic2d.default", "upsample_bicubic2d.vec")
def _cubic(b: Builder) -> Result:
    """Cubic convolution over the four nearest elements along each dimension, the edge repeated."""
    _not_empty(b)
    x, dtype = _float_image(b)
    if _keeps_sizes(b):
        return b.finish(x)
    corners = bool(b.get("align_corners"))
    axes = []
    for axis in _axes(b):
        place = _source(b, axis, dtype, corners, cubic=True)
        floor = b.ew("floor", place)
        share, first = b.ew("sub", place, floor), b.cast(floor, I32)
        places = [
            b.ew("min", b.ew("max", b.ew("add", first, k - 1) if k != 1 else first, 0), dim(axis.size - 1))
            for k in range(4)
        ]
        axes.append((places, cubic_weights(b, share)))
    return b.finish(_in_turn(b, x, axes, 2))


def cubic_weights(b: Builder, share: SSAValue) -> list[SSAValue]:
    """What the elements at -1, 0, 1 and 2 count for a place `share` behind element 0."""
    one = b.full(1.0, b.shape_of(share), b.dtype_of(share))
    back, a = b.ew("sub", one, share), SHARPNESS

    def near(x: SSAValue) -> SSAValue:  # ((a + 2) x - (a + 3)) x x + 1, for 0 <= x <= 1
        inner = b.ew("mul", b.ew("sub", b.ew("mul", x, a + 2), a + 3), x)
        return b.ew("add", b.ew("mul", inner, x), 1.0)

    def far(x: SSAValue) -> SSAValue:  # ((a x - 5a) x + 8a) x - 4a, for 1 <= x <= 2
        inner = b.ew("mul", b.ew("sub", b.ew("mul", x, a), 5 * a), x)
        return b.ew("sub", b.ew("mul", b.ew("add", inner, 8 * a), x), 4 * a)

    return [far(b.ew("add", share, 1.0)), near(share), near(back), far(b.ew("add", back, 1.0))]


# ---- pads -----------------------------------------------------------------------------------------------------------


@rule(*(f"{name}_pad{n}d.default" for name in ("reflection", "replication") for n in (1, 2, 3)))
def _pad(b: Builder) -> Result:
    """Element o of the result is element |o - low| of the source, counted back from its end where that lies behind it; or the nearest one."""
    _not_empty(b)
    x, pad = b.op.operands[0], b.get("padding")
    real(b.type.dtype)
    rank = b.rank_of(x)
    if not all(isinstance(p, int) for p in pad):
        raise NotCovered("a padding that is not known")
    for k in range(len(pad) // 2):
        low, high = pad[2 * k : 2 * k + 2]
        d = rank - 1 - k
        end = dim(b.shape_of(x)[d] - 1)
        if low == high == 0:
            continue
        at = b.iota(b.type.shape[d], I64, -low)
        if "reflection" in b.op.target:
            if low > 0:
                at = b.ew("abs", at)
            if high > 0:
                at = b.ew("sub", b.full(end, b.shape_of(at), I64), b.ew("abs", b.ew("sub", at, end)))
        else:
            at = b.ew("min", b.ew("max", at, 0) if low > 0 else at, end) if high > 0 else b.ew("max", at, 0)
        x = take(b, x, at, d)
    return b.finish(x)


# ---- grids ----------------------------------------------------------------------------------------------------------

BILINEAR, NEAREST, ZEROS, BORDER = 0, 1, 0, 1  # torch's numbers of the modes


@rule("grid_sampler_2d.default")
def _grid(b: Builder) -> Result:
    """Images at places from a grid, -1 and 1 being their edges. Beyond them is 0, or the nearest element."""
    _not_empty(b)
    x, grid = b.tensor("input"), b.tensor("grid")
    mode, padding = b.get("interpolation_mode"), b.get("padding_mode")
    if mode not in (BILINEAR, NEAREST) or padding not in (ZEROS, BORDER) or not b.dtype_of(x).is_float:
        raise NotCovered("cubic interpolation, or reflection")
    if b.dtype_of(x) != b.dtype_of(grid):
        raise NotCovered("a grid of another dtype")
    n, channels, *sizes = b.shape_of(x)
    if all(isinstance(s, int) for s in sizes) and int(sizes[0]) * int(sizes[1]) >= 2**31:
        raise NotCovered("images of more elements than 32 bits count")
    lines = (n, *b.shape_of(grid)[1:3])
    places = []
    for k, size in enumerate(reversed(sizes)):  # x before y
        at = b.up(b.reshape(b.slice(grid, 3, k, 1), lines))
        edge = _number(b, dim(size - 1), b.dtype_of(at), lines)
        if b.get("align_corners"):
            at = b.ew("mul", b.ew("div", b.ew("add", at, 1.0), 2.0), edge)
        else:
            whole = _number(b, size, b.dtype_of(at), lines)
            at = b.ew("div", b.ew("sub", b.ew("mul", b.ew("add", at, 1.0), whole), 1.0), 2.0)
        if padding == BORDER:
            at = b.ew(
                "where", b.ew("isnan", at), b.full(0.0, (), b.dtype_of(at)), b.ew("min", b.ew("max", at, 0.0), edge)
            )
        places.append(at)
    flat = b.reshape(x, (n, channels, dim(sizes[0] * sizes[1])))
    steps: list[list[tuple[SSAValue, SSAValue | None]]] = []  # along each dimension: places and weights
    for at in places:
        if mode == NEAREST:
            steps.append([(b.ew("round", at), None)])
            continue
        low = b.ew("floor", at)
        high = b.ew("add", low, 1.0)
        steps.append([(low, b.ew("sub", high, at)), (high, b.ew("sub", at, low))])

    def corner(row: tuple[SSAValue, SSAValue | None], column: tuple[SSAValue, SSAValue | None]) -> SSAValue:
        value = _grid_element(b, flat, row[0], column[0], sizes)
        if row[1] is None or column[1] is None:
            return value
        weight = b.ew("mul", column[1], row[1])
        return b.ew("mul", value, b.add(prim.broadcast(weight, b.type.shape, (0, 2, 3))))

    return b.finish(b.joined("add", itertools.starmap(corner, itertools.product(steps[1], steps[0]))))


def _grid_element(b: Builder, flat: SSAValue, row: SSAValue, column: SSAValue, sizes: Sequence[Dim]) -> SSAValue:
    """The elements at these places of all channels, 0 where the places lie outside."""
    inside, numbers = [], []
    for place, size in zip((row, column), sizes, strict=True):
        end = _number(b, dim(size - 1), b.dtype_of(place), b.shape_of(place))
        fine = b.ew("and", b.ew("ge", place, 0.0), b.ew("le", place, end))
        inside.append(fine)
        clamped = b.ew("where", fine, place, b.full(0.0, (), b.dtype_of(place)))
        numbers.append(b.cast(clamped, I32))
    lines = b.shape_of(row)
    at = b.reshape(b.ew("add", b.ew("mul", numbers[0], sizes[1]), numbers[1]), (lines[0], dim(lines[1] * lines[2])))
    wide = (*b.shape_of(flat)[:2], b.shape_of(at)[1])
    index = b.add(prim.broadcast(at, wide, (0, 2)))
    attrs = {"dim": 2, "inside": True}
    value = b.up(b.add(prim.Gather.make([flat, index], [prim.tensor(flat).with_(shape=wide)], attrs)))
    value = b.reshape(value, b.type.shape)
    zero = b.full(0.0, (), b.dtype_of(value))
    known = b.joined("and", inside)
    return b.ew("where", b.add(prim.broadcast(known, b.type.shape, (0, 2, 3))), value, zero)
