"""The scalar table: one row per elementwise operation.

The elementwise `prim` operations, the `scalar` operations in loop bodies, the reference interpreter, the C++ and Triton
printers and docs/ir.md are all made from these rows. In the texts `{0}` `{1}` `{2}` stand for the operands. Half types compute in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .dtypes import BOOL, I32, DType
from .philox import philox


@dataclass(frozen=True)
class ScalarRow:
    """One elementwise operation.

    `result` is "same" (the dtype of the operands), "bool", "i32", or "second" (the dtype of operand 1, for `where`).
    `cost` is about the number of simple instructions an element takes; the fusion cost model reads it.
    """

    name: str
    arity: int
    torch: Callable[..., Any]
    cpp: str
    triton: str
    domain: str  # "float", "int" (with bool), "any", "i64"
    cost: int = 1
    result: str = "same"
    note: str = ""
    commutative: bool = False

    def result_dtype(self, operands: list[DType]) -> DType:
        """The dtype of the result for these operand dtypes."""
        return _RESULTS.get(self.result) or operands[1 if self.result == "second" else 0]


_RESULTS = {"bool": BOOL, "i32": I32}


def _remainder(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.remainder(a, b)


def _floor_divide(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.div(a, b, rounding_mode="floor")


def _unary(name: str, fn: Callable[..., Any], cost: int, note: str = "", triton: str | None = None) -> ScalarRow:
    return ScalarRow(name, 1, fn, f"im::{name}({{0}})", triton or f"tl.{name}({{0}})", "float", cost, note=note)


def _libdevice(name: str, fn: Callable[..., Any], cost: int, note: str = "") -> ScalarRow:
    return _unary(name, fn, cost, note, f"libdevice.{name}({{0}})")


_ROWS = [
    # arithmetic
    ScalarRow("neg", 1, torch.neg, "-{0}", "-{0}", "any"),
    ScalarRow("abs", 1, torch.abs, "im::abs({0})", "tl.abs({0})", "any"),
    ScalarRow("sign", 1, torch.sign, "im::sign({0})", "sign({0})", "any", 2, note="nan and -0 give 0"),
    ScalarRow("add", 2, torch.add, "{0} + {1}", "{0} + {1}", "any", commutative=True, note="integers wrap"),
    ScalarRow("sub", 2, torch.sub, "{0} - {1}", "{0} - {1}", "any", note="integers wrap"),
    ScalarRow("mul", 2, torch.mul, "{0} * {1}", "{0} * {1}", "any", commutative=True, note="integers wrap"),
    ScalarRow("div", 2, torch.div, "{0} / {1}", "{0} / {1}", "float", 4, note="x/0 gives inf or nan"),
    ScalarRow(
        "floordiv",
        2,
        _floor_divide,
        "im::floordiv({0}, {1})",
        "floordiv({0}, {1})",
        "any",
        8,
        note="rounds to minus infinity; an integer divisor of 0 is an error in eager and stops the kernel",
    ),
    ScalarRow("mod", 2, _remainder, "im::mod({0}, {1})", "mod({0}, {1})", "any", 8, note="sign of the divisor"),
    ScalarRow(
        "fmod",
        2,
        torch.fmod,
        "im::fmod({0}, {1})",
        "libdevice.fmod({0}, {1})",
        "any",
        8,
        note="sign of the dividend",
    ),
    ScalarRow("pow", 2, torch.pow, "im::pow({0}, {1})", "libdevice.pow({0}, {1})", "any", 40),
    ScalarRow(
        "max",
        2,
        torch.maximum,
        "im::max({0}, {1})",
        "maximum({0}, {1})",
        "any",
        commutative=True,
        note="nan if either is nan",
    ),
    ScalarRow(
        "min",
        2,
        torch.minimum,
        "im::min({0}, {1})",
        "minimum({0}, {1})",
        "any",
        commutative=True,
        note="nan if either is nan",
    ),
    ScalarRow("atan2", 2, torch.atan2, "im::atan2({0}, {1})", "libdevice.atan2({0}, {1})", "float", 30),
    ScalarRow(
        "hypot",
        2,
        torch.hypot,
        "im::hypot({0}, {1})",
        "libdevice.hypot({0}, {1})",
        "float",
        12,
        commutative=True,
    ),
    ScalarRow("copysign", 2, torch.copysign, "im::copysign({0}, {1})", "libdevice.copysign({0}, {1})", "float", 2),
    # rounding
    _unary("floor", torch.floor, 1),
    _unary("ceil", torch.ceil, 1),
    _libdevice("trunc", torch.trunc, 1),
    ScalarRow("round", 1, torch.round, "im::round({0})", "libdevice.nearbyint({0})", "float", 1, note="half to even"),
    # exponentials
    _unary("exp", torch.exp, 10),
    _unary("exp2", torch.exp2, 9),
    _libdevice("expm1", torch.expm1, 14),
    _unary("log", torch.log, 12, "log(0) = -inf, negative gives nan"),
    _unary("log2", torch.log2, 12),
    _libdevice("log10", torch.log10, 13),
    _libdevice("log1p", torch.log1p, 14),
    _unary("sqrt", torch.sqrt, 5, "negative gives nan", "sqrt({0})"),
    _unary("rsqrt", torch.rsqrt, 6),
    _unary("sigmoid", torch.sigmoid, 14, triton="sigmoid({0})"),
    _unary("erf", torch.erf, 16),
    _libdevice("erfc", torch.erfc, 20),
    _libdevice("lgamma", torch.lgamma, 60),
    # trigonometry
    _unary("sin", torch.sin, 16),
    _unary("cos", torch.cos, 16),
    _libdevice("tan", torch.tan, 24),
    _libdevice("asin", torch.asin, 20),
    _libdevice("acos", torch.acos, 20),
    _libdevice("atan", torch.atan, 20),
    _libdevice("sinh", torch.sinh, 20),
    _libdevice("cosh", torch.cosh, 20),
    _unary("tanh", torch.tanh, 16, "", "tanh({0})"),
    _libdevice("asinh", torch.asinh, 24),
    _libdevice("acosh", torch.acosh, 24),
    _libdevice("atanh", torch.atanh, 24),
    # bits and logic
    ScalarRow("and", 2, torch.bitwise_and, "{0} & {1}", "{0} & {1}", "int", commutative=True),
    ScalarRow("or", 2, torch.bitwise_or, "{0} | {1}", "{0} | {1}", "int", commutative=True),
    ScalarRow("xor", 2, torch.bitwise_xor, "{0} ^ {1}", "{0} ^ {1}", "int", commutative=True),
    ScalarRow("not", 1, torch.bitwise_not, "im::bit_not({0})", "~{0}", "int", note="logical on bool"),
    ScalarRow(
        "shl",
        2,
        torch.bitwise_left_shift,
        "im::shl({0}, {1})",
        "shl({0}, {1})",
        "int",
        note="a shift outside the width gives 0",
    ),
    ScalarRow(
        "shr",
        2,
        torch.bitwise_right_shift,
        "im::shr({0}, {1})",
        "shr({0}, {1})",
        "int",
        note="arithmetic; a shift outside the width gives 0 or -1",
    ),
    # comparisons and selection
    ScalarRow("eq", 2, torch.eq, "{0} == {1}", "{0} == {1}", "any", result="bool", commutative=True),
    ScalarRow("ne", 2, torch.ne, "{0} != {1}", "{0} != {1}", "any", result="bool", commutative=True),
    ScalarRow("lt", 2, torch.lt, "{0} < {1}", "{0} < {1}", "any", result="bool"),
    ScalarRow("le", 2, torch.le, "{0} <= {1}", "{0} <= {1}", "any", result="bool"),
    ScalarRow("gt", 2, torch.gt, "{0} > {1}", "{0} > {1}", "any", result="bool"),
    ScalarRow("ge", 2, torch.ge, "{0} >= {1}", "{0} >= {1}", "any", result="bool"),
    ScalarRow("isnan", 1, torch.isnan, "im::isnan({0})", "{0} != {0}", "float", result="bool"),
    ScalarRow("isinf", 1, torch.isinf, "im::isinf({0})", "libdevice.isinf({0})", "float", result="bool"),
    ScalarRow(
        "where",
        3,
        torch.where,
        "{0} ? {1} : {2}",
        "tl.where({0}, {1}, {2})",
        "any",
        result="second",
        note="operand 0 is bool",
    ),
    # random numbers
    ScalarRow(
        "philox",
        2,
        philox,
        "im::philox({0}, {1})",
        "philox({0}, {1})",
        "i64",
        60,
        result="i32",
        note="32 random bits: word {1} >= 0 of the stream with the seed {0}, by Philox4x32-10",
    ),
]

SCALARS: dict[str, ScalarRow] = {row.name: row for row in _ROWS}
_OWN = frozenset(SCALARS)
_FOLLOWERS: list[Callable[[ScalarRow], None]] = []  # tables that are made of the rows


def follow(add: Callable[[ScalarRow], None]) -> None:
    """Call `add` with every row that others add from now on."""
    _FOLLOWERS.append(add)


def add_row(row: ScalarRow) -> None:
    """Add a scalar function of somebody else's, for this process: `prim.NAME` and `scalar.NAME`, in the interpreter and all targets.

    The same row may be added again.

    Raises:
        ValueError: its name is taken or no name, or a text does not fit its number of operands.
    """
    places = [f"x{k}" for k in range(row.arity)]
    for text in (row.cpp, row.triton):
        try:
            text.format(*places)
        except (IndexError, KeyError, ValueError) as error:
            raise ValueError(
                f"the scalar function '{row.name}' has {row.arity} operands, and the text {text!r}: {error!r}"
            ) from None
    if not row.name.isidentifier() or not row.name.isascii():
        raise ValueError(f"a scalar function cannot be called {row.name!r}")
    if row.domain not in _DOMAINS or row.result not in ("same", "second", *_RESULTS):
        raise ValueError(
            f"the scalar function '{row.name}' is of an unknown domain or result: {row.domain!r}, {row.result!r}"
        )
    known = SCALARS.get(row.name)
    if known is not None and (row.name in _OWN or _said(known) != _said(row)):
        raise ValueError(f"there is a scalar function '{row.name}' already: {known.cpp}")
    if known is None:
        SCALARS[row.name] = row
        for add in _FOLLOWERS:
            add(row)


_DOMAINS = ("float", "int", "any")


def _said(row: ScalarRow) -> tuple[object, ...]:
    return row.name, row.arity, row.cpp, row.triton, row.domain, row.cost, row.result, row.commutative


def own_rows() -> list[ScalarRow]:
    """The rows without those of others."""
    return [row for name, row in SCALARS.items() if name in _OWN]


def added_rows() -> list[tuple[object, ...]]:
    """What the rows of others say, for the key of the cache."""
    return [_said(row) for name, row in SCALARS.items() if name not in _OWN]


@dataclass(frozen=True)
class ReduceRow:
    """One kind of reduction: `identity(dtype)` starts it, `combine` names the scalar row that joins two values."""

    name: str
    combine: str | None  # None for argmax and argmin, which carry an index
    torch: Callable[..., Any]
    note: str = ""


def _reduce_all(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A torch function that takes one dim, over several: the highest first, so that the others keep their place."""

    def run(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
        for d in sorted(dims, reverse=True):
            x = fn(x, d)
        return x

    return run


def _sum(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    return x.sum(dims, dtype=x.dtype) if dims else x


_REDUCE_ROWS = [
    ReduceRow("sum", "add", _sum),
    ReduceRow("prod", "mul", _reduce_all(lambda x, d: x.prod(d, dtype=x.dtype))),
    ReduceRow("max", "max", lambda x, dims: x.amax(dims) if dims else x, "nan wins"),
    ReduceRow("min", "min", lambda x, dims: x.amin(dims) if dims else x, "nan wins"),
    ReduceRow("any", "or", _reduce_all(lambda x, d: x.any(d))),
    ReduceRow("all", "and", _reduce_all(lambda x, d: x.all(d))),
    ReduceRow("argmax", None, _reduce_all(lambda x, d: x.argmax(d)), "first index of the largest; nan wins; one dim"),
    ReduceRow(
        "argmin",
        None,
        _reduce_all(lambda x, d: x.argmin(d)),
        "first index of the smallest; nan wins; one dim",
    ),
]

REDUCES: dict[str, ReduceRow] = {row.name: row for row in _REDUCE_ROWS}


# Several values that one pass over the elements gives, and what each is at first. Loops alone have these:
# `max_expsum`: the largest x, and the sum of exp(x - largest); `moments`: the count, the sum, and the sum of squares around the mean.
DOT = "dot"  # what adds the product of two values; loops alone have it
JOINT: dict[str, tuple[float, ...]] = {"max_expsum": (float("-inf"), 0.0), "moments": (0.0, 0.0, 0.0)}


def identity(kind: str, dtype: DType) -> float | int | bool:
    """The value with which a reduction of this kind starts."""
    if kind in ("sum", "any", DOT):
        return False if dtype.kind == "bool" else (0.0 if dtype.is_float else 0)
    if kind in ("prod", "all"):
        return True if dtype.kind == "bool" else (1.0 if dtype.is_float else 1)
    low = kind in ("max", "argmax")
    if dtype.kind == "bool":
        return not low
    if dtype.is_float:
        return float("-inf") if low else float("inf")
    info = torch.iinfo(dtype.torch)
    return info.min if low else info.max
