"""What a round of a loop writes beside its variables: attributes, items and cells are carried, all else ends the graph."""

import array
import collections
import io
import itertools

import pytest
import torch
from harness import compiled, number_backend, same
from torch import nn

XS = [torch.linspace(-1, top, 12).reshape(4, 3) for top in (2.0, 0.1, 9.0)]


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.h, self.n, self.log = torch.ones(4, 3), 0, []
        self.register_buffer("b", torch.zeros(4, 3))


class Wrapped:
    def __init__(self, h):
        self._h = h

    @property
    def h(self):
        return self._h

    @h.setter
    def h(self, value):
        self._h = value


class Slots:
    __slots__ = ("n",)


def attribute(m, x):
    while x.max() > 0.3:
        x = x * 0.5
        m.h = m.h + x
    return x + 1


def counter(m, x):
    for _ in range(9):
        x = x * 0.5
        m.n += 1
        if x.max() < 0.3:
            break
    return x + 0, m.n


def decides(m, x):
    while m.h.max() > 0.3:
        m.h = m.h * 0.5
    return x + m.h


def made_here(m, x):
    state = Wrapped(x)
    while state.h.max() > 0.3:
        state.h = state.h * 0.5
    return state.h + 1


def items(m, x):
    d, found = {"h": x, "n": 0}, [0, [x]]
    while d["h"].max() > 0.3:
        d["h"] = d["h"] * 0.5
        d["n"] += 1
        found[0], found[1][0] = d["n"] * 2, d["h"] + 1
    return d["h"] + 1, d["n"], found[0], found[1][0] + 1


def around(m, x):
    h, n = x, 0

    def step():
        nonlocal h, n
        h, n = h * 0.5, n + 1

    while h.max() > 0.3:
        step()
    return h + 1, n


def queue(m, x):
    last = [x, x * 0.5]
    while (last[0] - last[1]).abs().max() > 0.1:
        last.append(last[-1] * 0.5)
        last.pop(0)
    return last[0] + 1, last[1]


def same_tensor_twice(m, x):
    while x.max() > 0.3:
        x = x * 0.5
        m.h = x
    return x


def first_one_is_written(m, x):
    first = m.h
    while x.max() > 0.3:
        x = x * 0.5
        m.h = m.h + x
    first.add_(1)
    return x + 1, first


def grows(m, x):
    found = []
    while x.max() > 0.3:
        x = x * 0.5
        found.append(x)
    return len(found), x + 1


CARRIED = [attribute, counter, decides, made_here, items, around, queue, first_one_is_written, grows]


def bound_in_the_loop(m, x):
    while x.max() > 0.3:
        x = x * 0.5
        m.last = x + 1
    return x + 1


def another_kind(m, x):
    while x.max() > 0.3:
        x = x * 0.5
        m.n = m.n + 0.5
    return x + 1


def written_to(m, x):
    while x.max() > 0.3:
        x = x * 0.5
        m.h.mul_(0.5)
        m.h = m.h + 1
    return x + m.h


def changes(make, change, result):
    def f(m, x):
        held = make()
        while x.max() > 0.3:
            x = x * 0.5
            change(held)
        return x + 1, result(held)

    return f


def count(held):
    held["a"] += 1


def count_slot(held):
    held.n += 1


def slots():
    made = Slots()
    made.n = 0
    return made


class Items(list):
    pass


class Count(itertools.count):
    pass


UNSEEN = {
    "deque": (collections.deque, lambda q: q.append(1), len),
    "a deque in a list": (lambda: [collections.deque()], lambda q: q[0].append(1), lambda q: len(q[0])),
    "Counter": (collections.Counter, count, lambda q: q["a"]),
    "OrderedDict": (lambda: collections.OrderedDict(a=0), count, lambda q: q["a"]),
    "defaultdict": (lambda: collections.defaultdict(int), count, lambda q: q["a"]),
    "StringIO": (io.StringIO, lambda q: q.write("a"), lambda q: q.getvalue()),
    "bytearray": (bytearray, lambda q: q.append(1), bytes),
    "array": (lambda: array.array("i"), lambda q: q.append(1), len),
    "slots": (slots, count_slot, lambda q: q.n),
    "itertools": (itertools.count, next, next),
    "a class of itertools'": (Count, next, next),
    "an iterator": (lambda: iter(range(20)), next, next),
    "a list's class": (Items, lambda q: q.append(1), len),
}


def check(f, fast):
    for x in XS:
        mine, other = Cell(), Cell()
        assert same(f(mine, x.clone()), fast(other, x.clone()))
        assert same(vars(mine)["h"], vars(other)["h"]) and mine.n == other.n and same(mine.b, other.b)
        assert vars(mine).keys() == vars(other).keys() and type(mine.n) is type(other.n)


@pytest.mark.parametrize("f", CARRIED)
def test_carried(f) -> None:
    fast, log = compiled(f, number_backend, on_error="raise")
    check(f, fast)
    assert not log.breaks and not log.fallbacks


@pytest.mark.parametrize("f", [same_tensor_twice, bound_in_the_loop, another_kind, written_to])
def test_breaks(f) -> None:
    fast, log = compiled(f, number_backend, on_error="raise")
    check(f, fast)
    assert log.breaks


@pytest.mark.parametrize("name", UNSEEN)
def test_what_objects_of_c_hold_is_seen(name) -> None:
    f = changes(*UNSEEN[name])
    fast, log = compiled(f, number_backend)
    check(f, fast)
    assert log.breaks or log.fallbacks
