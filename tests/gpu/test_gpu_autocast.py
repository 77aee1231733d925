"""Training steps under autocast on a GPU: gradients as near to float64's as eager's own, also when the step is played back."""

from __future__ import annotations

import pytest
import torch

import intarsia
from tests.e2e.test_gpu_training import Net, as_near_as_eager, gradients, in_float64


@torch.enable_grad()
@pytest.mark.parametrize("channels_last", [False, True])
def test_gradients_under_autocast(channels_last: bool) -> None:
    form = torch.channels_last if channels_last else torch.contiguous_format
    model = Net().cuda().to(memory_format=form)
    x, target = torch.randn(8, 3, 32, 32, device="cuda").to(memory_format=form), torch.arange(8, device="cuda")
    gold, eager = in_float64(model, x, target), gradients(model, model, x, target)
    fast = intarsia.compile(model, fullgraph=True)
    for _ in range(5):  # batch statistics move on, which changes no step in training
        as_near_as_eager(gradients(fast, model, x, target), eager, gold, times=2.5)
