"""Elementwise operators: type promotion as torch does it, half types computed in float32."""

from __future__ import annotations

import math
from typing import Any

import torch
from xdsl.ir import SSAValue

from ....ir.dialects import prim
from ....ir.dtypes import BOOL, F16, DType
from ....ir.types import LiteralAttr
from .builder import Builder, NotCovered, Result, real, rule


def _arguments(b: Builder, *names: str) -> tuple[list[Any], DType]:
    """The named arguments, in the dtype in which torch computes."""
    values = [b.either(n) for n in names]
    dtype = b.promoted(*values)
    real(dtype)
    return [b.operand(v, dtype) for v in values], dtype


def _compute(b: Builder, values: list[Any], dtype: DType) -> list[Any]:
    """Values of a half dtype as float32."""
    return [b.cast(v, dtype.compute) if isinstance(v, SSAValue) else v for v in values]


def _tensors_first(b: Builder, values: list[Any], dtype: DType) -> list[Any]:
    """With only numbers and 0-dim tensors the first operand must be a tensor: numbers become constants of shape []."""
    return [v if isinstance(v, SSAValue) else b.full(v, (), dtype.compute) for v in values]


UNARY = {
    "neg": "neg",
    "abs": "abs",
    "sign": "sign",
    "sgn": "sign",
    "bitwise_not": "not",
    "floor": "floor",
    "ceil": "ceil",
    "trunc": "trunc",
    "round": "round",
}
UNARY_FLOAT = {
    name: name
    for name in (
        "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "sigmoid", "erf", "erfc", "lgamma", "sin", "cos",
        "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh",
    )
}  # fmt: skip


def _unary(row: str) -> Any:
    def run(b: Builder) -> Result:
        x = b.tensor("self")
        dtype = b.dtype_of(x)
        real(dtype)
        if dtype.is_integer and row in ("floor", "ceil", "trunc", "round"):
            return x
        if dtype.kind == "uint" and row in ("neg", "abs", "sign"):
            if row == "abs":
                return x
            raise NotCovered("an unsigned integer")
        if dtype == BOOL and row in ("neg", "abs", "sign"):
            if row == "neg":
                raise NotCovered("a bool")
            return x
        return b.finish(b.ew(row, b.up(x)))

    return run


def _unary_float(row: str) -> Any:
    def run(b: Builder) -> Result:
        x = b.tensor("self")
        real(b.dtype_of(x))
        return b.finish(b.ew(row, b.cast(x, b.type.dtype.compute)))

    return run


for _name, _row in UNARY.items():
    rule(f"{_name}.default")(_unary(_row))
for _name, _row in UNARY_FLOAT.items():
    rule(f"{_name}.default")(_unary_float(_row))


BINARY = {
    "mul": "mul", "maximum": "max", "minimum": "min", "atan2": "atan2", "fmod": "fmod", "remainder": "mod", "hypot": "hypot",
    "copysign": "copysign", "bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor", "bitwise_left_shift": "shl",
    "bitwise_right_shift": "shr", "__and__": "and", "__or__": "or", "__xor__": "xor", "__lshift__": "shl", "__rshift__": "shr",
}  # fmt: skip


def _divides(b: Builder) -> bool:
    """Whether signed integers are divided by a number, which is not 0."""
    other = b.get("other") if not b.has("other") else None
    return isinstance(other, int) and not isinstance(other, bool) and other > 0 and b.type.dtype.kind == "int"


def _binary(row: str) -> Any:
    def run(b: Builder) -> Result:
        values, dtype = _arguments(b, "self", "other")
        if row in ("atan2", "copysign", "hypot") and not dtype.is_float:
            dtype = b.type.dtype
            values = [b.operand(b.either(n), dtype) for n in ("self", "other")]
        if dtype.is_integer and row in ("mod", "fmod") and not _divides(b):
            raise NotCovered("integer division by zero is an error in eager")
        if dtype == BOOL and row == "mul":
            return b.finish(b.ew("and", *_tensors_first(b, values, dtype)))
        return b.finish(b.ew(row, *_tensors_first(b, _compute(b, values, dtype), dtype)))

    return run


for _name, _row in BINARY.items():
    for _overload in ("Tensor", "Scalar", "default", "Scalar_Tensor", "Tensor_Scalar"):
        rule(f"{_name}.{_overload}")(_binary(_row))


@rule("add.Tensor", "add.Scalar", "sub.Tensor", "sub.Scalar", "rsub.Scalar", "rsub.Tensor")
def _add(b: Builder) -> Result:
    kind = b.op.target.split(".")[1]
    (x, y), dtype = _arguments(b, "self", "other")
    alpha = b.get("alpha", 1)
    if dtype == BOOL:
        if kind != "add" or alpha not in (1, True):
            raise NotCovered("arithmetic on bool")
        return b.finish(b.ew("or", *_tensors_first(b, [x, y], dtype)))
    x, y = _tensors_first(b, _compute(b, [x, y], dtype), dtype)
    if kind == "rsub":
        x, y = y, x
    if alpha != 1:
        if b.type.device == "cpu" and isinstance(alpha, float) and b.type.dtype.is_float:
            alpha = float(torch.tensor(alpha, dtype=b.type.dtype.torch))  # eager has it in this dtype there
        factor = b.operand(alpha, dtype)
        if kind == "rsub":
            raise NotCovered("rsub with alpha")
        y = b.ew("mul", y, factor)
    return b.finish(b.ew("add" if kind == "add" else "sub", x, y))


@rule("div.Tensor", "div.Scalar", "true_divide.Tensor")
def _div(b: Builder) -> Result:
    dtype = b.type.dtype
    real(dtype)
    values = [b.operand(b.either(n), dtype) for n in ("self", "other")]
    return b.finish(b.ew("div", *_tensors_first(b, _compute(b, values, dtype), dtype)))


@rule("reciprocal.default")
def _reciprocal(b: Builder) -> Result:
    real(b.type.dtype)
    x = b.cast(b.tensor("self"), b.type.dtype.compute)
    return b.finish(b.ew("div", b.full(1.0, b.shape_of(x), b.dtype_of(x)), x))


@rule("div.Tensor_mode", "div.Scalar_mode", "floor_divide.default")
def _div_mode(b: Builder) -> Result:
    values, dtype = _arguments(b, "self", "other")
    mode = b.get("rounding_mode", "floor" if "floor_divide" in b.op.target else None)
    if dtype.is_integer and mode == "floor" and _divides(b):
        return b.finish(b.ew("floordiv", *values))
    if not dtype.is_float:
        raise NotCovered("integer division by zero is an error in eager")
    values = _tensors_first(b, _compute(b, values, dtype), dtype)
    if mode == "floor":
        return b.finish(b.ew("floordiv", *values))
    quotient = b.ew("div", *values)
    return b.finish(quotient if mode is None else b.ew("trunc", quotient))


COMPARE = ("eq", "ne", "lt", "le", "gt", "ge")


def _compare(row: str) -> Any:
    def run(b: Builder) -> Result:
        other = b.either("other")
        x = b.tensor("self")
        if (
            b.dtype_of(x).is_integer
            and isinstance(other, float)
            and not isinstance(other, bool)
            and not other.is_integer()
        ):
            raise NotCovered("an integer against a fraction")
        values, dtype = _arguments(b, "self", "other")
        return b.finish(b.ew(row, *_tensors_first(b, _compute(b, values, dtype), dtype)))

    return run


for _name in COMPARE:
    rule(f"{_name}.Tensor", f"{_name}.Scalar")(_compare(_name))


def _truth(b: Builder, x: SSAValue) -> SSAValue:
    real(b.dtype_of(x))
    return x if b.dtype_of(x) == BOOL else b.cast(x, BOOL)


@rule("logical_and.default", "logical_or.default", "logical_xor.default")
def _logical(b: Builder) -> Result:
    row = b.op.target.split(".")[1].removeprefix("logical_")
    return b.finish(b.ew(row, _truth(b, b.tensor("self")), _truth(b, b.tensor("other"))))


@rule("logical_not.default")
def _logical_not(b: Builder) -> Result:
    return b.finish(b.ew("not", _truth(b, b.tensor("self"))))


@rule("isnan.default", "isinf.default")
def _isnan(b: Builder) -> Result:
    x, row = b.tensor("self"), b.op.target.split(".")[1]
    real(b.dtype_of(x))
    return b.full(False) if b.dtype_of(x).is_integer else b.finish(b.ew(row, b.up(x)))


@rule("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar")
def _pow(b: Builder) -> Result:
    values, dtype = _arguments(b, "self", "exponent")
    x, e = values
    if not dtype.is_float:
        if isinstance(e, int) and e == 2:
            return b.finish(b.ew("mul", x, x))
        raise NotCovered("an integer power")
    x, e = _compute(b, [x, e], dtype)
    if isinstance(e, int | float) and isinstance(x, SSAValue):
        if e == 1:
            return b.finish(x)
        if e == 2:
            return b.finish(b.ew("mul", x, x))
        if e == 3:
            return b.finish(b.ew("mul", b.ew("mul", x, x), x))
        if e == 0.5 and dtype != F16:  # eager takes roots but for float16: pow(-inf, 0.5) is inf
            return b.finish(b.ew("sqrt", x))
        if e == -0.5 and dtype != F16:
            return b.finish(b.ew("rsqrt", x))
    return b.finish(b.ew("pow", *_tensors_first(b, [x, e], dtype)))


@rule("square.default")
def _square(b: Builder) -> Result:
    x = b.up(b.tensor("self"))
    real(b.dtype_of(x))
    return b.finish(b.ew("mul", x, x))


@rule("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def _where(b: Builder) -> Result:
    dtype = b.type.dtype
    real(dtype)
    c = _truth(b, b.tensor("condition"))
    values = [b.operand(b.either(n), dtype) for n in ("self", "other")]
    values = [v if isinstance(v, SSAValue) else b.full(v, (), dtype) for v in values]
    shape = b.type.shape
    return b.ew("where", *(b.to_shape(v, shape) for v in (c, *values)))


@rule("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(b: Builder) -> Result:
    dtype = b.type.dtype
    real(dtype)
    value = b.operand(b.either("value"), dtype)
    value = value if isinstance(value, SSAValue) else b.full(value, (), dtype)
    values = (_truth(b, b.tensor("mask")), value, b.tensor("self"))
    return b.ew("where", *(b.to_shape(v, b.type.shape) for v in values))


@rule(
    "clamp.default", "clamp.Tensor", "clamp_min.default", "clamp_max.default", "hardtanh.default",
    "clamp_min.Tensor", "clamp_max.Tensor",
)  # fmt: skip
def _clamp(b: Builder) -> Result:
    low, high = ("min_val", "max_val") if "hardtanh" in b.op.target else ("min", "max")
    names = [n for n in (low, high) if b.has(n) or b.get(n) is not None]
    values, dtype = _arguments(b, "self", *names)
    if dtype != b.type.dtype:
        raise NotCovered("bounds of another dtype")
    if dtype.kind in ("int", "uint") and any(not _holds(dtype, b.get(name)) for name in names):
        raise NotCovered("a bound that the dtype does not hold: eager wraps it, saturates, or raises, by the release")
    x, *bounds = _compute(b, values, dtype)
    for name, bound in zip(names, bounds, strict=True):
        x = b.ew("max" if name == low else "min", x, bound)
    return b.finish(x)


def _holds(dtype: DType, number: object) -> bool:
    """Whether a number, if it is one, is in the range of an integer dtype."""
    low, high = dtype.exact
    return not isinstance(number, int | float) or low <= number <= high


@rule("relu.default")
def _relu(b: Builder) -> Result:
    x = b.up(b.tensor("self"))
    return b.finish(b.ew("max", x, 0.0 if b.dtype_of(x).is_float else 0))


@rule("relu6.default")
def _relu6(b: Builder) -> Result:
    return b.finish(b.ew("min", b.ew("max", b.up(b.tensor("self")), 0.0), 6.0))


@rule(
    "_to_copy.default", "to.dtype", "clone.default", "contiguous.default", "alias.default", "detach.default",
    "lift_fresh_copy.default", "lift_fresh.default", "prims.convert_element_type.default", "_conj.default",
    "resolve_conj.default", "resolve_neg.default", "positive.default", "conj.default",
)  # fmt: skip
def _copy(b: Builder) -> Result:
    x = b.op.operands[0]
    if prim.tensor(x).device != b.type.device or b.get("pin_memory"):
        raise NotCovered("a move between devices")
    if b.get("layout") not in (None,) and str(b.get("layout")) != "torch.strided":
        raise NotCovered("another layout")
    if (b.dtype_of(x).kind == "complex") or b.type.dtype.kind == "complex":
        raise NotCovered("complex numbers")
    value = b.cast(x, b.type.dtype)
    if value is not x and b.type.dtype.compute != b.type.dtype:
        b.ops[-1].attributes["rounds"] = LiteralAttr(True)  # the program asked for it
    return value


@rule("dropout.default", "native_dropout.default", "alpha_dropout.default", "feature_dropout.default")
def _dropout(b: Builder) -> Result:
    p = b.get("p", 0.5)
    if b.get("train") is not False and p != 0:
        raise NotCovered("random numbers")
    if "native" in b.op.target:
        x = b.tensor("input")
        return [x, b.full(True, prim.tensor(b.op.results[1]).shape, BOOL)]
    return b.op.operands[0]


@rule("nan_to_num.default")
def _nan_to_num(b: Builder) -> Result:
    x = b.tensor("self")
    if b.dtype_of(x).is_integer:
        return x
    value, limits = b.up(x), torch.finfo(b.dtype_of(x).torch)
    nan, high, low = b.get("nan"), b.get("posinf"), b.get("neginf")
    kind = b.dtype_of(value)
    high, low = limits.max if high is None else float(high), limits.min if low is None else float(low)
    found = b.ew("where", b.ew("isnan", value), b.full(float(nan or 0.0), (), kind), value)
    found = b.ew("where", b.ew("eq", value, math.inf), b.full(high, (), kind), found)
    return b.finish(b.ew("where", b.ew("eq", value, -math.inf), b.full(low, (), kind), found))


@rule("isposinf.default", "isneginf.default")
def _is_infinite(b: Builder) -> Result:
    x = b.tensor("self")
    if b.dtype_of(x).is_integer:
        return b.full(False)
    return b.finish(b.ew("eq", b.up(x), math.inf if "pos" in b.op.target else -math.inf))


@rule("signbit.default")
def _signbit(b: Builder) -> Result:
    x = b.tensor("self")
    if b.dtype_of(x).kind in ("bool", "uint"):
        return b.full(False)
    if b.dtype_of(x).is_integer:
        return b.finish(b.ew("lt", x, 0))
    value = b.up(x)
    return b.finish(b.ew("lt", b.ew("copysign", b.full(1.0, b.shape_of(value), b.dtype_of(value)), value), 0.0))
