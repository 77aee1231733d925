"""float8 on a CPU: conversions, and what moves elements without arithmetic."""

from __future__ import annotations

import pytest
import torch
from triton_operators import FLOAT8

import intarsia
from intarsia.testing import check


@pytest.mark.parametrize("name", FLOAT8)
def test_float8(name: str) -> None:
    torch.manual_seed(0)
    fn, args = FLOAT8[name]()
    check(fn, args)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_bits(dtype: torch.dtype) -> None:
    """Every float32 on a fine grid, to the bit."""
    x = torch.arange(0, 2**32, 104729, dtype=torch.int64).to(torch.int32).view(torch.float32)
    found, expected = intarsia.compile(lambda x: x.to(dtype))(x), x.to(dtype)
    assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))
