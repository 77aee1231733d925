"""Operators that are a few others: shrinking activations, logarithms that know zero and infinity, tests of signs, counts."""

from __future__ import annotations

import math
from typing import Any

import torch
from xdsl.ir import SSAValue

from ....ir.dtypes import BOOL, I64
from ....ir.symbols import Dim
from .builder import Builder, NotCovered, Result, rule


def _float(b: Builder, name: str = "self") -> SSAValue:
    """A float operand, half types as float32."""
    x = b.tensor(name)
    if not b.dtype_of(x).is_float:
        raise NotCovered("not a float tensor")
    return b.up(x)


def _widest(b: Builder, *names: str) -> list[Any]:
    """Float operands, None where one is not given, all in the dtype of the widest; half types as float32."""
    given = {name: _float(b, name) for name in names if b.has(name)}
    wide = max((b.dtype_of(v) for v in given.values()), key=lambda dtype: dtype.bytes)
    return [b.cast(given[name], wide) if name in given else None for name in names]


def _floats(b: Builder, *names: str) -> list[SSAValue]:
    """Operands or numbers in the dtype in which a float result is computed."""
    if not b.type.dtype.is_float:
        raise NotCovered("not a float tensor")
    values = [b.operand(b.either(n), b.type.dtype) for n in names]
    wide = b.type.dtype.compute
    return [b.cast(v, wide) if isinstance(v, SSAValue) else b.full(v, (), wide) for v in values]


def _zero(b: Builder, like: SSAValue) -> SSAValue:
    return b.full(0.0, (), b.dtype_of(like))


@rule("nan_to_num.default")
def _nan_to_num(b: Builder) -> Result:
    x = b.tensor("self")
    if b.dtype_of(x).is_integer:
        return x
    value, limits = _float(b), torch.finfo(b.dtype_of(x).torch)
    nan, high, low = b.get("nan"), b.get("posinf"), b.get("neginf")
    kind = b.dtype_of(value)
    high, low = limits.max if high is None else float(high), limits.min if low is None else float(low)
    found = b.ew("where", b.ew("isnan", value), b.full(float(nan or 0.0), (), kind), value)
    found = b.ew("where", b.ew("eq", value, math.inf), b.full(high, (), kind), found)
    return b.finish(b.ew("where", b.ew("eq", value, -math.inf), b.full(low, (), kind), found))


@rule("celu.default")
def _celu(b: Builder) -> Result:
    x, alpha = _float(b), float(b.get("alpha", 1.0))
    low = b.ew("mul", b.ew("expm1", b.ew("div", x, alpha)), alpha)
    return b.finish(b.ew("where", b.ew("gt", x, 0.0), x, low))


@rule("hardshrink.default", "softshrink.default")
def _shrink(b: Builder) -> Result:
    """0 near 0; elsewhere x, or what of it lies beyond."""
    x, near = _float(b), float(b.get("lambd", 0.5))
    if "hard" in b.op.target:
        inside = b.ew("and", b.ew("ge", x, -near), b.ew("le", x, near))
        return b.finish(b.ew("where", inside, _zero(b, x), x))
    low = b.ew("where", b.ew("lt", x, -near), b.ew("add", x, near), b.ew("where", b.ew("isnan", x), x, _zero(b, x)))
    return b.finish(b.ew("where", b.ew("gt", x, near), b.ew("sub", x, near), low))


@rule("xlogy.Tensor", "xlogy.Scalar_Self", "xlogy.Scalar_Other", "special_xlog1py.default", "special_xlog1py.self_scalar",
      "special_xlog1py.other_scalar")  # fmt: skip
def _xlogy(b: Builder) -> Result:
    """x * log(y), 0 where x is 0 unless y is nan."""
    x, y = _floats(b, "self", "other")
    product = b.ew("mul", x, b.ew("log1p" if "1p" in b.op.target else "log", y))
    none = b.ew("where", b.ew("eq", x, 0.0), _zero(b, x), product)
    return b.finish(b.ew("where", b.ew("isnan", y), b.full(math.nan, (), b.dtype_of(y)), none))


@rule("logaddexp.default", "logaddexp2.default")
def _logaddexp(b: Builder) -> Result:
    """log(exp(x) + exp(y)), from the larger of both."""
    x, y = _floats(b, "self", "other")
    most, apart = b.ew("max", x, y), b.ew("neg", b.ew("abs", b.ew("sub", x, y)))
    if "exp2" in b.op.target:
        more = b.ew("div", b.ew("log1p", b.ew("exp2", apart)), math.log(2))
    else:
        more = b.ew("log1p", b.ew("exp", apart))
    endless = b.ew("and", b.ew("isinf", x), b.ew("eq", x, y))  # their difference is nan
    return b.finish(b.ew("where", endless, x, b.ew("add", most, more)))


@rule("logit.default")
def _logit(b: Builder) -> Result:
    x, eps = _float(b), b.get("eps")
    if eps is not None:
        low, high = (b.full(bound, (), b.dtype_of(x)) for bound in (float(eps), 1 - float(eps)))
        if eps <= 0.5:
            x = b.ew("min", b.ew("max", x, low), high)
        else:  # the lower bound is the greater one, and is asked first
            x = b.ew("where", b.ew("lt", x, low), low, b.ew("where", b.ew("gt", x, high), high, x))
    return b.finish(b.ew("log", b.ew("div", x, b.ew("sub", b.full(1.0, (), b.dtype_of(x)), x))))


@rule("frac.default")
def _frac(b: Builder) -> Result:
    x = _float(b)
    return b.finish(b.ew("sub", x, b.ew("trunc", x)))


@rule("deg2rad.default", "rad2deg.default")
def _degrees(b: Builder) -> Result:
    (x,) = _floats(b, "self")
    return b.finish(b.ew("mul", x, math.pi / 180 if "deg2" in b.op.target else 180 / math.pi))


@rule("sinc.default")
def _sinc(b: Builder) -> Result:
    (x,) = _floats(b, "self")
    turned = b.ew("mul", x, math.pi)
    found = b.ew("div", b.ew("sin", turned), turned)
    return b.finish(b.ew("where", b.ew("eq", x, 0.0), b.full(1.0, (), b.dtype_of(x)), found))


@rule("isposinf.default", "isneginf.default")
def _is_infinite(b: Builder) -> Result:
    x = b.tensor("self")
    if b.dtype_of(x).is_integer:
        return b.full(False)
    return b.finish(b.ew("eq", _float(b), math.inf if "pos" in b.op.target else -math.inf))


@rule("signbit.default")
def _signbit(b: Builder) -> Result:
    x = b.tensor("self")
    if b.dtype_of(x).kind in ("bool", "uint"):
        return b.full(False)
    if b.dtype_of(x).is_integer:
        return b.finish(b.ew("lt", x, 0))
    value = _float(b)
    return b.finish(b.ew("lt", b.ew("copysign", b.full(1.0, b.shape_of(value), b.dtype_of(value)), value), 0.0))


@rule("heaviside.default")
def _heaviside(b: Builder) -> Result:
    x, at_zero = _floats(b, "self", "values")
    one = b.full(1.0, (), b.dtype_of(x))
    above = b.ew("where", b.ew("gt", x, 0.0), one, _zero(b, x))  # of nan 0
    return b.finish(b.ew("where", b.ew("eq", x, 0.0), at_zero, above))


@rule("fmax.default", "fmin.default")
def _fmax(b: Builder) -> Result:
    """The larger of two numbers, the other one where one is nan."""
    x, y = _floats(b, "self", "other")
    best = b.ew("max" if "fmax" in b.op.target else "min", x, y)
    return b.finish(b.ew("where", b.ew("isnan", x), y, b.ew("where", b.ew("isnan", y), x, best)))


@rule("binary_cross_entropy_with_logits.default")
def _logits_loss(b: Builder) -> Result:
    """(1 - t) x - w log(sigmoid(x)), where w is 1 + (p - 1) t with a weight p of the positive class."""
    x, target, factor, weight = _widest(b, "self", "target", "pos_weight", "weight")
    low = b.ew("min", x, 0.0)
    log_sigmoid = b.ew("sub", low, b.ew("log1p", b.ew("exp", b.ew("neg", b.ew("abs", x)))))
    share = b.ew("sub", b.full(1.0, (), b.dtype_of(target)), target)
    if factor is not None:
        factor = b.ew("add", b.ew("mul", b.ew("sub", factor, 1.0), target), 1.0)
        log_sigmoid = b.ew("mul", factor, log_sigmoid)
    loss = b.ew("sub", b.ew("mul", share, x), log_sigmoid)
    if weight is not None:
        loss = b.ew("mul", loss, weight)
    return _joined(b, loss)


@rule("soft_margin_loss.default")
def _soft_margin(b: Builder) -> Result:
    target, x = _widest(b, "target", "self")
    return _joined(b, b.ew("log1p", b.ew("exp", b.ew("neg", b.ew("mul", target, x)))))


def _joined(b: Builder, loss: SSAValue) -> SSAValue:
    """The losses, their mean or their sum."""
    axes, reduction = tuple(range(b.rank_of(loss))), b.get("reduction", 1)
    if reduction == 0:
        return b.finish(loss)
    if any(s == 0 for s in b.shape_of(loss)):
        raise NotCovered("a reduction over nothing")
    return b.finish(b.mean(loss, axes) if reduction == 1 else b.reduce("sum", loss, axes))


# ---- reductions -------------------------------------------------------------------------------------------------------


@rule("nansum.default")
def _nansum(b: Builder) -> Result:
    x, dtype = b.tensor("self"), b.type.dtype
    if not b.dtype_of(x).is_float or not dtype.is_float:
        raise NotCovered("not a float tensor")
    value = b.cast(b.cast(x, dtype), dtype.compute)
    value = b.ew("where", b.ew("isnan", value), _zero(b, value), value)
    return b.finish(b.reduce("sum", value, b.axes(b.get("dim"), b.rank_of(x)), bool(b.get("keepdim", False))))


@rule("count_nonzero.default", "count_nonzero.dim_IntList")
def _count_nonzero(b: Builder) -> Result:
    x = b.tensor("self")
    if b.dtype_of(x).kind == "complex":
        raise NotCovered("complex numbers")
    some = x if b.dtype_of(x) == BOOL else b.ew("ne", b.up(x), 0.0 if b.dtype_of(x).is_float else 0)
    return b.finish(b.reduce("sum", b.cast(some, I64), b.axes(b.get("dim"), b.rank_of(x))))


@rule("aminmax.default")
def _aminmax(b: Builder) -> Result:
    x, d = b.tensor("self"), b.get("dim")
    if b.dtype_of(x).kind in ("bool", "complex"):
        raise NotCovered("bool or complex numbers")
    axes = b.axes(d, b.rank_of(x))
    if any(b.shape_of(x)[a] == 0 for a in axes):
        raise NotCovered("a reduction over nothing")
    ends = [b.reduce(kind, b.up(x), axes, bool(b.get("keepdim", False))) for kind in ("min", "max")]
    return [b.finish(end, k) for k, end in enumerate(ends)]


# ---- movement ---------------------------------------------------------------------------------------------------------


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
    x, y = (b.to_shape(v, b.type.shape) for v in _floats(b, "self", "other"))
    d = b.get("dim", -1)
    a, c = ([b.slice(v, d, k, 1) for k in range(3)] for v in (x, y))
    parts = [
        b.ew("sub", b.ew("mul", a[(k + 1) % 3], c[(k + 2) % 3]), b.ew("mul", a[(k + 2) % 3], c[(k + 1) % 3]))
        for k in range(3)
    ]
    return b.finish(b.concat(parts, d))
