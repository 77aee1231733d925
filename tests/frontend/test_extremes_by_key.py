"""`max` and `min` with a `key` that gives tensors of one number: the best item is chosen in the graph."""

import random

import pytest
import torch
from harness import number_backend

import intarsia


def row(x):
    return max(x.unbind(), key=lambda t: t.sum()) * 2


def listed(x):
    return min([x[0] * 2, x[1] + 1, x[2]], key=torch.sum)


def place(x):
    return x * max(range(3), key=lambda i: x[i].sum())


def number(x):
    return x + min((0.5, 1.5, -2.0), key=lambda v: (x * v).sum())


def truth(x):
    best = max([False, True], key=lambda v: x[0, 0] if v else x[1, 1])
    return x + 1 if best else x - 1


def at(x):
    """The index is one of the graph's."""
    return x[max(range(3), key=lambda i: x[i, 0])]


def default(x):
    return max([x[0], x[1]], key=lambda t: t.max(), default=None) + min([], key=abs, default=1)


def known(x):
    """Nothing is to be chosen."""
    return x * max([1, -3, 2], key=abs)


def kinds(x):
    """Items of which none can be chosen in the graph: a break, and right."""
    return x * max([1, 2.5], key=lambda v: x[int(v), 0])


def sizes(x):
    return max([x[:1], x[1:]], key=lambda t: t.sum()).sum(0)


BREAKS = (kinds, sizes)


def seen(function, x, grad):
    x = x.clone().requires_grad_(grad)
    made = function(x)
    if grad:
        made.square().sum().backward()
    return made.detach(), made.requires_grad, x.grad


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("function", [row, listed, place, number, truth, at, default, known, *BREAKS])
def test_the_best_item(function, grad):
    intarsia.reset()
    fast = intarsia.compile(function, backend=number_backend)
    torch.manual_seed(0)
    for k in range(12):
        x = torch.randn(3, 4) if k % 2 else torch.randint(-1, 2, (3, 4)).float()  # with ties
        if k == 5:
            x[1, 0] = float("nan")
        torch.testing.assert_close(seen(fast, x, grad), seen(function, x, grad), equal_nan=True)
    counts = intarsia.counters()
    assert bool(counts["breaks"]) is (function in BREAKS), counts


def test_random_items():
    """Of some items the places of the best, by random keys."""
    draw = random.Random(0)
    for _ in range(12):
        count, best = draw.randint(1, 5), draw.choice([max, min])
        kind = draw.choice([int, float, torch.Tensor])
        numbers = [draw.randint(-3, 3) for _ in range(count)]
        places = [draw.randrange(4) for _ in range(count)]

        def function(x, best=best, kind=kind, numbers=numbers, places=places):
            items = [x[0] * n if kind is torch.Tensor else kind(n) for n in numbers]
            keys = iter(places)
            return x + best(items, key=lambda _: x[next(keys)].sum())

        intarsia.reset()
        fast = intarsia.compile(function, backend=number_backend)
        for _ in range(6):
            x = torch.randint(-2, 3, (4, 2)).float()
            torch.testing.assert_close(fast(x), function(x))
