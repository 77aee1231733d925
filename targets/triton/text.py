"""Pieces of Triton text: dtypes, numbers, index expressions, scalar operations."""

from __future__ import annotations

import math
from collections.abc import Sequence

import sympy
import torch
from xdsl.ir import SSAValue

from ...ir.dialects import loop
from ...ir.dtypes import E4M3_OVERFLOW, F8E4M3, DType
from ...ir.symbols import Dim
from ..text.index import IndexSyntax
from ..text.walk import dtype_of


def full(shape: str, value: str, dtype: DType | None) -> str:
    """A tensor of one value, of int64 without a dtype."""
    kind = f"tl.{triton_type(dtype)}" if dtype is not None else "tl.int64"
    return f"tl.full({shape}, {value}, {kind})"


def as_tensor(value: SSAValue, text: str) -> str:
    """A constant as a tensor, so that it has methods."""
    if isinstance(value.owner, loop.Constant):
        return full("[]", text, dtype_of(value))
    return text


def scalar_text(name: str, names: Sequence[str], dtype: DType | None = None) -> str:
    """The text of one row of the scalar table."""
    row = loop.SCALAR_OPS[name].row
    if dtype is not None and dtype.is_integer:
        special = {"not": "{0} == 0"} if dtype.kind == "bool" else {"fmod": "{0} % {1}", "pow": "int_pow({0}, {1})"}
        if name in special:
            return special[name].format(*names)
    return row.triton.format(*(n if is_simple(n) else f"({n})" for n in names))


def is_simple(text: str) -> bool:
    """Whether an operand needs no parentheses."""
    return text.replace("_", "a").replace(".", "a").isalnum() or text.startswith("tl.full(")


_TYPES = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "bool": "int1"} | dict.fromkeys(
    ("f8e4m3", "f8e5m2"), "uint8"
)
_FLOAT8 = ("f8e4m3", "f8e5m2")
_POINTERS = {"f64": "fp64", "f32": "fp32", "f16": "fp16", "bool": "i1", "f8e4m3": "u8", "f8e5m2": "u8"}


def triton_type(dtype: DType) -> str:
    """The name of a dtype in `triton.language`."""
    return _TYPES.get(dtype.name) or f"{'uint' if dtype.kind == 'uint' else 'int'}{8 * dtype.bytes}"


def converted(text: str, source: DType, target: DType) -> str:
    """A tensor in another dtype. float8 is held as its bits: Triton's own conversion gives the largest number where torch's overflows."""
    if source.name in _FLOAT8:
        text, source = f"from_{source.name}({text})", source.compute
    if target.name in _FLOAT8:
        text = text if source == target.compute else f"{text}.to(tl.float32)"
        return f"to_{target.name}({text}{f', {E4M3_OVERFLOW:#x}' if target == F8E4M3 else ''})"
    if source == target:
        return text
    through = _THROUGH.get(target.name) if source.is_float else None
    return f"{text}{f'.to(tl.{through})' if through else ''}.to(tl.{triton_type(target)})"


# Eager takes a wider integer between, whose low bits stay; the GPU's own conversion to a narrow one ends at its smallest and largest.
_THROUGH = {"u8": "int64", "i8": "int32", "i16": "int32", "u16": "uint32"}


def pointer_type(dtype: DType) -> str:
    """The name of a pointer to a dtype in a kernel's signature."""
    return "*" + _POINTERS.get(dtype.name, dtype.name)


def constant_text(value: object, dtype: DType, exact: bool = True) -> str:
    """A number of that dtype; `exact`: with a type of its own where a plain number would take another."""
    if isinstance(value, sympy.Expr):
        value = int(value) if value.is_Integer else float(value)
    assert isinstance(value, int | float)
    if dtype.kind == "bool":
        text = "True" if value else "False"
        return f"tl.full([], {int(bool(value))}, tl.int1)" if exact else text
    if dtype.name in _FLOAT8:
        return str(int(torch.tensor(float(value)).to(dtype.torch).view(torch.uint8)))
    if dtype.is_float:
        number = float(value)
        if math.isnan(number):
            text = 'float("nan")'
        elif math.isinf(number) or dtype.name != "f64" and abs(number) > 3.4028235677973366e38:
            text = f'float("{"-" if number < 0 else ""}inf")'
        else:
            text = repr(number)
        return f"tl.full([], {text}, tl.float64)" if exact and dtype.name == "f64" else text
    text = str(int(value))
    return text if not exact or dtype.name == "i32" else f"tl.full([], {text}, tl.{triton_type(dtype)})"


def index_text(value: Dim, names: dict[str, str]) -> str:
    """An index expression as Triton text, variables by their `names`."""

    def name(symbol: str) -> tuple[str, bool]:
        text = names.get(symbol, symbol)
        return text, is_simple(text)

    return IndexSyntax("Triton", ("//", "%"), ("floordiv", "mod", "tl.maximum", "tl.minimum"), name=name).text(value)
