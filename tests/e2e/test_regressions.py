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
