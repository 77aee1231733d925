"""Reductions, softmax, normalisations, losses. Half types are reduced in float32."""

from __future__ import annotations

import math
from typing import Any

from xdsl.ir import SSAValue

from ....ir.dialects import prim
from ....ir.dtypes import BF16, BOOL, F32, F64, I64
from ....ir.symbols import Dim, dim
from .builder import Builder, NotCovered, Result, real, rule


def _axes(b: Builder, x: SSAValue, name: str = "dim") -> tuple[int, ...]:
    return b.axes(b.get(name), b.rank_of(x))


def _keep(b: Builder) -> bool:
    return bool(b.get("keepdim", False))


@rule("sum.default", "sum.dim_IntList", "prod.default", "prod.dim_int")
def _sum(b: Builder) -> Result:
    x, dtype = b.op.operands[0], b.type.dtype
    real(dtype, b.dtype_of(x))
    kind = b.op.target.split(".")[1]
    # Rounding grows with the length of a product; of a sum only the lanes and blocks of the loops see its length.
    wide = F64 if kind == "prod" and dtype == F32 else dtype.compute
    value = b.cast(b.cast(x, dtype), wide)
    return b.finish(b.reduce(kind, value, _axes(b, x), _keep(b)))


@rule("mean.default", "mean.dim")
def _mean(b: Builder) -> Result:
    x, dtype = b.op.operands[0], b.type.dtype
    real(dtype)
    axes = _axes(b, x)
    value = b.cast(b.cast(x, dtype), dtype.compute)
    n = b.count(b.shape_of(x), axes)
    total = b.reduce("sum", value, axes, _keep(b))
    if n == 0:
        raise NotCovered("a mean over nothing")
    divisor = float(n) if isinstance(n, int) else n
    return b.finish(b.ew("div", total, b.full(divisor, b.shape_of(total), b.dtype_of(total))))


@rule("amax.default", "amin.default", "max.default", "min.default")
def _amax(b: Builder) -> Result:
    x = b.op.operands[0]
    real(b.dtype_of(x))
    axes = _axes(b, x)
    b.nonempty(x, axes)
    kind = b.op.target.split(".")[1].removeprefix("a")
    return b.finish(b.reduce(kind, b.up(x), axes, _keep(b)))


@rule("max.dim", "min.dim")
def _max_dim(b: Builder) -> Result:
    x = b.op.operands[0]
    real(b.dtype_of(x))
    if b.rank_of(x) == 0 or b.dtype_of(x) == BOOL:
        raise NotCovered("a scalar or bool")
    d = b.get("dim")
    b.nonempty(x, (d,))
    kind = b.op.target.split(".")[1]
    value = b.reduce(kind, b.up(x), (d,), _keep(b))
    index = b.reduce("arg" + kind, b.up(x), (d,), _keep(b))
    return [b.finish(value), b.finish(index, 1)]


@rule("argmax.default", "argmin.default")
def _argmax(b: Builder) -> Result:
    x = b.op.operands[0]
    real(b.dtype_of(x))
    kind, d = b.op.target.split(".")[1], b.get("dim")
    if b.rank_of(x) == 0 or b.dtype_of(x) == BOOL:
        raise NotCovered("a scalar or bool")
    if d is None:
        if _keep(b):
            raise NotCovered("keepdim without dim")
        x, d = b.reshape(x, (prim.tensor(x).numel,)), 0
    b.nonempty(x, (d,))
    return b.finish(b.reduce(kind, b.up(x), (d,), _keep(b)))


@rule("any.default", "any.dim", "any.dims", "all.default", "all.dim", "all.dims")
def _any(b: Builder) -> Result:
    x = b.op.operands[0]
    real(b.dtype_of(x))
    truth = x if b.dtype_of(x) == BOOL else b.cast(x, BOOL)
    return b.finish(b.reduce(b.op.target.split(".")[1], truth, _axes(b, x), _keep(b)))


def _variance(b: Builder, x: SSAValue, axes: tuple[int, ...], correction: Any) -> tuple[SSAValue, SSAValue]:
    """(variance, mean), two passes: the mean, then the squared distances from it."""
    mean = b.mean(x, axes)
    distance = b.ew("sub", x, b.spread(mean, b.shape_of(x), axes))
    n = b.count(b.shape_of(x), axes)
    if not isinstance(n, int) and correction not in (0, 1):
        raise NotCovered("a correction that is not 0 or 1")
    return b.mean(b.ew("mul", distance, distance), axes, correction), mean


def _given_mean(b: Builder, variance: SSAValue, mean: SSAValue) -> SSAValue:
    """The mean as a result: the library finds both in one pass, whose mean is nan where an element is infinite, as the variance is."""
    return b.ew("where", b.ew("isnan", variance), variance, mean)


@rule(
    "var.correction", "std.correction", "var_mean.correction", "std_mean.correction", "var.dim", "std.dim",
    "var.default", "std.default",
)  # fmt: skip
def _var(b: Builder) -> Result:
    x = b.op.operands[0]
    real(b.dtype_of(x))
    axes = _axes(b, x)
    correction = b.get("correction", None)
    if correction is None:
        correction = 1 if b.get("unbiased", True) else 0
    if correction != correction:  # eager divides by 0
        correction = math.inf
    # Squares and their sums leave the range of float32 long before the result does: eager computes in float64 on a CPU.
    wide = b.dtype_of(x) in (F32, BF16) and not b.on_gpu
    variance, mean = _variance(b, b.cast(x, F64) if wide else b.up(x), axes, correction)
    results = [b.ew("sqrt", variance) if "std" in b.op.target else variance]
    if "_mean" in b.op.target:
        results.append(mean if b.count(b.shape_of(x), axes) == 1 else _given_mean(b, variance, mean))
    kept = [b.keep(r, b.shape_of(x), axes) if _keep(b) else r for r in results]
    return [b.finish(r, i) for i, r in enumerate(kept)]


@rule("cumsum.default", "cumprod.default")
def _cumsum(b: Builder) -> Result:
    x, dtype = b.op.operands[0], b.type.dtype
    real(dtype)
    # Every element is rounded as often as it has predecessors, so eager adds up float32 in float64 too.
    value = b.cast(b.cast(x, dtype), F64 if dtype == F32 else dtype.compute)
    if b.rank_of(x) == 0:
        return b.finish(value)
    kind = {"cumsum": "sum", "cumprod": "prod"}[b.op.target.split(".")[1]]
    attrs = {"kind": kind, "dim": b.get("dim")}
    return b.finish(b.add(prim.Scan.make([value], [prim.tensor(value)], attrs)))


@rule("_softmax.default", "softmax.int", "_log_softmax.default", "log_softmax.int", "_safe_softmax.default")
def _softmax(b: Builder) -> Result:
    x = b.op.operands[0]
    dtype = b.type.dtype
    if not dtype.is_float or b.rank_of(x) == 0:
        raise NotCovered("not a float tensor")
    axes = (b.get("dim"),)
    b.nonempty(x, axes)
    value = b.cast(x, dtype.compute)
    shape = b.shape_of(value)
    top = b.reduce("max", value, axes)
    shifted = b.ew("sub", value, b.spread(top, shape, axes))
    weight = b.ew("exp", shifted)
    total = b.reduce("sum", weight, axes)
    if "log" in b.op.target:
        return b.finish(b.ew("sub", shifted, b.spread(b.ew("log", total), shape, axes)))
    result = b.ew("div", weight, b.spread(total, shape, axes))
    if "safe" in b.op.target:  # a row of nothing but -inf gives zeros
        nothing = b.spread(b.ew("eq", top, -math.inf), shape, axes)
        result = b.ew("where", nothing, b.full(0.0, (), dtype.compute), result)
    return b.finish(result)


@rule("logsumexp.default")
def _logsumexp(b: Builder) -> Result:
    x = b.op.operands[0]
    if not b.dtype_of(x).is_float or b.rank_of(x) == 0:
        raise NotCovered("not a float tensor")
    axes = _axes(b, x)
    b.nonempty(x, axes)
    value = b.up(x)
    top = b.reduce("max", value, axes)
    infinite = b.ew("isinf", top)
    safe = b.ew("where", infinite, b.full(0.0, b.shape_of(top), b.dtype_of(top)), top)
    total = b.reduce("sum", b.ew("exp", b.ew("sub", value, b.spread(safe, b.shape_of(value), axes))), axes)
    result = b.ew("add", b.ew("log", total), safe)
    return b.finish(b.keep(result, b.shape_of(x), axes) if _keep(b) else result)


@rule("linalg_vector_norm.default", "norm.ScalarOpt_dim", "norm.Scalar")
def _norm(b: Builder) -> Result:
    x, dtype = b.op.operands[0], b.type.dtype
    p = b.get("ord", b.get("p", 2))
    real(b.dtype_of(x))
    axes = _axes(b, x)
    value = b.cast(b.cast(x, dtype), dtype.compute)
    if p == 2:
        result = b.ew("sqrt", b.reduce("sum", b.ew("mul", value, value), axes, _keep(b)))
    elif p == 1:
        result = b.reduce("sum", b.ew("abs", value), axes, _keep(b))
    elif p in (math.inf, -math.inf):
        b.nonempty(x, axes)
        result = b.reduce("max" if p > 0 else "min", b.ew("abs", value), axes, _keep(b))
    else:
        raise NotCovered(f"the norm of order {p}")
    return b.finish(result)


def _affine(b: Builder, x: SSAValue, shape: tuple[Dim, ...], place: tuple[int, ...]) -> SSAValue:
    """x * weight + bias, both along the dimensions `place`."""
    weight, bias = b.maybe("weight"), b.maybe("bias")
    if weight is not None:
        x = b.ew("mul", x, b.add(prim.broadcast(b.cast(weight, b.dtype_of(x)), shape, place)))
    if bias is not None:
        x = b.ew("add", x, b.add(prim.broadcast(b.cast(bias, b.dtype_of(x)), shape, place)))
    return x


def _epsilon(b: Builder, variance: SSAValue, default: float = 1e-5) -> SSAValue:
    return b.ew("rsqrt", b.ew("add", variance, float(b.get("eps", default))))


@rule("native_layer_norm.default", "layer_norm.default")
def _layer_norm(b: Builder) -> Result:
    x = b.tensor("input")
    shape = b.shape_of(x)
    rank, n = len(shape), len(b.get("normalized_shape"))
    axes = tuple(range(rank - n, rank))
    b.nonempty(x, axes)
    if not b.dtype_of(x).is_float:
        raise NotCovered("not a float tensor")
    value = b.up(x)
    variance, mean = _variance(b, value, axes, 0)
    scale = _epsilon(b, variance)
    centred = b.ew("sub", value, b.spread(mean, shape, axes))
    result = b.finish(_affine(b, b.ew("mul", centred, b.spread(scale, shape, axes)), shape, axes))
    if "native" not in b.op.target:
        return result
    given = _given_mean(b, variance, mean)
    return [result, *(b.finish(b.keep(v, shape, axes), i) for i, v in ((1, given), (2, scale)))]


@rule("rms_norm.default", "_fused_rms_norm.default")
def _rms_norm(b: Builder) -> Result:
    x = b.tensor("input")
    shape = b.shape_of(x)
    rank, n = len(shape), len(b.get("normalized_shape"))
    axes = tuple(range(rank - n, rank))
    if not b.dtype_of(x).is_float or "fused" in b.op.target:
        raise NotCovered("not a float tensor")
    eps = b.get("eps")
    if eps is None:
        import torch

        eps = torch.finfo(b.dtype_of(x).torch).eps
    value = b.up(x)
    scale = b.ew("rsqrt", b.ew("add", b.mean(b.ew("mul", value, value), axes), float(eps)))
    return b.finish(_affine(b, b.ew("mul", value, b.spread(scale, shape, axes)), shape, axes))


@rule("_weight_norm_interface.default")
def _weight_norm(b: Builder) -> Result:
    """v * (g / |v|), a length for each slice along `dim`; and the lengths."""
    v = b.floating("v")
    shape, d = b.shape_of(v), b.get("dim", 0) % b.rank_of(v)
    axes = tuple(i for i in range(len(shape)) if i != d)
    b.nonempty(v)
    length = b.ew("sqrt", b.reduce("sum", b.ew("mul", v, v), axes))
    scale = b.ew("div", b.reshape(b.floating("g"), (shape[d],)), length)
    return [b.finish(b.ew("mul", v, b.spread(scale, shape, axes))), b.finish(b.keep(length, shape, axes), 1)]


@rule("native_group_norm.default", "group_norm.default")
def _group_norm(b: Builder) -> Result:
    x = b.tensor("input")
    shape = b.shape_of(x)
    groups = b.get("group", b.get("num_groups"))
    if not b.dtype_of(x).is_float or not isinstance(shape[1], int) or shape[1] % groups:
        raise NotCovered("channels that do not split")
    grouped = (shape[0], groups, shape[1] // groups, *shape[2:])
    axes = tuple(range(2, len(grouped)))
    value = b.reshape(b.up(x), grouped)
    b.nonempty(value, axes)
    variance, mean = _variance(b, value, axes, 0)
    scale = _epsilon(b, variance)
    centred = b.ew("mul", b.ew("sub", value, b.spread(mean, grouped, axes)), b.spread(scale, grouped, axes))
    made = _affine(b, b.reshape(centred, shape), shape, (1,))
    if b.maybe("weight") is not None:
        made = _endless(b, made, value, (mean, scale), grouped)
    result = b.finish(made)
    if "native" not in b.op.target:
        return result
    return [result, b.finish(_given_mean(b, variance, mean), 1), b.finish(scale, 2)]


def _endless(
    b: Builder, made: SSAValue, value: SSAValue, statistics: tuple[SSAValue, SSAValue], grouped: tuple[Dim, ...]
) -> SSAValue:
    """Where an infinite weight leaves nothing to round: x * factor + (bias - mean * factor), which is how eager computes all of it."""
    shape, axes = b.shape_of(made), tuple(range(2, len(grouped)))
    kind = b.dtype_of(value)

    def spread(name: str) -> SSAValue | None:
        given = b.maybe(name)
        return None if given is None else b.add(prim.broadcast(b.cast(given, kind), shape, (1,)))

    mean, scale = (b.reshape(b.spread(v, grouped, axes), shape) for v in statistics)
    weight, bias = spread("weight"), spread("bias")
    assert weight is not None
    factor = b.ew("mul", scale, weight)
    shift = b.ew("neg", b.ew("mul", mean, factor))
    shift = shift if bias is None else b.ew("add", shift, bias)
    other = b.ew("add", b.ew("mul", b.reshape(value, shape), factor), shift)
    return b.ew("where", b.ew("isinf", factor), b.cast(other, b.dtype_of(made)), made)


@rule(
    "_native_batch_norm_legit_no_training.default",
    "native_batch_norm.default",
    "_native_batch_norm_legit.default",
    "cudnn_batch_norm.default",
    "batch_norm.default",
    "_native_batch_norm_legit_functional.default",
)
def _batch_norm(b: Builder) -> Result:
    x = b.tensor("input")
    shape = b.shape_of(x)
    if not b.dtype_of(x).is_float or len(shape) < 2:
        raise NotCovered("not a float tensor")
    given = [b.maybe(n) for n in ("weight", "bias", "running_mean", "running_var")]
    if any(v is not None and b.shape_of(v) != (shape[1],) for v in given):
        raise NotCovered("a weight or statistics of another size than the channels")
    training = b.get("training", False) and "no_training" not in b.op.target
    value = b.up(x)
    if training and b.op.target.startswith("cudnn"):
        raise NotCovered("running statistics that are written without being results")
    if training:
        return _batch_norm_training(b, value, shape)
    mean, variance = (b.cast(b.tensor(n), b.dtype_of(value)) for n in ("running_mean", "running_var"))
    scale = _epsilon(b, variance)
    result = _normalize(b, value, mean, scale, shape)
    if len(b.op.results) == 1:
        return result
    kept = [prim.tensor(r) for r in b.op.results[1:3]]  # of the statistics nothing on a CPU; on a GPU what was used
    saved = [
        b.full(0.0, t.shape, t.dtype) if 0 in t.shape else b.finish(v, k)
        for k, (t, v) in enumerate(zip(kept, (mean, scale), strict=True), 1)
    ]
    return [result, *saved, *(b.tensor(n) for n in ("running_mean", "running_var")[: len(b.op.results) - 3])]


def _normalize(b: Builder, value: SSAValue, mean: SSAValue, scale: SSAValue, shape: tuple[Dim, ...]) -> SSAValue:
    """(x - mean) * scale * weight + bias, with the factors joined per channel first."""
    weight, bias = b.maybe("weight"), b.maybe("bias")
    factor = b.ew("mul", scale, b.cast(weight, b.dtype_of(scale))) if weight is not None else scale
    centred = b.ew("sub", value, b.add(prim.broadcast(mean, shape, (1,))))
    result = b.ew("mul", centred, b.add(prim.broadcast(factor, shape, (1,))))
    if bias is not None:
        result = b.ew("add", result, b.add(prim.broadcast(b.cast(bias, b.dtype_of(result)), shape, (1,))))
    return b.finish(result)


def _batch_norm_training(b: Builder, value: SSAValue, shape: tuple[Dim, ...]) -> Result:
    axes = tuple(i for i in range(len(shape)) if i != 1)
    b.nonempty(value, axes)
    variance, mean = _variance(b, value, axes, 0)
    scale = _epsilon(b, variance)
    results: list[SSAValue | None] = [_normalize(b, value, mean, scale, shape), b.finish(mean, 1), b.finish(scale, 2)]
    if len(b.op.results) <= 3:
        return results
    momentum, n = float(b.get("momentum", 0.1)), b.count(shape, axes)
    if isinstance(n, int):
        if n < 2:
            raise NotCovered("a batch of one element")
        unbiased = b.ew("mul", variance, n / (n - 1))
    else:
        count, others = (b.full(k, b.shape_of(variance), b.dtype_of(variance)) for k in (n, dim(n - 1)))
        unbiased = b.ew("mul", variance, b.ew("div", count, others))
    for i, (name, fresh) in enumerate((("running_mean", mean), ("running_var", unbiased))):
        old = b.up(b.tensor(name))
        mixed = b.ew("add", b.ew("mul", old, 1 - momentum), b.ew("mul", b.cast(fresh, b.dtype_of(old)), momentum))
        results.append(b.finish(mixed, 3 + i))
    return results


@rule("nll_loss_forward.default", "nll_loss.default", "nll_loss2d_forward.default", "nll_loss2d.default")
def _nll_loss(b: Builder) -> Result:
    """Classes are dimension 1; behind it there are none, or those of an image."""
    x, target = b.tensor("self"), b.tensor("target")
    rank = 4 if "2d" in b.op.target else 2
    if b.rank_of(x) != rank or b.rank_of(target) != rank - 1 or b.dtype_of(target) != I64 or not b.dtype_of(x).is_float:
        raise NotCovered("a shape of other rank")
    rows = b.shape_of(target)
    if rank == 4 and any(s == 0 for s in rows):
        raise NotCovered("a reduction over nothing")
    used = b.ew("ne", target, int(b.get("ignore_index", -100)))
    safe = b.ew("where", used, target, b.full(0, rows, I64))
    wide, line = b.up(x), (rows[0], 1, *rows[1:])
    picked = b.add(prim.Gather.make([wide, b.reshape(safe, line)], [prim.tensor(wide).with_(shape=line)], {"dim": 1}))
    loss = b.ew("neg", b.reshape(picked, rows))
    kind, axes = b.dtype_of(loss), tuple(range(rank - 1))
    weight = b.maybe("weight")
    if weight is not None:
        share = b.add(prim.Take.make([b.cast(weight, kind), safe], [prim.tensor(loss)], {"dim": 0}))
        loss = b.ew("mul", loss, share)
        counted = b.ew("where", used, share, b.full(0.0, rows, kind))
    else:
        counted = b.cast(used, kind)
    loss = b.ew("where", used, loss, b.full(0.0, rows, kind))
    total = b.reduce("sum", counted, axes)
    reduction = b.get("reduction", 1)
    if reduction == 0:
        value, total = loss, b.full(0.0, (), kind)
    else:
        value = b.reduce("sum", loss, axes)
        value = b.ew("div", value, total) if reduction == 1 else value
    return [b.finish(value), b.finish(total, 1)] if "forward" in b.op.target else b.finish(value)


@rule("nansum.default")
def _nansum(b: Builder) -> Result:
    x, dtype = b.tensor("self"), b.type.dtype
    if not b.dtype_of(x).is_float or not dtype.is_float:
        raise NotCovered("not a float tensor")
    value = b.cast(b.cast(x, dtype), dtype.compute)
    value = b.ew("where", b.ew("isnan", value), b.full(0.0, (), b.dtype_of(value)), value)
    return b.finish(b.reduce("sum", value, _axes(b, x), _keep(b)))


@rule("count_nonzero.default", "count_nonzero.dim_IntList")
def _count_nonzero(b: Builder) -> Result:
    x = b.tensor("self")
    if b.dtype_of(x).kind == "complex":
        raise NotCovered("complex numbers")
    some = x if b.dtype_of(x) == BOOL else b.ew("ne", b.up(x), 0.0 if b.dtype_of(x).is_float else 0)
    return b.finish(b.reduce("sum", b.cast(some, I64), _axes(b, x)))


@rule("aminmax.default")
def _aminmax(b: Builder) -> Result:
    x = b.tensor("self")
    if b.dtype_of(x).kind in ("bool", "complex"):
        raise NotCovered("bool or complex numbers")
    axes = _axes(b, x)
    b.nonempty(x, axes)
    return [b.finish(b.reduce(kind, b.up(x), axes, _keep(b)), k) for k, kind in enumerate(("min", "max"))]
