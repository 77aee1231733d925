"""Symbolic sizes and numbers: shape environments, their guards and their text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..errors import GraphBreak


def sym_sqrt(value: Any) -> Any:
    """The square root of a symbolic number."""
    return torch._sym_sqrt(value)  # type: ignore[attr-defined]


class PlacedGuards(list[Any]):
    """The guards of a shape environment; `places` has, for each, what `where()` gave when it was added."""

    def __init__(self, where: Callable[[], Any]) -> None:
        super().__init__()
        self.where, self.places = where, list[Any]()

    def append(self, guard: Any) -> None:
        """Add one guard; one on numbers that only the running program knows breaks the graph."""
        if any(map(is_unknown, guard.expr.free_symbols)):
            raise GraphBreak("control flow or a size depends on a tensor's values")
        super().append(guard)
        self.places.append(self.where())


def new_shape_env(where: Callable[[], Any] = lambda: None) -> Any:
    """A shape environment: symbols, their ranges and the guards on them, each with its place."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    made = ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=True)
    made.guards = PlacedGuards(where)
    return made


def int_bounds(limits: Any) -> tuple[int, int | None]:
    """The inclusive bounds of a value range over integers; None where there is no upper bound."""
    low = int(limits.lower) if limits.lower.is_Integer else 0
    high = int(limits.upper) if limits.upper.is_Integer else None
    return low, None if high is None or high >= 1 << 62 else high


def symbolic_int(shape_env: Any, value: int, name: str) -> Any:
    """A SymInt whose hint is `value`, an int >= 0; unlike sizes, 0 and 1 get symbols too."""
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic
    from torch.utils._sympy.numbers import int_oo
    from torch.utils._sympy.value_ranges import ValueRanges

    source = ConstantSource(name)
    # Not `positive`, as sizes are: sympy would take `symbol != 0` for granted, without a guard.
    symbol = shape_env.create_symbol(
        value, source, dynamic_dim=DimDynamic.DYNAMIC, positive=None, do_not_specialize_zero_one=True
    )
    shape_env.var_to_range[symbol] = ValueRanges(0, int_oo)
    return shape_env.create_symintnode(symbol, hint=value, source=source)


def bound(value: Any, low: int, high: int | None) -> None:
    """Say between which numbers, inclusive, a SymInt that is a symbol lies."""
    from torch.utils._sympy.numbers import int_oo
    from torch.utils._sympy.value_ranges import ValueRanges

    value.node.shape_env.var_to_range[value.node._expr] = ValueRanges(low, int_oo if high is None else high)


def watch_relations(shape_env: Any, watcher: Callable[[Any], None] | None) -> None:
    """Call `watcher` with each relation before it becomes a guard, and before it replaces symbols; None: no longer.

    Tried with torch 2.13.
    """
    vars(shape_env).pop("_maybe_guard_rel", None)
    if watcher is not None:
        relate = shape_env._maybe_guard_rel

        def watched(relation: Any) -> None:
            watcher(relation)
            relate(relation)

        shape_env._maybe_guard_rel = watched


def python_text(expr: Any, names: Mapping[Any, str]) -> str:
    """An expression over symbols as Python, with these names for the symbols; floats keep all their digits."""
    from torch.utils._sympy.printers import PythonPrinter

    class Printer(PythonPrinter):
        def _print_Float(self, number: Any) -> str:
            return repr(float(number))

        def _print_Symbol(self, symbol: Any) -> str:
            return names[symbol]

        def _print_ToFloat(self, expr: Any) -> str:
            return f"float({self._print(expr.args[0])})"

    return str(Printer().doprint(expr))


def symbolic_float(shape_env: Any, value: float, name: str) -> Any:
    """A SymFloat whose hint is `value`, a finite float."""
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic

    source = ConstantSource(name)
    symbol = shape_env.create_unspecified_symbol(value, source, DimDynamic.DYNAMIC)
    return shape_env.create_symfloatnode(symbol, hint=value, source=source)


def unknown_float(shape_env: Any) -> Any:
    """A SymFloat that only the running program knows: what asks for it raises, as `data_dependent_errors` says."""
    made = shape_env.create_unbacked_symfloat()
    shape_env.pending_fresh_unbacked_symbols.clear()  # no operator of the fake mode gives it
    return made


def unknown_int(shape_env: Any, low: int | None = None, high: int | None = None) -> Any:
    """A SymInt that only the running program knows, within these inclusive bounds."""
    made = shape_env.create_unbacked_symint()
    shape_env.pending_fresh_unbacked_symbols.clear()
    if low is not None or high is not None:
        from torch.utils._sympy.numbers import int_oo
        from torch.utils._sympy.value_ranges import ValueRanges

        limits = ValueRanges(-int_oo if low is None else low, int_oo if high is None else high)
        shape_env.var_to_range[made.node._expr] = limits
    return made


def unknown_symbol(value: Any) -> Any:
    """The symbol that a symbolic number is, where only the running program knows it; else None."""
    expr = value.node._expr if isinstance(value, torch.SymInt) else None
    return expr if expr is not None and expr.is_Symbol and is_unknown(expr) else None


def same_size(a: Any, b: Any) -> bool:
    """Whether two numbers are the same expression, without a guard."""
    return bool(_expression(a) == _expression(b))


def _expression(value: Any) -> Any:
    return value.node.expr if isinstance(value, torch.SymInt) else value


@contextmanager
def scalar_outputs(shape_env: Any) -> Iterator[None]:
    """Inside, what a tensor holds may be a symbol without a hint; elsewhere operators that read numbers refuse to run on fake tensors."""
    before = shape_env.settings  # frozen; tried with 2.11 and 2.13
    shape_env.settings = replace(before, allow_scalar_outputs=True)
    try:
        yield
    finally:
        shape_env.settings = before


def no_longer_pending(value: Any) -> None:
    """What shows the new symbols is known: torch need not look for it."""
    value.node.shape_env.pending_fresh_unbacked_symbols.clear()


def is_unknown(symbol: Any) -> bool:
    """Whether only the running program knows what a symbol is."""
    return str(symbol.name).startswith(("u", "zuf"))


def known_of(value: Any) -> Any:
    """What torch's environment has for granted of a symbol: its range, what it equals, in how many relations it stands."""
    env, symbol = value.node.shape_env, value.node._expr
    asserts = sum(symbol in a.expr.free_symbols for found in env.deferred_runtime_asserts.values() for a in found)
    return env.var_to_range.get(symbol), env.replacements.get(symbol), asserts


def hint_of(value: Any) -> Any:
    """The number that a symbolic number has in this call, without a guard on it."""
    if not isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return value
    return value if value.node.is_nested_int() else value.node.hint


def has_symbols(inputs: list[Any]) -> bool:
    """Whether a graph's fake inputs have sizes or values that are symbols."""
    kinds = (torch.SymInt, torch.SymFloat, torch.SymBool)
    return any(
        isinstance(n, kinds)
        for x in inputs
        for n in ((*x.shape, *x.stride(), x.storage_offset()) if isinstance(x, Tensor) else (x,))
    )
