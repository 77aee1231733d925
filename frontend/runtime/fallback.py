"""What a compiled callable tells its user and its observer: graph breaks, calls that run in eager, and why."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ..breaks.breaks import Break
from ..errors import CaptureError, InternalError
from .error_origin import blamed
from .report import write_reproducer

__all__ = ["Reporter", "fallback_text"]

_log = logging.getLogger("intarsia")


class Reporter:
    """Says each thing once."""

    def __init__(self, observer: Any) -> None:
        self.observer = observer
        self.said: set[Any] = set()

    def tell(self, event: str, *args: Any) -> None:
        """Pass an event on to the observer, if it wants it."""
        method = getattr(self.observer, event, None)
        if method is not None:
            method(*args)

    def broke(self, broken: Break) -> None:
        """One log line for each place at which a graph broke."""
        self.tell("on_break", broken)
        key = (broken.place, broken.reason)
        if key not in self.said:
            self.said.add(key)
            place = broken.place
            text = f"\n    {place.text}" if place.text else ""
            _log.warning("graph break at %s:%d: %s%s", place.filename, place.lineno, broken.reason, text)

    def warn(self, key: tuple[Any, ...], message: str) -> None:
        """One message per line of the user's: to the log, as the program's own warnings are what it may look at or make errors."""
        if key not in self.said:
            self.said.add(key)
            _log.warning("intarsia: %s", message)


def fallback_text(error: CaptureError, target: Any, name: str, values: Mapping[str, Any]) -> str:
    """Where and why a call runs in eager, and what to do; for an error of ours also where its reproducer was written."""
    place = error.place
    where = f"{place.filename}:{place.lineno}: {place.text}\n  " if error.frames else ""
    kind = "graph break: " if error.heading == "graph break" else ""
    internal = ""
    if isinstance(error, InternalError):
        path = write_reproducer(error, target, values)
        internal = f"; {blamed(error)}{f', reproduced by {path}' if path else ''}"
    return f"{where}{kind}{error.reason}{internal}; {name} runs in eager. What to do: {error.advice}"
