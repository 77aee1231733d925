"""The Python of the pages that are meant to be tried runs from top to bottom and prints what each page shows."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import page
import pytest
import torch

ROOT = Path(__file__).parents[2]
WRONG = "the page shows something else; if the page is wrong: python tests/tutorial/page.py docs/tutorial.md --write"
TUTORIAL = ROOT / "docs" / "tutorial.md"
SHORT = [
    ROOT / "docs" / f"{name}.md" for name in ("index", "start", "road", "tune", "graph-breaks", "report", "faults")
]


def run(*pages, **settings):
    """What each block of the pages prints, all in one process."""
    settings = {
        "OMP_NUM_THREADS": "1",
        **settings,
    }
    command = [sys.executable, page.__file__, *map(str, pages)]
    done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0 and "intarsia: " not in done.stderr, done.stderr  # a call that cannot be compiled
    outputs = json.loads(done.stdout)
    return [outputs[str(one)] for one in pages]


def comparable(text):
    """Without what differs from run to run: the hashes in names of kernels, and seconds."""
    text = re.sub(r"_[0-9a-f]{8}\b", "_hash", text.rstrip())
    text = re.sub(r"^Seconds\n.*", "Seconds", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"\b\d+(\.\d+)? m?s\b", "some s", text)


@pytest.mark.parametrize("pages", [[TUTORIAL], SHORT], ids=["tutorial", "short pages"])
def test_a_page_prints_what_it_shows(pages):
    for file, outputs in zip(pages, run(*pages, CUDA_VISIBLE_DEVICES=""), strict=True):
        blocks = page.blocks(file.read_text())
        assert len(blocks) == len(outputs) > 0
        for block, printed in zip(blocks, outputs, strict=True):
            if block.shown is not None:
                assert comparable(printed) == comparable(block.shown), f"{file.name}: {WRONG}"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_page_runs_on_a_gpu():
    assert run(TUTORIAL)


def test_a_page_and_its_outputs():
    text = "Text\n\n```python\nx = 1\nprint(x)\n```\n\n```output\nold\n```\n\nmore\n\n```python\nx\n```\n\n```\nno Python\n```\n"
    assert [(b.code, b.line, b.shown) for b in page.blocks(text)] == [
        ("x = 1\nprint(x)\n", 1, "old\n"),
        ("x\n", 4, None),
    ]
    assert page.program(text) == "x = 1\nprint(x)\n\nx\n"
    assert page.with_outputs(text, ["new\n", "\n"]) == text.replace("old", "new")
