"""Programs in processes of their own that need not import torch again: forked from one that has imported the package and nothing more.

`is_gone` says whether a process has ended. The prepared process compiles nothing, and reads no cache; what the package reads from the environment when it is imported (INTARSIA_LOGS)
and what Python does (PYTHONWARNINGS) is given to `Prepared`, all else with each program.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

SERVER = """
import json, os, runpy, signal, sys
import torch, intarsia
for line in sys.stdin:
    job = json.loads(line)
    child = os.fork()
    if child == 0:
        for number, name in enumerate(("in", "out", "err")):
            os.dup2(os.open(job[name], os.O_RDONLY if name == "in" else os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        signal.alarm(job["seconds"])
        os.environ.update(job["environment"])
        sys.argv = [job["program"]]
        sys.path.insert(0, os.path.dirname(job["program"]))
        runpy.run_path(job["program"], run_name="__main__")
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Prepared:
    """A process that forks for each program. `environment` is what it starts with, beside what this process has but the package's settings."""

    def __init__(self, **environment: str) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            env={k: v for k, v in os.environ.items() if not k.startswith("INTARSIA_")}
            | {"OMP_NUM_THREADS": "1"}
            | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Prepared:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.communicate()

    def run(self, program: Path, folder: Path, seconds: int = 150, **environment: str) -> tuple[int, str, str]:
        """(exit code, stdout, stderr) of a program; the two are written to files in `folder`. After `seconds` it is ended by a signal."""
        files = {"out": str(folder / "stdout.txt"), "err": str(folder / "stderr.txt"), "in": os.devnull}
        job: dict[str, Any] = {"program": str(program), "environment": environment, "seconds": seconds, **files}
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.write(json.dumps(job) + "\n")
        self._server.stdin.flush()
        code = int(self._server.stdout.readline())
        return code, Path(files["out"]).read_text(), Path(files["err"]).read_text()


def is_gone(pid: int) -> bool:
    """Whether a process ends within some seconds; a dead one that nobody waits for counts as gone."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False
