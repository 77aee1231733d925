"""The models that benchmarks/distributed.py trains, and the ways in which several processes share the work on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

BF16 = torch.bfloat16


@dataclass(frozen=True)
class Size:
    """Of a transformer: width, layers, heads, heads of keys, inner width, vocabulary; and of a batch on one process."""

    width: int
    layers: int
    heads: int
    kv_heads: int
    inner: int
    vocabulary: int
    rows: int
    length: int


class GPT2(nn.Module):
    """A GPT-2 with tied embeddings; gives the loss."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens, self.places = (
            nn.Embedding(size.vocabulary, size.width),
            nn.Embedding(size.length, size.width),
        )
        self.layers = nn.ModuleList(GPT2Block(size) for _ in range(size.layers))
        self.norm, self.head = nn.LayerNorm(size.width), nn.Linear(size.width, size.vocabulary, bias=False)
        for weight in (self.tokens.weight, self.places.weight):
            nn.init.normal_(weight, std=0.02)
        self.head.weight = self.tokens.weight

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        with torch.autocast(x.device.type, BF16):
            h = self.tokens(x) + self.places(torch.arange(x.shape[1], device=x.device))
            for layer in self.layers:
                h = layer(h)
            return F.cross_entropy(self.head(self.norm(h)).flatten(0, 1), target.flatten())


class GPT2Block(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads, width = size.heads, size.width
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, size.inner), nn.Linear(size.inner, width)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))  # type: ignore[no-any-return]


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    """Rotary embedding of (rows, length, heads, features)."""
    a, b = x.float().chunk(2, -1)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).type_as(x)


class Attention(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.features = size.width // size.heads
        self.wq = nn.Linear(size.width, size.width, bias=False)
        self.wk = nn.Linear(size.width, size.kv_heads * self.features, bias=False)
        self.wv = nn.Linear(size.width, size.kv_heads * self.features, bias=False)
        self.wo = nn.Linear(size.width, size.width, bias=False)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        rows, length, _ = x.shape
        q, k, v = (w(x).view(rows, length, -1, self.features) for w in (self.wq, self.wk, self.wv))
        q, k = rotated(q, angles), rotated(k, angles)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.wo(y.transpose(1, 2).reshape(rows, length, -1))  # type: ignore[no-any-return]


class FeedForward(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.w1, self.w3 = (nn.Linear(size.width, size.inner, bias=False) for _ in range(2))
        self.w2 = nn.Linear(size.inner, size.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))  # type: ignore[no-any-return]


class LlamaBlock(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.attention, self.feed_forward = Attention(size), FeedForward(size)
        self.attention_norm, self.ffn_norm = nn.RMSNorm(size.width, eps=1e-5), nn.RMSNorm(size.width, eps=1e-5)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), angles)
        return x + self.feed_forward(self.ffn_norm(x))  # type: ignore[no-any-return]


class Llama(nn.Module):
    """A model of Llama's shape; gives the loss."""

    angles: Tensor

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.layers = nn.ModuleList(LlamaBlock(size) for _ in range(size.layers))
        self.norm, self.output = (
            nn.RMSNorm(size.width, eps=1e-5),
            nn.Linear(size.width, size.vocabulary, bias=False),
        )
        features = size.width // size.heads
        speed = 10000.0 ** -(torch.arange(0, features, 2) / features)
        self.register_buffer("angles", torch.arange(size.length)[:, None] * speed, persistent=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        with torch.autocast(x.device.type, BF16):
            h = self.tokens(x)
            for layer in self.layers:
                h = layer(h, self.angles)
            return F.cross_entropy(self.output(self.norm(h)).flatten(0, 1).float(), target.flatten())


def alone(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Each process trains a model of its own."""
    return model


def ddp(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    cuda = mesh.device_type == "cuda"
    return DistributedDataParallel(model, [torch.cuda.current_device()] if cuda else None, gradient_as_bucket_view=True)


def fsdp(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    policy = MixedPrecisionPolicy(param_dtype=BF16, reduce_dtype=torch.float32)
    for layer in model.layers:  # type: ignore[union-attr]
        fully_shard(layer, mesh=mesh, mp_policy=policy)  # type: ignore[arg-type]
    return fully_shard(model, mesh=mesh, mp_policy=policy)


def tp(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Weights by columns and rows; between the products the sequence is divided."""
    parallelize_module(
        model,
        mesh,
        {
            "tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        },
    )
    for layer in model.layers:  # type: ignore[union-attr]
        parallelize_module(
            layer,
            mesh,
            {
                "attention_norm": SequenceParallel(),
                "attention": PrepareModuleInput(
                    input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)
                ),
                **{f"attention.{name}": ColwiseParallel() for name in ("wq", "wk", "wv")},
                "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
                "ffn_norm": SequenceParallel(),
                "feed_forward": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
                "feed_forward.w1": ColwiseParallel(),
                "feed_forward.w3": ColwiseParallel(),
                "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
            },
        )
    return model


@dataclass(frozen=True)
class Case:
    """A model, its sizes on a device, and the ways to train it; those in `same` give all processes the same batch."""

    model: Callable[[Size], nn.Module]
    sizes: dict[str, Size]
    ways: tuple[Callable[[nn.Module, DeviceMesh], nn.Module], ...]
    same: tuple[str, ...] = ()


CASES = {
    "gpt2": Case(
        GPT2,
        {"cuda": Size(768, 12, 12, 12, 3072, 50257, 8, 512), "cpu": Size(64, 2, 4, 4, 128, 503, 2, 32)},
        (alone, ddp),
    ),
    "llama": Case(
        Llama,
        {"cuda": Size(2048, 16, 32, 8, 8192, 32000, 2, 2048), "cpu": Size(64, 2, 4, 2, 128, 512, 2, 32)},
        (alone, fsdp, tp),
        ("tp",),
    ),
}
