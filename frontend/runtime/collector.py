"""Python's garbage collector around captures and compiles, which make many small objects and hardly any cycles that matter."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Garbage", "collector_paused", "is_on"]


class _Pause:
    """How many threads want no collections, and whether the program wants any."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a finalizer may run inside, on the same thread
        self.wanted = 0
        self.running = False


_PAUSE = _Pause()


@contextmanager
def collector_paused() -> Iterator[None]:
    """No garbage collections meanwhile, on any thread: half of the time of a capture was theirs."""
    with _PAUSE.lock:
        if _PAUSE.wanted == 0:
            _PAUSE.running = gc.isenabled()
            gc.disable()
        _PAUSE.wanted += 1
    try:
        yield
    finally:
        with _PAUSE.lock:
            _PAUSE.wanted -= 1
            if _PAUSE.wanted == 0 and _PAUSE.running:
                gc.enable()


def is_on() -> bool:
    """Whether the program wants collections."""
    return _PAUSE.running if _PAUSE.wanted else gc.isenabled()


class Garbage:
    """What dead compiled callables leave behind: graphs and autograd classes of torch's are cycles, weights and libraries are not.

    Where the program has switched the collector off, nobody but the next compile takes them away.
    """

    def __init__(self) -> None:
        self.dead = 0

    def take_away(self) -> None:
        """Collect, before a compile, if a compiled callable has died and no collection comes by itself."""
        if self.dead and not gc.isenabled() and _PAUSE.wanted == 0:
            self.dead = 0
            gc.collect()


GARBAGE = Garbage()
