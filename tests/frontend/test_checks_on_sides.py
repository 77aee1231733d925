"""Checks on the sides of branches: they count where their side is taken, and raise what eager raises.

PYTEST_DONT_REWRITE: asserts of the programs are Python's own.
"""

import pytest
import torch
from harness import number_backend

import intarsia


def nested(x):
    """The other side of the inner `if` raises."""
    d = x[1:] - x[:-1]
    if (d < 0).any():
        if (d <= 0).all():
            sign = -1.0
        else:
            raise ValueError(f"neither rises nor falls: {d[0]:.3f}")
    else:
        sign = 1.0
    return x.sum() * sign


def inner(x):
    if torch.isnan(x).any():
        raise ValueError("nan")
    return x * 2


def called(x):
    """In a function that the side calls."""
    if x[0] > 0:
        y = inner(x)
    else:
        y = x - 1
    return y


def two(x):
    """One side has two checks, the other one."""
    if x.sum() > 0:
        if x.max() > 5:
            raise ValueError("a")
        y = x * 3
        assert y.min() > -4, "b"
    else:
        y = x * 2
        if x.min() < -5:
            raise IndexError("c")
    return y


def deep(x):
    """A side of a side."""
    if x.sum() > 0:
        if x[0] > 0:
            if x[1] > 0:
                raise ValueError(f"deep {x[1]}")
            y = x + 1
        else:
            y = x + 2
    else:
        y = x + 3
    return y


def alone(x):
    """A side that does nothing but check."""
    y = x.sin()
    if x.sum() > 0:
        if x[0] > 1:
            raise KeyError("large")
    return y * 2


def heavy(x):
    """The sides are those of one conditional of the graph, where no gradients are wanted."""
    if x.sum() > 0:
        if (x > 5).any():
            raise ValueError(f"big {x.max()}")
        y = x.outer(x) @ x
    else:
        y = (x.outer(x) @ x).cumsum(0)
    return y + 1


def part(x):
    """A part of a condition that raises is no cheap part."""
    if x[0] > 0 and inner(x).sum() > 1:
        y = x + 1
    else:
        y = x - 1
    return y


def seen(function, x):
    """What a call gives, with the gradient."""
    x = x.detach().clone().requires_grad_(x.requires_grad)
    try:
        y = function(x)
    except (ValueError, AssertionError, IndexError, KeyError) as error:
        return type(error), str(error)
    if x.requires_grad:
        y.sum().backward()
    return y.detach(), x.grad


def samples():
    """Calls of both sides, that fail and that do not."""
    found = [torch.tensor([1.0, float("nan"), 2.0, 0.0]), torch.tensor([-1.0, float("nan"), 2.0, 0.0])]
    for k in range(24):
        x = torch.randn(4) * (1 + 2 * (k % 2))
        found.append(x if k % 3 == 0 else x.sort(descending=k % 3 == 1).values)
    return found


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("function", [nested, called, two, deep, alone, heavy, part])
def test_a_check_counts_where_its_side_is_taken(function, grad):
    intarsia.reset()
    fast = intarsia.compile(function, backend=number_backend)
    raised = 0
    torch.manual_seed(0)
    for x in samples():
        expected, found = seen(function, x.requires_grad_(grad)), seen(fast, x)
        assert type(expected[0]) is type(found[0])
        if isinstance(expected[0], type):
            raised += 1
            assert found == expected
        else:
            torch.testing.assert_close(found, expected, equal_nan=True)
    assert raised, "no sample fails a check"
    counts = intarsia.counters()
    if function is part or function is heavy and grad:  # as before
        return
    assert counts["captures"] == 1 and not counts["breaks"], counts


def test_a_check_in_a_round_of_a_loop_that_values_end():
    def loop(x):
        while x.sum() < 10:
            if x[0] > 3:
                if x[1] > 3:
                    raise ValueError(f"both {x}")
                x = x + 2
            else:
                x = x * 1.5 + 1
        return x

    fast = intarsia.compile(loop, backend=number_backend)
    for start in (
        torch.tensor([0.0, 1.0]),
        torch.tensor([2.0, 2.9]),
        torch.tensor([3.5, 0.0]),
        torch.tensor([9.0, 4.0]),
    ):
        expected, found = seen(loop, start), seen(fast, start)
        assert str(found) == str(expected)
