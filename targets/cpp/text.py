"""Numbers, conversions and index expressions as C++ text."""

from __future__ import annotations

import math

import sympy

from ...ir.dtypes import E4M3_OVERFLOW, F8E4M3, F32, DType
from ...ir.scalars import ScalarRow
from ...ir.symbols import Dim
from ..text.index import IndexSyntax


def cpp_cast(text: str, source: DType, target: DType) -> str:
    """Convert as `Tensor.to` does."""
    if source == target:
        return text
    if target.kind == "bool":
        return f"{text} != 0"
    if source.kind == "bool" and target.is_float:  # gcc does not vectorise the conversion
        return f"{text} ? {cpp_constant(1, target)} : {cpp_constant(0, target)}"
    if target != target.compute:
        return _small(text if source.name == "f32" else cpp_cast(text, source, F32), target)
    if source.is_float and not target.is_float:  # where it does not fit, C++ leaves it undefined
        return f"im::cast<{target.cpp}>({text})"
    if source.is_integer and target.is_float:
        return f"im::whole<{target.cpp}>({text})"
    return f"static_cast<{target.cpp}>({text})"


def _small(text: str, dtype: DType) -> str:
    """A float32 in a type of fewer bits."""
    return f"{dtype.cpp}({text}, {E4M3_OVERFLOW:#x})" if dtype == F8E4M3 else f"{dtype.cpp}({text})"


def scalar_text(row: ScalarRow, dtype: DType) -> str:
    """The expression of a row of the scalar table, for a result of that dtype; `{0}` is the first operand."""
    if row.name == "where" and dtype.kind == "bool":
        return "({0} & {1}) | (!{0} & {2})"  # of a ternary over bools gcc makes a branch
    return row.cpp


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
        if dtype != dtype.compute:
            return _small(_float(number, "f"), dtype)
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


_INDEX = IndexSyntax(
    "C++",
    ("/", "%"),
    ("im::index_div", "im::index_mod", "im::index_max", "im::index_min"),
    ("im::quotient", "im::remainder"),
)


def cpp_index(value: Dim) -> str:
    """An index expression as C++ over int64_t."""
    return _INDEX.text(value)


def index_text(e: Dim, binding: int) -> str:
    """The same where it stands as a term (1) or as a factor (2)."""
    return _INDEX.text(e, binding)
