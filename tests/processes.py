"""Programs in processes of their own that need not import torch again: forked from one that has imported the package and nothing more.

`is_gone` says whether a process has ended. The prepared process compiles nothing, and reads no cache; what the package reads from the environment when it is imported (INTARSIA_LOGS)
and what Python does (PYTHONWARNINGS) is given to `Prepared`, all else with each program. A program that has ended leaves without taking down
the interpreter, which takes as long as most programs: tests of that start a process of their own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

SERVER = """
import atexit, gc, json, os, runpy, signal, sys, threading, traceback
import torch, intarsia
for name in sys.argv[1:]:
    __import__(name)
gc.collect()
gc.freeze()

def end(job):
    code = 1
    try:
        for number, name in enumerate(("in", "out", "err")):
            os.dup2(os.open(job[name], os.O_RDONLY if name == "in" else os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        signal.alarm(job["seconds"])
        os.environ.update(job["environment"])
        sys.argv = [job["program"], *job["arguments"]]
        sys.path.insert(0, os.path.dirname(job["program"]))
        code = 0
        runpy.run_path(job["program"], run_name="__main__")
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

for line in sys.stdin:
    children = []
    for job in json.loads(line):
        child = os.fork()
        if child == 0:
            end(job)
        children.append(child)
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]), flush=True)
"""


class Prepared:
    """A process that forks for each program.

    `modules` are imported beside the package; `environment` is what it starts with, beside what this process has but the package's settings.
    """

    def __init__(self, *modules: str, **environment: str) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-c", SERVER, *modules],
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

    def run(
        self, program: Path, folder: Path, *arguments: str, seconds: int = 500, **environment: str
    ) -> tuple[int, str, str]:
        """(exit code, stdout, stderr) of a program; the two are written to files in `folder`. After `seconds` it is ended by a signal."""
        (found,) = self.run_together(program, [folder], *arguments, seconds=seconds, **environment)
        return found

    def run_together(
        self,
        program: Path,
        folders: list[Path],
        *arguments: str,
        numbered: bool = False,
        seconds: int = 500,
        **environment: str,
    ) -> list[tuple[int, str, str]]:
        """What `run` gives, of processes that begin at once, one for each folder; `numbered`: the first argument is its number."""
        said = [(folder / "stdout.txt", folder / "stderr.txt") for folder in folders]
        jobs = [
            {
                "program": str(program),
                "arguments": (str(number), *arguments) if numbered else arguments,
                "environment": environment,
                "seconds": seconds,
                "in": os.devnull,
                "out": str(out),
                "err": str(err),
            }
            for number, (out, err) in enumerate(said)
        ]
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.write(json.dumps(jobs) + "\n")
        self._server.stdin.flush()
        codes = json.loads(self._server.stdout.readline())
        return [(code, out.read_text(), err.read_text()) for code, (out, err) in zip(codes, said, strict=True)]


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
