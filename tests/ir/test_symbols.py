"""Symbolic integers against brute force: what is simplified, bounded or compared has the same values."""

from __future__ import annotations

import itertools

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.ir.symbols import (
    FloorDiv,
    Mod,
    bounds,
    contiguous_strides,
    dim,
    free_symbols,
    is_nonnegative,
    known_equal,
    product,
    simplify_index,
    substitute,
    symbol,
)

A, B, N = symbol("i"), symbol("j"), symbol("n")
RANGES = {A: (0, 6), B: (0, 3)}
VALUES = [{A: i, B: j, N: n} for i, j, n in itertools.product(range(7), range(4), (0, 1, 2, 5, 8))]


def evaluate(tree: tuple, values: dict[sympy.Symbol, int]) -> int:
    """The value by Python's integers, without any of our algebra."""
    if tree[0] == "leaf":
        return values.get(tree[1], tree[1]) if isinstance(tree[1], sympy.Symbol) else tree[1]
    a, b = evaluate(tree[1], values), evaluate(tree[2], values)
    return {
        "+": lambda: a + b,
        "-": lambda: a - b,
        "*": lambda: a * b,
        "/": lambda: a // b,
        "%": lambda: a % b,
        "<": lambda: min(a, b),
        ">": lambda: max(a, b),
    }[tree[0]]()


def build(tree: tuple) -> sympy.Expr:
    if tree[0] == "leaf":
        return sympy.sympify(tree[1])
    a, b = build(tree[1]), build(tree[2])
    return {
        "+": lambda: a + b,
        "-": lambda: a - b,
        "*": lambda: a * b,
        "/": lambda: FloorDiv(a, b),
        "%": lambda: Mod(a, b),
        "<": lambda: sympy.Min(a, b),
        ">": lambda: sympy.Max(a, b),
    }[tree[0]]()


leaves = st.sampled_from([A, B, N, A, B]).map(lambda s: ("leaf", s)) | st.integers(0, 20).map(lambda n: ("leaf", n))
divisors = st.sampled_from([1, 2, 3, 4, 6, 8]).map(lambda n: ("leaf", n))
trees = st.recursive(
    leaves,
    lambda inner: (
        st.tuples(st.sampled_from("++-**<>"), inner, inner) | st.tuples(st.sampled_from("/%"), inner, divisors)
    ),
    max_leaves=7,
)


@given(trees)
@settings(max_examples=400, deadline=None)
def test_algebra_keeps_values(tree: tuple) -> None:
    value = dim(build(tree))
    for values in VALUES[::3]:
        assert substitute(value, values) == evaluate(tree, values)


@given(trees)
@settings(max_examples=400, deadline=None)
def test_simplify_index_keeps_values(tree: tuple) -> None:
    value = simplify_index(dim(build(tree)), RANGES)
    for values in VALUES:
        assert substitute(value, values) == evaluate(tree, values)


@given(trees)
@settings(max_examples=400, deadline=None)
def test_bounds_hold(tree: tuple) -> None:
    low, high = bounds(dim(build(tree)), RANGES)
    for values in VALUES:
        found = evaluate(tree, values)
        assert low is None or substitute(low, values) <= found
        assert high is None or found <= substitute(high, values)


@given(trees)
@settings(max_examples=300, deadline=None)
def test_is_nonnegative_is_never_a_guess(tree: tuple) -> None:
    if is_nonnegative(dim(build(tree)), RANGES):
        assert all(evaluate(tree, values) >= 0 for values in VALUES)


@given(trees, trees)
@settings(max_examples=200, deadline=None)
def test_known_equal_is_never_a_guess(a: tuple, b: tuple) -> None:
    if known_equal(dim(build(a)), dim(build(b))):
        assert all(evaluate(a, v) == evaluate(b, v) for v in VALUES)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (FloorDiv(4 * N + 3, 4), FloorDiv(sympy.Integer(3), 4) + N),
        (FloorDiv(8 * N, 4), 2 * N),
        (FloorDiv(FloorDiv(N, 2), 3), FloorDiv(N, 6)),
        (FloorDiv(4 * N, 8), FloorDiv(N, 2)),
        (FloorDiv(N * A, N), A),
        (Mod(8 * N + A, 8), Mod(A, 8)),
        (Mod(Mod(N, 12), 4), Mod(N, 4)),
        (FloorDiv(N, N), 1),
        (Mod(N, 1), 0),
    ],
)
def test_division_rules(value: sympy.Expr, expected: sympy.Expr) -> None:
    assert dim(value) == dim(expected)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (FloorDiv(A, 7), 0),
        (Mod(A, 7), A),
        (FloorDiv(4 * A + B, 4), A),
        (Mod(4 * A + B, 4), B),
        (4 * FloorDiv(4 * A + B, 4) + Mod(4 * A + B, 4), 4 * A + B),
        (FloorDiv(4 * A + B, 8), FloorDiv(A, 2)),
        (N * FloorDiv(A, 7) + Mod(B, 4), B),
        (3 * FloorDiv(N, 3) + Mod(N, 3), N),
    ],
)
def test_simplify_index_rules(value: sympy.Expr, expected: sympy.Expr) -> None:
    assert simplify_index(dim(value), RANGES) == dim(expected)


@pytest.mark.parametrize(
    ("value", "ranges"),
    [
        (N - 1 - A, {A: (0, N - 1)}),
        (2 * N - 1 - A - N, {A: (0, N - 1)}),
        (N * B + N - 1 - A - N * B, {A: (0, N - 1), B: (0, 3)}),
        (N - 1 - A, {A: (0, N - 1), N: (2, None)}),
        (N - 2, {N: (2, None)}),
    ],
)
def test_ranges_up_to_a_symbol(value: sympy.Expr, ranges: dict) -> None:
    assert is_nonnegative(dim(value), ranges)


def test_sizes_and_strides() -> None:
    assert product([2, N, 3]) == 6 * N
    assert contiguous_strides([N, 3, 4]) == (12, 4, 1)
    assert contiguous_strides([2, 0, 3]) == (3, 3, 1)
    assert contiguous_strides([2, N]) == (N, 1)
    assert free_symbols([2, N + A]) == {N, A}
    assert dim(sympy.Integer(3)) == 3 and type(dim(sympy.Integer(3))) is int
    assert dim(True) == 1


def test_ranges_of_a_tile() -> None:
    tile = {B: (A, dim(sympy.Min(N, A + 4) - 1)), A: (0, N - 1)}
    assert is_nonnegative(dim(N - 1 - B), {B: tile[B]})
    assert simplify_index(Mod(B, N), {B: (0, dim(sympy.Min(N, A + 4) - 1))}) == B
