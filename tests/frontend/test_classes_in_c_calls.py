"""Stand-ins are put into those classes alone that a call of C code can come to: none that it comes to is left out."""

from __future__ import annotations

import operator
import random
from collections import Counter, OrderedDict, UserList, defaultdict, deque
from typing import Any

import pytest
import torch
from harness import compiled, same

X = torch.ones(2)


def make(log: list[Any], name: str, base: type = object) -> Any:
    """A class whose instances note who is asked."""

    class Asked(base):  # type: ignore[misc]
        def __init__(self, value: int) -> None:
            self.value = value

        def __eq__(self, other: object) -> bool:
            log.append((name, "eq", self.value))
            return self.value == getattr(other, "value", other)

        def __hash__(self) -> int:
            log.append((name, "hash"))
            return self.value % 3

        def __lt__(self, other: Any) -> bool:
            log.append((name, "lt"))
            return bool(self.value < other.value)

    return Asked


def one_class_a_round(x: Any) -> Any:
    log: list[Any] = []
    for i in range(6):
        kind = make(log, str(i))
        left, right = {kind(n) for n in range(4)}, frozenset(kind(n) for n in range(2, 6))
        log.append((len(left & right), left <= right, left == right))
    return x + 1, log


def of_the_round_before(x: Any) -> Any:
    log: list[Any] = []
    before: list[Any] = []
    for i in range(5):
        kind = make(log, str(i))
        before.append(kind(i))
        log.append((kind(i - 1) in before, before.index(i), sorted(before, key=lambda b: -b.value)[0].value))
    return x + 1, log


def within_what_is_held(x: Any) -> Any:
    """Items of items, of a library's class, of an iterator, of what a method returns or adds."""
    log: list[Any] = []
    first, second, third = (make(log, name) for name in "abc")

    class Holder:
        def __init__(self) -> None:
            self.parts = [first(1)]

        def __iter__(self) -> Any:
            return iter([*self.parts, third(3)])

        def __contains__(self, item: object) -> bool:
            more.append(second(5))
            return item in self.parts

    more: list[Any] = [second(2)]
    deep = [(1, [{"k": deque([second(7)])}])]
    found = (
        deep == [(1, [{"k": deque([first(7)])}])],
        UserList([first(1)]) == UserList([second(1)]),
        [*map(operator.eq, [first(1)], [third(1)])],
        operator.contains(Holder(), first(1)),
        {*Holder()} == {first(1), third(3)},
        list(zip([first(2)], more)) == [(second(2), second(2))],
        more == [1, 5],
        OrderedDict([(first(1), 1)]) == OrderedDict([(second(1), 1)]),
        max(iter([first(3), second(9)])).value,
        Counter([first(1), second(1)])[third(1)],
        defaultdict(lambda: 5, {first(1): 2})[first(1)],
        defaultdict(lambda: 5, {first(1): 2})[second(4)],
    )
    return x + 1, found, log


def classes_that_change(x: Any) -> Any:
    log: list[Any] = []
    first, second = make(log, "a"), make(log, "b")

    class Turns(set):  # type: ignore[type-arg]
        def __eq__(self, other: object) -> bool:
            second.__eq__ = lambda one, two: log.append("other") or True
            return set.__eq__(self, other)  # type: ignore[arg-type]

        __hash__ = None  # type: ignore[assignment]

    items = [first(1), second(2), first(4)]
    third = make(log, "c")
    log.append({third(1)} == {third(1)})
    third.__eq__ = lambda one, two: log.append("another") or True
    log.append(third(1) in [3])
    del third.__eq__
    log.append({third(1)} == {third(1)})
    return x + 1, Turns(items) == {*items}, second(1) in [3], {second(2): 1} == {second(2): 2}, log


@pytest.mark.parametrize("function", [one_class_a_round, of_the_round_before, within_what_is_held, classes_that_change])
def test_asked_as_by_cpython(function: Any) -> None:
    fast, log = compiled(function, fullgraph=True)
    for _ in range(2):
        assert same(fast(X), function(X))
    assert len(log.captures) == 1


def drawn(seed: int) -> Any:
    """A program of random calls on containers of items of several classes, some within others, some added while a method runs."""

    def program(x: Any) -> Any:
        chance, log = random.Random(seed), list[Any]()
        kinds = [make(log, str(i), chance.choice((object, object, int, list))) for i in range(4)] if seed % 2 else []
        kinds += [make(log, name) for name in "xy"]
        shared: list[Any] = []

        class Adds:
            def __init__(self, value: int) -> None:
                self.value = value

            def __eq__(self, other: object) -> bool:
                if len(shared) < 8:
                    shared.append(kinds[self.value % len(kinds)](self.value) if kinds[0].__base__ is object else 1)
                return bool(self.value == getattr(other, "value", other))

            def __hash__(self) -> int:
                return self.value % 3

        def item(depth: int) -> Any:
            which = chance.randrange(7)
            if depth and which < 2:
                return tuple(item(depth - 1) for _ in range(2))
            kind = Adds if which == 2 else chance.choice(kinds)
            made = kind.__new__(kind)
            made.value = chance.randrange(4)
            return made

        for _ in range(12):
            left, right = ([item(2) for _ in range(chance.randrange(1, 4))] for _ in range(2))
            kind = chance.choice((list, tuple, set, frozenset, deque, dict.fromkeys, UserList, OrderedDict.fromkeys))
            one, other = kind(left), kind(right)
            call = chance.choice(("eq", "in", "shared", "union", "index", "count"))
            if call == "eq":
                log.append(one == other)
            elif call == "in":
                log.append(right[0] in one)
            elif call == "shared":
                log.append((shared == left, item(1) in shared))
            elif call == "union":
                log.append(len({*left} | frozenset(right)))
            elif call == "index":
                log.append((*left, right[0]).index(right[0]))
            else:
                log.append([*left, *right].count(left[0]))
        return x + 1, len(shared), log

    return program


@pytest.mark.parametrize("seed", range(8))
def test_random_programs(seed: int) -> None:
    fast, _ = compiled(drawn(seed))
    for _ in range(2):
        assert same(fast(X), drawn(seed)(X))


def test_an_ordered_dict_changed_as_a_plain_one() -> None:
    def program(x: Any, key: Any) -> Any:
        table = OrderedDict(a=1, b=2)
        dict.pop(table, key)
        try:
            repr(table)
        except KeyError as error:
            return x + 1, error.args
        return x + 1, None

    fast, log = compiled(program, fullgraph=True)
    for key in "ab":
        assert same(fast(X, key), program(X, key))
    assert not log.fallbacks
