"""`torch.func.functional_call`: what it refuses is eager's error."""

from __future__ import annotations

import pytest
import torch
from harness import compiled
from torch import nn
from torch.func import functional_call


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.b(self.a(x).relu())


TIED = Tied()


@pytest.mark.parametrize(
    "given",
    [
        lambda w: {"a.weight": w},
        lambda w: {"a.weight": w, "b.weight": w},
        lambda w: ({"a.weight": w}, {"a.bias": w[0]}),
    ],
)
def test_tied_weights(given):
    def program(x, w):
        return functional_call(TIED, given(w), (x,)), functional_call(TIED, given(w), (x,), tie_weights=False)

    function, log = compiled(program)
    for seed in range(2):
        torch.manual_seed(seed)
        x, w = torch.randn(2, 3), torch.randn(3, 3)
        torch.testing.assert_close(function(x, w), program(x, w))
    assert not log.breaks and not log.fallbacks


@pytest.mark.parametrize(
    "given",
    [
        lambda w: {"a.weight": w, "b.weight": w + 1},
        lambda w: ({"a.weight": w}, {"a.weight": w}),
        lambda w: {"c.weight": w},
    ],
)
def test_what_is_refused(given):
    def program(x, w):
        return functional_call(TIED, given(w), (x,))

    args = torch.ones(2, 3), torch.ones(3, 3)
    found = []
    for function in (program, compiled(program)[0]):
        try:
            found.append(function(*args))
        except (ValueError, AttributeError) as error:
            found.append((type(error), str(error)))
    assert str(found[0]) == str(found[1])
