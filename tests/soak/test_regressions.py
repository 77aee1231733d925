"""Every failure that the soak ever found, as the script that it was made small to; `regressions.txt` holds them.

A script begins with `### name (stage)`: how far down the compiler it has to go. Those that wait for their repair are marked `(stage, open)`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from intarsia.ir.text import parse_module

from . import generate, script
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


def test_operators_that_a_program_replaces_come_back() -> None:
    """A class that only inherited one has it as its own afterwards: later programs would compute with it."""
    before = dict(vars(torch.Tensor))
    text = "import torch\nimport intarsia\ndef f(x):\n    return x + 1\nf = intarsia.compile(f)\n"
    for name in ("__add__", "__matmul__", "__bool__"):
        script.run(f"{text}torch.Tensor.{name} = torch.Tensor.__sub__\nf(torch.ones(3))\n", None)
    assert dict(vars(torch.Tensor)) == before and (torch.ones(1) + 1).item() == 2.0
