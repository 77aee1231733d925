"""Iterators of C's whose own iterator calls them again, raises, ends or lets go of them in the middle: as in eager, and the process goes on."""

import collections
import itertools
import re

import pytest
import torch
from harness import compiled


class Items:
    """0 to 5; in front of the items of `at` something happens."""

    def __init__(self, act, at):
        self.act, self.at, self.i = act, at, 0

    def __iter__(self):
        return self

    def __next__(self):
        i, self.i = self.i, self.i + 1
        if i in self.at:
            self.act(i)
        if i > 5:
            raise StopIteration
        return i


class Old:
    """The same by index."""

    def __init__(self, act, at):
        self.act, self.at = act, at

    def __getitem__(self, i):
        if i in self.at:
            self.act(i)
        if i > 5:
            raise IndexError
        return i


MAKERS = {
    "map": lambda it: map(lambda a: a, it),
    "maps": lambda it: map(lambda a, b: (a, b), it, it),
    "filter": lambda it: filter(None, it),
    "zip": lambda it: zip(it, it),
    "longest": lambda it: itertools.zip_longest(it, [1]),
    "chain": lambda it: itertools.chain([9], it, it),
    "nested": lambda it: itertools.chain.from_iterable(map(lambda a: [a], it)),
    "islice": lambda it: itertools.islice(it, 0, 5, 2),
    "groupby": lambda it: itertools.groupby(it, lambda a: a // 2),
    "accumulate": itertools.accumulate,
    "pairwise": itertools.pairwise,
    "takewhile": lambda it: itertools.takewhile(lambda a: a < 4, it),
    "dropwhile": lambda it: itertools.dropwhile(lambda a: a < 2, it),
    "enumerate": enumerate,
    "cycle": itertools.cycle,
    "compress": lambda it: itertools.compress(it, it),
    "tee": lambda it: itertools.tee(it)[0],
    "iter": iter,
}
if hasattr(itertools, "batched"):
    MAKERS["batched"] = lambda it: itertools.batched(it, 2)


def steps(make, kind, what, at):
    """What eight steps give."""
    log, box, depth = [], [], [0]

    def act(i):
        depth[0] += 1
        try:
            if what == "next" and depth[0] < 3:
                try:
                    log.append(repr(next(box[0], "end")))
                except ValueError as error:
                    log.append(str(error))
            elif what == "raise":
                raise KeyError(i)
            elif what == "stop":
                raise StopIteration
            elif what == "drop":
                box.clear()
            elif what == "slice" and depth[0] < 3:
                log.append(repr([*itertools.islice(box[0], 2)]))
        finally:
            depth[0] -= 1

    source = kind(act, at)  # held: CPython itself may use it behind its end
    box.append(make(source))
    iterator, out = box[0], []
    for _ in range(8):
        try:
            out.append(repr(next(iterator, "end")))
        except (RuntimeError, KeyError, ValueError) as error:
            out.append(f"{type(error).__name__} {error}")
    return out, log


def shown(value):
    return re.sub("0x[0-9a-f]+", "", repr(value))


@pytest.mark.parametrize("kind", [Items, Old])
def test_as_in_eager(kind):
    def run(x):
        return x + 1, [
            (name, what, at, *steps(make, kind, what, at))
            for name, make in MAKERS.items()
            if not (name == "batched" and kind is Old)  # where CPython itself ends
            for what in ("next", "raise", "stop", "drop", "slice")
            for at in ((1,), (0, 2))
        ]

    fast, log = compiled(run)
    expected, found = run(torch.ones(2))[1], fast(torch.ones(2))[1]
    for mine, theirs in zip(found, expected, strict=True):
        assert shown(mine) == shown(theirs)
    assert not log.fallbacks


class Clearing:
    """Equal to nothing; empties the container where it is asked."""

    def __init__(self, container):
        self.container = container

    def __eq__(self, other):
        self.container.clear()
        return False

    __hash__ = None


@pytest.mark.parametrize("make", [list, collections.deque, lambda items: dict(enumerate(items))])
def test_what_is_emptied_while_it_is_searched(make):
    def run(x):
        container = make([1, 2, 3, 4])
        container[1] = Clearing(container)
        try:
            found = 4 in (container.values() if isinstance(container, dict) else container)
        except RuntimeError as error:
            found = str(error)
        return x + 1, found, len(container)

    fast, log = compiled(run)
    assert fast(torch.ones(1))[1:] == run(torch.ones(1))[1:]
    assert not log.fallbacks
