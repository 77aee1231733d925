"""Every failure that the soak ever found, as the script that it was made small to; `regressions.txt` holds them.

A script begins with `### name (stage)`: how far down the compiler it has to go. Those that wait for their repair are marked `(stage, open)`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from intarsia.ir.text import parse_module

from . import generate
from .judge import judge

TEXT = (Path(__file__).parent / "regressions.txt").read_text()
HEAD = re.compile(r"^### (.+?) \((\w+)(, open)?\)$", re.MULTILINE)


def scripts() -> list[tuple[str, str, bool, str]]:
    """(name, stage, open, text) of each."""
    parts = HEAD.split(TEXT)[1:]
    return [(parts[i], parts[i + 1], bool(parts[i + 2]), parts[i + 3]) for i in range(0, len(parts), 4)]


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("script", scripts(), ids=lambda s: s[0].replace(" ", "-"))
def test_once_wrong(script):
    _, stage, still, text = script
    found = judge(text, stage)
    if still and found != "ok":
        pytest.xfail(str(found))
    assert found == "ok", f"{found}\n{text}"


def test_a_module_is_shown_as_text():
    assert list(parse_module(generate("passes", 3)).ops)
