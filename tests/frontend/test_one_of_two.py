"""What is the caller's tensor or a new one, by a tensor's value, is given out as the one that eager gives."""

import pytest
import torch
from harness import number_backend
from torch import nn

import intarsia

HELD: dict[str, object] = {}


def flipped(x, y):
    if torch.rand(1) < 0.5:
        x = x.flip(-1)
    return x


def returned(x, y):
    if x.sum() > 0:
        return x * 2
    return x


def which(x, y):
    return x if x.sum() > y.sum() else y


def heavy(x, y):
    """The sides of one conditional."""
    if x.sum() > 0:
        x = (x @ y.mT).cumsum(0) @ y
    return x


def steps(x, y):
    """A choice of choices."""
    if x.sum() > 0:
        x = x.flip(0)
    if y.sum() > 0:
        x = x + 1
    if x.max() > y.max():
        x = y
    return x


def twice(x, y):
    """Given out in three places, with a new tensor beside."""
    z = x if x.sum() > 0 else x.sin()
    HELD["z"] = z
    return [z, z, x.cos()]


def viewed(x, y):
    """A view of the caller's tensor, or a new one."""
    z = x[1:] if x.sum() > 0 else y[1:] * 2
    return z, z + 1


def view_of(x, y):
    """A view of what is one of two breaks."""
    z = x if x.sum() > 0 else x * 2
    return z[0]


def aside(x, y):
    """What is computed is given out beside: breaks."""
    out = x.sin()
    z = out if x.sum() > 0 else x
    return out, z


def beside(x, y):
    """Two that share one side."""
    out = x * 2
    a = out if x.sum() > 0 else x
    b = out if y.sum() > 0 else y
    return a, b


def written(x, y):
    """A write to it breaks."""
    z = x if x.sum() > 0 else x * 2
    z.add_(1)
    return z


def broken(x, y):
    """Handed on to another piece."""
    z = x if x.sum() > 0 else x * 3
    z.sum().item().hex()
    return z


class Held(nn.Module):
    """An attribute becomes it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("last", torch.zeros(2, 3))

    def forward(self, x, y):
        self.last = x if x.sum() > 0 else x - 1
        return self.last


ONE_GRAPH = [flipped, returned, which, heavy, steps, twice, viewed, Held]
OTHERS = [view_of, aside, beside, written, broken]


def names(values, given):
    """For each tensor: which of the given ones it is, or views; else its place among the results that are it."""
    found = []
    for value in values:
        same = [k for k, one in enumerate(given) if value is one]
        shares = [
            k for k, one in enumerate(given) if value.untyped_storage().data_ptr() == one.untyped_storage().data_ptr()
        ]
        found.append((same, shares, [k for k, other in enumerate(values) if other is value], value._is_view()))
    return found


def run(function, x, y, seed):
    torch.manual_seed(seed)
    x, y = x.clone(), y.clone()
    HELD.clear()
    found = function(x, y)
    found = list(found) if isinstance(found, tuple | list) else [found]
    found += HELD.values()
    shown = names(found, [x, y])
    for k, value in enumerate(found):  # who shares memory sees the writes
        value.detach().add_(k + 1)
    return [v.clone() for v in (*found, x, y)], shown


@pytest.mark.parametrize("make", ONE_GRAPH + OTHERS)
def test_the_tensor_is_the_one_that_eager_gives(make):
    function = make() if make is Held else make
    intarsia.reset()
    fast = intarsia.compile(make() if make is Held else make, backend=number_backend)
    torch.manual_seed(0)
    ways = set()
    for seed in range(12):
        x, y = torch.randn(2, 3), torch.randn(2, 3)
        (expected, which_ones), (found, ours) = run(function, x, y, seed), run(fast, x, y, seed)
        assert ours == which_ones
        ways.add(str(which_ones))
        torch.testing.assert_close(found, expected)
    counts = intarsia.counters()
    if make in ONE_GRAPH:
        assert len(ways) > 1
        assert (counts["captures"], counts["breaks"], counts["fallbacks"]) == (1, 0, 0), counts


@pytest.mark.parametrize("function", [flipped, returned, which, steps, twice, viewed])
def test_with_gradients(function):
    intarsia.reset()
    fast = intarsia.compile(function, backend=number_backend)
    torch.manual_seed(0)
    for seed in range(10):
        starts = torch.randn(2, 3), torch.randn(2, 3)
        results = []
        for call in (function, fast):
            x, y = (t.clone().requires_grad_() for t in starts)
            torch.manual_seed(seed)
            a, b = x * 1, y * 1
            found = call(a, b)
            found = list(found) if isinstance(found, tuple | list) else [found]
            (sum((k + 1) * v.sum() for k, v in enumerate(found)) + 0 * (a + b).sum()).backward()
            results.append((names(found, [a, b]), [t.requires_grad for t in found], x.grad, y.grad))
        assert results[1][:2] == results[0][:2]
        torch.testing.assert_close(results[1][2:], results[0][2:])
