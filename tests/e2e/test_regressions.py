"""Programs that once failed, each reduced to what made it fail."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import intarsia
from intarsia.testing import check


def compiled_in_one_graph(fn, *args):
    """Right, and not by running in eager."""
    report = check(fn, args)
    assert intarsia.counters()["fallbacks"] == 0
    return report


def test_largest_and_smallest_of_booleans():
    def f(x):
        return x.max(), x.min(), x.amax(0), x.amin(1)

    compiled_in_one_graph(f, torch.rand(3, 5) > 0.5)


def test_a_value_without_elements_between_kernels():
    def f(x):
        return F.rrelu(x, training=True) * 2

    compiled_in_one_graph(f, torch.randn(0, 3))


def test_long_running_sums_and_products_do_not_drift():
    def f(x):
        return x.cumsum(0), (1 + x * 1e-5).prod(0)

    x = torch.rand(200_000, 2)
    found, exact = intarsia.compile(f, fullgraph=True)(x), f(x.double())
    for a, b in zip(found, exact, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=5e-5, atol=0)


def test_a_value_is_transposed_in_place():
    def f(x):
        y = x.sin()
        y.transpose_(0, 1).squeeze_(0)
        y.add_(1)
        return y, y.mul(2).t_()

    compiled_in_one_graph(f, torch.randn(3, 1, 4))
