"""Kernels compiled side by side in processes of their own, which import Triton and neither torch nor the rest of this package.

A worker reads one JSON object a line from its standard input and answers with one; it ends when its input does, so that it never
outlives the process that started it.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from .compile import Binary, KernelSource, compile_kernel

MOST = 8  # workers

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
    from .compile import load_text

    modules: dict[str, Any] = {}
    out, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        job = json.loads(line)
        try:
            if job["path"] not in modules:
                modules[job["path"]] = load_text(Path(job["path"]), f"intarsia_kernels_{len(modules)}")
            made = compile_kernel(modules[job["path"]], KernelSource(**job["source"]), job["target"])
            Path(job["output"]).write_bytes(made.code)
            answer = {"symbol": made.symbol, "shared": made.shared, "boxes": made.boxes}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        out.write(json.dumps(answer) + "\n")
        out.flush()


class Workers:
    """Up to `MOST` processes, started when they are needed."""

    def __init__(self, limit: int | None = None) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.limit = limit or min(MOST, cores)
        self.idle: SimpleQueue[subprocess.Popen[str]] = SimpleQueue()
        self.started = 0
        self.lock = threading.Lock()

    def start(self, count: int) -> None:
        """Have so many workers ready, as far as the limit goes."""
        with self.lock:
            while self.started < min(count, self.limit):
                self.idle.put(_worker())
                self.started += 1

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

        threads = [threading.Thread(target=work, daemon=True) for _ in range(min(len(sources), self.limit))]
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
        job = {"path": str(path), "source": source.as_json(), "target": target, "output": str(output)}
        worker = self.idle.get()
        try:
            assert worker.stdin is not None and worker.stdout is not None
            worker.stdin.write(json.dumps(job) + "\n")
            worker.stdin.flush()
            line = worker.stdout.readline()
            if not line:
                raise TritonError(f"the process that compiles it ended with {worker.wait()}")
        except (OSError, TritonError) as error:
            with contextlib.suppress(OSError):
                worker.kill()
            self.idle.put(_worker())
            raise TritonError(f"  no answer: {error}", source.name) from error
        self.idle.put(worker)
        answer = json.loads(line)
        if "error" in answer:
            last = [text for text in str(answer["error"]).splitlines() if text.strip()][-8:]
            raise TritonError("\n".join(f"  {text}" for text in last), source.name)
        code = output.read_bytes()
        return Binary(source.name, answer["symbol"], code, answer["shared"], source.warps, answer["boxes"])


def _worker() -> subprocess.Popen[str]:
    folder = str(Path(__file__).parent)
    worker = subprocess.Popen(
        [sys.executable, "-c", _START, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    atexit.register(_end, worker)
    return worker


def _end(worker: subprocess.Popen[str]) -> None:
    with contextlib.suppress(OSError):
        if worker.stdin is not None:
            worker.stdin.close()
        worker.terminate()


WORKERS = Workers()  # processes are costly to start: those of one compile serve the next
