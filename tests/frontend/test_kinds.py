"""Capture asks what a value is by its type alone: nothing of the program's runs for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import compiled
from torch import nn

from intarsia.frontend.values import kinds


class Watched:
    """Counts what is read of its instances, `__class__` and `__dict__` too."""

    def __init__(self) -> None:
        object.__setattr__(self, "reads", [])
        object.__setattr__(self, "v", 2.0)

    def __getattribute__(self, name: str) -> Any:
        object.__getattribute__(self, "reads").append(name)
        return object.__getattribute__(self, name)


class Lazy:
    """Says that it is something else, and counts how often it was asked."""

    asked = 0

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        Lazy.asked += 1
        return list


@pytest.mark.parametrize(
    "value", [1, 2.5, "a", [], (), {}, torch.ones(2), nn.Parameter(torch.ones(1)), nn.ReLU(), int, len]
)
@pytest.mark.parametrize("kind", [int, (list, str), torch.Tensor, nn.Parameter, nn.Module, type, int | float])
def test_as_python_s_own(value: Any, kind: Any) -> None:
    assert kinds.isinstance(value, kind) is isinstance(value, kind)


def test_by_type_alone() -> None:
    value = Lazy()
    assert not kinds.isinstance(value, list) and kinds.isinstance(value, Lazy) and not Lazy.asked


def test_reads_of_the_program_s_object_are_the_program_s() -> None:
    def program(x: Any, g: Any) -> Any:
        g.v = g.v + 1
        return x * g.v, getattr(g, "zzz", None), len(g.reads), isinstance(g, Watched)

    fast, _ = compiled(program)
    for _ in range(2):
        seen = []
        for function in (program, fast):
            g = Watched()
            seen.append((*function(torch.ones(2), g)[1:], object.__getattribute__(g, "reads")))
        assert seen[0] == seen[1]
