"""Sizes of torch's shape environment as expressions of ours, what binds their symbols, and what the program relies on of these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch import Tensor

from ..symbols import Dim, FloorDiv, Mod, dim, power_of_two, symbol

__all__ = ["ImportFailure", "Sizes"]


class ImportFailure(Exception):
    """The graph holds something that the IR cannot express; the caller runs the program in eager instead."""


def _modular(base: sympy.Expr, divisor: sympy.Expr, modulus: sympy.Expr) -> sympy.Expr:
    return Mod(FloorDiv(base, divisor), modulus)


def _power(base: sympy.Expr, exponent: sympy.Expr) -> sympy.Expr:
    if not (exponent.is_Integer and exponent >= 0):
        raise ImportFailure(f"the size {base}**{exponent} is not a polynomial")
    return base**exponent


def _ceil_div(base: sympy.Expr, divisor: sympy.Expr) -> sympy.Expr:
    return -FloorDiv(-base, divisor)


def _shift_left(base: sympy.Expr, bits: sympy.Expr) -> sympy.Expr:
    return base * _power(sympy.Integer(2), bits)


def _shift_right(base: sympy.Expr, bits: sympy.Expr) -> sympy.Expr:
    return FloorDiv(base, _power(sympy.Integer(2), bits))


# By the name of torch's (or sympy's) class. All arguments of sizes are known to be >= 0, where its kinds of remainder agree.
_SIZE_FUNCTIONS: dict[str, Callable[..., sympy.Expr]] = {
    "Add": sympy.Add,
    "Mul": sympy.Mul,
    "Pow": _power,
    "PowByNatural": _power,
    "FloorDiv": FloorDiv,
    "CleanDiv": FloorDiv,
    "CeilDiv": _ceil_div,
    "Mod": Mod,
    "PythonMod": Mod,
    "ModularIndexing": _modular,
    "Max": sympy.Max,
    "Min": sympy.Min,
    "Identity": lambda x: x,
    "LShift": _shift_left,
    "RShift": _shift_right,
}

# Rounded quotients of integers, as `int(a / b)` and its like leave them.
_ROUNDED_QUOTIENTS: dict[str, Callable[..., sympy.Expr]] = {
    "FloorToInt": FloorDiv,
    "TruncToInt": FloorDiv,  # sizes are never negative
    "CeilToInt": _ceil_div,
}


class Sizes:
    """Translates torch's size expressions to ours, and knows which symbols the arguments bind."""

    def __init__(self) -> None:
        self.bound: dict[str, tuple[Any, ...]] = {}  # name -> row of the function's `symbols`
        self.hints: dict[str, int] = {}  # what the symbols were when the function was captured, to three digits of two
        self.late: set[str] = set()  # names that calls of the graph bind
        self._known: dict[Any, Dim] = {}
        self._assumed: set[Any] = set()

    def bind(self, size: Any, argument: int, dimension: int) -> None:
        """A symbol gets its value from this dimension (-1: the argument itself, -2 - d: stride d), unless it already has one."""
        if type(size) is int or not isinstance(size, torch.SymInt):
            return
        expr = size.node.expr
        if expr.is_Symbol and str(expr) not in self.bound:
            low, high = _range(size, expr)
            self.bound[str(expr)] = (str(expr), argument, dimension, low, high)
            if size.node.has_hint():
                hint = int(size.node.hint)
                step = max(1, power_of_two(hint) // 8)
                self.hints[str(expr)] = -(-hint // step) * step

    def bind_late(self, values: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Bind the symbols that nothing before these results of a call gives: rows of `binds`, and what the program relies on (`assumes`)."""
        found: dict[str, tuple[Any, tuple[str, int, int]]] = {}
        for position, value in enumerate(values):
            sizes = enumerate(value.shape) if isinstance(value, Tensor) else ((-1, value),)
            for d, size in sizes:
                if isinstance(size, torch.SymInt) and size.node._expr.is_Symbol:
                    name = str(_own(size))
                    if name not in self.bound and name not in self.late and name not in found:
                        found[name] = size, (name, position, d)
        if not found:
            return (), ()
        self.late.update(found)
        assumed = [row for size, (_, _, d) in found.values() for row in self._of_one(size, d == -1)]
        env = next(iter(found.values()))[0].node.shape_env
        return tuple(row for _, row in found.values()), (*assumed, *self._of_several(env))

    def _of_one(self, size: Any, read: bool) -> list[tuple[str, Dim, Dim]]:
        """What is known of one symbol: its range, and what it equals. Numbers that are read may be negative, which none of ours is."""
        raw, env = _own(size), size.node.shape_env
        own = symbol(str(raw))
        low, high = _range(size, raw)
        rows: list[tuple[str, Dim, Dim]] = [("le", low, own)] if low > 0 or read else []
        rows += [] if high is None else [("le", own, high)]
        same = env.replace(raw)
        return rows if same == raw else [*rows, ("eq", own, dim(self._translate(same)))]

    def _of_several(self, env: Any) -> list[tuple[str, Dim, Dim]]:
        """The relations that torch has put off until the program runs, as soon as all their symbols are bound."""
        rows: list[tuple[str, Dim, Dim]] = []
        for each in (a for asserts in env.deferred_runtime_asserts.values() for a in asserts):
            names = {str(s) for s in env.replace(each.expr).free_symbols}
            if each.expr not in self._assumed and names <= self.late | self.bound.keys():
                self._assumed.add(each.expr)
                rows += self._relation(env.replace(each.expr))
        return rows

    def _relation(self, expr: Any) -> list[tuple[str, Dim, Dim]]:
        """Rows for a relation between sizes."""
        if expr == sympy.true:
            return []
        if isinstance(expr, sympy.And):
            return [row for part in expr.args for row in self._relation(part)]
        expr = _joined(expr)
        kind = type(expr)
        if kind not in _RELATIONS:
            raise ImportFailure(f"the program relies on {expr}, which cannot be asked of sizes")
        left, right = (self._translate(side) for side in expr.args)
        name, turned, more = _RELATIONS[kind]
        left, right = (right, left) if turned else (left, right)
        return [(name, dim(left + more), dim(right))]

    def dim(self, size: Any) -> Dim:
        """An int or SymInt (or torch's expression) as our `Dim`."""
        if type(size) is int:
            return size
        expr = size.node.expr if isinstance(size, torch.SymInt) else size
        found = self._known.get(expr)
        if found is None:
            found = self._known[expr] = dim(self._translate(sympy.sympify(expr)))
        return found

    def stride(self, size: Any) -> Dim:
        """A stride inside of a program: torch writes Max(1, s0) so that a size of 0 counts as 1; where nothing is addressed both are right."""
        value = self.dim(size)
        if isinstance(value, int) or not value.has(sympy.Max):
            return value
        return dim(value.replace(lambda e: isinstance(e, sympy.Max) and sympy.S.One in e.args, _without_one))

    def _translate(self, expr: Any) -> sympy.Expr:
        if expr.is_Integer:
            return sympy.Integer(int(expr))
        if expr.is_Symbol:
            if str(expr) not in self.bound and str(expr) not in self.late:
                raise ImportFailure(f"the size {expr} is not known before the program runs")
            return symbol(str(expr))
        kind = type(expr).__name__
        if kind in _SIZE_FUNCTIONS:
            return _SIZE_FUNCTIONS[kind](*map(self._translate, expr.args))
        if kind in _ROUNDED_QUOTIENTS and type(expr.args[0]).__name__ == "IntTrueDiv":
            return _ROUNDED_QUOTIENTS[kind](*map(self._translate, expr.args[0].args))
        raise ImportFailure(f"size arithmetic with {kind} ({expr}) is not supported")


# Rows of `assumes`: the relation, whether its sides change places, what is added to the first.
_RELATIONS: dict[Any, tuple[str, bool, int]] = {
    sympy.Eq: ("eq", False, 0),
    sympy.Ne: ("ne", False, 0),
    sympy.Le: ("le", False, 0),
    sympy.Lt: ("le", False, 1),
    sympy.Ge: ("le", True, 0),
    sympy.Gt: ("le", True, 1),
}


def _without_one(value: sympy.Expr) -> sympy.Expr:
    return sympy.Max(*[a for a in value.args if a != 1])


def _own(size: Any) -> sympy.Symbol:
    """The symbol that a size is, by the name that it had in the first of several traces."""
    found, names = size.node._expr, size.node.shape_env.unbacked_renamings
    while found in names:
        found = names[found]
    return found


def _joined(expr: Any) -> Any:
    """`a <= b` for `a == b or a < b`; any other relation as it is."""
    if not isinstance(expr, sympy.Or) or len(expr.args) != 2:
        return expr
    equal, less = sorted(expr.args, key=lambda part: not isinstance(part, sympy.Eq))
    strict = isinstance(less, sympy.StrictLessThan | sympy.StrictGreaterThan)
    joins = isinstance(equal, sympy.Eq) and strict and set(equal.args) == set(less.args)
    return sympy.Le(less.lts, less.gts) if joins else expr


def _range(size: Any, expr: sympy.Symbol) -> tuple[int, int | None]:
    """The bounds that capture assumed (and guards) for a symbol."""
    known = size.node.shape_env.var_to_range.get(expr)
    if known is None:
        return 0, None
    low = int(known.lower) if known.lower.is_Integer else 0
    high = int(known.upper) if known.upper.is_Integer else None
    return max(0, low), None if high is None or high >= 2**62 else high
