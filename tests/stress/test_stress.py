"""The short form of `make stress`. What its threads leave behind must not reach captures of the same process."""

import torch

import intarsia

from .threads import stress


def test_sixteen_threads_for_some_seconds():
    found = stress(12, 16)
    assert not found.errors, str(found)
    intarsia.reset()
    compiled = intarsia.compile(lambda x: x * 2 + 1, fullgraph=True)
    compiled(torch.ones(3))
    assert intarsia.counters()["graphs"] == 1 and intarsia.counters()["fallbacks"] == 0
