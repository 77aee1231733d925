"""cuBLAS's scratch memory around a capture.

torch keeps one block of it (32 MiB on Hopper) for each thread and stream that has called cuBLAS. Those of the calls before a recording are
used no more, and the recording's own would take up its memory for good: in a step whose halves run in two threads these are four blocks.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from sys import getrefcount
from typing import Any
from weakref import WeakSet

import torch

from ...ir.snapshots import members

__all__ = ["Graphs", "Workspaces"]


class Graphs:
    """The CUDA graphs of this process that torch made.

    Args:
        kind: torch's class.
    """

    def __init__(self, kind: type | None = None) -> None:
        self.kind: type = torch.cuda.CUDAGraph if kind is None else kind
        self.ours: WeakSet[Any] = WeakSet()
        self._none_at = -1  # references to the class when there was no graph: each has one

    def are_others(self) -> bool:
        """Whether somebody else has one. To look at all objects takes 0.2 us each, so it is not done twice for the same."""
        count = getrefcount(self.kind)
        if count == self._none_at:
            return False
        ours = {id(graph) for graph in members(self.ours)}
        found = any(issubclass(type(x), self.kind) and id(x) not in ours for x in gc.get_objects())
        self._none_at = -1 if found or ours else count
        return found


class Workspaces:
    """Gives back what torch keeps for cuBLAS.

    Args:
        clear: does so; None: this torch cannot.
        others: whether somebody else has CUDA graphs, which may use a block.
        threads: names of threads that may be about to use one.
    """

    def __init__(
        self,
        clear: Callable[[], None] | None,
        others: Callable[[], bool],
        threads: Callable[[], list[str]],
    ) -> None:
        self.clear, self.others, self.threads = clear, others, threads
        self.stay = clear is None

    @contextmanager
    def given_back(self) -> Iterator[None]:
        """Inside of this context a recording takes blocks of its own; behind it they are memory of the recording like any other.

        Once a recording was made without it, blocks stay for ever: that one may use a block in the memory of another, where none has to be.
        """
        self.stay = self.stay or bool(self.threads()) or self.others()
        if self.stay or self.clear is None:
            yield
            return
        self.clear()
        try:
            yield
        finally:
            self.clear()
