"""The notebooks run from top to bottom, and print what they show."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parent.parent / "examples" / "notebooks"
WRONG = "a notebook shows something else; if it is the notebook: python examples/notebooks/run.py --write"


def comparable(lines: list[str]) -> str:
    """Without the hashes in names of kernels."""
    return re.sub(r"_[0-9a-f]{8}\b", "_hash", "".join(lines))


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What each code cell prints, by notebook: all are run in one process."""
    done = subprocess.run(
        [sys.executable, str(NOTEBOOKS / "run.py"), "--json"],
        env=os.environ | {"OMP_NUM_THREADS": "1", "INTARSIA_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_prints_what_it_shows(path: Path, printed: dict[str, list[str]]) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(cells) == len(printed[path.name]) > 1
    for cell, text in zip(cells, printed[path.name], strict=True):
        shown = [line for output in cell["outputs"] for line in output["text"]]
        if "varies" not in cell["metadata"].get("tags", []):
            assert comparable([text]) == comparable(shown), WRONG
