"""benchmarks/batched_products.py and the mixed precision of benchmarks/ideas.py: right on both sides of each clause."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

import intarsia
from benchmarks.batched_products import MODELS, BatchedProducts
from benchmarks.ideas import MixedPrecision


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


class Nets(nn.Module):
    """Nets side by side; each reads what the one before gives where `chain` says so."""

    def __init__(self, count: int, width: int = 8, bias: bool = True, chain: bool = False) -> None:
        super().__init__()
        self.nets, self.chain = nn.ModuleList(nn.Linear(width, width, bias) for _ in range(count)), chain

    def forward(self, x):
        found, last = [], 0.0
        for net, part in zip(self.nets, x.unbind(0), strict=False):
            last = net(part + last if self.chain else part).exp() * 0.1
            found.append(last)
        return torch.stack(found)


def lowered(model, x, *passes):
    low = intarsia.lower(model.eval(), x, passes=list(passes))
    close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-5)
    return low, close


@pytest.mark.parametrize(
    ("model", "shape", "batched"),
    [
        (Nets(5), (5, 4, 8), 5),
        (Nets(5, bias=False), (5, 4, 8), 5),
        (Nets(3), (3, 4, 8), 0),  # too few
        (Nets(5, chain=True), (5, 4, 8), 0),  # each reads the one before
        (Nets(5), (5, 2, 4, 8), 5),  # rows of several dimensions are rows
    ],
)
def test_independent_products_become_one(model, shape, batched):
    x = torch.randn(shape)
    low, close = lowered(model, x, BatchedProducts())
    text, counts = low.ir("prim"), low.counts.get("batched-products", {})
    assert counts.get("products batched", 0) == batched and text.count("aten.bmm.default") == bool(batched)
    close(low.run("prim", x), model(x))
    close(low.run("buffer", x), model(x))


def test_what_reads_a_first_product_stands_behind_all():
    """The readers of the first ones stand in front of the last ones, in two layers."""
    make, shape = MODELS["fields"]
    model, x = make(fields=4), torch.randn(3, 4, 16)
    low, close = lowered(model, x, BatchedProducts())
    assert low.counts["batched-products"] == {"products batched": 8} and low.ir("prim").count("aten.bmm.default") == 2
    close(low.run("prim", x), model(x))
    assert shape == (16, 32, 16)


@pytest.mark.parametrize(
    ("item", "count"),
    [
        (MixedPrecision(), 3),
        (MixedPrecision(deny="nets.1,nets.2"), 1),
        (MixedPrecision(allow="aten.bmm.default"), 0),
        (MixedPrecision(multiplications=4 * 8 * 8), 3),
        (MixedPrecision(multiplications=4 * 8 * 8 + 1), 0),
    ],
)
def test_lists_say_what_is_narrowed(item, count):
    model, x = Nets(3), torch.randn(3, 4, 8)
    low, _ = lowered(model, x, item)
    assert low.counts.get("mixed-precision", {}).get("products in bfloat16", 0) == count
    assert low.ir("prim").count("], bf16> loc") >= count
    torch.testing.assert_close(low.run("prim", x), model(x), rtol=0.05, atol=0.05)
