"""Symbolic sizes and numbers: shape environments, their guards and their text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
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


def largest(value: Any) -> int | None:
    """The largest number that a size can be, by what is known of its symbols; None where there is none."""
    if type(value) is int:
        return value
    limits = value.node.shape_env.bound_sympy(value.node.expr)
    return int_bounds(limits)[1] if limits.is_int else None


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


def named_by(symbol: Any, other: Any) -> None:
    """Of two SymInts that are one number the first, a symbol, is called by the other's symbol from here on. Tried with 2.13."""
    if symbol.node._expr.is_Symbol:
        symbol.node.shape_env._set_replacement(symbol.node._expr, other.node.expr, "they are one number")


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


def truth_in(shape_env: Any, expr: Any) -> Any:
    """The SymBool of an expression of an environment's symbols."""
    return shape_env.create_symboolnode(expr)


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


def rows(count: Any, device: torch.device) -> Tensor:
    """The numbers below a count, as `arange`: taken for more than none where autograd looks at the first one while it traces a `scan`.

    Nothing is computed of that one: a scan over no rows is a loop that has no round.
    """
    for symbol in _names(count):
        count.node.shape_env.var_to_range[symbol] = _some_rows()
    return torch.arange(count, device=device)


def may_be_no_rows(values: Iterable[Any]) -> None:
    """Behind the trace, what `rows` has taken for granted of these is not."""
    for value in values:
        for symbol in _names(value):
            if value.node.shape_env.var_to_range.get(symbol) == _some_rows():
                value.node.shape_env.var_to_range[symbol] = _some_rows(0)


def _names(value: Any) -> set[Any]:
    """The symbol that a number which only the running program knows is, and the one that it was found to be."""
    if unknown_symbol(value) is None:
        return set()
    return {
        s for s in (value.node._expr, value.node.expr, renamed(value.node._expr, value.node.shape_env)) if s.is_Symbol
    }


def _some_rows(least: int = 1) -> Any:
    """The range of a number of rows; no loop has as many rounds."""
    from torch.utils._sympy.value_ranges import ValueRanges

    return ValueRanges(least, 1 << 62)


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
def scalar_outputs(shape_env: Any, allowed: bool = True) -> Iterator[None]:
    """Inside, what a tensor holds may be a symbol without a hint; elsewhere operators that read numbers refuse to run on fake tensors."""
    before = shape_env.settings  # frozen; tried with 2.11 and 2.13
    shape_env.settings = replace(before, allow_scalar_outputs=allowed)
    try:
        yield
    finally:
        shape_env.settings = before


def no_longer_pending(value: Any) -> None:
    """What shows the new symbols is known: torch need not look for it."""
    value.node.shape_env.pending_fresh_unbacked_symbols.clear()


def shows(node: Any, symbol: Any, dim: int | None) -> None:
    """Say of a node of a graph that its result is where a symbol comes from, or that its result's size is: AOTAutograd, which runs
    the graph again, then gives what it finds there the same name. Tried with torch 2.13.
    """
    from torch.fx.experimental.symbolic_shapes import CallMethodKey
    from torch.utils._pytree import SequenceKey

    path: tuple[Any, ...] = () if dim is None else (CallMethodKey("size"), SequenceKey(dim))
    node.meta.setdefault("unbacked_bindings", {})[symbol] = path


def renamed(symbol: Any, shape_env: Any) -> Any:
    """What a symbol was called where its number came up first."""
    while symbol in shape_env.unbacked_renamings:
        symbol = shape_env.unbacked_renamings[symbol]
    return symbol


def same_again(found: Any, before: Any) -> list[tuple[Any, Any]]:
    """Give the symbols without a hint in what an operator gives when it runs again the names that they had before; the pairs of both.

    What has been taken for granted of them holds of the new ones, too.
    """
    if isinstance(found, Tensor) and isinstance(before, Tensor) and found.dim() == before.dim():
        return [pair for a, b in zip(found.shape, before.shape, strict=True) for pair in same_again(a, b)]
    if not isinstance(found, torch.SymInt) or not isinstance(before, torch.SymInt):
        return []
    symbol, env = unknown_symbol(found), found.node.shape_env
    known = before.node._expr
    if symbol is None or not known.is_Symbol or not is_unknown(known) or env is not before.node.shape_env:
        return []
    known, own = renamed(known, env), renamed(symbol, env)
    if own == known:
        return []
    if own != symbol:  # one symbol now for what had two: torch remembers the rows of a mask
        own, known = known, own
    if env.replace(own) == env.replace(known):
        env.unbacked_renamings[own] = known
    else:
        env._rename_unbacked_to(own, known)
    return [(own, known)]


@contextmanager
def none_pending(shape_env: Any) -> Iterator[None]:
    """Inside, torch does not look for what shows new symbols: a write to a part of a tensor (`x[:n] = 0`) shows none of its sizes."""
    shape_env.pending_fresh_unbacked_symbols.clear()
    with shape_env.ignore_fresh_unbacked_symbols():
        yield


def most_of(shape_env: Any, symbol: Any) -> int | None:
    """The largest value that a symbol may have, where one is known."""
    known = shape_env.var_to_range.get(symbol)
    return int(known.upper) if known is not None and known.upper.is_Integer else None


def is_unknown(symbol: Any) -> bool:
    """Whether only the running program knows what a symbol is."""
    return str(symbol.name).startswith(("u", "zuf"))


def is_of_this_call(value: Any) -> bool:
    """Whether a symbol is a number in this call: no ragged size, and none that only the running program knows."""
    return not value.node.is_nested_int() and bool(value.node.has_hint())


def known_of(value: Any) -> Any:
    """What torch's environment has for granted of a symbol: its range, what it equals, in how many relations it stands."""
    env = value.node.shape_env
    symbol = renamed(value.node._expr, env)
    asserts = sum(symbol in a.expr.free_symbols for found in env.deferred_runtime_asserts.values() for a in found)
    return env.var_to_range.get(symbol), env.replacements.get(symbol), asserts


def is_relied_on(value: Any) -> bool:
    """Whether something is taken for granted of a symbol without a hint."""
    limits, same, asserts = known_of(value)
    bounded = limits is not None and (limits.lower.is_Integer or limits.upper.is_Integer)
    return bounded or same is not None or asserts > 0


def range_within(value: Any, low: int, high: int) -> bool:
    """Whether what is known of a symbolic int says that it lies between these numbers, inclusive."""
    env = value.node.shape_env
    limits = env.bound_sympy(renamed(value.node._expr, env))
    return bool(limits.lower >= low and limits.upper <= high)


def hint_of(value: Any) -> Any:
    """The number that a symbolic number has in this call, without a guard on it."""
    if not isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return value
    return value if value.node.is_nested_int() else value.node.hint


def exact_of(value: Any) -> Any:
    """The plain number that a symbolic one is, by its expression. Of sympy's numbers none is -0.0: the sign of a zero is its hint's."""
    number, hint = value.node.pytype(value.node.expr), value.node.hint
    return hint if type(hint) is float and hint == number == 0.0 else number


def exact_float(value: torch.SymFloat) -> float:
    """The number of a symbolic float, guarded, with the sign of a zero."""
    number = float(value)
    return float(exact_of(value)) if value.node.expr.is_number else number


def has_symbols(inputs: list[Any]) -> bool:
    """Whether a graph's fake inputs have sizes or values that are symbols."""
    kinds = (torch.SymInt, torch.SymFloat, torch.SymBool)
    return any(
        isinstance(n, kinds)
        for x in inputs
        for n in ((*x.shape, *x.stride(), x.storage_offset()) if isinstance(x, Tensor) else (x,))
    )
