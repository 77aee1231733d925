"""Expressions of host programs as Python text with slots (see ir.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch
from sympy.core.sorting import default_sort_key
from sympy.printing.str import StrPrinter

from ...ir.dtypes import DType
from ...ir.regions import MAP, SCAN
from ...ir.symbols import Dim
from ...ir.syntax import Op
from ...ir.types import RefType
from .ir import tuple_of, use, verbatim


class _Slots(StrPrinter):  # type: ignore[misc]
    """Prints symbols and functions as slots: `FloorDiv`, `Mod`, `Max` and `Min` are names that the program knows."""

    def _print_Symbol(self, expr: sympy.Symbol) -> str:
        return use(expr.name)

    def _print_Function(self, expr: sympy.Function) -> str:
        return f"{use(expr.func.__name__)}({self.stringify(expr.args, ', ')})"

    def _print_LatticeOp(self, expr: sympy.Expr) -> str:
        args = sorted(expr.args, key=default_sort_key)
        return f"{use(expr.func.__name__)}({self.stringify(args, ', ')})"


def python_index(value: Dim) -> str:
    """An index expression as Python."""
    return str(value) if isinstance(value, int) else str(_Slots().doprint(value))


def python_literal(value: Any) -> str:
    """An attribute's value as Python."""
    match value:
        case tuple() | list():
            return "[" + ", ".join(map(python_literal, value)) + "]"
        case sympy.Expr():
            return python_index(value)
        case float() if value != value or value in (float("inf"), float("-inf")):
            return f"float({str(value)!r})"
        case torch.dtype():
            return use(repr(value))
        case torch.device():
            return f"{use('torch')}.device({str(value)!r})"
        case torch.layout() | torch.memory_format():
            return f"{use('torch')}{repr(value).removeprefix('torch')}"
    return verbatim(repr(value))


def dtype_text(dtype: DType) -> str:
    """A dtype as Python."""
    return use(repr(dtype.torch))


def of_no_round(op: Op) -> list[str]:
    """The argument of a loop over rows, which may be none, that says how the results of all rounds would lie; no argument of any other call."""
    if op["target"] not in (SCAN, MAP):
        return []
    names = op["operands"]
    first = next(v.type for v, name in zip(op.operands, names, strict=True) if name.startswith("items."))
    if not isinstance(first, RefType) or isinstance(first.shape[0], int) and first.shape[0] > 0:
        return []
    found = []
    for result in list(op.results)[sum(name.startswith("carried.") for name in names) :]:
        ref = result.type
        assert isinstance(ref, RefType)
        found.append(f"({shape_text(ref.shape)}, {shape_text(ref.strides)}, {dtype_text(ref.dtype)})")
    return [tuple_of(found)]


def failure(lines: Sequence[str]) -> str:
    """What follows a kernel's code other than 0; `lines` are the user's."""
    return f"{use('failed')}({use('code')}{verbatim(''.join(f', {line!r}' for line in lines))})"


def shape_text(dims: Sequence[Dim]) -> str:
    """Sizes or strides as Python."""
    return tuple_of([python_index(d) for d in dims])


def view_text(base: str, sizes: Sequence[Dim], strides: Sequence[Dim], offset: Dim) -> str:
    """A view of the memory of `base`; `offset` in elements."""
    start = f"{base}.storage_offset() + {python_index(offset)}"
    return f"{base}.as_strided({shape_text(sizes)}, {shape_text(strides)}, {start})"
