"""C methods called with objects of other classes, operators of sets beside iterators, `object.__dir__`: as CPython, without a break."""

from __future__ import annotations

import datetime
import enum
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from harness import compiled, same
from torch import Tensor

X = torch.arange(3.0)


class Base:
    b = 1
    a = 2


class Plain(Base):
    z = 0

    def __dir__(self) -> list[str]:
        return [name for name in object.__dir__(self) if name[0] != "_"]


class Other(Base):
    y = 1


class Both(Other, Plain):
    x = 5


class Slots:
    __slots__ = ("u", "v")


class Day(datetime.date, enum.Enum):
    FIRST = 2020, 1, 1


class Flag(enum.IntFlag):
    A = 1
    B = 2


def names(x: Tensor, value: Any) -> Any:
    return x + len(object.__dir__(value)), object.__dir__(value), dir(value)


@pytest.mark.parametrize("made", [Base, Plain, Other, Both, Slots, lambda: Day.FIRST, lambda: Flag.A, lambda: Flag(3)])
def test_names(made: Callable[[], Any]) -> None:
    """In CPython's order; another name is another entry."""
    value = made()
    fast, log = compiled(names)
    for turn in range(3):
        if turn == 1 and type(value) in (Base, Plain, Other, Both):
            value.new = turn
        if turn == 2 and not isinstance(value, enum.Enum):
            type(value).later = 1
        assert same(fast(X, value), names(X, value))
    if not isinstance(value, enum.Enum):
        del type(value).later
    assert not log.breaks
    assert not log.fallbacks


def items() -> Iterator[int]:
    yield from range(3)


ITERATORS: list[Callable[[], Any]] = [items, lambda: iter([1, 2]), lambda: iter({1: 2}), lambda: map(int, "12")]
OPERATORS: list[Callable[[Any, Any], Any]] = [
    *(lambda s, g: s & g, lambda s, g: g | s, lambda s, g: s ^ g, lambda s, g: g - s),
]


def in_place(s: Any, g: Any) -> Any:
    s -= g


def refused(x: Tensor, operator: Any, s: Any, g: Any) -> Any:
    try:
        operator(s, g)
    except TypeError as error:
        return x + len(s), str(error)
    return x


@pytest.mark.parametrize("operator", [*OPERATORS, in_place])
@pytest.mark.parametrize("kind", [set, frozenset])
def test_sets_take_nothing(operator: Any, kind: Any) -> None:
    for made in ITERATORS:
        fast, log = compiled(refused)
        for turn in range(2):
            one, other = made(), made()
            assert same(fast(X, operator, kind([1, turn]), one), refused(X, operator, kind([1, turn]), other))
            assert [*one] == [*other]
        assert not log.breaks


def called(x: Tensor, method: Any, kind: Any) -> Any:
    value = kind()
    try:
        found = method(value)
    except TypeError as error:
        return x + 1, str(error)
    return x, len([*found]) if hasattr(found, "__iter__") else found


@pytest.mark.parametrize("method", [list.__iter__, dict.__iter__, set.__len__, dict.keys, str.upper, list.__len__])
def test_of_another_class(method: Any) -> None:
    for kind in (Base, list, dict, set, str):
        fast, log = compiled(called)
        for _ in range(2):
            assert same(fast(X, method, kind), called(X, method, kind))
        assert not log.breaks, kind
        assert not log.fallbacks, kind


def test_class_without_a_module() -> None:
    """Text that runs where there is no `__name__` makes classes that say of no module."""
    names: dict[str, Any] = {}
    text = "class B: pass\n\ndef f(x):\n    class K(B): pass\n    return x + 1, isinstance(K(), B), type('L', (B,), {}).__name__"
    exec(text, names)
    fast, log = compiled(names["f"])
    for _ in range(2):
        assert same(fast(X), names["f"](X))
    assert not log.breaks
    assert not log.fallbacks
