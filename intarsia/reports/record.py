"""What happens while programs are compiled, kept for a report: how long each part took, and the IR behind each pass.

Nothing is recorded, and nothing is slower, while no recording is under way. Graphs that are compiled during one take the whole road: what
comes out of the cache has no passes to show.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

OWN_WORK = "for the report"  # printing of IR, timing of kernels: what would not have been done without it


@dataclass(frozen=True)
class Event:
    """Something that took time: seconds since the recording began, seconds, the thread, and what it was done for ("" where nobody says)."""

    name: str
    start: float
    seconds: float
    thread: int
    about: str = ""


@dataclass(frozen=True)
class PassStep:
    """One pass: its seconds, and the module behind it; None where it changed nothing."""

    name: str
    seconds: float
    text: str | None


@dataclass
class PassRecord:
    """The road of one module through the passes: its text as imported, and each pass."""

    imported: str
    steps: list[PassStep] = field(default_factory=list)
    _last: str = ""

    def behind(self, name: str, text: str, seconds: float) -> None:
        """A pass has run, and the module's text is this one."""
        self.steps.append(PassStep(name, seconds, None if text == (self._last or self.imported) else text))
        self._last = text


class Recording:
    """What is recorded, from its making on. Threads add to it side by side."""

    def __init__(self, told: Callable[[str, Any], None] | None = None) -> None:
        self.began = perf_counter()
        self.events: list[Event] = []
        self.told = told  # of captures that were compiled, of recompiles and of what runs in eager, by kind: see `tell`

    def spent(self, name: str, seconds: float, about: str = "") -> None:
        """Something has just ended that took so many seconds."""
        start = perf_counter() - self.began - seconds
        self.events.append(Event(name, max(start, 0.0), seconds, threading.get_ident(), about))


_IN_CONTEXT: ContextVar[Recording | None] = ContextVar("RECORDING", default=None)
_IN_PROCESS: list[Recording] = []  # of the whole program, in all threads


@contextmanager
def recording() -> Iterator[Recording]:
    """What is compiled inside, by this thread, is recorded; backward passes too, whenever they first run."""
    made = Recording()
    with resumed(made):
        yield made


@contextmanager
def resumed(made: Recording | None) -> Iterator[None]:
    """What is compiled inside belongs to a recording; None: to none."""
    token = _IN_CONTEXT.set(made)
    try:
        yield
    finally:
        _IN_CONTEXT.reset(token)


def now_recording() -> Recording | None:
    """The recording that this thread's work belongs to."""
    return _IN_CONTEXT.get()


def record_process(told: Callable[[str, Any], None]) -> Recording:
    """Record all that this process compiles from now on."""
    made = Recording(told)
    _IN_PROCESS.append(made)
    return made


GRAPH, BREAK, RECOMPILE, FALLBACK = "graph", "graph break", "recompile", "eager"


def tell(kind: str, about: Any, words: str = "") -> None:
    """Something has happened to a callable: `about` is the record of it in `explain.history`, `words` one line for a time line."""
    for each in _IN_PROCESS:
        if kind != GRAPH:
            each.spent(kind, 0.0, words)
        if each.told is not None:
            each.told(kind, about)


def is_recording() -> bool:
    """Whether someone wants to know."""
    return bool(_IN_PROCESS) or _IN_CONTEXT.get() is not None


def spent(name: str, seconds: float, about: str = "") -> None:
    """Tell all recordings of something that has just ended."""
    inside = _IN_CONTEXT.get()
    for each in [*_IN_PROCESS, *([inside] if inside is not None else [])]:
        each.spent(name, seconds, about)


@contextmanager
def own_work() -> Iterator[None]:
    """What runs inside is work for those who look on: it would not have been done without them."""
    start = perf_counter()
    try:
        yield
    finally:
        spent(OWN_WORK, perf_counter() - start)
