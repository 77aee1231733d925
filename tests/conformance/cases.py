"""One function, run in eager and compiled, several times: results, arguments, exceptions, warnings, random states, aliasing."""

from __future__ import annotations

import functools
import logging
import os
import random
import re
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import intarsia
from intarsia.frontend.runtime.callable import compile_callable

__all__ = ["case", "check_case", "check_scenario", "scenario", "t"]

_inputs = torch.Generator()


def t(*shape: int) -> Tensor:
    """A random float32 tensor; the same sequence in every run, without touching torch's own generator."""
    with torch.device("cpu"):
        return torch.randn(shape, generator=_inputs)


class Events:
    """What the runtime reports: captures, why frames were split, why calls ran in eager."""

    def __init__(self) -> None:
        self.captures = 0
        self.breaks: list[str] = []
        self.eager: list[str] = []

    def on_capture(self, seconds: float, capture: Any) -> None:
        """Count."""
        self.captures += 1

    def on_break(self, event: Any) -> None:
        """A frame was split."""
        self.breaks.append(event.reason)

    def on_fallback(self, file: str, line: int, text: str, reason: str) -> None:
        """A call runs in eager; a program that raises is run there on purpose."""
        if not reason.startswith("the program raises"):
            self.eager.append(reason)

    @property
    def kind(self) -> str:
        """How it ran."""
        return "eager" if self.eager else "breaks" if self.breaks else "graph"

    def __str__(self) -> str:
        return f"{self.captures} captures, breaks {self.breaks}, eager {self.eager}"


def graph_backend(module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
    """Runs the captured graph as it is; with INTARSIA_CONFORMANCE=whole it goes through the whole compiler."""
    if os.environ.get("INTARSIA_CONFORMANCE") == "whole":
        return intarsia.default_backend(module, inputs)
    return module.forward


KINDS = ("graph", "breaks", "eager")


def check_scenario(run: Callable[[Callable[[Any], Any]], Any], expect: str = "graph", warns: bool = False) -> None:
    """`run(compile)` with `compile` doing nothing, then compiling: everything it returns must agree.

    `expect` is the worst way that it may run: all in graphs, with graph breaks, or some call in eager.
    """
    events = Events()
    want, want_warnings = _run(run, lambda target: target)
    said, handler = [], logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("intarsia").addHandler(handler)
    try:
        got, got_warnings = _run(run, lambda target: compile_callable(target, backend=graph_backend, observer=events))
    finally:
        logging.getLogger("intarsia").removeHandler(handler)
    internal = [text for text in said if "error inside intarsia" in text or "own guards" in text]
    assert not internal, internal[0]
    difference = Compare().difference(got, want)
    assert difference is None, f"compiled differs from eager at result{difference}\n{events}"
    if warns:
        assert got_warnings == want_warnings, f"warnings: compiled {got_warnings}, eager {want_warnings}"
    assert KINDS.index(events.kind) <= KINDS.index(expect), f"expected {expect}, ran with {events}"


def _run(run: Any, compile: Any) -> tuple[Any, list[str]]:
    seed()
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = run(compile)
        states = random.getstate(), torch.get_rng_state(), np.random.get_state()[1:3]
    return (result, states), [f"{w.category.__name__}: {w.message}" for w in caught]


def seed() -> None:
    """All generators to a known state."""
    _inputs.manual_seed(0)
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)


def scenario(run: Any = None, **options: Any) -> Any:
    """A test whose body takes `compile` and returns what is to be compared."""
    if run is None:
        return lambda run: scenario(run, **options)

    def test() -> None:
        check_scenario(run, **options)

    return _named(test, run)


def case(*builders: Callable[[], tuple[Any, ...]], **options: Any) -> Any:
    """A test of one function: `check_case` with it."""

    def decorate(function: Any) -> Any:
        return _named(lambda: check_case(function, *builders, **options), function)

    return decorate


def check_case(
    function: Any, *builders: Callable[[], tuple[Any, ...]], setup: Any = None, calls: int = 2, **options: Any
) -> None:
    """Call `function` `calls` times with the arguments that each builder makes, after `setup()` if there is one."""

    def run(compile: Any) -> Any:
        if setup is not None:
            setup()
        fast, out = compile(function), []
        for build in builders:
            for _ in range(calls):
                seed()
                args = build()
                out.append((_outcome(fast, args), args))
        return out

    check_scenario(run, **options)


def _outcome(function: Any, args: tuple[Any, ...]) -> Any:
    try:
        return "returned", function(*args)
    except Exception as error:
        return f"raised {type(error).__name__}: {_stable(str(error))}", None


def _stable(text: str) -> str:
    return re.sub(r"0x[0-9a-f]+", "0x", text)


def _named(test: Any, function: Any) -> Any:
    test.__name__ = test.__qualname__ = getattr(function, "__name__", "test")
    test.__doc__, test.__module__ = function.__doc__, function.__module__
    return test


class Compare:
    """Finds where two values differ in type, structure, value, or in which tensors are the same or share memory."""

    def __init__(self) -> None:
        self.seen: set[tuple[int, int]] = set()
        self.alive: list[Any] = []  # what has an id in the tables
        self.objects: dict[int, int] = {}
        self.memory: dict[int, int] = {}

    def difference(self, a: Any, b: Any, path: str = "") -> str | None:
        """The path and the two values where they first differ, or None."""
        if (id(a), id(b)) in self.seen:
            return None
        self.seen.add((id(a), id(b)))
        self.alive += (a, b)
        kind = type(a)
        if kind is not type(b):
            return f"{path}: {_show(a)} for {_show(b)}"
        for types_, method in _METHODS:
            if isinstance(a, types_):
                return method(self, a, b, path)
        if isinstance(a, Iterator):
            return self.difference(list(a), list(b), f"list({path})")
        if hasattr(a, "__dict__"):
            return self.difference(vars(a), vars(b), f"{path}.__dict__")
        if kind.__eq__ is object.__eq__:
            return None
        return None if a == b or a != a and b != b else f"{path}: {a!r} for {b!r}"

    def tensor(self, a: Tensor, b: Tensor, path: str) -> str | None:
        """Dtype, sizes, strides, requires_grad, values, user attributes, identity and memory."""
        for fact in ("dtype", "device", "shape", "layout", "requires_grad", "is_leaf"):
            if getattr(a, fact) != getattr(b, fact):
                return f"{path}.{fact}: {getattr(a, fact)} for {getattr(b, fact)}"
        if a.device.type == "meta":
            return None
        if self.objects.setdefault(id(a), id(b)) != id(b):
            return f"{path}: another identity"
        if a.layout is torch.strided and not a.is_quantized and not a.is_nested:
            if a.stride() != b.stride() or a.storage_offset() != b.storage_offset():
                return f"{path}.stride(): {a.stride()}+{a.storage_offset()} for {b.stride()}+{b.storage_offset()}"
            key, other = a.untyped_storage()._cdata, b.untyped_storage()._cdata
            if a.numel() and self.memory.setdefault(key, other) != other:
                return f"{path}: shares memory with another tensor"
            a, b = a.detach().resolve_conj(), b.detach().resolve_conj()
            equal = torch.allclose(a, b, 1e-5, 1e-6, equal_nan=True) if a.dtype != torch.bool else torch.equal(a, b)
            if not equal:
                return f"{path}: {a} for {b}"
        return self.difference(dict(vars(a)), dict(vars(b)), f"{path}.__dict__")

    def mapping(self, a: Any, b: Any, path: str) -> str | None:
        """Keys in order, then values."""
        if len(a) != len(b):
            return f"{path}: keys {list(a)} for {list(b)}"
        for (k, x), (m, y) in zip(list(dict.items(a)), list(dict.items(b)), strict=True):
            found = self.difference(k, m, f"{path} key") or self.difference(x, y, f"{path}[{_show(k)}]")
            if found:
                return found
        return None if not vars_of(a) else self.difference(vars_of(a), vars_of(b), f"{path}.__dict__")

    def sequence(self, a: Any, b: Any, path: str) -> str | None:
        """Length, then items."""
        x, y = list(_plain_iter(a)), list(_plain_iter(b))
        if len(x) != len(y):
            return f"{path}: {len(x)} items for {len(y)}"
        if getattr(a, "maxlen", 0) != getattr(b, "maxlen", 0):
            return f"{path}.maxlen"
        found = (self.difference(p, q, f"{path}[{i}]") for i, (p, q) in enumerate(zip(x, y, strict=True)))
        return next(filter(None, found), None)

    def module(self, a: Any, b: Any, path: str) -> str | None:
        """Everything that a module holds."""
        names = [n for n in vars(a) if n != "_runtime"]
        return self.difference({n: vars(a)[n] for n in names}, {n: vars(b).get(n) for n in vars(b)}, path)

    def function(self, a: Any, b: Any, path: str) -> str | None:
        """Code, not identity: closures are compared by what calls return."""
        return None if a.__qualname__ == b.__qualname__ else f"{path}: {a!r} for {b!r}"

    def partial(self, a: Any, b: Any, path: str) -> str | None:
        """Function, arguments, keywords."""
        return self.difference((a.func, a.args, a.keywords), (b.func, b.args, b.keywords), path)

    def array(self, a: Any, b: Any, path: str) -> str | None:
        """Dtype and values."""
        equal = a.dtype == b.dtype and a.shape == b.shape and np.allclose(a, b, equal_nan=True)
        return None if equal else f"{path}: {a!r} for {b!r}"

    def number(self, a: Any, b: Any, path: str) -> str | None:
        """Floats to their last digits."""
        return None if a == b or a != a and b != b or abs(a - b) <= 1e-6 * abs(b) else f"{path}: {a!r} for {b!r}"

    def error(self, a: Any, b: Any, path: str) -> str | None:
        """Arguments."""
        return self.difference(a.args, b.args, f"{path}.args")

    def set_(self, a: Any, b: Any, path: str) -> str | None:
        """As many items; the same ones when they compare by value."""
        plain = all(isinstance(x, int | str | float | tuple) for x in (*a, *b))
        return None if len(a) == len(b) and (not plain or a == b) else f"{path}: {a!r} for {b!r}"


def vars_of(value: Any) -> Any:
    """`vars(value)`, or an empty dict."""
    return getattr(value, "__dict__", {})


def _plain_iter(value: Any) -> Any:
    return next(c for c in type(value).__mro__ if c.__module__ in ("builtins", "collections")).__iter__(value)


def _show(value: Any) -> str:
    return f"{type(value).__name__} {_stable(repr(value))[:80]}"


_METHODS: list[tuple[Any, Any]] = [
    (Tensor, Compare.tensor),
    (nn.Module, Compare.module),
    (dict, Compare.mapping),
    ((set, frozenset, type({}.keys())), Compare.set_),
    ((list, tuple, __import__("collections").deque), Compare.sequence),
    ((types.FunctionType, types.BuiltinFunctionType, types.MethodType, type), Compare.function),
    (functools.partial, Compare.partial),
    ((np.ndarray, np.generic), Compare.array),
    ((float, complex), Compare.number),
    (BaseException, Compare.error),
    (torch.Generator, lambda self, a, b, path: self.difference(a.get_state(), b.get_state(), path)),
    (random.Random, lambda self, a, b, path: self.difference(a.getstate(), b.getstate(), path)),
]
