"""Derivatives of what is no formula of single elements (these are in formulas.py). Half types compute in float32."""

from __future__ import annotations

import itertools
from typing import Any

from xdsl.ir import SSAValue

from ....ir.dialects import prim
from ....ir.dtypes import I64
from ....ir.symbols import Dim
from ...analysis.cost import MOST_TAPS
from .builder import Builder, NotCovered, Result, rule


def _grad(b: Builder) -> SSAValue:
    return b.floating("grad_output" if b.has("grad_output") else "grad_out")


def _zero(b: Builder, like: SSAValue) -> SSAValue:
    return b.full(0.0, (), b.dtype_of(like))


def _only(b: Builder, condition: SSAValue, value: SSAValue) -> SSAValue:
    """The value where the condition holds, else 0."""
    return b.ew("where", condition, value, _zero(b, value))


@rule("log_sigmoid_forward.default")
def _log_sigmoid_forward(b: Builder) -> Result:
    x = b.floating("self")
    far = b.ew("exp", b.ew("neg", b.ew("abs", x)))
    result = b.ew("sub", b.ew("min", x, 0.0), b.ew("log1p", far))
    kept = prim.tensor(b.op.results[-1])  # what its backward would read: exp(-|x|) on a CPU, nothing on a GPU
    buffer = b.full(0.0, kept.shape, kept.dtype) if 0 in kept.shape else b.cast(far, kept.dtype)
    return [b.finish(result), buffer]


@rule("native_dropout_backward.default")
def _dropout(b: Builder) -> Result:
    if b.dtype_of(b.tensor("mask")).is_float:
        raise NotCovered("a mask of floats")  # eager's product has the type that both promote to
    g = _grad(b)
    factor = b.ew("mul", b.cast(b.tensor("mask"), b.dtype_of(g)), float(b.get("scale")))
    return b.finish(b.ew("mul", g, factor))  # in this order 0 stays 0 where the gradient is near the largest number


def _halves(b: Builder) -> tuple[SSAValue, SSAValue, int]:
    """The two halves that a gated linear unit joins, and along which dimension they lie."""
    x = b.cast(b.tensor("self"), b.type.dtype.compute)
    d = b.get("dim", -1)
    size = b.shape_of(x)[d]
    if not isinstance(size, int) or not b.type.dtype.is_float:
        raise NotCovered("a size that is not known")
    return b.slice(x, d, 0, size // 2), b.slice(x, d, size // 2, size // 2), d


@rule("glu.default")
def _glu(b: Builder) -> Result:
    value, gate, _ = _halves(b)
    return b.finish(b.ew("mul", value, b.ew("sigmoid", gate)))


@rule("glu_backward.default")
def _glu_backward(b: Builder) -> Result:
    value, gate, d = _halves(b)
    g, s = _grad(b), b.ew("sigmoid", gate)
    through = b.ew("mul", g, s)
    return b.finish(
        b.concat([through, b.ew("mul", b.ew("mul", through, b.ew("sub", b.full(1.0, (), b.dtype_of(s)), s)), value)], d)
    )


@rule("_prelu_kernel_backward.default")
def _prelu_backward(b: Builder) -> Result:
    x, g = b.floating("self"), _grad(b)
    right = b.ew("gt", x, 0.0)
    low = b.ew("mul", b.floating("weight"), g)
    parts = {0: b.ew("where", right, g, low), 1: b.ew("where", right, _zero(b, g), b.ew("mul", x, g))}
    return _chosen(b, parts)


# -- softmax and losses


@rule("_softmax_backward_data.default", "_log_softmax_backward_data.default")
def _softmax(b: Builder) -> Result:
    g, y = _grad(b), b.floating("output")
    shape = b.shape_of(y)
    if not shape or 0 in shape:
        raise NotCovered("a softmax over nothing")
    axes = (b.get("dim"),)
    if "log" in b.op.target:
        total = b.spread(b.reduce("sum", g, axes), shape, axes)
        return b.finish(b.ew("sub", g, b.ew("mul", b.ew("exp", y), total)))
    weighted = b.ew("mul", g, y)
    total = b.spread(b.reduce("sum", weighted, axes), shape, axes)
    if not b.on_gpu:  # each library's order: infinities and what cancels out follow from it
        return b.finish(b.ew("mul", b.ew("sub", g, total), y))
    return b.finish(b.ew("sub", weighted, b.ew("mul", y, total)))


@rule("nll_loss_backward.default", "nll_loss2d_backward.default")
def _nll_loss(b: Builder) -> Result:
    """The gradient lies where a row's class is; written as a comparison it is no memory of its own, but a factor of what follows."""
    g, target = _grad(b), b.tensor("target")
    shape = b.shape_of(b.tensor("self"))
    rank = 4 if "2d" in b.op.target else 2
    if len(shape) != rank or b.rank_of(target) != rank - 1 or b.dtype_of(target) != I64:
        raise NotCovered("a shape of other rank")
    rows, places = b.shape_of(target), (0, *range(2, rank))
    used = b.ew("ne", target, int(b.get("ignore_index", -100)))
    share = b.ew("neg", g)
    if b.get("reduction", 1) == 1:
        share = b.ew("div", share, b.floating("total_weight"))
    weight = b.maybe("weight")
    if weight is not None:
        safe = b.ew("where", used, target, b.full(0, rows, I64))
        kind = prim.tensor(weight).with_(shape=rows)
        chosen = b.add(prim.Take.make([weight, safe], [kind], {"dim": 0}))
        share = b.ew("mul", share, b.cast(chosen, b.dtype_of(share)))
    share = _only(b, used, b.to_shape(share, rows))
    column = b.add(prim.broadcast(b.iota(shape[1]), shape, (1,)))
    here = b.ew("eq", column, b.add(prim.broadcast(target, shape, places)))
    return b.finish(_only(b, here, b.add(prim.broadcast(share, shape, places))))


@rule(
    "mse_loss_backward.default",
    "smooth_l1_loss_backward.default",
    "huber_loss_backward.default",
)
def _distance_loss(b: Builder) -> Result:
    g, x, y = _grad(b), b.floating("self"), b.floating("target")
    d = b.ew("sub", x, y)
    if "mse" in b.op.target:
        slope = b.ew("mul", d, 2.0)
    else:
        huber = "huber" in b.op.target
        edge = float(b.get("delta" if huber else "beta"))
        near, far = (d, edge) if huber else (b.ew("div", d, edge) if edge else d, 1.0)
        right, left = (b.full(side, (), b.dtype_of(d)) for side in (far, -far))
        slope = b.ew("where", b.ew("ge", d, edge), right, near)
        slope = b.ew("where", b.ew("le", d, -edge), left, slope)
    slope = b.ew("mul", slope, g)
    if b.get("reduction", 1) == 1:
        count = prim.tensor(d).numel
        if count == 0:
            raise NotCovered("a mean over nothing")
        slope = b.ew("div", slope, b.full(count if not isinstance(count, int) else float(count), (), b.dtype_of(slope)))
    return b.finish(slope)


# -- normalisations


def _chosen(b: Builder, parts: dict[int, SSAValue]) -> Result:
    """The results that the caller reads; `parts` holds at least these."""
    returned = b.op.literals.get("returned", tuple(range(len(b.op.results))))
    values: list[SSAValue | None] = [None] * (max(returned, default=-1) + 1)
    for place, which in enumerate(returned):
        values[which] = b.finish(parts[which], place)
    return values


def _through(
    b: Builder, g: SSAValue, unit: SSAValue, scale: SSAValue, axes: tuple[int, ...], shape: tuple[Dim, ...]
) -> SSAValue:
    """Through (x - mean) * scale, of which `unit` is the value: what is along the constant and along `unit` is taken out.

    Args:
        g: the gradient of `unit`.
        scale: one over the deviation, of the shape that remains when `axes` are reduced.
    """
    level = b.spread(b.mean(g, axes), shape, axes)
    along = b.spread(b.mean(b.ew("mul", g, unit), axes), shape, axes)
    return _without(b, g, unit, b.spread(scale, shape, axes), level, along)


def _without(b: Builder, g: SSAValue, unit: SSAValue, scale: SSAValue, level: SSAValue, along: SSAValue) -> SSAValue:
    """scale * (g - level - unit * along)"""
    return b.ew("mul", scale, b.ew("sub", b.ew("sub", g, level), b.ew("mul", unit, along)))


@rule("native_layer_norm_backward.default")
def _layer_norm(b: Builder) -> Result:
    g, x = _grad(b), b.floating("input")
    b.nonempty(x)
    shape = b.shape_of(x)
    outer = len(shape) - len(b.get("normalized_shape"))
    rows, axes = tuple(range(outer)), tuple(range(outer, len(shape)))
    mean, scale = (b.reshape(b.floating(n), shape[:outer]) for n in ("mean", "rstd"))
    unit = b.ew("mul", b.ew("sub", x, b.spread(mean, shape, axes)), b.spread(scale, shape, axes))
    weight = b.maybe("weight")
    inner = b.ew("mul", g, b.spread(b.floating("weight"), shape, rows)) if weight is not None else g
    parts = {0: inner, 1: b.ew("mul", g, unit), 2: g}
    wanted = b.op.literals.get("returned", (0, 1, 2))
    if 0 in wanted:
        parts[0] = _through(b, inner, unit, scale, axes, shape)
    for which in {1, 2} & set(wanted):
        parts[which] = b.reduce("sum", parts[which], rows)
    return _chosen(b, parts)


@rule("native_group_norm_backward.default")
def _group_norm(b: Builder) -> Result:
    """A CPU's library joins the sums over groups and over channels in one pass, which loops of ours do not."""
    n, channels, area, groups = (b.get(name) for name in ("N", "C", "HxW", "group"))
    g, x = _grad(b), b.floating("input")
    b.nonempty(x)
    if not isinstance(channels, int) or channels % groups:
        raise NotCovered("channels that do not split")
    shape: tuple[Dim, ...] = (n, groups, channels // groups, area)
    mean, scale = (b.reshape(b.floating(name), (n, groups)) for name in ("mean", "rstd"))
    g4, x4 = b.reshape(g, shape), b.reshape(x, shape)
    unit = b.ew("mul", b.ew("sub", x4, b.spread(mean, shape, (2, 3))), b.spread(scale, shape, (2, 3)))
    inner = g4
    if b.has("weight"):
        weight = b.reshape(b.floating("weight"), (groups, channels // groups))
        inner = b.ew("mul", g4, b.add(prim.broadcast(weight, shape, (1, 2))))
    wanted = b.op.literals.get("returned", (0, 1, 2))
    if not {1, 2} & set(wanted):
        return _chosen(b, {0: b.reshape(_through(b, inner, unit, scale, (2, 3), shape), b.shape_of(x))})
    # All that is asked follows from two sums for each channel of an image, which one reading gives.
    along, level = (b.reduce("sum", v, (3,)) for v in (b.ew("mul", g4, unit), g4))
    parts = {which: b.reshape(b.reduce("sum", v, (0,)), (channels,)) for which, v in ((1, along), (2, level))}
    if 0 in wanted:
        if b.has("weight"):
            level, along = (b.ew("mul", v, b.add(prim.broadcast(weight, shape[:3], (1, 2)))) for v in (level, along))
        count = b.full(b.count(shape, (2, 3)), shape[:2], b.dtype_of(level))
        means = (b.spread(b.ew("div", b.reduce("sum", v, (2,)), count), shape, (2, 3)) for v in (level, along))
        parts[0] = b.reshape(_without(b, inner, unit, b.spread(scale, shape, (2, 3)), *means), b.shape_of(x))
    return _chosen(b, parts)


@rule("_weight_norm_interface_backward.default")
def _weight_norm(b: Builder) -> Result:
    """Through v * (g / |v|), a length for each slice along `dim`."""
    grad, v = b.floating("grad_w"), b.floating("saved_v")
    shape, d = b.shape_of(v), b.get("dim") % b.rank_of(v)
    axes = tuple(i for i in range(len(shape)) if i != d)
    b.nonempty(v)
    length, g = (b.reshape(b.floating(n), (shape[d],)) for n in ("saved_norms", "saved_g"))
    along = b.ew("div", b.reduce("sum", b.ew("mul", grad, v), axes), length)
    scale, part = (b.spread(x, shape, axes) for x in (b.ew("div", g, length), b.ew("div", along, length)))
    through = b.ew("mul", scale, b.ew("sub", grad, b.ew("mul", v, part)))
    return [b.finish(through), b.finish(b.keep(along, shape, axes), 1)]


@rule("native_batch_norm_backward.default")
def _batch_norm(b: Builder) -> Result:
    """The gradient of a batch norm, with the statistics of its batch or those that it has learned.

    The saved statistics are float32 in eager; a graph's may have been rounded to the input's dtype, and are then computed again.
    """
    g, x = _grad(b), b.floating("input")
    b.nonempty(x)
    shape = b.shape_of(x)
    axes = tuple(i for i in range(len(shape)) if i != 1)
    train = bool(b.get("train"))
    mean, scale = _statistics(b, x, axes, train)
    centred = b.ew("sub", x, b.spread(mean, shape, axes))
    along = b.ew("mul", g, centred)
    slope = b.ew("mul", scale, b.floating("weight")) if b.has("weight") else scale
    rest = g
    if train:  # channels have one weight each: both sums are those that the weight's and the bias's gradients are
        share = b.ew("mul", b.mean(along, axes), b.ew("mul", scale, scale))
        rest = b.ew(
            "sub",
            b.ew("sub", g, b.spread(b.mean(g, axes), shape, axes)),
            b.ew("mul", centred, b.spread(share, shape, axes)),
        )
    inner = b.ew("mul", rest, b.spread(slope, shape, axes))
    return _chosen(b, {0: inner, 1: b.ew("mul", b.reduce("sum", along, axes), scale), 2: b.reduce("sum", g, axes)})


def _statistics(b: Builder, x: SSAValue, axes: tuple[int, ...], train: bool) -> tuple[SSAValue, SSAValue]:
    """The mean, and one over the deviation, of each channel."""
    eps = float(b.get("eps"))
    if not train:
        return b.floating("running_mean"), b.ew("rsqrt", b.ew("add", b.floating("running_var"), eps))
    saved = b.tensor("save_mean")
    if b.dtype_of(saved).compute == b.dtype_of(saved):
        return b.floating("save_mean"), b.floating("save_invstd")
    mean = b.mean(x, axes)
    distance = b.ew("sub", x, b.spread(mean, b.shape_of(x), axes))
    return mean, b.ew("rsqrt", b.ew("add", b.mean(b.ew("mul", distance, distance), axes), eps))


# -- views: the gradient in its place, zeros around it


def _placed(b: Builder, g: SSAValue, d: int, start: int, size: int) -> SSAValue:
    """`g` as the part of a longer tensor that begins at `start` along d."""
    length = b.shape_of(g)[d]
    if not isinstance(length, int):
        raise NotCovered("a size that is not known")
    low, high = [0] * b.rank_of(g), [0] * b.rank_of(g)
    low[d], high[d] = start, size - start - length
    value = b.operand(0, b.dtype_of(g))
    return b.add(prim.Pad.make([g], [b.type], {"low": tuple(low), "high": tuple(high), "value": value}))


@rule("select_backward.default", "slice_backward.default")
def _part(b: Builder) -> Result:
    g, sizes = b.tensor("grad_output"), tuple(b.get("input_sizes"))
    d = b.get("dim")
    size, start = sizes[d], b.get("index" if "select" in b.op.target else "start")
    if (
        not isinstance(size, int)
        or not isinstance(start, int)
        or b.get("step", 1) != 1
        or b.dtype_of(g).kind == "complex"
    ):
        raise NotCovered("a size that is not known, or a step")
    start = min(max(start + size if start < 0 else start, 0), size)
    if "select" in b.op.target:
        g = b.reshape(g, [*sizes[:d], 1, *sizes[d + 1 :]])
    return _placed(b, g, d, start, size)


# -- pools: each element asks the windows that may have chosen it


@rule("max_pool2d_with_indices_backward.default")
def _max_pool(b: Builder) -> Result:
    """Windows are read at the elements that they cover: a kernel of a grid stores each element once, and adds nothing in memory."""
    g, places = _grad(b), b.tensor("indices")
    shape = b.shape_of(b.tensor("self"))
    size, apart, low, dilation = (_pair(b, name) for name in ("kernel_size", "stride", "padding", "dilation"))
    apart = apart or size
    sizes = (*shape[-2:], *b.shape_of(g)[-2:])
    if not all(isinstance(n, int) for n in sizes) or 0 in sizes or set(dilation) != {1}:
        raise NotCovered("windows of sizes that are not known, or with gaps")
    taps = [-(-n // step) for n, step in zip(size, apart, strict=True)]
    if taps[0] * taps[1] > MOST_TAPS:
        raise NotCovered("windows that overlap too often")
    rows, columns = (b.add(prim.broadcast(b.iota(shape[d]), shape, (len(shape) + d,))) for d in (-2, -1))
    here = b.ew("add", b.ew("mul", rows, b.full(shape[-1], shape, I64)), columns)
    total = None
    for tap in itertools.product(*map(range, taps)):
        value, chosen = g, places
        for d, t in zip((-2, -1), tap, strict=True):
            start = low[d] - t * apart[d]
            value, chosen = (_repeated(b, v, len(shape) + d, apart[d], start, shape[d]) for v in (value, chosen))
        part = b.ew("where", b.ew("eq", chosen, here), value, b.full(0.0, shape, b.dtype_of(value)))
        total = part if total is None else b.ew("add", total, part)
    assert total is not None
    return b.finish(total)


def _pair(b: Builder, name: str) -> tuple[int, ...]:
    """Two numbers of an operator that takes one for both; none where it has none."""
    given: tuple[int, ...] = tuple(b.get(name, ()))
    return given * 2 if len(given) == 1 else given


def _repeated(b: Builder, value: SSAValue, d: int, times: int, start: int, size: Any) -> SSAValue:
    """`size` elements from `start` of `value` with each repeated `times` times along d; 0 and, of whole numbers, -1 outside."""
    shape = b.shape_of(value)
    if times > 1:
        wide = (*shape[: d + 1], times, *shape[d + 1 :])
        kept = tuple(k for k in range(len(wide)) if k != d + 1)
        value = b.reshape(b.add(prim.broadcast(value, wide, kept)), (*shape[:d], shape[d] * times, *shape[d + 1 :]))
    length = int(shape[d]) * times
    first, last = max(start, 0), min(start + size, length)
    outside = 0.0 if b.dtype_of(value).is_float else -1
    if first >= last:
        return b.full(outside, (*shape[:d], size, *shape[d + 1 :]), b.dtype_of(value))
    value = b.slice(value, d, first, last - first)
    low, high = [0] * len(shape), [0] * len(shape)
    low[d], high[d] = first - start, start + size - last
    if not low[d] and not high[d]:
        return value
    kind = prim.tensor(value).with_(shape=(*shape[:d], size, *shape[d + 1 :]))
    attrs = {"low": tuple(low), "high": tuple(high), "value": outside}
    return b.add(prim.Pad.make([value], [kind], attrs))
