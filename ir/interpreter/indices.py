"""Index expressions of loops, evaluated for all lanes at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import sympy
import torch
from torch import Tensor

from ..symbols import FloorDiv, Mod
from .tensors import InterpreterError

Index = int | Tensor


def floor_div(a: Index, b: Index) -> Index:
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    return torch.div(a, b, rounding_mode="floor")


def _mod(a: Index, b: Index) -> Index:
    return a % b


def _extreme(python: Any, tensor: Any) -> Callable[..., Index]:
    def run(*values: Index) -> Index:
        if all(isinstance(v, int) for v in values):
            return python(values)  # type: ignore[no-any-return]
        found = torch.as_tensor(values[0])
        for v in values[1:]:
            found = tensor(found, torch.as_tensor(v))
        return found

    return run


_INDEX_FUNCTIONS: dict[Any, str] = {FloorDiv: "_floor_div", Mod: "_mod", sympy.Max: "_max", sympy.Min: "_min"}
_INDEX_SCOPE = {
    "_floor_div": floor_div,
    "_mod": _mod,
    "_max": _extreme(max, torch.maximum),
    "_min": _extreme(min, torch.minimum),
    "__builtins__": {},
}


@lru_cache(maxsize=16384)
def compiled(value: sympy.Expr) -> tuple[Callable[..., Index], tuple[sympy.Symbol, ...]]:
    """Python code for an index expression, and the symbols that it takes."""
    names = tuple(sorted(value.free_symbols, key=str))
    places = {s: f"v{i}" for i, s in enumerate(names)}

    def text(node: sympy.Expr) -> str:
        if node in places:
            return places[node]
        if node.is_Integer:
            return f"({int(node)})"
        arguments = [text(a) for a in node.args]
        if node.is_Add or node.is_Mul:
            return "(" + (" + " if node.is_Add else "*").join(arguments) + ")"
        if node.is_Pow and node.exp.is_Integer and node.exp > 0:
            return f"{arguments[0]}**{int(node.exp)}"
        if node.func in _INDEX_FUNCTIONS:
            return f"{_INDEX_FUNCTIONS[node.func]}({', '.join(arguments)})"
        raise InterpreterError(f"{node} is not an index expression")

    return eval(f"lambda {', '.join(places.values())}: {text(value)}", dict(_INDEX_SCOPE)), names
