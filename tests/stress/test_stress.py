"""The short form of `make stress`, in a process of its own: afterwards captures of the same process fail their own guards (open)."""

import subprocess
import sys
from pathlib import Path


def test_sixteen_threads_for_some_seconds():
    command = [sys.executable, "-m", "tests.stress", "12", "16"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
