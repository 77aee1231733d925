"""Runs a function eager and compiled (with the captured graph itself as the backend) and compares everything visible."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from intarsia.frontend.calls.registry import Rows, fill
from intarsia.frontend.errors import UserRaise
from intarsia.frontend.runtime.callable import compile_callable


class Log:
    """Counts what the runtime reports."""

    def __init__(self) -> None:
        self.captures: list[Any] = []
        self.recompiles: list[str] = []
        self.fallbacks: list[tuple[str, int, str, str]] = []
        self.breaks: list[Any] = []

    def on_capture(self, seconds: float, capture: Any) -> None:
        self.captures.append(capture)

    def on_recompile(self, reason: str) -> None:
        self.recompiles.append(reason)

    def on_break(self, broken: Any) -> None:
        self.breaks.append(broken)

    def on_fallback(self, *args: Any) -> None:
        self.fallbacks.append(args)


def only_capture_raises() -> None:
    """Nothing in eager; ValueError in captured code, as if an operator's rule were wrong."""


_WRONG = Rows()


@_WRONG.rule(only_capture_raises)
def _wrong(vm: Any) -> None:
    raise UserRaise(ValueError("not while compiling"))


fill(_WRONG)


def graph_backend(module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
    """Runs the captured graph as it is."""
    return module.forward


graph_backend.takes_gradients = True  # type: ignore[attr-defined]


def number_backend(module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
    """The same with floats as inputs of the graph."""
    return module.forward


number_backend.takes_floats = number_backend.takes_gradients = True  # type: ignore[attr-defined]


def compiled(target: Any, backend: Any = graph_backend, **options: Any) -> tuple[Any, Log]:
    """`target` compiled with the graph backend, and the log of its events."""
    log = Log()
    return compile_callable(target, backend=backend, observer=log, **options), log


def compile_into(logs: list[Log]) -> Callable[[Any], Any]:
    """A compiler that takes numbers as inputs and raises what goes wrong; each function's log goes behind the others."""

    def compile(function: Any) -> Any:
        fast, log = compiled(function, number_backend, on_error="raise")
        logs.append(log)
        return fast

    return compile


def same(a: Any, b: Any) -> bool:
    """Equal in type, structure and value."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return (
            isinstance(a, Tensor)
            and isinstance(b, Tensor)
            and a.dtype == b.dtype
            and a.shape == b.shape
            and bool(torch.allclose(a, b, equal_nan=True))
        )
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple) or type(a).__name__ == "deque":
        return len(a) == len(b) and all(map(same, a, b))
    if hasattr(a, "__dict__") and not callable(a):
        return same(vars(a), vars(b))
    if callable(a):
        return True
    return bool(a == b)


def check(function: Any, *args: Any, calls: int = 2, **options: Any) -> Log:
    """Compare `calls` calls eager and compiled, arguments included (they may be changed in place)."""
    fast, log = compiled(function, fullgraph=True, **options)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(calls):
            mine, theirs = copy.deepcopy(args), copy.deepcopy(args)
            torch.manual_seed(0)
            want = function(*theirs)
            torch.manual_seed(0)
            got = fast(*mine)
            assert same(got, want), f"compiled {got!r}, eager {want!r}"
            assert same(mine, theirs), f"arguments after the call: compiled {mine!r}, eager {theirs!r}"
    assert len(log.captures) == 1, log.recompiles
    return log


def said(*calls: Callable[[], Any]) -> list[Any]:
    """What each call gives, or raises."""
    found: list[Any] = []
    for call in calls:
        try:
            found.append(call())
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


def leaves(value: Any) -> list[Tensor]:
    """The tensors in a nested value."""
    if hasattr(value, "to_tuple"):
        value = value.to_tuple()
    return [t for t in pytree.tree_leaves(value) if isinstance(t, Tensor)]
