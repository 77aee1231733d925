"""With a small memory budget, gradients are eager's: small models of a dozen kinds, and random programs. Both halves run in eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import intarsia
from tests.e2e.test_partition import gradients_of, halves, leaf, program

BUDGET = 0.3


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).flatten(2))


class Gated(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.gate = nn.RMSNorm(width), nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        return self.down(self.up(x) * F.silu(self.gate(x)))


class Tied(nn.Module):
    """Tokens in and out by one weight, with learned positions."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(20, 16), nn.Parameter(torch.randn(6, 16))
        self.blocks = nn.Sequential(
            *(Residual(nn.Sequential(nn.LayerNorm(16), Attention(16, 2, True))) for _ in range(2))
        )

    def forward(self, x: Tensor) -> Tensor:
        numbers = x[:, :6, 0].abs().mul(7).long() % 20
        return torch.log_softmax(self.blocks(self.tokens(numbers) + self.places) @ self.tokens.weight.t(), -1)


class Squeeze(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(channels, 4, 1), nn.Conv2d(4, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * F.hardsigmoid(self.b(F.relu(self.a(x.mean((2, 3), keepdim=True)))))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.middle = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, padding=1)
        self.up, self.last = nn.ConvTranspose2d(8, 8, 2, 2), nn.Conv2d(11, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.gelu(self.down(x))
        return self.last(torch.cat([self.up(y + F.gelu(self.middle(y))), x], 1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        h = x[:, 0]
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
        return h


class Graph(nn.Module):
    """Two rounds of messages along the edges of a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.send, self.keep = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        x, source, target = x.flatten(0, 1), torch.arange(16), torch.arange(16).mul(5).add(1) % 16
        for _ in range(2):
            x = torch.tanh(self.keep(x).index_add(0, target, F.relu(self.send(x[source]))))
        return x


def _norm(channels: int) -> nn.Module:
    return nn.BatchNorm2d(channels, track_running_stats=False)


def _block() -> nn.Module:
    inner = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), _norm(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), _norm(8))
    return nn.Sequential(Residual(inner), nn.ReLU())


ROWS, IMAGES = (2, 8, 16), (2, 3, 8, 8)
MODELS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(*(Residual(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))) for _ in range(3))), ROWS),
    "dropout": (lambda: nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Dropout(0.3), nn.Linear(32, 16), nn.Dropout(0.1)), ROWS),
    "gpt": (Tied, ROWS),
    "llama": (lambda: nn.Sequential(*(Residual(Gated(16)) for _ in range(3))), ROWS),
    "vit": (lambda: nn.Sequential(nn.Conv2d(3, 16, 4, 4), nn.Flatten(2), nn.Linear(4, 16), Residual(Attention(16, 4, False)), nn.LayerNorm(16)), IMAGES),
    "resnet": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), _norm(8), nn.ReLU(), nn.MaxPool2d(2), _block(), _block()), IMAGES),
    "mobilenet": (lambda: nn.Sequential(nn.Conv2d(3, 8, 1), _norm(8), nn.Hardswish(), nn.Conv2d(8, 8, 3, padding=1, groups=8), _norm(8), Squeeze(8)), IMAGES),
    "convnext": (lambda: nn.Sequential(nn.Conv2d(3, 8, 1), Residual(nn.Sequential(nn.Conv2d(8, 8, 7, padding=3, groups=8), nn.GroupNorm(1, 8), nn.Conv2d(8, 16, 1), nn.GELU(), nn.Conv2d(16, 8, 1)))), IMAGES),
    "unet": (UNet, IMAGES),
    "vgg": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.SELU(), nn.AvgPool2d(2), nn.Conv2d(8, 8, 3), nn.Softplus(), nn.AdaptiveAvgPool2d(1)), IMAGES),
    "diffusion": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(4, 8), nn.SiLU(), nn.Upsample(scale_factor=2), nn.Conv2d(8, 3, 3)), IMAGES),
    "recurrent": (Recurrent, ROWS),
    "graph": (Graph, ROWS),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_models_with_little_memory(name: str) -> None:
    torch.manual_seed(0)
    make, shape = MODELS[name]
    model = make()
    names, parameters = zip(*model.named_parameters(), strict=True)

    def function(x: Tensor, *weights: Tensor) -> Tensor:
        return torch.func.functional_call(model, dict(zip(names, weights, strict=True)), (x,)).square()

    args = (leaf(*shape), *(p.detach().clone().requires_grad_() for p in parameters))
    expected = gradients_of(function, args)
    run, _, _, found = halves(function, args, BUDGET)
    for got, want in zip(gradients_of(run, args), expected, strict=True):
        largest = 1.0 if want is None else max(1.0, want.abs().max().item())
        torch.testing.assert_close(
            got, want, rtol=1e-4, atol=5e-5 * largest
        )  # a bias before a norm has a gradient of 0
    assert found.most == 0 or found.bytes < found.most


@pytest.mark.parametrize("first", range(100, 140, 10))
def test_random_programs_with_little_memory(first: int) -> None:
    for seed in range(first, first + 10):
        torch.manual_seed(seed)
        function, names = program(seed)
        args = leaf(8, 8), leaf(8, 8), leaf(8)
        expected = gradients_of(function, args)
        for got, want in zip(gradients_of(halves(function, args, BUDGET)[0], args), expected, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5, msg=lambda m: f"{names}: {m}")  # noqa: B023


def test_what_is_saved_is_told_before_backward() -> None:
    weights = [torch.randn(32, 32) / 6 for _ in range(6)]

    def function(x: Tensor) -> Tensor:
        for w in weights:
            x = torch.sin(x @ w)
        return x.sum()

    with torch.enable_grad():
        told = intarsia.explain(function, options={"memory_budget": 0.5})(leaf(32, 32))
    found = told.graphs[0].partition
    assert found is not None and 0 < found.bytes <= 0.5 * found.most
    text = " ".join(str(told).split())
    assert "for backward, with memory_budget=0.5; 24 KiB with 1, 0 bytes with 0" in text.replace("\u00a0", " ")
    assert "mm, float32[32, 32] (tests/e2e/test_memory_budget.py:" in text
    assert "again 3 sin, 3 mm" in text.replace("\u00a0", " ") and "in backward" in text
