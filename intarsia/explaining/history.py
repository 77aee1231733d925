"""What happened to one compiled callable, in order: its captures, graph breaks, recompiles and calls in eager.

`explain` reads it, and the topics of `logs` are written from it as it happens.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass, field
from typing import Any

from ..counters import COUNTERS
from ..frontend.breaks.breaks import Break
from ..frontend.entry.capture import Capture
from ..reports.record import BREAK, FALLBACK, GRAPH, RECOMPILE, spent, tell
from . import logs

__all__ = ["Compiled", "Fallback", "History", "Recompile"]

_MOST = 1000  # records of a kind; a callable that has more was reset many times


@dataclass
class Compiled:
    """One capture: seconds spent on it and on its graph. The capture itself dies with what was compiled."""

    runtime: weakref.ref[Any]
    capture: weakref.ref[Capture]
    name: str
    capture_seconds: float
    compile_seconds: float = 0.0


@dataclass(frozen=True)
class Recompile:
    """A call that fitted nothing: `miss` is what the newest variant had against it."""

    family: weakref.ref[Any]
    name: str
    reason: str
    miss: Any


@dataclass(frozen=True)
class Fallback:
    """A call, or the rest of one, that runs in eager."""

    family: weakref.ref[Any]
    name: str
    file: str
    line: int
    text: str
    reason: str


class _Now(threading.local):
    """What this thread captures: the runtime, what its newest variant had against the call, and the record of the capture."""

    runtime: Any = None
    miss: Any = None
    record: Compiled | None = None


@dataclass
class History:
    """An observer (see `frontend.runtime.entries.Observer`) that keeps, counts and logs what it is told."""

    compiled: list[Compiled] = field(default_factory=list)
    recompiles: list[Recompile] = field(default_factory=list)
    fallbacks: list[Fallback] = field(default_factory=list)
    _now: _Now = field(default_factory=lambda: _Now(), repr=False)

    def on_start(self, runtime: Any, miss: Any) -> None:
        """What follows on this thread belongs to this runtime."""
        self._now.runtime, self._now.miss, self._now.record = weakref.ref(runtime), miss, None
        logs.start(runtime)

    def on_capture(self, seconds: float, capture: Capture) -> None:
        """A call was captured."""
        runtime = self._now.runtime()
        record = self._now.record = Compiled(weakref.ref(runtime), weakref.ref(capture), runtime.name(), seconds)
        _keep(self.compiled, record)
        logs.captured(record.name, capture)
        COUNTERS.add("captures")
        COUNTERS.spend("capture", seconds)

    def on_compile(self, seconds: float) -> None:
        """The backend is done with the graph of the newest capture."""
        if self._now.record is not None:
            self._now.record.compile_seconds = seconds
            spent("graph", seconds, self._now.record.name)
            tell(GRAPH, self._now.record)

    def on_phase(self, name: str, seconds: float) -> None:
        """Another part of a first call."""
        COUNTERS.spend(name, seconds)

    def on_recompile(self, reason: str) -> None:
        """No variant fitted a call."""
        runtime, miss = self._now.runtime(), self._now.miss
        record = Recompile(weakref.ref(runtime.family), runtime.name(), reason, miss)
        _keep(self.recompiles, record)
        logs.recompile(runtime, miss, reason)
        tell(RECOMPILE, record, f"{record.name}: {reason}")
        COUNTERS.add("recompiles")

    def on_break(self, broken: Break) -> None:
        """A graph broke; the call goes on in pieces."""
        record = self._now.record
        assert record is not None
        logs.broke(record.name, record.capture(), broken)
        tell(BREAK, record, f"{broken.place.filename}:{broken.place.lineno}: {broken.reason}")
        COUNTERS.add("breaks")

    def on_fallback(self, filename: str, lineno: int, line: str, reason: str) -> None:
        """A call could not be captured and runs in eager."""
        runtime = self._now.runtime()
        record = Fallback(weakref.ref(runtime.family), runtime.name(), filename, lineno, line, reason)
        _keep(self.fallbacks, record)
        logs.fell_back(record.name, filename, lineno, line, reason)
        tell(FALLBACK, record, f"{filename}:{lineno}: {reason}")
        COUNTERS.add("fallbacks")


def _keep(records: list[Any], record: Any) -> None:
    records.append(record)
    del records[:-_MOST]
