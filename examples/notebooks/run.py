"""Runs notebooks without Jupyter: `python examples/notebooks/run.py [--write] [NOTEBOOK ...]`.

The code cells of a notebook are run in order, in one namespace. `--write` puts what they print, and the value of a last
expression, into the file, as Jupyter would.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import linecache
import sys
import time
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent


def notebooks() -> list[Path]:
    """All notebooks of this folder, in order."""
    return sorted(HERE.glob("*.ipynb"))


def run(cells: list[dict[str, Any]], name: str) -> list[str]:
    """What each code cell prints; an error of a cell is raised as it is."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    printed = []
    torch.set_grad_enabled(True)
    for number, cell in enumerate(cell for cell in cells if cell["cell_type"] == "code"):
        file, source = f"{name}, cell {number + 1}", "".join(cell["source"])
        linecache.cache[file] = (
            len(source),
            None,
            source.splitlines(keepends=True),
            file,
        )  # for messages that show lines
        tree = ast.parse(source)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            exec(compile(tree, file, "exec"), namespace)
            if last is not None:
                value = eval(compile(ast.Expression(last.value), file, "eval"), namespace)
                if value is not None:
                    print(repr(value))
        printed.append(out.getvalue())
    return printed


def with_outputs(notebook: dict[str, Any], printed: list[str]) -> dict[str, Any]:
    """The notebook with these outputs."""
    texts = iter(printed)
    for number, cell in enumerate(cell for cell in notebook["cells"] if cell["cell_type"] == "code"):
        text = next(texts)
        cell["execution_count"] = number + 1
        lines = text.splitlines(keepends=True)
        cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": lines}] if text else []
    return notebook


def main() -> None:
    """Run notebooks, all of this folder if none is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebooks", type=Path, nargs="*")
    parser.add_argument("--write", action="store_true", help="put what they print into the files")
    parser.add_argument("--json", action="store_true", help="print what each cell prints, by notebook")
    options = parser.parse_args()
    outputs = {}
    for path in options.notebooks or notebooks():
        start = time.perf_counter()
        notebook = json.loads(path.read_text(encoding="utf-8"))
        outputs[path.name] = printed = run(notebook["cells"], path.stem)
        if options.write:
            text = json.dumps(with_outputs(notebook, printed), indent=1, ensure_ascii=False)
            path.write_text(text + "\n", encoding="utf-8")
        print(f"{path.name}: {len(printed)} cells in {time.perf_counter() - start:.1f} s", file=sys.stderr)
    if options.json:
        print(json.dumps(outputs))


if __name__ == "__main__":
    main()
