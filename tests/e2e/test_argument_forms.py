"""One call, written in every way that ATen takes: lists of one number, strings, numbers for both, biases that lie with gaps or repeat."""

from __future__ import annotations

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

import intarsia
from intarsia.testing import check

# inputs, outputs, window, groups: a first layer, few channels, Winograd, one pixel, one filter a channel
WINDOWS = [(3, 16, 4, 1), (3, 16, 3, 1), (16, 32, 3, 1), (16, 32, 1, 1), (32, 32, 3, 32)]
FORMS = [
    {"padding": "valid"}, {"padding": "same"}, {"padding": [0]}, {"padding": (1,)}, {"stride": [2]},
    {"stride": (2,), "padding": [1]}, {"dilation": [2]}, {"dilation": 2, "padding": "same"},
]  # fmt: skip


class Convolutions(nn.Module):
    """One weight, one input, every form."""

    def __init__(self, inputs: int, outputs: int, window: int, groups: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs // groups, window, window) / 8)
        self.bias, self.groups = nn.Parameter(torch.randn(outputs)), groups

    def forward(self, x: Tensor) -> list[Tensor]:
        """(n, inputs, h, w) -> a result for each form."""
        return [torch.conv2d(x, self.weight, self.bias, groups=self.groups, **form) for form in FORMS]  # type: ignore[call-overload]


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@torch.no_grad()
def test_forms_of_a_convolution(window: tuple[int, int, int, int]) -> None:
    torch.manual_seed(0)
    check(Convolutions(*window).eval(), (torch.randn(2, window[0], 17, 19),), calls=1)


class Products(nn.Module):
    """Linear layers and addmm, with biases that are views of a parameter or arguments."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight, self.wide = nn.Parameter(torch.randn(48, 64) / 8), nn.Parameter(torch.randn(96))
        self.to(dtype)

    def forward(self, x: Tensor, strided: Tensor, one: Tensor) -> list[Tensor]:
        """(rows, 64), (96,), (1,) -> products with every bias."""
        biases = [self.wide[::2], strided[::2], one.expand(48), self.wide[:48].flip(0)]
        return [
            y for b in biases for y in (F.linear(x, self.weight, b), torch.addmm(b, x, self.weight.t()), F.gelu(x @ self.weight.t() + b))
        ]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dynamic", [None, True])
@torch.no_grad()
def test_biases_with_gaps(dtype: torch.dtype, dynamic: bool | None) -> None:
    torch.manual_seed(0)
    model = Products(dtype)
    compiled = intarsia.compile(model, fullgraph=True, dynamic=dynamic)
    for rows in (1, 2, 5, 70) if dynamic is None else (2, 70):
        args = [t.to(dtype) for t in (torch.randn(rows, 64), torch.randn(96), torch.randn(1))]
        check(model, args, compiled=compiled, calls=1)
