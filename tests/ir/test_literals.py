"""Literals: the text of every value reads back to an equal value."""

from __future__ import annotations

import math

import pytest
import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.ir.literals import LiteralError, parse_entries, parse_literal, print_entries, print_literal
from intarsia.ir.symbols import FloorDiv, Mod, dim, symbol
from intarsia.ir.types import LiteralAttr

S0, S1 = symbol("s0"), symbol("s1")

sizes = st.recursive(
    st.integers(0, 50).map(sympy.Integer) | st.sampled_from([S0, S1]),
    lambda inner: st.tuples(inner, inner, st.sampled_from("+-*/%<>")).map(lambda t: _combine(*t)),
    max_leaves=6,
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.complex_numbers()
    | st.text()
    | sizes.map(dim)
    | st.sampled_from([torch.float32, torch.bool, torch.strided, torch.channels_last, torch.device("cpu")])
    | st.sampled_from([torch.device("cuda", 1)])
)
literals = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=12)


def _combine(a: sympy.Expr, b: sympy.Expr, op: str) -> sympy.Expr:
    divisor = b + 1 if b != -1 else b
    table = {
        "+": lambda: a + b,
        "-": lambda: a - b,
        "*": lambda: a * b,
        "/": lambda: FloorDiv(a, divisor),
        "%": lambda: Mod(a, divisor),
        "<": lambda: sympy.Min(a, b),
        ">": lambda: sympy.Max(a, b),
    }
    return sympy.expand(table[op]())


def same(a: object, b: object) -> bool:
    if isinstance(a, tuple):
        return isinstance(b, tuple) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, complex):
        return isinstance(b, complex) and same(a.real, b.real) and same(a.imag, b.imag)
    if isinstance(a, float):
        both_nan = isinstance(b, float) and math.isnan(a) and math.isnan(b)
        return both_nan or (isinstance(b, float) and a == b and math.copysign(1, a) == math.copysign(1, b))
    return (isinstance(a, sympy.Expr) or type(a) is type(b)) and a == b


@given(literals)
@settings(max_examples=400, deadline=None)
def test_text_reads_back(value: object) -> None:
    text = print_literal(value)
    assert same(parse_literal(text), value)
    assert print_literal(parse_literal(text)) == text


@given(st.dictionaries(st.sampled_from(["a", "dim", "from", "self", "in", "lambda"]), literals, max_size=4))
@settings(max_examples=200, deadline=None)
def test_entries_read_back(entries: dict[str, object]) -> None:
    found = dict(parse_entries(print_entries(entries)))
    assert list(found) == list(entries)
    assert all(same(found[k], v) for k, v in entries.items())


@pytest.mark.parametrize(
    ("a", "b"), [(1, 1.0), (1, True), (0.0, -0.0), (None, False), ("s0", S0), ((1,), 1), (torch.int32, torch.int64)]
)
def test_unlike_values_are_unlike_attributes(a: object, b: object) -> None:
    assert LiteralAttr(a) != LiteralAttr(b)


def test_nan_equals_itself() -> None:
    assert LiteralAttr(math.nan) == LiteralAttr(float("nan"))
    assert hash(LiteralAttr(math.nan)) == hash(LiteralAttr(float("nan")))


def test_equal_symbols_are_one() -> None:
    assert parse_literal("2*s0 + s0") == dim(3 * S0)
    assert parse_literal("s0 - s0") == 0
    assert parse_literal("s0").is_nonnegative and parse_literal("s0").is_integer


@pytest.mark.parametrize(
    ("text", "message", "offset"),
    [
        ("[1 2]", "not a value", 1),
        ("foo(1)", "not a value: foo(1)", 0),
        ("1 / 2", "not a value: 1 / 2", 0),
        ("[1, lambda: 3]", "not a value", 4),
        ("[1, torch.nothing]", "not a value: torch.nothing", 4),
        ("[0, Mod(s0, 0)]", "division by zero", 4),
        ("FloorDiv(1)", "has no value", 0),
        ("Max()", "sizes are integers", 0),
        ('Max("a", 1)', "sizes are integers", 0),
        ('"a" + 1', "has no value", 0),
        ("-none", "has no value", 0),
        ("9**9**9", "an exponent is", 0),
        ('device("x y")', "has no value", 0),
        ("(" * 300 + ")" * 300, "not a value", None),
        ("", "not a value", 0),
    ],
)
def test_bad_text(text: str, message: str, offset: int | None) -> None:
    with pytest.raises(LiteralError) as caught:
        parse_literal(text)
    assert message in str(caught.value)
    assert offset is None or caught.value.offset == offset


@pytest.mark.parametrize("value", [object(), {1: 2}, torch.zeros(1), print])
def test_values_that_are_no_literals(value: object) -> None:
    with pytest.raises(TypeError, match="cannot be an attribute"):
        print_literal(value)
