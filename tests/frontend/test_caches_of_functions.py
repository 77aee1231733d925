"""Caches that a call makes of functions: `functools.lru_cache` of objects, and one written in Python with marks of its module in the keys."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import compiled

MARK = (object(),)


class Key(list[Any]):
    """Keeps its hash, as Python's own `lru_cache` does in Python."""

    __slots__ = "kept"

    def __init__(self, parts: tuple[Any, ...]) -> None:
        self[:] = parts
        self.kept = hash(parts)

    def __hash__(self) -> int:  # type: ignore[override]
        return self.kept


class Thing:
    """Told from others by which it is."""


class Number(int):
    """Told by its value."""


class Equal:
    """Told by a method of the program's."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equal) and other.value == self.value

    def __hash__(self) -> int:
        return self.value


def asked(keys: list[Any], typed: bool = False) -> Any:
    """What a new cache is asked for, and how often its function runs."""
    seen = []

    @functools.lru_cache(4, typed=typed)
    def answer(key: Any) -> int:
        seen.append(1)
        return len(seen)

    found: list[Any] = []
    for key in keys:
        try:
            found.append(answer(key))
        except TypeError as error:
            found.append(str(error))
    return found, tuple(answer.cache_info())


def own_objects(x: torch.Tensor, a: Any, b: Any) -> Any:
    one, two = Thing(), Thing()
    return x + 1, asked([one, two, one, 1, (1, one), (1, two), (1, one), Number(3), Number(3), 3, [], {}])


def typed(x: torch.Tensor, a: Any, b: Any) -> Any:
    return x + 1, asked([1, True, 1.0, Number(1), 1, (1,), (True,)], typed=True)


def callers(x: torch.Tensor, a: Any, b: Any) -> Any:
    return x + 1, asked([a, b, a, (a, 1), (b, 1)])


def of_equal_objects(x: torch.Tensor, a: Any, b: Any) -> Any:
    return x + 1, asked([Equal(1), Equal(1), Equal(2)])


def in_python(x: torch.Tensor, a: Any, b: Any) -> Any:
    known: dict[Any, int] = {}
    for part in (1, 2, 1, "a", 2.5, int, None):
        key = Key((part, *MARK, str))
        known[key] = known.get(key, 0) + 1
    return x + 1, list(known.values())


@pytest.mark.parametrize(
    ("program", "whole"),
    [(own_objects, True), (typed, True), (callers, True), (of_equal_objects, False), (in_python, True)],
)
def test_caches(program: Callable[..., Any], whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    fast, log = compiled(program)
    x, one, two = torch.ones(2), Thing(), Thing()
    for a, b in ((one, two), (two, one), (one, one), (two, two)):
        assert str(fast(x, a, b)) == str(program(x, a, b))
        monkeypatch.setattr(program.__module__ + ".MARK", (object(),))  # another one, at another place
    assert (not log.breaks and not log.fallbacks) == whole
