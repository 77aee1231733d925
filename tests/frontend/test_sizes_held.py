"""A `torch.Size` that an object holds: its numbers become symbols as those of a tuple do, and it stays the object that it is."""

from __future__ import annotations

from typing import Any

import torch
from harness import compiled, number_backend
from torch import Tensor


class Holder:
    def __init__(self, *size: int) -> None:
        self.size = torch.Size(size)
        self.same = self.size


def _check(function: Any, held: list[Holder]) -> Any:
    fast, log = compiled(function, number_backend)
    x = torch.ones(2)
    for one in held:
        found, wanted = fast(one, x), function(one, x)
        for a, b in zip(found, wanted, strict=True):
            assert torch.equal(a, b) if isinstance(b, Tensor) else a == b and type(a) is type(b)
            assert (a is one.size) is (b is one.size)
    assert log.breaks == [] == log.fallbacks
    return log


def used(h: Holder, x: Tensor) -> Any:
    return x + h.size[0], torch.zeros(h.size), h.size[1:], h.size[0] * 2, len(h.size)


def told_apart(h: Holder, x: Tensor) -> Any:
    size = h.size
    return (
        size,
        size is h.same,
        size == h.same,
        hash(size) == hash(h.same),
        x * (size == (4, 3)),
        (*size, 1),
        size + (1,),
    )


def test_one_graph_for_all_sizes() -> None:
    sizes = [(2, 3), (2, 3), (4, 3), (6, 3), (9, 3), (12, 3), (4, 3)]
    assert len(_check(used, [Holder(*s) for s in sizes]).captures) == 2


def test_sizes_are_themselves() -> None:
    for first in ((2, 3), (4, 3)):
        _check(told_apart, [Holder(*s) for s in (first, (2, 3), (4, 3), (5, 3), (0, 3), (1, 3), (7, 2), (2, 3, 4))])
    other = Holder(5, 3)
    other.same = torch.Size((5, 3))
    _check(told_apart, [Holder(2, 3), Holder(5, 3), other, Holder(6, 3)])
