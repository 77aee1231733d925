"""Ranges in torch's profiler: a graph that runs while a profiler is active shows as one range, at no cost when none is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch

from ..guards.source import Attr, Const, Source
from ..torch_private.guards import profiler_flag

if TYPE_CHECKING:
    from ..guards.emitter import Emitter

__all__ = ["STARTED", "flag", "graph_range", "is_active", "test"]

STARTED: list[Callable[[], None]] = []  # what to do when a graph runs under a profiler: show kernels, for instance


def flag() -> Source | None:
    """Where torch says whether a profiler is active; None where this torch does not."""
    found = profiler_flag()
    return None if found is None else Attr(Const(found[0], "profiler"), found[1])


def is_active() -> bool:
    """Whether a profiler is active."""
    found = profiler_flag()
    return found is not None and bool(getattr(*found))


def test(emit: Emitter) -> str:
    """The expression of `is_active()` in generated code, "" where torch does not say."""
    found = profiler_flag()
    return "" if found is None else f"{emit.constant(found[0], 'profiler')}.{found[1]}"


def graph_range(
    graph: Callable[..., Sequence[Any]], label: str, ranges: Sequence[tuple[str, str | None]] = ()
) -> Callable[..., Sequence[Any]]:
    """The graph's function, as one range of the profiler.

    Args:
        ranges: names and arguments of the program's own ranges around the graph: of all that begin in it, where it may not be split.
    """

    def profiled(*args: Any) -> Sequence[Any]:
        for started in STARTED:
            started()
        with ExitStack() as stack:
            for name, text in (*ranges, (f"intarsia: {label}", None)):
                stack.enter_context(torch.autograd.profiler.record_function(name, text))
            return graph(*args)

    return profiled
