"""What stands in for the package with a torch newer than those tried, in which something has moved that an import needs: all runs in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["compile", "disable", "graph_break", "is_compiling", "mark_dynamic", "mark_static", "reset"]


def compile(function: Any = None, /, **_: Any) -> Any:
    """The function or module as it is; without one, what gives it back as it is."""
    return (lambda f: f) if function is None else function


def disable(function: Any = None, **_: Any) -> Any:
    """The function as it is."""
    return (lambda f: f) if function is None else function


def _nothing(*_: Any, **__: Any) -> None:
    """There is nothing that it could act on."""


graph_break: Callable[..., None] = _nothing
mark_dynamic: Callable[..., None] = _nothing
mark_static: Callable[..., None] = _nothing
reset: Callable[..., None] = _nothing


def is_compiling() -> bool:
    """Nothing is."""
    return False
