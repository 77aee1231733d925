"""What was done so far: graphs, recompiles, breaks, kernels, cache hits, seconds by phase."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from .explaining import logs
from .reports import record
from .targets.host.packed import packed_bytes
from .targets.host.pool import kept_bytes
from .targets.recordings.graphs import STATISTICS, recorded_bytes

_COUNTS = [
    "graphs",
    "captures",
    "recompiles",
    "breaks",
    "kernels",
    "externs",
    "cache_hits",
    "cache_misses",
    "compiler_calls",
    "fallbacks",
]


@dataclass
class Counters:
    """Totals since the start or the last reset. Safe to use from several threads."""

    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTS, 0))
    seconds: dict[str, float] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, name: str, number: int = 1) -> None:
        """Count something."""
        with self.lock:
            self.counts[name] = self.counts.get(name, 0) + number

    def spend(self, phase: str, seconds: float) -> None:
        """Add time to a phase."""
        with self.lock:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds
        record.spent(phase, seconds)
        logs.spent_on(phase, seconds)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time what runs inside."""
        start = perf_counter()
        try:
            yield
        finally:
            self.spend(name, perf_counter() - start)

    def read(self) -> dict[str, Any]:
        """A copy: the counts by name, and `seconds` by phase."""
        with self.lock:
            return {**self.counts, "seconds": dict(self.seconds)}

    def clear(self) -> None:
        """Back to zero."""
        with self.lock:
            self.counts = dict.fromkeys(_COUNTS, 0)
            self.seconds = {}


COUNTERS = Counters()  # statistics only: nothing that is compiled depends on it


def counters() -> dict[str, Any]:
    """What was done since the start or the last `reset()`.

    Returns:
        graphs, captures, recompiles, breaks, kernels, externs (library calls), cache_hits, cache_misses, compiler_calls and fallbacks
        as ints; packed_bytes: bytes of the packed copies of weights that are alive now; result_bytes: of memory of large results that is kept for later calls;
        recordings, replays: CUDA graphs made and played back; recorded_bytes: memory of GPUs that recordings hold; `seconds` as a dict from phase to float:
        capture; key (what the cache is asked for); load (out of the cache); functionalize, import, passes, emit, c++ (with Triton's kernels, side by side); entry (guards
        and what runs around the graph, as a function); first run (with the packing of weights).
    """
    graphs = {"recordings": STATISTICS.recordings, "replays": STATISTICS.replays, "recorded_bytes": recorded_bytes()}
    return COUNTERS.read() | {"packed_bytes": packed_bytes(), "result_bytes": kept_bytes(idle_only=True)} | graphs
