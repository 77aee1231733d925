"""Backends by name: what runs the captured graphs."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from torch import fx

Backend = Callable[..., Any]


def eager(gm: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """Run the graph as captured: shows what capture alone costs."""
    return gm.forward


_BACKENDS: dict[str, Backend] = {"eager": eager}
OWN = ("auto", "intarsia")


def resolve_backend(backend: str | Backend, own: Callable[[], Backend]) -> Backend:
    """The callable for a backend's name.

    Raises:
        ValueError: an unknown name, with a suggestion.
    """
    if callable(backend):
        return backend
    if backend in OWN:
        return own()
    if backend in _BACKENDS:
        return _BACKENDS[backend]
    known = [*OWN, *_BACKENDS]
    close = difflib.get_close_matches(str(backend), known, n=1)
    hint = f"; did you mean '{close[0]}'?" if close else ""
    raise ValueError(f"unknown backend {backend!r}{hint}; known: {', '.join(known)}, or a callable")
