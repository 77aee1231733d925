"""Processes that end when this one does, however it ends, with all that they have started themselves.

They form a process group of their own, so that Ctrl-C in a terminal reaches this process alone. In the group a shell waits for the end of
a pipe that only this process holds open, and then ends the group: the kernel closes the pipe also where this process is killed.
Where there are no process groups (Windows), or there is no shell, the processes are ended by this one alone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from ...ir.snapshots import members

_SHELL = "/bin/sh"
_WATCH = "read line; kill -9 0"  # 0: the shell's own group
GROUPS = hasattr(os, "killpg")


class ProcessGroup:
    """Processes that are ended together: by `end`, on leaving the block, and when this process is no more."""

    def __init__(self) -> None:
        self._watch: subprocess.Popen[bytes] | None = None
        self._members: list[subprocess.Popen[Any]] = []
        self._pid = os.getpid()
        if GROUPS:
            with contextlib.suppress(OSError):  # no shell
                self._watch = subprocess.Popen(
                    [_SHELL, "-c", _WATCH],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    bufsize=0,
                    process_group=0,
                )
                _open.add(self)

    def start(self, command: Sequence[str], **settings: Any) -> subprocess.Popen[Any]:
        """A process of the group; `settings` as for `subprocess.Popen`. Raises OSError."""
        if GROUPS:
            alive = self._watch is not None and self._watch.poll() is None
            settings["process_group"] = self._watch.pid if self._watch is not None and alive else 0
        process = subprocess.Popen(command, **settings)
        self._members.append(process)
        return process

    def end(self) -> None:
        """Ends what still runs, and waits until it is gone. Harmless when repeated, and in a forked process, whose children these are not."""
        if os.getpid() != self._pid:
            return
        groups = {self._watch.pid} if self._watch is not None and self._watch.returncode is None else set()
        running = [process for process in self._members if process.poll() is None]
        if GROUPS:
            groups |= {process.pid for process in running if self._watch is None}
            for group in groups:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(group, signal.SIGKILL)
        for process in running:
            with contextlib.suppress(OSError):
                process.kill()
            process.wait()
        self._members.clear()
        if self._watch is not None:
            self._watch.wait()
            _close(self._watch)
        _open.discard(self)

    def __enter__(self) -> ProcessGroup:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()


_open: weakref.WeakSet[ProcessGroup] = weakref.WeakSet()


def _close(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()


def after_fork(action: Callable[[], None]) -> None:
    """Have `action` called in processes that are forked from this one."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=action)


def _forget() -> None:
    """A forked process must not keep the pipes open: the groups belong to its parent."""
    for group in members(_open):
        if group._watch is not None:
            _close(group._watch)
    _open.clear()


after_fork(_forget)
