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


def free(x):
    """The one conditional reads what requires gradients, in its check too, and gives what does not."""
    y = x.detach() * 2
    if y.sum() > 0:
        if x[0] > 1:
            raise ValueError("large")
        z = y.outer(y) @ y + x.detach()
    else:
        z = (y.outer(y) @ y).cumsum(0)
    return z


@pytest.mark.parametrize("used", [False, True])
def test_what_a_side_reads_makes_nothing_require_gradients(used):
    fast = intarsia.compile((lambda x: free(x) * x) if used else free, backend=number_backend)
    for start in ([0.5, 1.0], [-0.5, -1.0], [2.0, 1.0]):
        x = torch.tensor(start, requires_grad=True)
        if start[0] > 1:
            with pytest.raises(ValueError, match="large"):
                fast(x)
            continue
        found, expected = fast(x), free(x) * x if used else free(x)
        torch.testing.assert_close(found, expected)
        assert found.requires_grad is expected.requires_grad is used
        if used:
            torch.testing.assert_close(torch.autograd.grad(found.sum(), x), torch.autograd.grad(expected.sum(), x))


class Turned(torch.nn.Module):
    """A field against time."""

    def __init__(self, field):
        super().__init__()
        self.field = field

    def forward(self, t, y):
        return -self.field(-t, y)


def solved(field, y, times):
    """Euler's method, over times that rise or fall."""
    if len(times) > 1 and times[0] > times[1]:
        times = -times
        field = Turned(field)
    assert (times[1:] > times[:-1]).all(), "times must rise or fall"
    found, place, step = [y], 1, y
    for a, b in zip(times[:-1], times[1:], strict=True):
        step = step + (b - a) * field(a, step)
        while place < len(times) and b >= times[place]:
            found.append(step)
            place += 1
    return torch.stack(found)


class Adjoint(torch.autograd.Function):
    """Its backward solves, too, in blocks without gradients and with them."""

    @staticmethod
    def forward(ctx, field, y, times, weight):
        with torch.no_grad():
            found = solved(field, y, times)
        ctx.field = field
        ctx.save_for_backward(found, times, weight)
        return found

    @staticmethod
    def backward(ctx, g):
        found, times, weight = ctx.saved_tensors
        n, m = g[0].numel(), weight.numel()

        def adjoint(t, state):
            with torch.enable_grad():
                y = state[:n].view_as(g[0]).detach().requires_grad_()
                v = ctx.field(t, y)
                parts = torch.autograd.grad(v, (y, weight), -state[n : 2 * n].view_as(v))
            return torch.cat([v.reshape(-1), *(part.reshape(-1) for part in parts)])

        with torch.no_grad():
            a, w = torch.zeros(n), torch.zeros(m)
            for i in range(len(times) - 1, 0, -1):
                a = a + g[i].reshape(-1)
                state = torch.cat([found[i].reshape(-1), a, w])
                state = solved(adjoint, state, times[i - 1 : i + 1].flip(0))[-1]
                a, w = state[n : 2 * n], state[2 * n :]
        return None, a.view_as(g[0]) + g[0], None, w.view_as(weight)


@pytest.mark.parametrize("given", [False, True])
def test_an_adjoint_whose_backward_solves(given):
    torch.manual_seed(0)
    weight = torch.randn(3, 3, requires_grad=True)

    def field(t, y):
        return torch.tanh(y @ weight) * (1 + t)

    def function(y, times):
        return Adjoint.apply(field, y, times if given else torch.linspace(0, 1, 3), weight)

    fast = intarsia.compile(function, backend=number_backend)
    for times in (torch.linspace(0, 1, 3), torch.linspace(1, 0, 3)):
        a = torch.randn(2, 3, requires_grad=True)
        b = a.detach().clone().requires_grad_()
        expected, found = function(a, times), fast(b, times)
        torch.testing.assert_close(found, expected)
        assert found.requires_grad
        assert torch.is_grad_enabled()
        grads = [torch.autograd.grad(r.square().sum(), (x, weight)) for r, x in ((expected, a), (found, b))]
        torch.testing.assert_close(grads[1], grads[0])
    if given:
        with pytest.raises(AssertionError, match="rise or fall"):
            fast(b, torch.tensor([0.0, 1.0, 0.5]))
