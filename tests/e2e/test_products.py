"""Products with a parameter through other calls than ATen's: values, dtypes, and weights that change between calls."""

from __future__ import annotations

import pytest
import torch
import torch.nn as nn

import intarsia
from intarsia.targets.torch_private import onednn_bfloat16
from intarsia.testing import check

DTYPES = [torch.float32, torch.bfloat16]


def layers(dtype, bias=True, inner=160):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(96, inner, bias), nn.GELU(), nn.Linear(inner, 33, bias)).to(dtype).eval()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 2, 5, 64])
@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_values(dtype, rows, bias):
    check(layers(dtype, bias), (torch.randn(rows, 96, dtype=dtype),))


@pytest.mark.skipif(not onednn_bfloat16, reason="oneDNN does not multiply in bfloat16 on this processor")
@torch.no_grad()
def test_bfloat16_is_packed():
    model, x = layers(torch.bfloat16), torch.randn(64, 96, dtype=torch.bfloat16)
    calls = intarsia.explain(model)(x).graphs[0].library
    assert calls == {"packed-product": 2}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 64])
@torch.no_grad()
def test_changed_weights(dtype, rows):
    model, x = layers(dtype), torch.randn(rows, 96, dtype=dtype)
    compiled = intarsia.compile(model)

    def same():
        torch.testing.assert_close(compiled(x), model(x), rtol=2e-2, atol=1e-3)

    same()
    model[0].weight.mul_(-2)
    same()
    model[0].weight.data[3] = 5  # torch does not count this one
    same()
    model.load_state_dict({k: v * 3 for k, v in model.state_dict().items()})
    same()
    model[2].weight = nn.Parameter(torch.randn_like(model[2].weight))
    same()
