"""What capture would see in another way than eager ends the graph: classes that a call makes, kernels that cast inside."""

from __future__ import annotations

import enum

import torch
from harness import compiled
from torch import nn

import intarsia


def test_an_enumeration_made_by_a_call_is_a_new_one_in_each_call() -> None:
    def f(x):
        made = enum.Enum("Kind", "A B")
        return made, x + made.B.value

    fast, log = compiled(f)
    (first, a), (second, _) = fast(torch.ones(2)), fast(torch.ones(2))
    assert first is not second and first.__module__ == __name__ and torch.equal(a, torch.full((2,), 3.0))
    assert "an enumeration is made by calling Enum" in log.breaks[0].reason


def test_encoder_layers_under_autocast_have_eagers_dtype() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval().requires_grad_(False)
    fast, x = intarsia.compile(layer), torch.randn(2, 3, 8)
    for dtype in (torch.bfloat16, torch.float16, None):
        with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
            wanted, found = layer(x), fast(x)
        assert found.dtype == wanted.dtype
        torch.testing.assert_close(found, wanted)
