"""What capture reports, counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..counters import Counters


@dataclass(frozen=True)
class CountingObserver:
    """Feeds the counters: see `frontend.callable.Observer`."""

    counters: Counters

    def on_capture(self, seconds: float, capture: Any) -> None:
        """A function was captured."""
        self.counters.add("captures")
        self.counters.spend("capture", seconds)

    def on_phase(self, name: str, seconds: float) -> None:
        """Another part of a first call."""
        self.counters.spend(name, seconds)

    def on_recompile(self, reason: str) -> None:
        """No variant fitted a call."""
        self.counters.add("recompiles")

    def on_break(self, broken: Any) -> None:
        """A graph broke; the call goes on in pieces."""
        self.counters.add("breaks")

    def on_fallback(self, filename: str, lineno: int, line: str, reason: str) -> None:
        """A call could not be captured and runs in eager."""
        self.counters.add("fallbacks")
