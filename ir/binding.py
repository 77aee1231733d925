"""Which names a size may be made of: those that a function binds, and in a kernel what it is given and its loop variables."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Set
from typing import Any

import sympy
from xdsl.ir import Operation
from xdsl.utils.exceptions import VerifyException

from .syntax import Op, defined_values


def check_bound(op: Operation, names: Set[str], where: str) -> None:
    """Check that the types and attributes of one operation use no other names than these.

    Raises:
        VerifyException: says which name, in what, and `where` it should be bound.
    """
    own = op.bound_names if isinstance(op, Op) else frozenset()
    for what, found in _expressions(op):
        for symbol in sorted(map(str, found.free_symbols)):
            if symbol not in names and symbol not in own:
                close = difflib.get_close_matches(symbol, list(names), n=1)
                hint = f"; did you mean '{close[0]}'?" if close else ""
                raise VerifyException(f"{what}: the symbol '{symbol}' is bound by no {where}{hint}")


def _expressions(op: Operation) -> Iterator[tuple[str, sympy.Basic]]:
    for value in defined_values(op):
        for size in (*getattr(value.type, "shape", ()), *getattr(value.type, "strides", ())):
            if isinstance(size, sympy.Basic):
                yield str(value.type), size
    if isinstance(op, Op):
        for name, literal in op.literals.items():
            for expression in _inside(literal):
                yield f"{op.name}: {name}", expression


def _inside(literal: Any) -> Iterator[sympy.Basic]:
    if isinstance(literal, sympy.Basic):
        yield literal
    elif isinstance(literal, tuple | list):
        for item in literal:
            yield from _inside(item)
    elif isinstance(literal, dict):
        yield from _inside(list(literal.values()))
