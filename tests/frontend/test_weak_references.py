"""Weak references to what the call itself made: read while a variable leads to it, else the call is CPython's."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import check, compiled
from torch import Tensor

X = torch.arange(3.0)


class Made:
    held: Any = None


def variable(x: Tensor) -> Any:
    made = Made()
    reference = weakref.ref(made)
    return x + 1, reference() is made


def in_containers(x: Tensor) -> Any:
    kept = [{"key": Made()}]
    reference = weakref.ref(kept[0]["key"])

    def inner() -> Any:
        return reference() is kept[0]["key"]

    return x + 1, inner()


def attribute(x: Tensor) -> Any:
    made = Made()
    made.held = Made()
    reference = weakref.ref(made.held)
    return x + 1, reference() is made.held


def tensor(x: Tensor) -> Any:
    y = x * 2
    reference = weakref.ref(y)
    return y, reference() is y


@pytest.mark.parametrize("program", [variable, in_containers, attribute, tensor], ids=lambda f: f.__name__)
def test_alive(program: Callable[..., Any]) -> None:
    check(program, X)


def at_once(x: Tensor) -> Any:
    return x + 1, weakref.ref(Made())() is None


def deleted(x: Tensor) -> Any:
    made = Made()
    kept, reference = [made], weakref.ref(made)
    del made
    before = reference() is None
    kept.clear()
    return x + 1, before, reference() is None


def deleted_tensor(x: Tensor) -> Any:
    y = x * 2
    reference = weakref.ref(y)
    del y
    return x + 1, reference() is None


def called_back(x: Tensor) -> Any:
    log: list[int] = []
    made = Made()
    reference = weakref.ref(made, lambda _: log.append(1))
    del made
    return x + 1, log, reference() is None


def of_values(x: Tensor) -> Any:
    table, made = weakref.WeakValueDictionary[str, Made](), Made()
    table["key"] = made
    count = len(table)
    del made
    return x + 1, count, len(table)


@pytest.mark.parametrize(
    "program", [at_once, deleted, deleted_tensor, called_back, of_values], ids=lambda f: f.__name__
)
def test_gone(program: Callable[..., Any]) -> None:
    function, log = compiled(program)
    for _ in range(2):
        assert function(X)[1:] == program(X)[1:]
    assert log.fallbacks


# ---- proxies ----


class Linked:
    __slots__ = ("__weakref__", "label", "next")

    def __call__(self, more: Any) -> Any:
        return self.label + more

    def __len__(self) -> int:
        return 3


def proxied(x: Tensor) -> Any:
    made = Linked()
    proxy = weakref.proxy(made)
    proxy.label, proxy.next = x * 2, weakref.proxy(made)
    del proxy.next
    missing = ""
    try:
        proxy.next
    except AttributeError as error:
        missing = str(error)
    return proxy(1) + made.label, weakref.proxy(made) is proxy, proxy is made, missing


def in_a_ring(x: Tensor) -> Any:
    first, second = Linked(), Linked()
    first.next, second.next = weakref.proxy(second), weakref.proxy(first)
    first.label, second.label = x, x + 1
    return first.next.label + first.next.next.label


@pytest.mark.parametrize("function", [proxied, in_a_ring])
def test_proxies_are_the_object(function: Callable[..., Any]) -> None:
    assert check(function, X).breaks == []


def test_proxies_that_are_given_out() -> None:
    def function(x: Tensor) -> Any:
        made = Linked()
        made.label = x + 1
        return made, weakref.proxy(made)

    fast, log = compiled(function)
    for _ in range(2):
        made, proxy = fast(X)
        assert weakref.proxy(made) is proxy and torch.equal(proxy.label, X + 1)
    assert log.breaks == []


HELD = Made()
HELD_PROXY = weakref.proxy(HELD)


def of_the_callers(x: Tensor) -> Any:
    return x * HELD_PROXY.held, weakref.proxy(HELD) is HELD_PROXY


def dead(x: Tensor) -> Any:
    made = Made()
    proxy = weakref.proxy(made)
    del made
    try:
        return x, proxy.held
    except ReferenceError as error:
        return x, str(error)


def with_a_callback(x: Tensor) -> Any:
    said: list[str] = []
    made = Made()
    proxy = weakref.proxy(made, lambda _: said.append("gone"))
    held = proxy.held
    del made
    return x, said, held


def other_uses(x: Tensor) -> Any:
    made = Linked()
    proxy = weakref.proxy(made)
    return x, len(proxy), bool(proxy), proxy == made, isinstance(proxy, Linked)


@pytest.mark.parametrize("function", [of_the_callers, dead, with_a_callback, other_uses])
def test_other_proxies_are_cpythons(function: Callable[..., Any]) -> None:
    fast, log = compiled(function)
    for HELD.held in (2, 3):
        found, expected = fast(X), function(X)
        assert torch.equal(found[0], expected[0]) and found[1:] == expected[1:]
    assert log.breaks or log.fallbacks


def test_what_a_variable_holds_lives_behind_breaks(capsys: pytest.CaptureFixture[str]) -> None:
    def direct(x: Tensor) -> Any:
        made = Made()
        reference, proxy = weakref.ref(made), weakref.proxy(made)
        proxy.held = 1
        for _ in range(3):
            print("-")
        first = reference() is None
        print("-")
        return x, first, reference() is None, proxy.held

    def nested(x: Tensor) -> Any:
        kept, outer = [Made()], Made()
        outer.held = Made()
        first, second = weakref.ref(kept[0]), weakref.ref(outer.held)
        for _ in range(3):
            print("-")
        print(first() is None)
        return x, first() is None, second() is None

    def given(x: Tensor, proxy: Any) -> Any:
        print("-")
        return x, repr(type(proxy))

    gone = weakref.proxy(Made())
    for function, args in ((direct, ()), (nested, ()), (given, (gone,))):
        fast, _ = compiled(function)
        for _ in range(2):
            assert fast(X, *args)[1:] == function(X, *args)[1:]


# ---- objects that the program lets go of ----


class Ends:
    def __init__(self, said: list[str]) -> None:
        self.said = said

    def __del__(self) -> None:
        self.said.append("ended")


class World:
    """The only strong references to objects, the weak ones, and what was said."""

    def __init__(self) -> None:
        self.items, self.table, self.owner = [Made(), Made()], {"a": Made()}, Made()
        self.owner.held, self.said = Made(), list[str]()
        self.set = weakref.WeakSet([*self.items, *self.table.values()])
        self.values = weakref.WeakValueDictionary({"a": self.table["a"], "b": self.owner.held})
        self.keys = weakref.WeakKeyDictionary({self.items[0]: 1})
        self.references = [weakref.ref(self.items[0]), weakref.ref(self.owner.held)]


def popped(x: Tensor, world: World) -> Any:
    world.items.pop()
    return x * len(world.set), len(world.set)


def deleted_item(x: Tensor, world: World) -> Any:
    y = x * 2
    del world.items[0]
    return y, world.references[0]() is None, len(world.keys), len(world.set)


def cleared(x: Tensor, world: World) -> Any:
    world.table.clear()
    return x * 2, "a" in world.values, len(world.values), [*world.values]


def replaced_attribute(x: Tensor, world: World) -> Any:
    world.owner.held = x * 2
    return world.owner.held, world.references[1]() is None, world.values.get("b") is None


def held_by_a_variable(x: Tensor, world: World) -> Any:
    kept = world.items.pop()
    return x * 2, len(world.set), kept in world.set


def called_in_its_place(x: Tensor, world: World) -> Any:
    reference = world.said
    world.owner.held = None
    reference.append("behind")
    return x * 2


@pytest.mark.parametrize(
    "program", [popped, deleted_item, cleared, replaced_attribute, held_by_a_variable], ids=lambda f: f.__name__
)
def test_what_the_callers_objects_hold_no_more(program: Callable[..., Any]) -> None:
    function, _ = compiled(program)
    for _ in range(3):
        found, expected = function(X, World()), program(X, World())
        assert torch.equal(found[0], expected[0]) and found[1:] == expected[1:]


@pytest.mark.parametrize("watch", ["finalizer", "callback", "finalize", "inside"])
def test_last_acts_come_in_their_place(watch: str) -> None:
    def world() -> World:
        made = World()
        if watch == "callback":
            made.references.append(weakref.ref(made.owner.held, lambda _: made.said.append("called")))
        elif watch == "finalize":
            weakref.finalize(made.owner.held, made.said.append, "called")
        else:
            made.owner.held = Ends(made.said) if watch == "finalizer" else [{"key": Ends(made.said)}]
        return made

    function, log = compiled(called_in_its_place)
    for _ in range(2):
        ours, theirs = world(), world()
        function(X, ours), called_in_its_place(X, theirs)
        assert ours.said == theirs.said and len(ours.said) == 2
    assert log.fallbacks


def test_attributes_without_last_acts_are_one_graph() -> None:
    function, log = compiled(lambda x, world: called_in_its_place(x, world))
    world = World()
    function(X, world)
    assert world.said == ["behind"] and not log.breaks and not log.fallbacks


def test_variables_that_are_deleted_behind_a_break(capsys: pytest.CaptureFixture[str]) -> None:
    def tensor(x: Tensor) -> Any:
        y = x * 2
        reference = weakref.ref(y)
        print("-")
        before = reference() is y
        del y
        return before, reference() is None

    def made(x: Tensor) -> Any:
        kept = Made()
        kept.held = x * 2
        reference, inner = weakref.ref(kept), weakref.ref(kept.held)
        print("-")
        y = kept.held + 1
        kept = None
        return y.sum().item() + 0 if reference() is None else None, inner() is None

    for program in (tensor, made):
        function, _ = compiled(program)
        for _ in range(3):
            assert function(X) == program(X)


# ---- callbacks, and what is found by what it refers to ----


class Registry:
    """Knows objects weakly, by a callback of its own."""

    def __init__(self) -> None:
        self.items: dict[str, Any] = {}
        self.ended: list[str] = []

    def add(self, name: str, value: Any) -> int:
        self.items[name] = weakref.ref(value, lambda _: self.ended.append(name))
        return len(self.items)


def registered(x: Tensor, registry: Registry, table: Any, live: Any, name: str, value: Any) -> Any:
    table[value] = table.get(value, 0) + 1
    live.add(value)
    return x + registry.add(name, value), table[value], len(table), len(live), value in live


@pytest.mark.parametrize("order", ["aabab", "abcab", "aaaa", "abab"])
def test_callbacks_of_what_the_caller_lets_go_of(order: str) -> None:
    accounts = []
    for target in (registered, compiled(registered)[0]):
        registry, table, live = Registry(), weakref.WeakKeyDictionary[Made, int](), weakref.WeakSet[Made]()
        made = {name: Made() for name in "abc"}
        seen = []
        for step, name in enumerate(order):
            seen.append([*map(str, target(X, registry, table, live, name, made.setdefault(name, Made())))])
            if step % 2:
                del made[name]
                gc.collect()  # of what a capture that broke has left
                seen.append([str(len(table)), str(len(live)), *registry.ended])
        accounts.append(seen)
    assert accounts[0] == accounts[1]
