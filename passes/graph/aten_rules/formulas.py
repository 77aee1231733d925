"""Operators that are a formula of single elements, and their derivatives: a table.

The names of a formula's parameters say what it is given: a tensor in the dtype in which the result is computed, or a
number, by the schema's name. `x` is the operand and `g` the gradient, whatever a schema calls them; `on_gpu` whether the
result lies on one. Where a function has a kink, its derivative takes the side that torch's documentation or kernel takes.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from xdsl.ir import SSAValue

from .builder import Builder, NotCovered, Result, rule

Formula: TypeAlias = Callable[..., "Value"]
Operand: TypeAlias = "Value | float"


class Value:
    """A tensor that a rule computes: operators append elementwise operations."""

    def __init__(self, b: Builder, ssa: SSAValue) -> None:
        self.b, self.ssa = b, ssa

    def number(self, value: float) -> Value:
        """A number of this dtype, as a tensor without dimensions."""
        return Value(self.b, self.b.full(value, (), self.b.dtype_of(self.ssa)))

    def __rsub__(self, other: float) -> Value:
        return self.number(other) - self

    def __neg__(self) -> Value:
        return neg(self)

    @staticmethod
    def _operator(row: str) -> Callable[[Value, Operand], Value]:
        return lambda x, y: apply(row, x, y)

    __add__, __sub__, __mul__, __truediv__ = map(_operator, ("add", "sub", "mul", "div"))
    __lt__, __le__, __gt__, __ge__ = map(_operator, ("lt", "le", "gt", "ge"))
    __and__, __or__ = map(_operator, ("and", "or"))


def apply(row: str, *values: Operand) -> Value:
    """An elementwise operation; at least one operand is a value."""
    b = next(v.b for v in values if isinstance(v, Value))
    return Value(b, b.ew(row, *(v.ssa if isinstance(v, Value) else v for v in values)))


def _function(row: str) -> Callable[..., Value]:
    return lambda *values: apply(row, *values)


absolute, equals, maximum, minimum, neg, trunc = map(_function, ("abs", "eq", "max", "min", "neg", "trunc"))
exp, exp2, expm1, log, log1p, erf = map(_function, ("exp", "exp2", "expm1", "log", "log1p", "erf"))
isinf, isnan, sigmoid, sin, tanh = map(_function, ("isinf", "isnan", "sigmoid", "sin", "tanh"))


def where(condition: Value, a: Operand, b: Operand) -> Value:
    """a where the condition holds, else b; one of them is a value."""
    like = next(v for v in (a, b) if isinstance(v, Value))
    return apply("where", condition, *(v if isinstance(v, Value) else like.number(v) for v in (a, b)))


def _squared(x: Value) -> Value:
    return x * x


def between(x: Value, low: float, high: float) -> Value:
    return minimum(maximum(x, low), high)


# ---- longer formulas ------------------------------------------------------------------------------------------------


def _gelu(x: Value, approximate: str) -> Value:
    half = x * 0.5
    if approximate == "none":
        return half * (erf(x * math.sqrt(0.5)) + 1.0)
    return half * (tanh((x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)) + 1.0)


def _gelu_backward(g: Value, x: Value, approximate: str) -> Value:
    square = x * x
    if approximate == "none":
        below = (erf(x * math.sqrt(0.5)) + 1.0) * 0.5
        density = exp(square * -0.5) * (1 / math.sqrt(2 * math.pi))
        return g * (below + x * density)
    rate = math.sqrt(2 / math.pi)
    t = tanh((x + square * x * 0.044715) * rate)
    slope = (square * (3 * 0.044715) + 1.0) * rate
    moving = x * 0.5 * (1.0 - t * t) * slope
    return g * ((t + 1.0) * 0.5 + moving)


def _softplus_20(x: Value) -> Value:
    return where(x > 20.0, x, log1p(exp(x)))


def _silu_backward(g: Value, x: Value) -> Value:
    s = sigmoid(x)
    return g * s * (x * (1.0 - s) + 1.0)


def _mish_backward(g: Value, x: Value) -> Value:
    t = tanh(_softplus_20(x))
    return g * (t + x * sigmoid(x) * (1.0 - t * t))


def _elu(x: Value, alpha: float, scale: float, input_scale: float) -> Value:
    low = expm1(x * input_scale) * (alpha * scale)
    return where(x > 0.0, x * scale, low)


def _elu_backward(
    g: Value, x: Value, alpha: float, scale: float, input_scale: float, is_result: bool, on_gpu: bool
) -> Value:
    if is_result:
        low = g * input_scale * (x + alpha * scale)
    else:
        low = g * (input_scale * alpha * scale) * exp(x * input_scale)
    high = g * scale
    return where(x <= 0.0, low, high) if on_gpu else where(x > 0.0, high, low)  # nan stays nan on a CPU


def _softplus(x: Value, beta: float, threshold: float) -> Value:
    scaled = x * beta
    soft = log1p(exp(scaled)) / beta
    return where(scaled > threshold, x, soft)


def _softplus_backward(g: Value, x: Value, beta: float, threshold: float) -> Value:
    scaled = x * beta
    soft = g * sigmoid(scaled)
    return where(scaled > threshold, g, soft)


def _celu(x: Value, alpha: float) -> Value:
    low = expm1(x / alpha) * alpha
    return where(x > 0.0, x, low)


def _hardtanh_backward(g: Value, x: Value, min_val: float, max_val: float, on_gpu: bool) -> Value:
    if on_gpu:  # where x is nan, the gradient passes
        return where((x <= min_val) | (x >= max_val), 0.0, g)
    return where((x > min_val) & (x < max_val), g, 0.0)


def _hardswish_backward(g: Value, x: Value) -> Value:
    middle = g * (x / 3.0 + 0.5)
    inner = where(x >= 3.0, g, middle)  # nan stays nan
    return where(x <= -3.0, 0.0, inner)


def _softshrink(x: Value, lambd: float) -> Value:
    """What of x lies beyond."""
    low = where(x < -lambd, x + lambd, where(isnan(x), x, 0.0))
    return where(x > lambd, x - lambd, low)


def _shrink_backward(g: Value, x: Value, lambd: float, on_gpu: bool) -> Value:
    if on_gpu:
        return where((x >= -lambd) & (x <= lambd), 0.0, g)
    return where((x < -lambd) | (x > lambd), g, 0.0)  # where x is nan, no gradient passes


def _logit(x: Value, eps: float | None) -> Value:
    if eps is not None:
        low, high = x.number(eps), x.number(1 - eps)
        if eps <= 0.5:
            x = minimum(maximum(x, low), high)
        else:  # the lower bound is the greater one, and is asked first
            x = where(x < low, low, where(x > high, high, x))
    return log(x / (1.0 - x))


def _xlogy(log_of: Callable[[Value], Value]) -> Formula:
    """x * log(y), 0 where x is 0 unless y is nan."""

    def formula(x: Value, other: Value) -> Value:
        product = x * log_of(other)
        found = where(equals(x, 0.0), 0.0, product)
        return where(isnan(other), math.nan, found)

    return formula


def _logaddexp(exponential: Callable[[Value], Value], base: float | None) -> Formula:
    """log(exp(x) + exp(y)), from the larger of both."""

    def formula(x: Value, other: Value) -> Value:
        most, apart = maximum(x, other), -absolute(x - other)
        more = log1p(exponential(apart))
        more = more if base is None else more / math.log(base)
        endless = isinf(x) & equals(x, other)  # their difference is nan
        return where(endless, x, most + more)

    return formula


def _sinc(x: Value) -> Value:
    turned = x * math.pi
    found = sin(turned) / turned
    return where(equals(x, 0.0), 1.0, found)


def _heaviside(x: Value, values: Value) -> Value:
    one = x.number(1.0)
    above = where(x > 0.0, one, 0.0)  # of nan 0
    return where(equals(x, 0.0), values, above)


def _other_than_nan(best: Callable[..., Value]) -> Formula:
    """The larger, or the smaller, of two numbers, the other one where one is nan."""

    def formula(x: Value, other: Value) -> Value:
        found = best(x, other)
        return where(isnan(x), other, where(isnan(other), x, found))

    return formula


def _smooth_l1_loss(x: Value, target: Value, beta: float) -> Value:
    if beta == 0:
        raise NotCovered("an edge of 0")
    d = x - target
    size, square = absolute(d), d * d * 0.5
    near, far = square / beta, size - 0.5 * beta
    return where(size < beta, near, far)


def _huber_loss(x: Value, target: Value, delta: float) -> Value:
    if delta == 0:
        raise NotCovered("an edge of 0")
    d = x - target
    size, square = absolute(d), d * d * 0.5
    far = (size - 0.5 * delta) * delta
    return where(size <= delta, square, far)


def _logits_loss(x: Value, target: Value, pos_weight: Value | None, weight: Value | None) -> Value:
    """(1 - t) x - w log(sigmoid(x)), where w is 1 + (p - 1) t with a weight p of the positive class."""
    log_sigmoid = minimum(x, 0.0) - log1p(exp(-absolute(x)))
    share = 1.0 - target
    if pos_weight is not None:
        log_sigmoid = ((pos_weight - 1.0) * target + 1.0) * log_sigmoid
    loss = share * x - log_sigmoid
    return loss if weight is None else loss * weight


def _lerp(x: Value, end: Value, weight: Value | float) -> Value:
    weight = weight if isinstance(weight, Value) else x.number(weight)
    span = end - x
    low = x + weight * span
    high = end - span * (1.0 - weight)
    return where(absolute(weight) < 0.5, low, high)


# ---- the table ------------------------------------------------------------------------------------------------------

FORMULAS: dict[str, Formula] = {
    "hardswish": lambda x: x * between(x + 3.0, 0.0, 6.0) * (1 / 6),
    "hardsigmoid": lambda x: between(x + 3.0, 0.0, 6.0) * (1 / 6),
    "silu": lambda x: x * sigmoid(x),
    "mish": lambda x: x * tanh(_softplus_20(x)),
    "gelu": _gelu,
    "leaky_relu": lambda x, negative_slope: where(x > 0.0, x, x * negative_slope),
    "elu": _elu,
    "celu": _celu,
    "softplus": _softplus,
    "threshold": lambda x, threshold, value: where(x <= threshold, value, x),
    "hardshrink": lambda x, lambd: where((x >= -lambd) & (x <= lambd), 0.0, x),
    "softshrink": _softshrink,
    "logit": _logit,
    "frac": lambda x: x - trunc(x),
    "lerp": _lerp,
    "addcmul": lambda x, tensor1, tensor2, value: x + (tensor1 * value if value != 1 else tensor1) * tensor2,
    "addcdiv": lambda x, tensor1, tensor2, value: x + (tensor1 / tensor2 * value if value != 1 else tensor1 / tensor2),
    "_prelu_kernel": lambda x, weight: where(x > 0.0, x, weight * x),
    "threshold_backward": lambda g, x, threshold: where(x <= threshold, 0.0, g),
    "sigmoid_backward": lambda g, x: g * ((1.0 - x) * x),
    "tanh_backward": lambda g, x: g * (1.0 - x * x),
    "silu_backward": _silu_backward,
    "gelu_backward": _gelu_backward,
    "mish_backward": _mish_backward,
    "hardtanh_backward": _hardtanh_backward,
    "hardswish_backward": _hardswish_backward,
    "hardsigmoid_backward": lambda g, x: where((x > -3.0) & (x < 3.0), g * (1 / 6), 0.0),
    "leaky_relu_backward": lambda g, x, negative_slope: where(x > 0.0, g, g * negative_slope),
    "elu_backward": _elu_backward,
    "softplus_backward": _softplus_backward,
    "log_sigmoid_backward": lambda g, x: g * sigmoid(-x),
    "hardshrink_backward": _shrink_backward,
    "softshrink_backward": _shrink_backward,
}
# The same of integers too, and of a number for a tensor: operands are promoted to the result's dtype.
PROMOTING: dict[str, Formula] = {
    "xlogy": _xlogy(log),
    "special_xlog1py": _xlogy(log1p),
    "logaddexp": _logaddexp(exp, None),
    "logaddexp2": _logaddexp(exp2, 2),
    "deg2rad": lambda x: x * (math.pi / 180),
    "rad2deg": lambda x: x * (180 / math.pi),
    "sinc": _sinc,
    "heaviside": _heaviside,
    "fmax": _other_than_nan(maximum),
    "fmin": _other_than_nan(minimum),
}
# Losses, of which the call may want the mean or the sum; computed in the widest of the operands' dtypes.
LOSSES: dict[str, Formula] = {
    "mse_loss": lambda x, target: _squared(x - target),
    "l1_loss": lambda x, target: absolute(x - target),
    "smooth_l1_loss": _smooth_l1_loss,
    "huber_loss": _huber_loss,
    "soft_margin_loss": lambda target, x: log1p(exp(-(target * x))),
    "binary_cross_entropy_with_logits": _logits_loss,
}
_OF_NUMBERS = ("default", "Tensor", "Scalar_Self", "Scalar_Other", "self_scalar", "other_scalar")
_ARGUMENTS = {"x": ("self", "output", "self_or_result"), "g": ("grad_output", "grad_out")}


def _named(b: Builder, name: str) -> str:
    return next((each for each in _ARGUMENTS.get(name, ()) if b.has(each)), name)


def _given(b: Builder, names: Sequence[str]) -> list[Any]:
    found: list[Any] = []
    for name in (_named(b, each) for each in names):
        if b.has(name):
            found.append(Value(b, b.floating(name)))
            continue
        number = b.on_gpu if name == "on_gpu" else b.get(name)
        found.append(float(number) if isinstance(number, int | float) and not isinstance(number, bool) else number)
    return found


def promoted(b: Builder, names: Sequence[str]) -> list[Value]:
    """Tensors, or numbers as such, in the dtype in which the result is computed."""
    dtype, wide = b.type.dtype, b.type.dtype.compute
    if not dtype.is_float:
        raise NotCovered("not a float tensor")
    values = [b.operand(b.either("self" if name == "x" else name), dtype) for name in names]
    return [Value(b, b.cast(v, wide) if isinstance(v, SSAValue) else b.full(v, (), wide)) for v in values]


def _widest(b: Builder, names: Sequence[str]) -> list[Any]:
    """Tensors in the dtype of the widest, None where one is not given; numbers as they are."""
    tensors = {name: b.tensor(_named(b, name)) for name in names if b.has(_named(b, name))}
    if not all(b.dtype_of(v).is_float for v in tensors.values()):
        raise NotCovered("not a float tensor")
    raised = {name: b.up(v) for name, v in tensors.items()}
    wide = max(map(b.dtype_of, raised.values()), key=lambda dtype: dtype.bytes)
    return [Value(b, b.cast(raised[n], wide)) if n in raised else b.get(n) for n in names]


def _joined(b: Builder, loss: SSAValue) -> SSAValue:
    """The losses, their mean or their sum."""
    axes, reduction = tuple(range(b.rank_of(loss))), b.get("reduction", 1)
    if reduction == 1:
        b.nonempty(loss)
        loss = b.mean(loss, axes)
    return b.finish(b.reduce("sum", loss, axes) if reduction == 2 else loss)


def _register(
    table: dict[str, Formula],
    given: Callable[[Builder, Sequence[str]], list[Any]],
    overloads: Sequence[str],
    finish: Callable[[Builder, SSAValue], SSAValue] = Builder.finish,
) -> None:
    for name, formula in table.items():
        parameters = tuple(inspect.signature(formula).parameters)

        def run(b: Builder, formula: Formula = formula, parameters: tuple[str, ...] = parameters) -> Result:
            return finish(b, formula(*given(b, parameters)).ssa)

        rule(*(f"{name}.{overload}" for overload in overloads))(run)


_register(FORMULAS, _given, ("default", "Scalar", "Tensor"))
_register(PROMOTING, promoted, _OF_NUMBERS)
_register(LOSSES, _widest, ("default",), _joined)
