"""Marks and switches: what is compiled, what is not, and what happens when a call does not fit.

The marks are attributes of the functions themselves; capture reads them (`frontend/calls/marks.py`), together with those that
libraries carry for torch.compile.
"""

from __future__ import annotations

import functools
import inspect
import logging
import types
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch import nn

from .config import Config, suggestion
from .frontend.calls import marks
from .frontend.calls.registry import Rows, Then, fill
from .frontend.runtime.stance import STANCE, STANCES
from .graph_compiler import open_cache
from .targets.build.bundle import CacheInfo, pack, unpack

__all__ = [
    "allow_in_graph",
    "assume_constant_result",
    "cudagraph_mark_step_begin",
    "disable",
    "graph_break",
    "is_compiling",
    "is_exporting",
    "load_cache_artifacts",
    "save_cache_artifacts",
    "set_stance",
    "substitute_in_graph",
]

_log = logging.getLogger("intarsia")

F = TypeVar("F", bound=Callable[..., Any])


def disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """Never capture this function: a compiled caller breaks its graph here and calls it as it is. Also a decorator.

    What the function itself calls is not compiled either, except where it calls a compiled function; `recursive` is taken for
    the sake of programs written for torch.compile. A module is marked itself; its parameters and type stay. Of a class, its
    constructor and its call are marked.

    Raises:
        TypeError: `fn` cannot be called.
    """
    if fn is None:
        return functools.partial(disable, recursive=recursive, reason=reason)
    if isinstance(fn, nn.Module):
        fn.__dict__[marks.DISABLED] = reason or True
        return fn
    if isinstance(fn, type):
        for name in ("__init__", "__call__"):
            method = getattr(fn, name, None)
            if isinstance(method, types.FunctionType):
                setattr(fn, name, _marked(method, "disable", marks.DISABLED, reason or True))
        return fn
    return _marked(fn, "disable", marks.DISABLED, reason or True)


def allow_in_graph(fn: Any) -> Any:
    """Put calls of this function into the graph as one node: capture runs it on fake tensors and does not look inside.

    For functions of tensors, without side effects, that return tensors; a list or tuple of functions marks each of them.
    """
    if isinstance(fn, list | tuple):
        return [allow_in_graph(f) for f in fn]
    return _marked(fn, "allow_in_graph", marks.ALLOWED, True)


def assume_constant_result(fn: Any) -> Any:
    """Call this function once, while capturing, and take its result for a constant in every later call. It is not checked."""
    return _marked(fn, "assume_constant_result", marks.CONSTANT, True)


def _marked(fn: Any, what: str, mark: str, value: Any) -> Any:
    if not callable(fn):
        raise TypeError(f"intarsia.{what} takes a function or a module, not {type(fn).__name__}: {fn!r:.80}")

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    call.__dict__[mark] = value
    return call


def graph_break(msg: str = "") -> None:
    """Split the graph here; outside of a compiled function nothing happens."""


graph_break.__dict__[marks.DISABLED] = "graph_break() is called"


def is_compiling() -> bool:
    """Whether the code is being captured: True inside compiled functions (also torch.compile's), else False."""
    return bool(torch.compiler.is_compiling())


def is_exporting() -> bool:
    """Whether the code is being captured by `intarsia.export` (also by torch's), else False."""
    return bool(torch.compiler.is_exporting())


def substitute_in_graph(original: Any, *, skip_signature_check: bool = False) -> Callable[[F], F]:
    """A decorator: capture interprets the decorated Python function wherever a program calls `original`, mostly a function of C.

    Without capture `original` itself runs: both have to do the same. `skip_signature_check`: their parameters need not have the same names.

    Raises:
        TypeError: one of them is no function, or their parameters differ.
    """
    if not callable(original) or isinstance(original, type):
        raise TypeError(
            f"intarsia.substitute_in_graph takes a function, not {type(original).__name__}: {original!r:.80}"
        )

    def decorate(fn: F) -> F:
        if not isinstance(fn, types.FunctionType):
            raise TypeError(
                f"intarsia.substitute_in_graph decorates a Python function, not {type(fn).__name__}: {fn!r:.80}"
            )
        if not skip_signature_check:
            _check_same_parameters(original, fn)
        rows = Rows()
        rows.describe(original, apply=lambda vm, *args, **kwargs: Then(fn, args, kwargs))
        fill(rows)
        return fn

    return decorate


def _check_same_parameters(original: Any, fn: Any) -> None:
    try:
        wanted = inspect.signature(original)
    except (TypeError, ValueError):
        return  # most functions of C do not say
    given = inspect.signature(fn)
    if [(p.name, p.kind) for p in wanted.parameters.values()] != [(p.name, p.kind) for p in given.parameters.values()]:
        raise TypeError(
            f"{fn.__qualname__}{given} stands for {original.__name__}{wanted}: its parameters differ\n"
            "  What to do: give it the same ones, or pass skip_signature_check=True"
        )


def cudagraph_mark_step_begin() -> None:
    """Nothing: results of recorded programs have memory of their own, which lives as long as they do. No step needs a mark."""
    _log.info(
        "cudagraph_mark_step_begin() does nothing: results of recorded programs live as long as the program holds them"
    )


def save_cache_artifacts() -> tuple[bytes, CacheInfo] | None:
    """What this process has compiled or found in the cache on disk, for `load_cache_artifacts`; None where there is nothing.

    Programs are found again by the same graphs, settings, versions and kind of processor; elsewhere they are not used.
    """
    return pack(open_cache(Config.from_environment(None)))


def load_cache_artifacts(data: bytes) -> CacheInfo:
    """Put what `save_cache_artifacts` gave into the cache on disk. The data holds programs that are run: load what you trust only.

    Raises:
        ValueError: `data` is something else.
    """
    return unpack(open_cache(Config.from_environment(None)), data)


class set_stance:
    """Change what all compiled functions of the process do; also a context manager and a decorator.

    Args:
        stance: "default"; "force_eager": run everything in eager; "eager_on_recompile": what was compiled is used, other
            calls run in eager; "fail_on_recompile": a call that does not fit what was compiled is an error (RuntimeError);
            "eager_then_compile": the first call of each function runs in eager.

    Raises:
        ValueError: an unknown stance, with a suggestion.
    """

    def __init__(self, stance: str = "default") -> None:
        if stance not in STANCES:
            hint = suggestion(stance, STANCES)
            raise ValueError(f"unknown stance {stance!r}{hint}; known: {', '.join(STANCES)}")
        self.stance, self.before = stance, STANCE.name
        STANCE.set(stance)

    def __enter__(self) -> set_stance:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        STANCE.set(self.before)

    def __call__(self, fn: F) -> F:
        """As a decorator: the stance holds while the function runs."""
        STANCE.set(self.before)
        stance = self.stance

        @functools.wraps(fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            with set_stance(stance):
                return fn(*args, **kwargs)

        return call  # type: ignore[return-value]
