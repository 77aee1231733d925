"""The judge sees a rounding that a program leaves behind."""

from __future__ import annotations

import ctypes

import pytest
import torch

from . import floats
from .judge import judge

PROGRAM = """
import ctypes
import torch
import intarsia
def f(x):
    return x + 1
f = intarsia.compile(f)
f(torch.ones(3))
ctypes.CDLL(None).fesetround({mode})
"""


@pytest.mark.parametrize("mode", [0x400, 0x800, 0xC00])
def test_another_rounding_is_seen(mode: int) -> None:
    if ctypes.CDLL(None).fesetround(mode):
        pytest.skip("this processor knows other numbers for its modes")
    try:
        assert not floats.is_usual()
    finally:
        floats.make_usual()
    assert floats.is_usual()
    assert judge(PROGRAM.format(mode=mode), "graph").startswith("undecided: eager leaves another rounding")
    assert floats.is_usual() and judge(PROGRAM.format(mode=0), "graph") == "ok"


def test_flushed_numbers_are_seen() -> None:
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor keeps them")
    assert not floats.is_usual()
    floats.make_usual()
    assert floats.is_usual()
