"""The site: it builds without a warning, links and anchors included, and every message of the code stands on one page."""

from __future__ import annotations

import collections
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs" / "site"))

import cures  # noqa: E402
import messages  # noqa: E402

PAGES = ("troubleshooting", "graph-breaks")


def test_every_message_stands_on_one_page() -> None:
    found: collections.Counter[messages.Message] = collections.Counter()
    for name in PAGES:
        for mark in messages.MARK.finditer((ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")):
            assert messages.taken(mark), f"{name}.md: nothing in the code is taken in by {mark[0]}"
            found.update(messages.taken(mark))
    lost = [m for m in messages.messages() if not found[m]]
    assert not lost, (
        f"put it under a cause and its cure in docs/troubleshooting.md, or into INSIDE of docs/site/messages.py: {lost}"
    )
    assert not [m for m, times in found.items() if times > 1]
    assert len(found) > 500  # so many were there on 2026-11-24: the code is read


def test_messages_that_users_meet_first_have_a_cure_each() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    met = [m for mark in messages.MARK.finditer(page) for m in messages.taken(mark) if m.file.startswith(cures.WHOLE)]
    assert not {m.text for m in met if not m.advice and not cures.cure_of(m.file, m.text)}, (
        "write it into docs/site/cures.py"
    )
    assert not [begins for begins in cures.CURES if not any(m.text.startswith(begins) for m in met)], "of no message"


def test_a_page_shows_messages_and_cures() -> None:
    page = messages.expanded("<!-- messages: frontend/calls/marks.py : GraphBreak -->")
    assert "- `… is marked as not to be compiled…`: remove the mark, or move the call out of the function\n" in page
    assert page.count("\n") == len({m.text for m in messages.messages() if m.file == "frontend/calls/marks.py"})
    assert "`no C++ compiler found" in messages.expanded("<!-- messages: targets/build/*.py -->")


@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("material", "mkdocstrings_handlers"))), reason="needs pip install '.[docs]'"
)
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for page in ("index", "road", "api", "passes/fuse", "dialects/prim", "troubleshooting"):
        text = (tmp_path / f"{page}.html").read_text(encoding="utf-8")
        assert len(text) > 5_000 and not re.search(
            r"<(script|img)[^>]+src=.?https?:|<link[^>]+stylesheet[^>]+https?:", text
        )
