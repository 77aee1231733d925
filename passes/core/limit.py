"""A time limit for passes of others: one that does not end is named, then stopped.

CPython raises an exception in another thread between two of its bytecodes, wherever that is: the code below is written such that it may
arrive at any of them. Nothing arrives once `run_within` has returned.
"""

from __future__ import annotations

import ctypes
import logging
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

log = logging.getLogger("intarsia")
SAID_AFTER = 10.0  # seconds after which a pass that still runs is named
AGAIN = 1.0  # seconds after which one that has caught the exception gets it again


class TooLong(BaseException):
    """A pass ran for longer than it may. No `Exception`: a pass that catches those does not catch it."""


def run_within(seconds: float, what: str, function: Callable[[], None]) -> None:
    """Call the function, and raise `TooLong` in it once it takes longer; 0: never. C code is stopped when it comes back to Python.

    In a debugger nothing is stopped.
    """
    watch = _Watch(0.0 if sys.gettrace() is not None else seconds, what)
    try:
        watch.start()
        function()
    finally:
        try:
            watch.end()
        except TooLong:  # it came as `end` was entered; the next one would come a second later
            watch.end()


class _Watch:
    """A thread that waits for a function to end."""

    def __init__(self, seconds: float, what: str) -> None:
        self.seconds, self.what = seconds, what
        self.thread = ctypes.c_ulong(threading.get_ident())
        self.running = threading.Lock()  # held until the function has ended
        self.sending = threading.Lock()
        self.sent = self.done = False

    def start(self) -> None:
        self.running.acquire()
        threading.Thread(target=self._wait, name="intarsia pass watch", daemon=True).start()

    def end(self) -> None:
        """Nothing is sent from here on, and what was sent arrives here. It is not taken back: CPython 3.11 would go on looking for it."""
        while True:
            try:
                self.done = True
                with suppress(RuntimeError):  # it was released before an exception arrived
                    self.running.release()
                with self.sending:
                    turns = 1000 if self.sent else 0
                for _ in range(turns):
                    pass
                return
            except TooLong:
                continue

    def _ended(self, seconds: float) -> bool:
        """Wait for the end, for so long at most."""
        return self.running.acquire(timeout=max(seconds, 0.0)) or self.done

    def _wait(self) -> None:
        said = min(SAID_AFTER, self.seconds or SAID_AFTER)
        if self._ended(said):
            return
        limit = f"; it is stopped after {self.seconds:g} s" if self.seconds > said else ""
        log.warning("%s has been running for %g s%s", self.what, said, limit)
        if not self.seconds:
            return
        pause = self.seconds - said
        while not self._ended(pause):
            pause = AGAIN
            with self.sending:
                if not self.done:
                    self.sent = True
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(self.thread, ctypes.py_object(TooLong))
