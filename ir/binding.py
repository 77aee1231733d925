"""Which names a size may be made of: those that a function binds, and in a kernel what it is given and its loop variables.

A function binds names by its arguments, at its beginning, and by library calls whose results are as large as values say (`nonzero`), behind
them: such a call has the attributes

    binds: [name, result, dimension] rows; dimension -1: what the call reads is the number itself, and gives no tensor;
    assumes: ["le" | "eq" | "ne", expression, expression] rows, what the program behind the call relies on.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Set
from typing import Any

import sympy
from xdsl.ir import Operation
from xdsl.utils.exceptions import VerifyException

from .syntax import Op, defined_values

ASSUMED = {"le": "<=", "eq": "==", "ne": "!="}


def late_names(op: Operation) -> tuple[str, ...]:
    """The names that a library call binds: sizes that its operands' values decide."""
    return tuple(str(row[0]) for row in op.get("binds", ())) if isinstance(op, Op) and "binds" in op.attributes else ()


def all_late_names(ops: Iterable[Operation]) -> frozenset[str]:
    """The names that the library calls among these operations bind."""
    return frozenset(name for op in ops for name in late_names(op))


def check_late(op: Op) -> None:
    """Check the rows of a call that binds names.

    Raises:
        VerifyException: shows the row.
    """
    for row in op.get("binds", ()):
        name, result, dimension = row if len(row) == 3 else (None, None, None)
        number = dimension == -1 and not op.results
        if not isinstance(name, str) or not (number or _has_dimension(op, result, dimension)):
            raise VerifyException(f"{op.name}: binds: {list(row)} is not [name, result, dimension]")
    for row in op.get("assumes", ()):
        if len(row) != 3 or row[0] not in ASSUMED:
            raise VerifyException(f"{op.name}: assumes: {list(row)} is not [relation, expression, expression]")
    if "binds" in op.attributes and not op.get("effect"):
        raise VerifyException(f"{op.name}: what binds a name has an effect")


def _has_dimension(op: Op, result: Any, dimension: Any) -> bool:
    found = isinstance(result, int) and isinstance(dimension, int) and 0 <= result < len(op.results)
    return found and 0 <= dimension < len(getattr(op.results[result].type, "shape", ()))


def mentioned(op: Operation) -> set[str]:
    """The names in the types and attributes of one operation."""
    return {str(s) for _, found in _expressions(op) for s in found.free_symbols}


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
