"""Numbers to stand for sizes that are not known when a program is compiled: costs and orders are compared by them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import sympy

from ...ir.symbols import Dim
from .cost import HINT


def hint(value: Dim, known: Mapping[str, int] | None = None, unknown: int = HINT) -> int:
    """The value, with every symbol as `known` says by its name (a function's `size_hints`), and else as `unknown`."""
    if isinstance(value, int):
        return value
    if not known:
        return _with_all(value, unknown)
    found = value.xreplace({s: sympy.Integer(known.get(str(s), unknown)) for s in value.free_symbols})
    return int(found) if found.is_Integer else unknown


@lru_cache(maxsize=65536)
def _with_all(value: sympy.Expr, number: int) -> int:
    found = value.xreplace(dict.fromkeys(value.free_symbols, sympy.Integer(number)))
    return int(found) if found.is_Integer else number
