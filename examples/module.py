"""A module: the compiled one shares its parameters, so that changing a weight changes both."""

import torch
from torch import nn

import intarsia

model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 10)).eval()
fast = intarsia.compile(model)

with torch.no_grad():
    x = torch.randn(8, 32)
    print("close:", torch.allclose(fast(x), model(x), atol=1e-5))
    model[3].bias.add_(1.0)
    print("still close after a new bias:", torch.allclose(fast(x), model(x), atol=1e-5))
    print("close with another batch size:", torch.allclose(fast(x[:3]), model(x[:3]), atol=1e-5))
