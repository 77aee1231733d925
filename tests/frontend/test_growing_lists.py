"""Lists that a function appends to in each call, wherever they are: what they hold needs no guard where nothing looks at it."""

import pytest
import torch
from harness import compiled, number_backend

EVERYWHERE = []


class Trainer:
    def __init__(self):
        self.history, self.steps = [], []

    def log(self, value):
        self.history.append(value)
        self.history.append(value * 2)


def closure(trainer, held):
    def function(x):
        held.append((x * 2).sum().item())
        return x + 1

    return function


def of_the_module(trainer, held):
    def function(x):
        EVERYWHERE.append(x * 2)
        return x + 1

    return function


def attribute(trainer, held):
    def function(x):
        trainer.log(x.sum())
        for k in range(3):
            trainer.steps.append(k)
        return x + 1

    return function


def around_an_error(trainer, held):
    def function(x):
        try:
            held.append(x)
            raise ValueError
        except ValueError:
            held.append(2)
        return x

    return function


def around_a_break(trainer, held):
    def function(x):
        held.append(1)
        if x.sum() > 0:
            x = x + 1
        held.append(x)
        trainer.history.append(x)
        return x

    return function


def length(trainer, held):
    def function(x):
        held.append(len(held))
        held.append(x)
        return x * len(held)

    return function


def read_behind(trainer, held):
    def function(x):
        held.append(1.0)
        held.append(held[-1] + 1)
        return x * held[-1], held[0]

    return function


def two_names(trainer, held):
    def function(x):
        other = held
        other.append(1)
        held.append(x)
        return len(other)

    return function


def one_list_at_two_places(trainer, held):
    def function(x):
        trainer.history = held
        trainer.history.append(x)
        held.append(1)
        return x

    return function


def handed_out(trainer, held):
    def function(x):
        held.append(x)
        return list(held), held is trainer.history

    return function


def emptied(trainer, held):
    def function(x):
        held.append(1)
        held.clear()
        held.append(x)
        return x

    return function


UNREAD = [closure, of_the_module, attribute, around_an_error]
READ = [around_a_break, length, read_behind, two_names, one_list_at_two_places, handed_out, emptied]


@pytest.mark.parametrize("make", UNREAD + READ, ids=lambda f: f.__name__)
def test_each(make):
    found, log = [], None
    for compile in (False, True):
        EVERYWHERE.clear()
        trainer, held = Trainer(), []
        function = make(trainer, held)
        if compile:
            function, log = compiled(function, number_backend, on_error="raise")
        results = [function(torch.full((3,), 1.0 + k) * (-1) ** k) for k in range(6)]
        found.append((results, list(held), trainer.history[:], trainer.steps, list(EVERYWHERE)))
    torch.testing.assert_close(*(flat(f) for f in found))
    assert not log.fallbacks
    if make in UNREAD:
        assert len(log.captures) == 1 and not log.breaks


def test_two_names_of_what_was_one_list():
    """A later call in which they are two lists, and the other way round."""
    first, second = [], []

    def function(x, a):
        first.append(x)
        a.append(x * 2)
        return x + len(a)

    fast, log = compiled(function, number_backend, on_error="raise")
    for given in (second, first, second, first):
        x = torch.ones(2)
        before = [*first], [*given]
        want = function(x, given)
        after = len(first), len(given)
        first[:], given[:] = before
        assert torch.equal(fast(x, given), want) and (len(first), len(given)) == after
    assert not log.fallbacks


def flat(value):
    if isinstance(value, list | tuple):
        return [item for part in value for item in flat(part)]
    return [value]
