"""Numbers, conversions and index expressions as C++ text."""

from __future__ import annotations

import math

import sympy

from ...ir.dtypes import DType
from ...ir.symbols import Dim, FloorDiv, Mod


def cpp_cast(text: str, source: DType, target: DType) -> str:
    """Convert as `Tensor.to` does."""
    if source == target:
        return text
    if target.kind == "bool":
        return f"{text} != 0"
    if source.kind == "bool" and target.is_float:  # gcc does not vectorise the conversion
        return f"{text} ? {cpp_constant(1, target)} : {cpp_constant(0, target)}"
    if target.name in ("f16", "bf16"):
        return f"{target.cpp}({text})" if source.name == "f32" else f"{target.cpp}(static_cast<float>({text}))"
    return f"static_cast<{target.cpp}>({text})"


def constant_bits(value: object, dtype: DType) -> str:
    """A number of a half type, as bits."""
    return f"{cpp_constant(value, dtype)}.bits"


def cpp_constant(value: object, dtype: DType) -> str:
    """A number of that dtype."""
    if isinstance(value, sympy.Expr):
        return f"static_cast<{dtype.cpp}>({cpp_index(value)})"
    assert isinstance(value, int | float)
    if dtype.kind == "bool":
        return "true" if value else "false"
    if dtype.is_float:
        number = float(value)
        if dtype.name in ("f16", "bf16"):
            return f"{dtype.cpp}({_float(number, 'f')})"
        return _float(number, "" if dtype.name == "f64" else "f")
    number = int(value)
    if number == -(2**63):
        return "INT64_MIN"
    return f"{dtype.cpp}({number})" if dtype.bytes != 4 or dtype.kind == "uint" else str(number)


def _float(value: float, suffix: str) -> str:
    if math.isnan(value):
        return f'__builtin_nan{suffix}("")'
    if math.isinf(value):
        return ("-" if value < 0 else "") + f"__builtin_inf{suffix}()"
    if suffix and abs(value) > 3.4028235677973366e38:  # what torch's conversion to float32 does
        return ("-" if value < 0 else "") + "__builtin_inff()"
    text = repr(value)
    text = text if "." in text or "e" in text else text + ".0"
    return f"({text}{suffix})" if value < 0 else text + suffix


def cpp_index(value: Dim) -> str:
    """An index expression as C++ over int64_t."""
    if isinstance(value, int):
        return str(value)
    return index_text(value, 0)


def index_text(e: sympy.Expr, binding: int) -> str:
    """`binding`: 0 inside brackets, 1 as a term, 2 as a factor."""
    match e:
        case sympy.Integer():
            text, strength = str(int(e)), 2 if e >= 0 else 0
        case sympy.Symbol():
            text, strength = e.name, 2
        case sympy.Add():
            terms = sorted(e.args, key=_term_order)
            text = index_text(terms[0], 1)
            for term in terms[1:]:
                coefficient, rest = term.as_coeff_Mul()
                negative = bool(coefficient < 0)
                text += (" - " if negative else " + ") + index_text(-term if negative else term, 1)
            strength = 0
        case sympy.Mul():
            coefficient, factors = e.as_coeff_mul()
            parts = [index_text(f, 2) for f in sorted(factors, key=str)]
            if coefficient == -1:
                parts[0] = "-" + parts[0]
            elif coefficient != 1:
                parts.insert(0, index_text(coefficient, 1))
            text, strength = " * ".join(parts), 1
        case sympy.Pow(exp=sympy.Integer()):
            text, strength = " * ".join([index_text(e.base, 2)] * int(e.exp)), 1
        case FloorDiv() | Mod():
            base, divisor = e.args
            if base.is_nonnegative and divisor.is_nonnegative:
                sign = "/" if isinstance(e, FloorDiv) else "%"
                text, strength = f"{index_text(base, 2)} {sign} {index_text(divisor, 2)}", 1
                if binding == 1:
                    text, strength = f"({text})", 2
            else:
                name = "index_div" if isinstance(e, FloorDiv) else "index_mod"
                text, strength = f"im::{name}({index_text(base, 0)}, {index_text(divisor, 0)})", 2
        case sympy.Max() | sympy.Min():
            name = "index_max" if isinstance(e, sympy.Max) else "index_min"
            text = index_text(e.args[0], 0)
            for arg in e.args[1:]:
                text = f"im::{name}({text}, {index_text(arg, 0)})"
            strength = 2
        case _:
            raise TypeError(f"no C++ text for the index expression {e} ({type(e).__name__})")
    return f"({text})" if strength < binding else text


def _term_order(term: sympy.Expr) -> tuple[bool, bool, str]:
    """Positive terms first, constants last, so that code reads `768 * i0 + r0 - 1`."""
    coefficient, _ = term.as_coeff_Mul()
    return bool(coefficient < 0), bool(term.is_Integer), str(term)
