"""Processes that judge programs: one that crashes or hangs is replaced, and what it was at is a failure with its seed."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import struct
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

ROUNDS = 150  # tasks after which a process is replaced: it keeps every library that it loaded


@dataclass
class Worker:
    """A process and the pipe on which it answers."""

    pid: int
    answers: int
    task: Any = None
    since: float = 0.0
    done: int = 0
    tasks: int = 0


def run_tasks(tasks: Iterator[Any], work: Callable[[Any], Any], jobs: int, until: float) -> Iterator[tuple[Any, Any]]:
    """(task, what `work` made of it), in any order; ("crash", signal) or ("hang", seconds) in place of an answer.

    The processes are forks of this one; a task has a `limit` in seconds. No new task is started after `until` (of `time.monotonic`).
    """
    workers: list[Worker] = []
    waiting = iter(tasks)
    try:
        while True:
            workers = [w for w in workers if w.task is not None]
            while len(workers) < jobs and time.monotonic() < until:
                task = next(waiting, None)
                if task is None:
                    until = 0.0
                    break
                workers.append(_start(work))
                _give(workers[-1], task)
            if not workers:
                return
            ready, _, _ = select.select([w.answers for w in workers], [], [], 0.5)
            for worker in list(workers):
                if worker.answers in ready:
                    answer = _answer(worker.answers)
                    task, worker.task = worker.task, None
                    if answer is None:
                        yield task, ("crash", _ended(worker))
                        continue
                    worker.done += 1
                    task_next = next(waiting, None) if worker.done < ROUNDS and time.monotonic() < until else None
                    if task_next is None:
                        _stop(worker)
                    else:
                        _give(worker, task_next)
                    yield task, answer
                elif time.monotonic() - worker.since > worker.task.limit:
                    task, worker.task = worker.task, None
                    _stop(worker)
                    yield task, ("hang", round(task.limit))
    finally:
        for worker in workers:
            if worker.task is not None:
                _stop(worker)


def in_child(work: Callable[[], Any], limit: float) -> Any:
    """What `work` gives, in a fork of this process; ("crash", signal) or ("hang", seconds)."""
    worker = _start(lambda _: work())
    _give(worker, 0)
    ready, _, _ = select.select([worker.answers], [], [], limit)
    if not ready:
        _stop(worker)
        return "hang", round(limit)
    answer = _answer(worker.answers)
    if answer is None:
        return "crash", _ended(worker)
    _stop(worker)
    return answer


def _start(work: Callable[[Any], Any]) -> Worker:
    task_read, task_write = os.pipe()
    answer_read, answer_write = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        os.close(task_read)
        os.close(answer_write)
        return Worker(pid, answer_read, tasks=task_write)
    status = 1
    try:
        os.setsid()  # a hanging compiler goes with its process
        os.close(task_write)
        os.close(answer_read)
        if not os.environ.get("INTARSIA_SOAK_SHOW"):
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
        while (task := _read(task_read)) is not None:
            try:
                answer = work(pickle.loads(task))
            except Exception:
                answer = ("error", traceback.format_exc(limit=-6)[-900:])
            _write(answer_write, pickle.dumps(answer))
        status = 0
    finally:
        os._exit(status)


def _give(worker: Worker, task: Any) -> None:
    worker.task, worker.since = task, time.monotonic()
    with contextlib.suppress(BrokenPipeError):
        _write(worker.tasks, pickle.dumps(task))


def _answer(pipe: int) -> Any:
    data = _read(pipe)
    return None if data is None else pickle.loads(data)


def _write(pipe: int, data: bytes) -> None:
    data = struct.pack("q", len(data)) + data
    while data:
        data = data[os.write(pipe, data) :]


def _read(pipe: int) -> bytes | None:
    head = _exactly(pipe, 8)
    return None if head is None else _exactly(pipe, struct.unpack("q", head)[0])


def _exactly(pipe: int, count: int) -> bytes | None:
    data = b""
    while len(data) < count:
        more = os.read(pipe, count - len(data))
        if not more:
            return None
        data += more
    return data


def _ended(worker: Worker) -> str:
    """How the process came to its end."""
    os.close(worker.tasks)
    os.close(worker.answers)
    with contextlib.suppress(ChildProcessError):
        _, status = os.waitpid(worker.pid, 0)
        if os.WIFSIGNALED(status):
            return signal.Signals(os.WTERMSIG(status)).name
        return f"exit status {os.WEXITSTATUS(status)}"
    return "gone"


def _stop(worker: Worker) -> None:
    """End it with all that it started."""
    for pipe in (worker.tasks, worker.answers):
        with contextlib.suppress(OSError):
            os.close(pipe)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(worker.pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(worker.pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(worker.pid, 0)
