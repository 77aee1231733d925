"""Writes what the documentation shows: runs every `$ command` of docs/passes-opt.md in examples/ and puts its output below."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parent
EXAMPLES = DOCS.parent / "examples"


def output(command: str) -> str:
    """What the command prints, standard error last, and its exit code when that is not 0."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=EXAMPLES,
        env={**os.environ, "PATH": path, "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=False,
    )
    code = f"(exit code {done.returncode})\n" if done.returncode else ""
    return done.stdout + done.stderr + code


def refresh(text: str) -> str:
    """The page with every console block's output made new."""
    return re.sub(
        r"```console\n\$ (.*)\n(?:.*\n)*?```",
        lambda block: f"```console\n$ {block[1]}\n{output(block[1])}```",
        text,
    )


def main() -> None:
    page = DOCS / "passes-opt.md"
    page.write_text(refresh(page.read_text()))


if __name__ == "__main__":
    main()
