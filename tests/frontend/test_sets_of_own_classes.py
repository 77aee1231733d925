"""Sets of the caller's of a class that derives from Python's: taken as sets are where they hold no more and read as sets."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from harness import compiled, same

X = torch.ones(2)


class Own(set):  # type: ignore[type-arg]
    pass


class Frozen(frozenset):  # type: ignore[type-arg]
    pass


class Counts(set):  # type: ignore[type-arg]
    """Adds what it is told to, and notes it elsewhere."""

    added: list[Any] = []  # noqa: RUF012

    def add(self, item: Any) -> None:
        Counts.added.append(item)
        super().add(item)


class Slotted(set):  # type: ignore[type-arg]
    __slots__ = ("more",)


class Shouts(frozenset):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        return iter([str(item).upper() for item in frozenset.__iter__(self)])


def looked_at(x: Any, s: Any) -> Any:
    return (
        x + len(s),
        "a" in s,
        s == {"a", "b"},
        sorted(s),
        s | {"q"} == {"a", "q"},
        s.isdisjoint("xy"),
        type(s).__name__,
    )


def changed(x: Any, s: Any) -> Any:
    s.add("new")
    s.discard("a")
    s |= {"b", "c"}
    return x + len(s), s


def with_attributes(x: Any, s: Any) -> Any:
    before = getattr(s, "name", None)
    s.name = len(s)
    return x + s.name, before, s


@pytest.mark.parametrize("kind", [Own, Frozen])
def test_in_the_graph(kind: Any) -> None:
    fast, log = compiled(looked_at, fullgraph=True)
    for text in ("ab", "ab", "abc", ""):
        assert same(fast(X, kind(text)), looked_at(X, kind(text)))
    assert len(log.captures) == 3


@pytest.mark.parametrize("function", [changed, with_attributes])
@pytest.mark.parametrize("kind", [Own, Counts])
def test_changes(function: Any, kind: Any) -> None:
    fast, log = compiled(function, fullgraph=True)
    for text in ("ab", "ab", "xyz"):
        Counts.added.clear()
        one, other = kind(text), kind(text)
        result, noted = fast(X, one), [*Counts.added]
        Counts.added.clear()
        assert same(result, function(X, other)) and noted == Counts.added
        assert result[-1] is one and same([*one], [*other]) and vars(one) == vars(other)
    assert len(log.captures) == 2


def odd(chance: random.Random) -> Any:
    """A set that is and is not taken: by its class, its size, its history, its attributes and its items."""
    kind = chance.choice((Own, Own, Frozen, Counts, Slotted, Shouts))
    size = chance.choice((0, 1, 3, 5, 9, 48, 49, 60))
    items = chance.sample(range(-200, 200), size) if chance.random() < 0.7 else [f"k{i}" for i in range(size)]
    made = kind(items)
    if isinstance(made, set):
        for _ in range(chance.choice((0, 0, 2))):
            made.add(chance.randrange(1000))
            if chance.random() < 0.5:
                made.discard(next(iter(set.__iter__(made))))
    if chance.random() < 0.2:
        if kind is Slotted:
            made.more = 1
        else:
            made.extra = 1
    return made


def drawn(seed: int) -> Any:
    def program(x: Any, s: Any) -> Any:
        chance, seen = random.Random(seed), list[Any]()
        for _ in range(4):
            item = chance.choice((1, 7, 9, 300, "k1", "k30"))
            call = chance.choice(("in", "or", "sub", "add", "discard", "list", "copy", "eq", "hash", "update", "attr"))
            if call == "in":
                seen.append(item in s)
            elif call == "or":
                seen.append([*(s | {item}), *(s & {1, 7, "k1"})])
            elif call == "sub":
                seen.append([*(s - {item}), len(s ^ {item})])
            elif call in ("add", "discard") and isinstance(s, set):
                seen.append(getattr(s, call)(item))
            elif call == "list":
                seen.append([*s])
            elif call == "copy":
                seen.append([*s.copy()])
            elif call == "eq":
                seen.append((s == {item}, s <= {*s, item}, {item} < s))
            elif call == "hash" and isinstance(s, frozenset):
                seen.append(hash(s) == hash(frozenset(s)))
            elif call == "update" and isinstance(s, set):
                s.update([item, 11, 12])
            elif call == "attr" and type(s) is not Slotted:
                seen.append(getattr(s, "extra", None))
                s.extra = item
        return x + len(s), seen, s

    return program


@pytest.mark.parametrize("seed", range(12))
def test_random_programs(seed: int) -> None:
    fast, _ = compiled(drawn(seed))
    for turn in range(3):
        one, other = (odd(random.Random(seed * 10 + turn // 2)) for _ in range(2))
        left, right = fast(X, one), drawn(seed)(X, other)
        assert left[-1] is one and same(left[:-1], right[:-1]), (left, right)
        assert same([*one], [*other]) and getattr(one, "__dict__", 0) == getattr(other, "__dict__", 0)
