"""Our operations on single elements in StableHLO: those of the same meaning by name, others written out.

Functions that StableHLO has no operation for (erf, sinh, ...) are those of CHLO, its companion.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .stablehlo_text import Value, Writer, bits_of

# The same meaning under another name, by our row: of any dtype, of floats alone.
SAME = {
    **{"add": "add", "sub": "subtract", "mul": "multiply", "max": "maximum", "min": "minimum", "neg": "negate"},
    **{"abs": "abs", "and": "and", "or": "or", "xor": "xor", "not": "not", "fmod": "remainder"},
}
OF_FLOATS = {
    **{"div": "divide", "pow": "power", "atan2": "atan2", "floor": "floor", "ceil": "ceil"},
    **{"round": "round_nearest_even", "exp": "exponential", "expm1": "exponential_minus_one", "log": "log"},
    **{"log1p": "log_plus_one", "sqrt": "sqrt", "rsqrt": "rsqrt", "sigmoid": "logistic", "sin": "sine"},
    **{"cos": "cosine", "tan": "tan", "tanh": "tanh"},
}
CHLO = ("erf", "erfc", "lgamma", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh")
COMPARED = {"eq": "EQ", "ne": "NE", "lt": "LT", "le": "LE", "gt": "GT", "ge": "GE"}


def of_scalars(f: Writer, op: Any) -> Value:
    name, given = op.name.partition(".")[2], f.operands(op)
    x = given[0]
    if name == "where":
        return f.select(*given)
    if name in COMPARED:
        return f.compare(COMPARED[name], *given)
    if x.kind == "bool" and name not in ("and", "or", "xor", "not", "max", "min", "add", "mul"):
        raise f.refused("this of booleans")
    if name == "abs" and x.kind == "uint":
        return x
    if name in SAME:
        return f.same(SAME[name], *given)
    if x.is_float and name in OF_FLOATS:
        return f.same(OF_FLOATS[name], *given)
    if x.is_float and name in CHLO:
        return f.line(f"chlo.{name} {x.name} : {x.type} -> {x.type}", x.shape, x.element)
    if name in _WRITTEN or (x.is_float and name in _OF_FLOATS_WRITTEN):
        return (_WRITTEN.get(name) or _OF_FLOATS_WRITTEN[name])(f, *given)
    raise f.refused(f"this of {x.element}")


def _sign(f: Writer, x: Value) -> Value:
    """(x > 0) - (x < 0): of NaN and -0.0 it is 0, as in ours."""
    zero = f.like(0, x)
    up = f.convert(f.compare("GT", x, zero), x.element)
    return f.same("subtract", up, f.convert(f.compare("LT", x, zero), x.element))


def _different_signs(f: Writer, a: Value, b: Value) -> Value:
    zero = f.like(0, a)
    return f.compare("NE", f.compare("LT", a, zero), f.compare("LT", b, zero))


def _mod(f: Writer, a: Value, b: Value) -> Value:
    """The remainder with the divisor's sign: StableHLO's has the dividend's."""
    rest = f.same("remainder", a, b)
    if a.kind == "uint":
        return rest
    wrong = f.same("and", f.compare("NE", rest, f.like(0, rest)), _different_signs(f, rest, b))
    return f.select(wrong, f.same("add", rest, b), rest)


def _floordiv(f: Writer, a: Value, b: Value) -> Value:
    """The quotient rounded down; of floats as torch computes it, from the remainder."""
    if a.kind == "uint":
        return f.same("divide", a, b)
    rest = f.same("remainder", a, b)
    wrong = f.same("and", f.compare("NE", rest, f.like(0, rest)), _different_signs(f, rest, b))
    if not a.is_float:
        quotient = f.same("divide", a, b)
        return f.select(wrong, f.same("subtract", quotient, f.like(1, quotient)), quotient)
    exact = f.same("divide", f.same("subtract", a, rest), b)
    exact = f.select(wrong, f.same("subtract", exact, f.like(1, exact)), exact)
    down = f.same("floor", exact)
    down = f.select(
        f.compare("GT", f.same("subtract", exact, down), f.like(0.5, down)), f.same("add", down, f.like(1, down)), down
    )
    plain, zero = f.same("divide", a, b), f.like(0, a)
    none = f.same("multiply", zero, plain)  # a zero with the quotient's sign
    made = f.select(f.compare("EQ", exact, zero), none, down)
    return f.select(f.compare("EQ", b, zero), plain, made)


def _trunc(f: Writer, x: Value) -> Value:
    return f.select(f.compare("LT", x, f.like(0, x)), f.same("ceil", x), f.same("floor", x))


def _isnan(f: Writer, x: Value) -> Value:
    return f.compare("NE", x, x)


def _isinf(f: Writer, x: Value) -> Value:
    return f.compare("EQ", f.same("abs", x), f.like(math.inf, x))


def _exp2(f: Writer, x: Value) -> Value:
    return f.same("power", f.like(2.0, x), x)


def _log_to(base: float) -> Callable[..., Value]:
    def written(f: Writer, x: Value) -> Value:
        return f.same("divide", f.same("log", x), f.like(math.log(base), x))

    return written


def _copysign(f: Writer, a: Value, b: Value) -> Value:
    bits = f"i{bits_of(b.element)}"
    word = f.other("stablehlo.bitcast_convert", [b], b.shape, bits)
    size = f.same("abs", a)
    return f.select(f.compare("LT", word, f.like(0, word)), f.same("negate", size), size)


def _shift(f: Writer, x: Value, by: Value) -> tuple[Value, int]:
    """Whether the shift is one inside the width."""
    bits = bits_of(x.element)
    inside = f.compare("LT", by, f.like(bits, by))
    if by.kind != "uint":
        inside = f.same("and", inside, f.compare("GE", by, f.like(0, by)))
    return inside, bits


def _shl(f: Writer, x: Value, by: Value) -> Value:
    inside, _ = _shift(f, x, by)
    return f.select(inside, f.same("shift_left", x, by), f.like(0, x))


def _shr(f: Writer, x: Value, by: Value) -> Value:
    inside, bits = _shift(f, x, by)
    signed = x.kind == "int"
    word = "shift_right_arithmetic" if signed else "shift_right_logical"
    beyond = f.same(word, x, f.like(bits - 1, by)) if signed else f.like(0, x)
    return f.select(inside, f.same(word, x, by), beyond)


_WRITTEN: dict[str, Callable[..., Value]] = {
    "sign": _sign,
    "mod": _mod,
    "floordiv": _floordiv,
    "shl": _shl,
    "shr": _shr,
}
_OF_FLOATS_WRITTEN: dict[str, Callable[..., Value]] = {
    "trunc": _trunc,
    "isnan": _isnan,
    "isinf": _isinf,
    "exp2": _exp2,
    "log2": _log_to(2),
    "log10": _log_to(10),
    "copysign": _copysign,
}
