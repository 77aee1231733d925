"""Kernels compiled side by side in processes of their own, which import Triton and neither torch nor the rest of this package.

A worker reads one JSON object a line from its standard input and answers with one, which has the job's number; it ends when its input does, and
at the latest, with what Triton has started for it, when the process that started it is no more.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from .compile import Binary, KernelSource, compile_kernel

MOST = 8  # workers
KERNEL_SECONDS = 600.0  # for one kernel; what takes longer does not end

# Package names without the packages' own code: their __init__ files import torch.
_START = """
import importlib.util, sys, types
folder = sys.argv[1]
for name, path in (("intarsia", None), ("intarsia.targets", None), ("intarsia.targets.triton", folder)):
    module = types.ModuleType(name)
    module.__path__ = [path] if path else []
    sys.modules[name] = module
from intarsia.targets.triton.worker import serve
serve()
"""


class TritonError(RuntimeError):
    """Triton does not compile a kernel, named by `kernel`."""

    def __init__(self, message: str, kernel: str = "") -> None:
        super().__init__(message)
        self.kernel = kernel


def serve() -> None:
    """The life of a worker."""
    # Answers go to a descriptor of their own: what Triton and its libraries print goes to standard error.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    for line in sys.stdin:
        job = json.loads(line)
        try:
            answer = _carry_out(job)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        out.write(json.dumps(answer | {"job": job["job"]}) + "\n")
        out.flush()


_modules: dict[str, Any] = {}  # of a worker
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)


def _carry_out(job: Mapping[str, Any]) -> dict[str, Any]:
    from .compile import load_text

    if job["path"] not in _modules:
        _modules[job["path"]] = load_text(Path(job["path"]), f"intarsia_kernels_{len(_modules)}")
    source, output = KernelSource(**job["source"]), Path(job["output"])
    try:
        made = compile_kernel(_modules[job["path"]], source, job["target"])
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        # Triton's own cache cannot be written: it gets a place beside the result.
        os.environ["TRITON_CACHE_DIR"] = str(output.parent / "triton")
        made = compile_kernel(_modules[job["path"]], source, job["target"])
    output.write_bytes(made.code)
    return {"symbol": made.symbol, "shared": made.shared, "boxes": made.boxes}


class Worker:
    """One process; used by one thread at a time."""

    def __init__(self) -> None:
        from ..build.processes import ProcessGroup  # a worker itself has this module and no others of the package

        self.group = ProcessGroup()
        command = [sys.executable, "-c", _START, str(Path(__file__).parent)]
        try:
            self.process = self.group.start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        except OSError as error:
            self.group.end()
            raise TritonError(f"  no process can be started to compile kernels: {error}") from error
        assert self.process.stdin is not None and self.process.stdout is not None
        self.jobs, self.answers = self.process.stdin, os.fdopen(os.dup(self.process.stdout.fileno()), "rb")

    def ask(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a job.

        Raises:
            TritonError: there is none; the worker is of no use any more.
        """
        late = threading.Event()

        def stop() -> None:
            late.set()
            self.end()

        limit = threading.Timer(KERNEL_SECONDS, stop)
        limit.daemon = True
        limit.start()
        try:
            self.jobs.write(json.dumps(job).encode() + b"\n")
            while line := self.answers.readline():
                answer: dict[str, Any] = json.loads(line)
                if answer.get("job") == job["job"]:
                    return answer
        except (OSError, ValueError) as error:
            if not late.is_set():
                raise TritonError(f"the process that compiles it gave no answer: {error}") from error
        finally:
            limit.cancel()
        if late.is_set():
            raise TritonError(f"it took longer than {KERNEL_SECONDS:g} seconds and was ended")
        raise TritonError(f"the process that compiles it ended with {self.process.wait()}")

    def end(self) -> None:
        """End the process, and what it has started."""
        self.group.end()

    def leave(self) -> None:
        """In a forked process, whose parent's worker this is: it must not keep the worker's input open."""
        with contextlib.suppress(OSError):
            self.jobs.close()


class Workers:
    """Up to `MOST` processes, started when they are needed."""

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self.idle: SimpleQueue[Worker] = SimpleQueue()
        self.alive: list[Worker] = []
        self.lock = threading.Lock()
        self.numbers = itertools.count()

    def most(self) -> int:
        """How many there may be."""
        from ..build.toolchain import cores

        return self.limit or min(MOST, cores())

    def start(self, count: int) -> None:
        """Have so many workers ready, as far as the limit goes.

        Raises:
            TritonError: a process cannot be started.
        """
        with self.lock:
            while len(self.alive) < min(count, self.most()):
                self.alive.append(Worker())
                self.idle.put(self.alive[-1])

    def take(self) -> Worker:
        """A worker that is alive; the caller puts it back."""
        worker = self.idle.get()
        if worker.process.poll() is None:
            return worker
        worker.end()
        try:
            new = Worker()
        except TritonError:
            self.idle.put(worker)
            raise
        with self.lock:
            self.alive[self.alive.index(worker)] = new
        return new

    def end(self) -> None:
        """End all."""
        while self.alive:
            self.alive.pop().end()

    def forget(self) -> None:
        """In a forked process: the workers are its parent's."""
        for worker in self.alive:
            worker.leave()
        self.__init__(self.limit)  # type: ignore[misc]

    def compile(self, path: Path, sources: Sequence[KernelSource], target: str, folder: Path) -> list[Binary]:
        """Compile kernels of the module at `path`, in parallel.

        Raises:
            TritonError: one of them does not compile.
        """
        self.start(len(sources))
        found: list[Binary | Exception | None] = [None] * len(sources)
        waiting = iter(range(len(sources)))
        lock = threading.Lock()

        def work() -> None:
            while True:
                with lock:
                    k = next(waiting, None)
                if k is None:
                    return
                try:
                    found[k] = self._one(path, sources[k], target, folder)
                except Exception as error:
                    found[k] = error

        threads = [threading.Thread(target=work, daemon=True) for _ in range(min(len(sources), self.most()))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for made in found:
            if isinstance(made, Exception):
                raise made
        return [made for made in found if isinstance(made, Binary)]

    def _one(self, path: Path, source: KernelSource, target: str, folder: Path) -> Binary:
        output = folder / f"{source.name}.cubin"
        job = {"path": str(path), "source": asdict(source), "target": target, "output": str(output)}
        worker = self.take()
        try:
            answer = worker.ask(job | {"job": next(self.numbers)})
        except TritonError as error:
            worker.end()
            raise TritonError(f"  no answer: {error}", source.name) from error
        finally:
            self.idle.put(worker)
        if "error" in answer:
            last = [text for text in str(answer["error"]).splitlines() if text.strip()][-8:]
            raise TritonError("\n".join(f"  {text}" for text in last), source.name)
        code = output.read_bytes()
        return Binary(source.name, answer["symbol"], code, answer["shared"], source.warps, answer["boxes"])


WORKERS = Workers()  # processes are costly to start: those of one compile serve the next
atexit.register(WORKERS.end)
