"""Which calls of C functions need no stand-ins of special methods: what looks like one of these, and is none, is still interpreted."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import compiled, same
from torch import Tensor

from intarsia.frontend.classes import special_methods

X = torch.ones(2)
asked: list[Any] = []


class Key:
    """Equal to its value, of the same hash; notes each comparison."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        asked.append(self.value)
        return bool((other.value if isinstance(other, Key) else other) == self.value)

    def __hash__(self) -> int:
        return hash(self.value)

    def __index__(self) -> int:
        asked.append("index")
        return int(self.value)


class Plain:
    pass


# ---- calls that ask a method of the program's: an equal key of the same hash, an item, an operand that the function keeps ----


def in_sets(x: Tensor) -> Any:
    names = {Key("a")}
    names.add("a")
    names.discard("b")
    return x, len(names), "a" in names, "b" in names, "a" in frozenset({Key("a")})


def in_dicts(x: Tensor) -> Any:
    table: dict[Any, Any] = {Key("a"): 1, "c": 2}
    table["a"] = 3
    read = table.get("a"), table["a"], operator.getitem(table, "a"), table.setdefault("a", 4), table.pop("a")
    return x, read, list(table.values()), "a" in table, table.get("c")


def updated(x: Tensor) -> Any:
    table: dict[Any, Any] = {"a": 1}
    table[Key("a")] = 2
    table.update({Key("b"): 3})
    more = {**table, "b": 4}
    return x, len(table), len(more), len(dict([("c", 1), (Key("c"), 2)])), len({"d", Key("d")})


def in_sequences(x: Tensor) -> Any:
    items = [Key("a"), ("b", Key("c"))]
    nested = [[[Key("d")]]]
    compared = ("a",) == (Key("a"),), [[["d"]]] == nested, {"a": 1, "e": "d"} == {"a": 1, "e": Key("d")}
    return x, "a" in items, ("b", "c") in items, ["a", "f"].count(Key("f")), compared


def equal_dicts(x: Tensor) -> Any:
    first, second = {"a": 1, "b": 2}, {Key("a"): 1, "b": 2}
    return x, first == second, first != second, {"a": 1} == {Key("a"): 2}


def places(x: Tensor) -> Any:
    items = [1, 2, 3]
    items.insert(Key(1), 9)
    both = deque([1, 2, 3])
    both.rotate(Key(1))
    both.insert(Key(2), 4)
    return x, both, items[Key(2)], items[slice(Key(1), None)], operator.getitem(items, Key(0)), items.pop(Key(0))


def kept(x: Tensor) -> Any:
    find, count, item = operator.methodcaller("index", Key(2)), operator.methodcaller("count", Key(1)), Key("a")
    return x, find(range(5)), count(range(3)), count((1, 2, 1)), operator.itemgetter(item)({"a": 3})


def zipped(x: Tensor) -> Any:
    class Items:
        def __init__(self) -> None:
            self.place = 0

        def __iter__(self) -> Any:
            asked.append("iter")
            return self

        def __next__(self) -> int:
            asked.append("next")
            self.place += 1
            if self.place > 2:
                raise StopIteration
            return self.place

    pairs = zip([1, 2, 3], Items(), strict=False)
    return x, next(pairs), list(pairs), list(enumerate(Items())), tuple(Items())


def by_many(x: Tensor) -> Any:
    table: dict[Any, int] = {str(i): i for i in range(300)}
    table[Key("a")] = 1
    return x, table["a"], "a" in table, "b" in table


def set_by_name(x: Tensor) -> Any:
    obj = Plain()
    obj.first = 1  # type: ignore[attr-defined]
    vars(obj)[Key("name")] = 5
    obj.name = 6  # type: ignore[attr-defined]
    return x, list(vars(obj).values()), vars(obj)["name"]


def removed(x: Tensor) -> Any:
    table: dict[Any, int] = {"a": 1}
    before = table.get("a")
    table[Key("b")] = 2
    found = table.get("b")
    del table["b"]
    return x, before, found, table.get("b"), len(table)


ASKING = [
    in_sets, in_dicts, updated, in_sequences, equal_dicts, places, kept, zipped, by_many, set_by_name, removed
]  # fmt: skip


@pytest.mark.parametrize("program", ASKING)
def test_what_asks_the_program_is_interpreted(program: Callable[..., Any]) -> None:
    """As often as in eager: at capture the interpreter keeps what the methods note, and gives it out in each call."""
    fast, log = compiled(program)
    asked.clear()
    want, noted = program(X), [*asked]
    for _ in range(3):
        asked.clear()
        assert same(fast(X), want)
    assert asked == noted
    assert not log.fallbacks and not log.breaks, (log.fallbacks, [b.reason for b in log.breaks])
    assert noted


# ---- calls that ask none ----


def handed_on(x: Tensor, key: Key) -> Any:
    items, table, names = [key], {"a": key}, {"b", "c"}
    items.append(key)
    items.extend((key, key))
    table["b"] = key
    names.add("a")
    found = [table[n] is key for n in ("a", "b")], [k is key for k in items], items[0] is key, items[1:][0] is key
    counted = len(items), len(table), [v is key for v in table.values()], "a" in table, table.get("d"), len(names)
    return x.view(2).add(x.size(0)), found, counted


def test_what_hands_objects_on_has_no_stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is put for look-ups by names, for tensors, or for items that are handed on, though a key of the program's was looked up."""
    puts = []
    put = special_methods.SpecialMethods.put
    monkeypatch.setattr(special_methods.SpecialMethods, "put", lambda self: (puts.append(1), put(self))[1])

    def program(x: Tensor, first: bool) -> Any:
        key = Key("a")
        start = {key: 2}["a"]
        return start, handed_on(x, key) if first else None

    counts = []
    for first in (True, False):
        puts.clear()
        fast, log = compiled(program)
        assert same(fast(X, first), program(X, first))
        assert not log.fallbacks and not log.breaks
        counts.append(len(puts))
    assert counts[0] == counts[1] > 0


# ---- names of namespaces ----


def made(x: Tensor) -> Any:
    obj = Plain()
    vars(obj)[Key("name")] = 5
    return x, vars(obj).get("name"), [type(k).__name__ for k in vars(obj)]


def written(x: Tensor, obj: Any) -> Any:
    vars(obj)[Key("name")] = 5
    return x, vars(obj).get("name"), len(vars(obj))


def read(x: Tensor, obj: Any) -> Any:
    return x, vars(obj).get("name"), vars(obj).get("other")


def odd() -> Plain:
    obj = Plain()
    vars(obj)[Key("name")] = 7
    return obj


@pytest.mark.parametrize(
    "program, make, breaks", [(made, None, False), (written, Plain, True), (read, odd, True), (read, Plain, False)]
)
def test_names_that_are_no_strings(program: Callable[..., Any], make: Any, breaks: bool) -> None:
    """Among the attributes of the caller's objects they end the graph; setting one was a syntax error in the entry."""
    fast, log = compiled(program)
    for _ in range(2):
        args = (make(),) if make else ()
        assert same(fast(X, *args), program(X, *((make(),) if make else ())))
    assert bool(log.breaks) is breaks
    assert not log.fallbacks
    assert all("namespace" in b.reason for b in log.breaks)
