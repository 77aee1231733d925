"""`gc.collect()` in captured code: what is let go of, and the sides of what it takes."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import compiled, same
from torch import Tensor

X = torch.arange(3.0)
LOG: list[int] = []


@pytest.fixture(autouse=True, scope="module")
def _small_heap() -> Any:
    """Collections look at what these tests make."""
    compiled(dropped)[0](X)
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


class Node:
    held: Any = None


class Told:
    """An object in a cycle, whose finalizer leaves a mark."""

    def __init__(self, mark: int) -> None:
        self.mark, self.me = mark, self

    def __del__(self) -> None:
        LOG.append(self.mark)


# Parts of programs: `r` refers weakly to `o`; `keep` is the program's own, `held` the caller's.
MAKES = [
    "o = Node(); o.held = o; r = weakref.ref(o)",
    "o = Node(); r = weakref.ref(o); keep.append(o)",
    "o = Node(); r = weakref.ref(o); keep.append([{1: (o,)}])",
    "o = Node(); r = weakref.ref(o); o.held = iter({o: 1}.items())",
    "o = Node(); r = weakref.ref(o); keep.append(lambda o=o: o)",
    "o = Node(); r = weakref.ref(o); o.held = (lambda: r)",
    "o = Node(); r = weakref.ref(o); keep.append(o.__init__)",
    "o = Node(); r = weakref.ref(o); keep.append(v for v in (o,))",
    "o = type('Kind', (Node,), {}); r = weakref.ref(o); keep.append(o())",
    "o = type('Kind', (Node,), {}); r = weakref.ref(o)",
    "o = Node(); r = weakref.ref(o); held.append(o)",
]
STEPS = [
    *("o = None; gc.collect(); out.append(r is not None and r() is None)", "gc.collect(); out.append(len(LOG))"),
    *("out.append(r is not None and r() is None)", "keep.clear()", "y = y * 2", "out.append(r)"),
    *("gc.collect()", "gc.collect()", "out.append(gc.is_tracked([n]))", "out.append(gc.is_tracked(([], n)))"),
]
ELSEWHERE = ["held.append(n)", "held.clear()", "out.append(gc.collect() >= 0)", "gc.collect(0)"]


def drawn(seed: int) -> Callable[..., Any]:
    """A program of such parts; every third one has one that is not taken."""
    chosen = random.Random(seed)
    lines = [chosen.choice(MAKES if chosen.random() < 0.4 else STEPS) for _ in range(chosen.randint(3, 8))]
    lines.insert(0, chosen.choice(MAKES))
    lines.insert(chosen.randint(1, len(lines)), "o = None; gc.collect(); out.append(r() is None)")
    if seed % 3 == 0:
        lines.insert(chosen.randint(0, len(lines)), chosen.choice(ELSEWHERE))
    body = ["y, keep, out, o, r = x + 1, [], [], None, None", *lines, "return y * n, out, len(keep)"]
    names: dict[str, Any] = {"__name__": __name__, "Node": Node, "weakref": weakref, "gc": gc, "LOG": LOG}
    exec("def program(x, n, held):\n    " + "\n    ".join(body), names)
    return names["program"]  # type: ignore[no-any-return]


def seen(program: Callable[..., Any], turn: int) -> Any:
    """What a call comes to; in some, garbage with a finalizer waits."""
    LOG.clear()
    gc.collect()
    LOG.clear()
    held = [turn // 2]
    if turn % 2:
        Told(turn)
    y, out, count = program(X + turn, 2 + turn // 2, held)
    return y, [(v() is None) if isinstance(v, weakref.ref) else v for v in out], count, len(held), [*LOG]


@pytest.mark.parametrize("first", [0, 4])
def test_random_programs(first: int) -> None:
    """Eager and compiled, four calls each."""
    limits = gc.get_threshold()
    gc.set_threshold(10**6)  # so that no collection comes by itself
    try:
        for seed in range(first, first + 4):
            fast, _ = compiled(drawn(seed))
            for turn in range(4):
                assert same(seen(fast, turn), seen(drawn(seed), turn)), seed
    finally:
        gc.set_threshold(*limits)


def dropped(x: Tensor) -> Any:
    node = Node()
    node.held = node
    reference = weakref.ref(node)
    before = reference() is node
    del node
    gc.collect()
    return x + 1, before, reference() is None, reference


def test_one_graph() -> None:
    fast, log = compiled(dropped)
    for _ in range(2):
        *found, reference = fast(X)
        assert same(found, [*dropped(X)[:3]])
        assert reference() is None
    assert not log.breaks
    assert not log.fallbacks


def asked(x: Tensor) -> Any:
    gc.collect()
    return x + len(LOG)


def test_finalizers_of_the_callers() -> None:
    """What a finalizer changes is seen by what follows, in each call."""
    fast, log = compiled(asked)
    LOG.clear()
    for turn in range(4):
        if turn % 2:
            Told(turn)
        expected = X + len(LOG) + turn % 2
        assert same(fast(X), expected)
    assert not log.breaks


def behind_a_change(x: Tensor, held: list[Any]) -> Any:
    held.clear()
    gc.collect()
    return x + len(LOG)


def counted(x: Tensor, held: list[Any]) -> Any:
    return x + min(gc.collect(), 0)


def lets_go(x: Tensor, held: Any) -> Any:
    first = held[0]
    held = None
    gc.collect()
    return x + len(LOG), first is None


@pytest.mark.parametrize("program", [behind_a_change, counted, lets_go], ids=lambda f: f.__name__)
def test_refused(program: Callable[..., Any]) -> None:
    fast, log = compiled(program)
    for _ in range(2):
        found = []
        for run in (program, fast):
            gc.collect()
            LOG.clear()
            Told(1)
            found.append(run(X, [1]))
        assert same(*found)
    assert log.breaks or log.fallbacks


def test_off_and_told() -> None:
    """Where the collector is off, or somebody is told of collections, the graph breaks; the entry that was made before is not taken."""
    fast, log = compiled(asked)
    LOG.clear()
    fast(X)
    assert not log.breaks
    told: list[str] = []
    note = lambda phase, info: told.append(phase)  # noqa: E731
    gc.callbacks.append(note)
    try:
        fast(X)
    finally:
        gc.callbacks.remove(note)
    assert told
    assert log.breaks
    other, log = compiled(asked)
    gc.disable()
    try:
        other(X)
    finally:
        gc.enable()
    assert log.breaks


def classes(x: Tensor) -> Any:
    class Parent:
        pass

    class Child(Parent):
        pass

    found = len(Parent.__subclasses__())
    del Child
    gc.collect()
    return x + found, Parent.__subclasses__()


def test_classes() -> None:
    fast, log = compiled(classes)
    for _ in range(2):
        assert same(fast(X), classes(X))
    assert not log.breaks


@pytest.mark.parametrize("hold", [None, "list", "cell", "caller"])
def test_proxies_of_what_is_dropped(hold: str | None) -> None:
    def program(x: Tensor, held: list[Any]) -> Any:
        node, keep = Node(), []
        node.held = [node, 5]
        proxy = weakref.proxy(node)
        before = proxy.held[1]
        if hold == "list":
            keep.append(node)
        if hold == "cell":
            keep.append(lambda node=node: node)
        if hold == "caller":
            held.append(node)
        del node
        gc.collect()
        said = []
        for function in (lambda: proxy.held[1], lambda: setattr(proxy, "held", 3), lambda: proxy.missing):
            try:
                said.append(function())
            except (ReferenceError, AttributeError) as error:
                said.append((type(error), str(error)))
        return x + 1, before, said, len(keep)

    fast, log = compiled(program, on_error="warn")
    for _ in range(2):
        assert fast(X, [])[1:] == program(X, [])[1:]
    assert hold == "caller" or not log.breaks and not log.fallbacks


def test_a_dead_proxy_is_given_out() -> None:
    def program(x: Tensor) -> Any:
        node = Node()
        node.held = node
        proxy = weakref.proxy(node)
        del node
        gc.collect()
        return x + 1, proxy

    fast, _ = compiled(program, on_error="warn")
    for _ in range(2):
        with pytest.raises(ReferenceError):
            fast(X)[1].held  # noqa: B018
