"""A page of documentation as a program: its Python blocks in order, and beside each the output that the page shows.

`python tests/tutorial/page.py docs/tutorial.md --write` runs a page and puts what it printed into its output blocks.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n```output\n(?P<output>.*?)^```\n)?", re.DOTALL | re.MULTILINE)
PROGRAM = "tutorial.py"  # the name of the program in what it prints about itself


@dataclass(frozen=True)
class Block:
    """One Python block, the line of the program on which it starts, and the output shown below it (None: none is shown)."""

    code: str
    line: int
    shown: str | None


def blocks(page: str) -> list[Block]:
    """The Python blocks of a page, in order; the program is their text with an empty line between two."""
    found, line = [], 1
    for match in BLOCK.finditer(page):
        found.append(Block(match["code"], line, match["output"]))
        line += match["code"].count("\n") + 1
    return found


def program(page: str) -> str:
    """All Python of a page as one file."""
    return "\n".join(block.code for block in blocks(page))


def printed(page: str) -> Iterator[str]:
    """Run the program of a page in the current folder, and give what each block wrote to stdout and stderr."""
    Path(PROGRAM).write_text(program(page))
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page):
        text = io.StringIO()
        code = compile("\n" * (block.line - 1) + block.code, PROGRAM, "exec")
        with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
            exec(code, namespace)
        yield text.getvalue()


def with_outputs(page: str, outputs: list[str]) -> str:
    """The page with new text in those output blocks that it has."""
    new = iter(outputs)

    def replace(match: re.Match[str]) -> str:
        text = next(new)
        code = f"```python\n{match['code']}```\n"
        return code if match["output"] is None else f"{code}\n```output\n{text.rstrip()}\n```\n"

    return BLOCK.sub(replace, page)


def prepare() -> None:
    """What a reader's machine has and a test machine may lack: importable torchvision, one thread, the same random numbers."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
    import torch
    import torchvision_stub  # type: ignore[import-not-found]

    torchvision_stub.install()
    torch.set_num_threads(1)
    torch.manual_seed(0)


def main() -> None:
    """Run pages, each in a namespace of its own: print their outputs as JSON, by page, or write them into the pages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", type=Path, nargs="+")
    parser.add_argument("--write", action="store_true", help="put the outputs into the pages")
    options = parser.parse_args()
    files = [page.resolve() for page in options.pages]
    if options.write:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    start = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["INTARSIA_CACHE_DIR"] = f"{folder}/cache"
        prepare()
        os.chdir(folder)
        try:
            outputs = {str(file): list(printed(file.read_text())) for file in files}
        finally:
            os.chdir(start)
    if options.write:
        for file in files:
            file.write_text(with_outputs(file.read_text(), outputs[str(file)]))
    else:
        print(json.dumps(outputs))


if __name__ == "__main__":
    main()
