"""The frontend's door: `compile_callable` makes a compiled function or module, `forget_all` empties all."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import nn

from .collector import collector_paused
from .entries import Backend, Family, Observer, Options
from .stance import STANCE

if TYPE_CHECKING:
    from .module import CompiledModule as CompiledModule

__all__ = ["Backend", "Observer", "collector_paused", "compile_callable", "forget_all", "load_rules"]


_FRONTEND = __name__.rsplit(".", 2)[0]


def load_rules() -> None:
    """Import what capture needs of torch: more than half a second, unless the program has done it."""
    if f"{_FRONTEND}.calls.builtins" in sys.modules:
        return
    with collector_paused():  # collections took a third of it
        from ..calls import builtins as rules  # noqa: F401

        if gc.get_freeze_count() == 0:  # else the program has frozen objects of its own
            gc.freeze()  # what was imported stays: it is old at once, and no collection of young objects looks at it
            gc.unfreeze()


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
) -> Callable[..., Any]:
    """A callable that behaves like `target` and runs it as graphs compiled by `backend`.

    A module gives a `CompiledModule`, a function a function with the same signature. What cannot be captured splits the
    call: the pieces around it are compiled, with one log line for each such place. With `fullgraph=True` it raises the
    capture's error instead.
    """
    load_rules()
    options = Options(backend, fullgraph, dynamic, recompile_limit, observer, on_recompile, on_error)
    if isinstance(target, nn.Module):
        from .module import compiled_module

        return compiled_module(target, options)
    return Family(options).compile(target)


def forget_all() -> None:
    """Drop everything that compiled callables have captured; their next calls capture anew."""
    for runtime in STANCE.runtimes():
        runtime.forget()


def __getattr__(name: str) -> Any:
    """`CompiledModule`, whose base class is loaded with torch's symbolic parts."""
    if name != "CompiledModule":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .module import CompiledModule

    return CompiledModule
