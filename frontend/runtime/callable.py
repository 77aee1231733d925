"""The frontend's door: `compile_callable` makes a compiled function or module, `forget_all` empties all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from ..calls.registry import complete
from ..guards.filters import GuardFilter
from .collector import collector_paused
from .entries import Backend, Family, Observer, Options
from .stance import STANCE

__all__ = ["Backend", "Observer", "collector_paused", "compile_callable", "forget_all"]


def compile_callable(
    target: Callable[..., Any] | nn.Module,
    *,
    backend: Backend,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    recompile_limit: int = 8,
    observer: Any = None,
    on_recompile: str = "compile",
    on_error: str = "warn",
    keep: GuardFilter | None = None,
) -> Callable[..., Any]:
    """A callable that behaves like `target` and runs it as graphs compiled by `backend`.

    A module gives a `CompiledModule`, a function a function with the same signature. What cannot be captured splits the
    call: the pieces around it are compiled, with one log line for each such place. With `fullgraph=True` it raises the
    capture's error instead.
    """
    complete()  # here rather than in the first call, where the program may have set modes that an import should not see
    options = Options(backend, fullgraph, dynamic, recompile_limit, observer, on_recompile, on_error, keep)
    if isinstance(target, nn.Module):
        from .module import compiled_module  # whose class derives from one of torch.compile's

        return compiled_module(target, options)
    return Family(options).compile(target)


def forget_all() -> None:
    """Drop everything that compiled callables have captured; their next calls capture anew."""
    for runtime in STANCE.runtimes():
        runtime.forget()
