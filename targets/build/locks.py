"""One process at a time: a lock on a file, which the system takes back when its holder ends in whatever way.

POSIX record locks, because a forked child does not inherit them. They belong to a process and go with the first descriptor of the file that
it closes: within a process a lock of Python's keeps threads apart, so that there is one descriptor. On a file system without locks work goes
on without them: what they guard is done twice then, never wrongly.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from .processes import after_fork

LONGEST_WAIT = 900.0  # seconds; who holds a lock for longer hangs
_FIRST_PAUSE, _LAST_PAUSE = 0.002, 0.05

_threads: dict[str, threading.Lock] = {}
_users: dict[str, int] = {}
_guard = threading.Lock()


@contextlib.contextmanager
def locked(path: Path, longest: float | None = None) -> Iterator[bool]:
    """Holds the lock of the file at `path`, which is made and removed; gives whether it does.

    False: it was not to be had within `longest` seconds, or there are no locks on this file system.
    """
    name, end = str(path), time.monotonic() + (LONGEST_WAIT if longest is None else longest)
    with _guard:
        lock = _threads.setdefault(name, threading.Lock())
        _users[name] = _users.get(name, 0) + 1
    held = lock.acquire(timeout=max(0.0, end - time.monotonic()))
    try:
        if not held:
            yield False
            return
        descriptor = _acquire(path, end)
        try:
            yield descriptor is not None
        finally:
            if descriptor is not None:
                # Removed while it is held: who waits for it sees that and makes another.
                with contextlib.suppress(OSError):
                    path.unlink()
                os.close(descriptor)
    finally:
        if held:
            lock.release()
        with _guard:
            _users[name] = _users.get(name, 1) - 1
            if not _users[name]:
                del _users[name]
                _threads.pop(name, None)


def _acquire(path: Path, end: float) -> int | None:
    """A descriptor of the file that holds its lock."""
    pause = _FIRST_PAUSE
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
        except OSError:  # a full or read-only disk
            return None
        try:
            taken = _try(descriptor)
            if taken and _is_at(descriptor, path):
                return descriptor
        except OSError:
            os.close(descriptor)
            return None
        except BaseException:  # Ctrl-C
            os.close(descriptor)
            raise
        os.close(descriptor)
        if not taken:
            if time.monotonic() > end:
                return None
            time.sleep(pause)
            pause = min(2 * pause, _LAST_PAUSE)


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the open file is still the one of that name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


if sys.platform == "win32":
    import msvcrt

    def _try(descriptor: int) -> bool:
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        return True

else:
    import fcntl

    def _try(descriptor: int) -> bool:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return False
        return True


def _forget() -> None:
    global _guard
    _guard = threading.Lock()
    _threads.clear()
    _users.clear()


after_fork(_forget)
