"""Divisions by numbers that a tensor holds: a zero is eager's exception, never the end of the process."""

import pytest
import torch

import intarsia


def quotient(x, n):
    return x + 10 // n.item()


def remainder(x, n):
    return x + 10 % n.item()


def of_both(x, n):
    return x + (3 * n.item() + 5) // (n.item() - 2)


def part(x, n):
    k = n.item()
    return x[: 3 % k] * (x.shape[0] // k)


def inverse(x, n):
    return x * (1 / (n.item() - 6))


def outcome(function, *args):
    try:
        return function(*args).tolist()
    except ZeroDivisionError as error:
        return str(error)


@pytest.mark.parametrize("program", [quotient, remainder, of_both, part, inverse])
def test_zeros_are_eagers_errors(program):
    fast, x, before = intarsia.compile(program), torch.arange(4.0), intarsia.counters()
    for n in (4, 3, 2, 0, 6, 1, -3, 5):
        given = x, torch.tensor(n)
        assert outcome(fast, *given) == outcome(program, *given), n
    seen = intarsia.counters()
    assert seen["breaks"] == before["breaks"]
    if program is not part:  # what it cuts off is a size
        assert seen["captures"] - before["captures"] == 1
