"""Symbolic integers: dimensions, strides, and index expressions.

A dimension (`Dim`) is a Python int when it is known and a sympy expression over size symbols otherwise.
Every symbol is made by `symbol`, so that two symbols of one name are always equal, whoever made them.
Expressions are expanded on construction and never passed to `sympy.simplify` (10 ms a call).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from typing import TypeAlias, TypeVar

import sympy

Dim: TypeAlias = int | sympy.Expr
Range: TypeAlias = tuple[Dim, Dim]  # inclusive lower bound, inclusive upper bound


@cache
def symbol(name: str) -> sympy.Symbol:
    """The integer symbol of that name: a size, a stride or a loop variable; never negative."""
    return sympy.Symbol(name, integer=True, nonnegative=True)


class FloorDiv(sympy.Function):  # type: ignore[misc]
    """Integer division that rounds down. sympy's own floor turns into rationals, which do not print as code."""

    nargs = (2,)
    is_integer = True

    @classmethod
    def eval(cls, base: sympy.Expr, divisor: sympy.Expr) -> sympy.Expr | None:
        if base.is_Integer and divisor.is_Integer and divisor != 0:
            return sympy.Integer(int(base) // int(divisor))
        if divisor == 1:
            return base
        if base == 0:
            return sympy.S.Zero
        if base == divisor:
            return sympy.S.One
        if isinstance(base, FloorDiv):
            return FloorDiv(base.args[0], sympy.expand(base.args[1] * divisor))
        exact, rest = _split_multiple(base, divisor)
        if exact != 0:
            return exact + FloorDiv(rest, divisor)
        return _cancel_common(base, divisor)

    def _eval_is_nonnegative(self) -> bool | None:
        base, divisor = self.args
        return True if base.is_nonnegative and divisor.is_nonnegative else None


class Mod(sympy.Function):  # type: ignore[misc]
    """Remainder with the sign of the divisor, as Python's `%`."""

    nargs = (2,)
    is_integer = True

    @classmethod
    def eval(cls, base: sympy.Expr, divisor: sympy.Expr) -> sympy.Expr | None:
        if base.is_Integer and divisor.is_Integer and divisor != 0:
            return sympy.Integer(int(base) % int(divisor))
        if divisor == 1 or base == 0 or base == divisor:
            return sympy.S.Zero
        exact, rest = _split_multiple(base, divisor)
        if exact != 0:
            return Mod(rest, divisor)
        if isinstance(base, Mod) and _split_multiple(base.args[1], divisor)[1] == 0:
            return Mod(base.args[0], divisor)
        return None

    def _eval_is_nonnegative(self) -> bool | None:
        return True if self.args[1].is_positive or self.args[1].is_nonnegative else None


def _split_multiple(base: sympy.Expr, divisor: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr]:
    """base == exact * divisor + rest, taking every term that is a visible multiple of the divisor."""
    exact: sympy.Expr = sympy.S.Zero
    rest: sympy.Expr = sympy.S.Zero
    for term in sympy.Add.make_args(base):
        quotient = _exact_quotient(term, divisor)
        if quotient is None:
            rest += term
        else:
            exact += quotient
    return exact, rest


def _exact_quotient(term: sympy.Expr, divisor: sympy.Expr) -> sympy.Expr | None:
    """term / divisor when that is a product of integers, else None."""
    coefficient, factors = term.as_coeff_mul()
    divisor_coefficient, divisor_factors = divisor.as_coeff_mul()
    if not (coefficient.is_Integer and divisor_coefficient.is_Integer) or divisor_coefficient == 0:
        return None
    if int(coefficient) % int(divisor_coefficient):
        return None
    remaining = list(factors)
    for factor in divisor_factors:
        if factor not in remaining:
            return None
        remaining.remove(factor)
    return sympy.Mul(sympy.Integer(int(coefficient) // int(divisor_coefficient)), *remaining)


def _cancel_common(base: sympy.Expr, divisor: sympy.Expr) -> sympy.Expr | None:
    """FloorDiv(4*x, 8) -> FloorDiv(x, 2); also over sums whose terms share the factor."""
    if not divisor.is_Integer:
        return None
    common = abs(int(divisor))
    for term in sympy.Add.make_args(base):
        coefficient = term.as_coeff_Mul()[0]
        if not coefficient.is_Integer:
            return None
        common = math.gcd(common, int(coefficient))
    if common <= 1:
        return None
    return FloorDiv(sympy.expand(base / common), sympy.Integer(int(divisor) // common))


def dim(value: object) -> Dim:
    """Bring an int, sympy number or expression to the one form of a `Dim`."""
    if type(value) is int:
        return value
    if isinstance(value, sympy.Integer):
        return int(value)
    if isinstance(value, sympy.Expr):
        return _expanded(value)
    return int(value)  # type: ignore[call-overload]  # bool, numpy integers


@lru_cache(maxsize=1 << 15)
def _expanded(value: sympy.Expr) -> Dim:
    """The same few expressions come again and again while a kernel is planned; Max and Min take a millisecond each."""
    expanded = sympy.expand(value)
    if expanded.has(sympy.Max, sympy.Min):
        expanded = expanded.doit()  # sympy may leave Min(1, 2) inside Max
    return int(expanded) if expanded.is_Integer else expanded


def product(dims: Iterable[Dim]) -> Dim:
    """The product of dimensions: the number of elements of a shape."""
    result: Dim = 1
    for d in dims:
        result = result * d
    return dim(result)


def contiguous_strides(shape: Iterable[Dim]) -> tuple[Dim, ...]:
    """Row-major strides in elements. A dimension of size 0 or 1 counts as 1, as torch counts it."""
    strides: list[Dim] = []
    running: Dim = 1
    for size in reversed(tuple(shape)):
        strides.append(running)
        running = dim(running * (1 if size == 0 else size))
    return tuple(reversed(strides))


_Size = TypeVar("_Size", int, Dim)


def span(sizes: Sequence[_Size], strides: Sequence[_Size]) -> _Size:
    """How many elements of memory sizes and strides reach over."""
    return 0 if 0 in sizes else 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))


def known_equal(a: Dim, b: Dim) -> bool:
    """True when both are the same expression; never a guess."""
    return a == b or dim(a - b) == 0


def free_symbols(dims: Iterable[Dim]) -> set[sympy.Symbol]:
    """All symbols in the dimensions."""
    found: set[sympy.Symbol] = set()
    for d in dims:
        if isinstance(d, sympy.Expr):
            found |= symbols_of(d)
    return found


@lru_cache(maxsize=1 << 15)
def symbols_of(value: sympy.Expr) -> frozenset[sympy.Symbol]:
    """The symbols of an expression, which sympy collects anew each time."""
    return frozenset(value.free_symbols)


def substitute(value: Dim, mapping: Mapping[sympy.Symbol, Dim]) -> Dim:
    """Replace symbols; with all symbols replaced by ints the result is an int."""
    if isinstance(value, int):
        return value
    used = frozenset([(s, mapping[s]) for s in symbols_of(value) if s in mapping])
    return _substituted(value, used) if used else dim(value)


@lru_cache(maxsize=1 << 15)
def _substituted(value: sympy.Expr, used: frozenset[tuple[sympy.Symbol, Dim]]) -> Dim:
    return replace_terms(value, dict(used))


def replace_terms(value: sympy.Expr, mapping: Mapping[sympy.Expr, Dim]) -> Dim:
    """Replace expressions wherever they stand in another one."""
    return dim(value.xreplace({k: sympy.sympify(v) for k, v in mapping.items()}))


def bounds(value: Dim, ranges: Mapping[sympy.Symbol, Range]) -> tuple[Dim | None, Dim | None]:
    """A safe inclusive interval for the value; None where no bound is known.

    Bounds may be symbolic: a symbol outside `ranges`, or without an upper limit there, bounds itself, so that it cancels.
    """
    if isinstance(value, int):
        return value, value
    if value.is_Integer:
        return int(value), int(value)
    if value.is_Symbol:
        known = ranges.get(value)
        return (value, value) if known is None or known[1] is None else known
    if isinstance(value, sympy.Add):
        low: Dim | None = 0
        high: Dim | None = 0
        for term in value.args:
            term_low, term_high = bounds(term, ranges)
            low = None if low is None or term_low is None else dim(low + term_low)
            high = None if high is None or term_high is None else dim(high + term_high)
        return low, high
    if isinstance(value, sympy.Mul):
        coefficient, rest = value.as_coeff_Mul()
        if not coefficient.is_Integer:
            return None, None
        low, high = 1, 1
        for factor in sympy.Mul.make_args(rest):
            factor_low, factor_high = bounds(factor, ranges)
            if factor_low is None or not (
                factor_low >= 0 if isinstance(factor_low, int) else factor_low.is_nonnegative
            ):
                return None, None
            low = dim(low * factor_low) if low is not None else None
            high = None if high is None or factor_high is None else dim(high * factor_high)
        if coefficient >= 0:
            return dim(coefficient * low), (None if high is None else dim(coefficient * high))
        return (None if high is None else dim(coefficient * high)), dim(coefficient * low)
    if isinstance(value, FloorDiv):
        base, divisor = value.args
        low, high = bounds(base, ranges)
        if divisor.is_positive or divisor.is_nonnegative:
            return _quotient(low, divisor), _quotient(high, divisor)
        return None, None
    if isinstance(value, Mod):
        return (0, dim(value.args[1] - 1)) if value.args[1].is_nonnegative else (None, None)
    if isinstance(value, sympy.Max | sympy.Min):
        return _bounds_of_extreme(value, ranges)
    return None, None


def _bounds_of_extreme(value: sympy.Expr, ranges: Mapping[sympy.Symbol, Range]) -> tuple[Dim | None, Dim | None]:
    """Max is at least any of its arguments and at most the largest; Min the other way round."""
    lows, highs = zip(*[bounds(a, ranges) for a in value.args], strict=True)
    known_lows, known_highs = ([b for b in side if b is not None] for side in (lows, highs))
    enough = len(value.args) if isinstance(value, sympy.Min) else 1
    low = _extreme(value, known_lows) if len(known_lows) >= enough else None
    enough = len(value.args) if isinstance(value, sympy.Max) else 1
    return low, (_extreme(value, known_highs) if len(known_highs) >= enough else None)


def _extreme(like: sympy.Expr, values: Sequence[Dim]) -> Dim:
    """Max or Min, as `like` is, of the values: of plain numbers without sympy, which takes a hundred times as long."""
    if all(type(v) is int for v in values):
        return (max if isinstance(like, sympy.Max) else min)(values)
    return dim(like.func(*map(sympy.sympify, values)))


def _quotient(value: Dim | None, divisor: sympy.Expr) -> Dim | None:
    if value is None:
        return None
    if type(value) is int and divisor.is_Integer and divisor:
        return value // int(divisor)
    return dim(FloorDiv(sympy.sympify(value), divisor))


UNKNOWN_SIZE = 1 << 31  # what a size without an upper bound counts as; the product of two such sizes fits 64 bits


def interval(value: Dim, ranges: Mapping[sympy.Symbol, Range]) -> tuple[int, int] | None:
    """The least and the largest number that an expression can be, with numbers alone; None where it is no sum, product or quotient."""
    if isinstance(value, int):
        return value, value
    if value.is_Integer:
        return int(value), int(value)
    if value.is_Symbol:
        ends = ranges.get(value, (0, None))
        low = interval(ends[0], ranges)
        high = (0, UNKNOWN_SIZE) if ends[1] is None else interval(ends[1], ranges)
        return None if low is None or high is None else (low[0], max(low[0], high[1]))
    parts = [interval(a, ranges) for a in value.args]
    known = [p for p in parts if p is not None]
    if len(known) < len(parts):
        return None
    if isinstance(value, sympy.Add):
        return sum(p[0] for p in known), sum(p[1] for p in known)
    if isinstance(value, sympy.Max | sympy.Min):
        extreme = max if isinstance(value, sympy.Max) else min
        return extreme(p[0] for p in known), extreme(p[1] for p in known)
    if isinstance(value, sympy.Mul):
        found = 1, 1
        for part in known:
            found = _corners(found, part, lambda a, b: a * b)
        return found
    if isinstance(value, sympy.Pow) and value.exp.is_Integer and value.exp > 0:
        return _corners(known[0], known[0], lambda a, b: int(a) ** int(value.exp)) if known[0][0] >= 0 else None
    if isinstance(value, FloorDiv) and known[1][0] > 0:
        return _corners(known[0], known[1], lambda a, b: a // b)
    if isinstance(value, Mod) and known[1][0] > 0:
        return 0, known[1][1] - 1
    return None


def _corners(a: tuple[int, int], b: tuple[int, int], combine: Callable[[int, int], int]) -> tuple[int, int]:
    values = [combine(x, y) for x in a for y in b]
    return min(values), max(values)


# Ranges as a key: those that an answer about one expression depends on.
_Known: TypeAlias = frozenset[tuple[sympy.Symbol, Range]]


def _known(value: sympy.Expr, ranges: Mapping[sympy.Symbol, Range]) -> _Known:
    """The ranges of the symbols of an expression, and of those in their bounds, and so on."""
    found: dict[sympy.Symbol, Range] = {}
    waiting = [*symbols_of(value)]
    while waiting:
        s = waiting.pop()
        if s in ranges and s not in found:
            found[s] = ends = ranges[s]
            for end in ends:
                if isinstance(end, sympy.Expr):
                    waiting += symbols_of(end)
    return frozenset(found.items())


def is_nonnegative(value: Dim, ranges: Mapping[sympy.Symbol, Range]) -> bool:
    """True when value >= 0 follows from the ranges (False means: not known)."""
    return value >= 0 if isinstance(value, int) else _is_nonnegative(value, _known(value, ranges))


@lru_cache(maxsize=1 << 15)
def _is_nonnegative(value: sympy.Expr, known: _Known) -> bool:
    ranges = dict(known)
    low, _ = bounds(value, ranges)
    if low is None or isinstance(low, int):
        return low is not None and low >= 0
    return any(_plainly_nonnegative(candidate, ranges) for candidate in (low, *_below(low)))


def _plainly_nonnegative(value: Dim, ranges: Mapping[sympy.Symbol, Range]) -> bool:
    if isinstance(value, int):
        return value >= 0
    if value.is_nonnegative:
        return True
    least = {s: ranges[s][0] for s in value.free_symbols if s in ranges and ranges[s][1] is None}
    if not least:
        return False
    raised = substitute(value, {s: s + low for s, low in least.items()})  # each counts from its least value
    return sympy.sympify(raised).is_nonnegative is True


def _below(value: sympy.Expr) -> list[Dim]:
    """Expressions that are not larger: -Min(a, b) is at least -a, Max(a, b) at least a."""
    found: list[Dim] = []
    for term in sympy.Add.make_args(value):
        coefficient, rest = term.as_coeff_Mul()
        if isinstance(rest, sympy.Min if coefficient < 0 else sympy.Max):
            found += [dim(value - term + coefficient * a) for a in rest.args]
    return found


def simplify_index(value: Dim, ranges: Mapping[sympy.Symbol, Range]) -> Dim:
    """Drop divisions and remainders that the ranges of the variables make trivial.

    FloorDiv(i, n) -> 0 and Mod(i, n) -> i when 0 <= i < n; also after splitting off multiples of n.
    """
    if isinstance(value, int) or not _divides(value):
        return dim(value)
    return _simplified(value, _known(value, ranges))


@lru_cache(maxsize=1 << 15)
def _divides(value: sympy.Expr) -> bool:
    found: bool = value.has(FloorDiv, Mod)
    return found


@lru_cache(maxsize=1 << 15)
def _simplified(value: sympy.Expr, known: _Known) -> Dim:
    ranges = dict(known)

    def rewrite(node: sympy.Expr) -> sympy.Expr:
        if not node.args:
            return node
        node = node.func(*[rewrite(arg) for arg in node.args])
        if isinstance(node, FloorDiv | Mod):
            base, divisor = node.args
            if is_nonnegative(dim(base), ranges) and is_nonnegative(dim(divisor - 1 - base), ranges):
                return sympy.S.Zero if isinstance(node, FloorDiv) else base
            if isinstance(node, FloorDiv):
                return _divide_inner(base, divisor, ranges) or node
        return node

    result = dim(rewrite(value))
    return _merge_divmod(result, ranges)


def _divide_inner(base: sympy.Expr, divisor: sympy.Expr, ranges: Mapping[sympy.Symbol, Range]) -> sympy.Expr | None:
    """FloorDiv(8*i + j, 16) -> FloorDiv(i, 2) when 0 <= j < 8."""
    if not divisor.is_Integer:
        return None
    for step in sorted({abs(int(t.as_coeff_Mul()[0])) for t in sympy.Add.make_args(base)}, reverse=True):
        if step <= 1 or int(divisor) % step:
            continue
        exact, rest = _split_multiple(base, sympy.Integer(step))
        if exact == 0 or rest == 0:
            continue
        if is_nonnegative(dim(rest), ranges) and is_nonnegative(dim(step - 1 - rest), ranges):
            return FloorDiv(exact, sympy.Integer(int(divisor) // step))
    return None


def _merge_divmod(value: Dim, ranges: Mapping[sympy.Symbol, Range]) -> Dim:
    """n*FloorDiv(x, n) + Mod(x, n) -> x, also where the quotient has been simplified."""
    if isinstance(value, int) or not isinstance(value, sympy.Add):
        return value
    for term in value.args:
        factors = sympy.Mul.make_args(term)
        rest = next((f for f in factors if isinstance(f, Mod)), None)
        if rest is not None:
            base, divisor = rest.args
            coefficient = sympy.Mul(*(f for f in factors if f is not rest))
            for quotient in (FloorDiv(base, divisor), _divide_inner(base, divisor, ranges)):
                partner = None if quotient is None else sympy.expand(coefficient * divisor * quotient)
                if partner in value.args:
                    return _merge_divmod(dim(value - term - partner + coefficient * base), ranges)
    return value


def power_of_two(size: int) -> int:
    """The least power of two that is not less; 1 for 0."""
    return 1 << max(0, size - 1).bit_length()
