"""Loops that values end over iterators: of ranges and of tensors' rows, alone or by `enumerate` and `zip`; and who else holds them."""

import random

import pytest
import torch
from harness import compiled, number_backend, same

KEPT = type("Kept", (), {})()


def rows(x, items):
    for item in items:
        x = x + item
        if x.sum() > 9:
            break
    return x


def unbound(x, items):
    for k, item in enumerate(items.unbind(0), 3):
        x = x + item * k
        if x.sum() > 9:
            break
    else:
        k = -1
    return x, k


def zipped(x, items):
    for k, (a, (j, b)) in zip(range(9, 0, -2), zip(items, enumerate(items))):
        x = x + a * k + b + j
        if x.sum() > 40:
            break
    return x, k


def strict(x, items):
    for k, a in zip(range(6), items, strict=True):
        x = x + a * k
        if x.sum() > 40:
            break
    return x, k


def written_to(x, items):
    items = items + 0
    for k, item in enumerate(items):
        x = x + item
        items[(k + 1) % 6] += 1
        if x.sum() > 9:
            break
    return x, items


def from_the_middle(x, items):
    found = iter(items)
    x = x + next(found)
    for item in found:
        x = x + item
        if x.sum() > 9:
            break
    return x


def _taken(x, items):
    for _ in items:
        x = x + 1
        if x.sum() > 9:
            break
    return x


def held_by_a_variable(x, items):
    found = iter(range(8))
    return _taken(x, found), list(found)


def held_by_a_list(x, items):
    box = [enumerate(items)]
    return _taken(x, box[0]), len(list(box[0]))


def held_by_zip(x, items):
    found = iter(items)
    return _taken(x, zip(found, range(9))), len(list(found))


def held_by_an_object(x, items):
    KEPT.found = iter(range(8))
    x = _taken(x, KEPT.found)
    return x, list(KEPT.found)


def held_by_a_function(x, items):
    found = iter(range(8))

    def taken(x):
        return _taken(x, found)

    return taken(x), next(found, None)


def taken_twice(x, items):
    found = iter(range(8))
    x = _taken(x, found) - 8
    return _taken(x, found), list(found)


ONE = (rows, unbound, zipped, strict, written_to)
HELD = (held_by_a_variable, held_by_a_list, held_by_zip, held_by_an_object, held_by_a_function)


@pytest.mark.parametrize("program", (*ONE, *HELD, from_the_middle, taken_twice), ids=lambda f: f.__name__)
def test_results_are_eagers(program) -> None:
    fast, log = compiled(program, number_backend)
    rng = random.Random(0)
    for start in (-50.0, 0.0, 9.0, rng.uniform(-5, 5), rng.uniform(-5, 5)):
        items = torch.rand(6, 2, generator=torch.Generator().manual_seed(rng.randrange(99)))
        results = [_result(function, torch.full((2,), start), items) for function in (fast, program)]
        assert same(*results), results
    assert not log.fallbacks
    assert bool(log.breaks) == (program not in ONE), log.breaks


def _result(function, x, items):
    items = items.clone()
    return function(x, items), items


def test_loops_over_zip_that_are_too_long_are_eagers_error() -> None:
    fast, _ = compiled(strict, number_backend)
    for start, items in ((50.0, 5), (-99.0, 5), (50.0, 6)):
        results = []
        for function in (fast, strict):
            try:
                results.append(function(torch.full((2,), start), torch.ones(items, 2)))
            except ValueError as error:
                results.append(str(error))
        assert same(*results), results


def powers(x, n):
    for k in range(50):
        f = x**3 - 2
        if f.abs().max() < 1e-4:
            break
        x = x - f / (3 * x**2)
    return x, k


def powers_of_integers(x, n):
    n = n + x.long()[:3]
    for k in range(50):
        if (n + 1).max() > 300:
            break
        n = n**2 + 1
    return n, k


def to_a_tensor(x, n):
    for k in range(9):
        if (x + 1).max() > 99:
            break
        x = 2.0**x
    return x, k


def returned_in_three_places(x, n):
    error, count = 1.0, 0
    while error > 1e-4:
        step = (x**3 - 2) / (3 * x**2)
        x = x - step
        error = float(step.abs().max())
        count += 1
        if count > 3:
            break
    return x


@pytest.mark.parametrize(
    "program", (powers, powers_of_integers, to_a_tensor, returned_in_three_places), ids=lambda f: f.__name__
)
def test_ways_out_in_the_middle(program) -> None:
    fast, log = compiled(program, number_backend)
    for seed in range(4):
        x = torch.rand(5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) + seed
        n = torch.arange(3) + seed
        found, expected = fast(x, n), program(x, n)
        torch.testing.assert_close(found, expected)
    assert not log.fallbacks and not log.breaks
