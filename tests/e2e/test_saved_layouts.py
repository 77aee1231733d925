"""Training where what forward saves lies channels-last, as on a GPU: backward's own views were traced with the layouts of eager."""

import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import intarsia
from intarsia.partition import layouts

WAYS = {
    "relu": F.relu,
    "pool": lambda x: F.max_pool2d(x, 2, 1, 1)[..., :6, :6].contiguous(),
    "norm": lambda x: F.batch_norm(x, None, None, training=True),
    "flat": lambda x: x.flatten(1).tanh().view(x.shape),
    "viewed": lambda x: x.view(x.shape[0], -1, 3, x.shape[-1]).mul(0.5).sin().view(x.shape),
    "strided": lambda x: x + torch.as_strided(x.exp(), (6, 6), (6, 1), 3).cos(),
    "turned": lambda x: x.transpose(1, 2).reshape(x.shape).sigmoid(),
    "pixels": lambda x: F.pixel_unshuffle(F.pixel_shuffle(x, 2).sin(), 2),
    "read as others": lambda x: x * x.contiguous().view(torch.int32).ge(0),
}


class Images(nn.Module):
    def __init__(self, ways):
        super().__init__()
        self.ways = ways
        self.layers = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1, bias=i % 2 == 0) for i, _ in enumerate(ways))
        self.last = nn.Linear(4 * 36, 3)

    def forward(self, x):
        for layer, ways in zip(self.layers, self.ways, strict=True):
            x = layer(x)
            for way in ways:
                x = WAYS[way](x)
        x = F.adaptive_avg_pool2d(x, (6, 6))
        return self.last(torch.flatten(x, 1)).square().sum()


@pytest.mark.parametrize("seed", range(6))
def test_random_images_saved_channels_last(seed, monkeypatch):
    """Gradients have eager's values and strides, and nothing runs in eager."""
    turned = []
    plain = layouts.lying_last
    monkeypatch.setattr(layouts, "_on_gpu", lambda value: True)
    monkeypatch.setattr(layouts, "convolutions_in_tf32", lambda: True)
    monkeypatch.setattr("intarsia.partition.choose.lying_last", lambda graph: turned.append(plain(graph)) or turned[-1])
    draw = random.Random(seed)
    model = Images([draw.sample(sorted(WAYS), draw.randrange(1, 4)) for _ in range(3)])
    x, found = torch.randn(2, 4, 6, 6), {}
    compiled = intarsia.compile(model, fullgraph=True)
    for name in ("eager", "compiled"):
        model.zero_grad()
        given = x.clone().requires_grad_()
        with torch.enable_grad():
            loss = (compiled if name == "compiled" else model)(given)
            loss.backward()
        found[name] = [loss.detach(), given.grad, *(p.grad for p in model.parameters())]
    assert turned[0] and intarsia.counters()["fallbacks"] == 0
    for got, want in zip(found["compiled"], found["eager"], strict=True):
        assert got.stride() == want.stride(), model.ways
        assert (got - want).norm() <= 1e-4 * want.norm() + 1e-5, model.ways
