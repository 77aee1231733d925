"""Weights of bytes and of half types that a product in float32 widens: they stay narrow in memory."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import intarsia
from intarsia.targets.build.toolchain import detect_isa
from intarsia.testing import check

OWN = re.compile(r"linear_\w{8}\(")
pytestmark = pytest.mark.skipif(detect_isa() != "avx512", reason="a kernel for AVX-512")


class Widened(nn.Module):
    """Products of each form, by weights of each type: whole panels and parts of one, with and without factors and bias."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.register_buffer("bytes", torch.randint(-128, 128, (37, 300), dtype=torch.int8))
        self.register_buffer("unsigned", torch.randint(0, 256, (64, 37), dtype=torch.uint8))
        self.register_buffer("bf16", torch.randn(5, 64).bfloat16())
        self.register_buffer("f16", torch.randn(130, 5).half())
        self.register_buffer("scale", torch.rand(37, 1) / 100)
        self.register_buffer("scales", torch.rand(130) / 10)
        self.bias = nn.Parameter(torch.randn(64))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        a = F.linear(x, self.bytes.to(x.dtype) * self.scale)
        b = F.linear(a, self.unsigned.float() / 1, self.bias) / 100
        c = b @ self.bf16.float().t()
        return [a, b, c, c @ (self.scales[:, None] * self.f16.float()).t()]


@torch.no_grad()
@pytest.mark.parametrize("shape", [(1, 300), (2, 15, 300)], ids=str)
def test_values(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTARSIA_PACKING", "0")
    model, x = Widened(), torch.randn(shape)
    text = intarsia.lower(model, x).host()
    assert len(OWN.findall(text)) == 4
    fast = intarsia.compile(model, fullgraph=True)
    for change in (None, "bytes", "scale"):
        if change:
            getattr(model, change).data[3, 0] = 0 if change == "bytes" else float("inf")
        for found, wanted in zip(fast(x), model(x), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4, equal_nan=True)


@torch.no_grad()
def test_a_large_weight_takes_no_more_memory() -> None:
    """What would be kept widened beyond 16 MiB is not; below, it is, which is faster."""

    class Large(nn.Module):
        def __init__(self, size: int) -> None:
            super().__init__()
            self.register_buffer("weight", torch.randint(-128, 128, (size, size), dtype=torch.int8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.linear(x, self.weight.to(x.dtype) * 0.01)

    small, large = (intarsia.lower(Large(n), torch.randn(3, n)).host() for n in (512, 2304))
    assert OWN.search(large) and not OWN.search(small)
    check(Large(2304), (torch.randn(3, 2304),))
