"""Methods that are bound to iterators of the caller's: what they take is gone for the caller, too, and another item each call."""

import itertools

import pytest
import torch
from harness import compiled, number_backend


def bound_inside(x, found):
    following = found.__next__
    return x + following() + following()


def bound_outside(x, found):
    return x + found.following()


def called_by_c(x, found):
    return x + next(map(lambda f: f(), [found.following]))


def until_one_comes(x, found):
    return x + sum(iter(found.following, 7))


def unbound(x, found):
    return x + type(found.iterator).__next__(found.iterator)


def how_many(x, found):
    try:
        return x + found.iterator.__length_hint__()
    except AttributeError:
        return x - 1


def itself(x, found):
    return x + next(found.iterator.__iter__())


def sent(x, found):
    try:
        return x + found.iterator.send(None)
    except AttributeError:
        return x - 1


def _generated():
    yield from (2, 4, 5, 7, 8, 9, 11, 12, 13)


ITERATORS = {
    "range": lambda: iter(range(3, 40)),
    "list": lambda: iter([1, 2, 3, 5, 7, 8, 9, 10, 11, 12]),
    "tuple": lambda: iter((1, 2, 3, 5, 7, 8, 9, 10, 11, 12)),
    "dict": lambda: iter(dict.fromkeys([1, 2, 3, 5, 7, 8, 9, 10])),
    "set": lambda: iter({1, 2, 3, 5, 7, 8, 9, 10}),
    "count": lambda: itertools.count(2),
    "map": lambda: map(int, "1235789999"),
    "generator": _generated,
}


class Found:
    """An iterator with the method that gives its next item."""

    def __init__(self, iterator):
        self.iterator, self.following = iterator, iterator.__next__

    def __next__(self):
        return next(self.iterator)


@pytest.mark.parametrize("kind", ITERATORS)
@pytest.mark.parametrize(
    "program",
    (bound_inside, bound_outside, called_by_c, until_one_comes, unbound, how_many, itself, sent),
    ids=lambda f: f.__name__,
)
def test_items_are_those_that_eager_takes(program, kind) -> None:
    given, expected = (Found(ITERATORS[kind]()) for _ in range(2))
    fast, _ = compiled(program, number_backend)
    for _ in range(1 if program is until_one_comes else 3):
        x = torch.zeros(1)
        assert fast(x, given).item() == program(x, expected).item()
    assert [*itertools.islice(given.iterator, 5)] == [*itertools.islice(expected.iterator, 5)]
