"""Convolutions and attention on a GPU: the library calls and kernels that were chosen for them give what eager gives."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intarsia
from intarsia.testing import check

GPU = "cuda:0"
HALF = (torch.bfloat16, torch.float16)


def gpu(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random numbers."""
    return torch.randn(shape, device=GPU).to(dtype)


def _heads(length: int, keys: int, width: int, dtype: torch.dtype, heads: int = 4) -> list[Tensor]:
    """Query, key and value as projections leave them: rows of all heads side by side."""
    return [gpu(2, n, h, width, dtype=dtype).transpose(1, 2) for n, h in ((length, 4), (keys, heads), (keys, heads))]


def _written(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    scores = torch.matmul(q, k.transpose(2, 3)) * 0.2 + m
    return torch.matmul(F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype), v).transpose(1, 2).contiguous()


def _causal(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    shut = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(shut, float("-inf")).softmax(-1) @ v


def _masked(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, m[:, :, :1] > -1).transpose(1, 2)


def _shared(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    k, v = (x[:, :2].repeat_interleave(2, 1) for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v, m)


@pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
@pytest.mark.parametrize("size", [(128, 128, 64), (49, 49, 32), (100, 77, 64), (1, 333, 64)], ids=str)
@pytest.mark.parametrize("fn", [_written, _causal, _masked, _shared])
def test_attention(fn: Callable[..., Tensor], size: tuple[int, int, int], dtype: torch.dtype) -> None:
    length, keys, width = size
    q, k, v = _heads(length, keys, width, dtype)
    check(fn, [q, k, v, gpu(2, 1, length, keys, dtype=dtype)], calls=4)


@pytest.mark.parametrize("number", [float("-inf"), torch.finfo(torch.bfloat16).min])
@pytest.mark.parametrize("length", [49, 100])
def test_rows_without_anything_open(length: int, number: float) -> None:
    q, k, v = _heads(length, length, 64, torch.bfloat16)
    m = gpu(2, 1, length, length, dtype=torch.bfloat16)
    m[0, :, 3], m[1, :, :, 5] = number, number
    found, expected = intarsia.compile(_written)(q, k, v, m), _written(q, k, v, m)
    assert bool(expected[0, 3].isnan().any()) == (number == float("-inf"))
    torch.testing.assert_close(found, expected, atol=5e-2, rtol=5e-2, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
@pytest.mark.parametrize("length", [49, 100])
def test_rows_shut_by_truth_values(length: int, dtype: torch.dtype) -> None:
    """Zeros, as the operator gives in float64; the kernel that eager takes for half types gives other numbers (torch 2.11)."""
    q, k, v = _heads(length, length, 64, dtype)
    open_ = torch.ones(2, 1, length, length, dtype=torch.bool, device=GPU)
    open_[0, :, 3] = False

    def attention(q: Tensor, k: Tensor, v: Tensor, open_: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, open_)

    found, expected = intarsia.compile(attention)(q, k, v, open_), attention(q.double(), k.double(), v.double(), open_)
    torch.testing.assert_close(found.double(), expected, atol=2e-2, rtol=2e-2, equal_nan=True)


def _of_joint(x: Tensor, mask: Tensor | None) -> Tensor:
    q, k, v = x.permute(2, 0, 3, 1, 4)
    return F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2)


def _windows(x: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
    """Windows of shifted images: a bias for all of them, a mask for each window of an image."""
    q, k, v = x.permute(2, 0, 3, 1, 4)
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1) + bias
    scores = scores.view(-1, len(mask), *scores.shape[1:]) + mask.unsqueeze(1).unsqueeze(0)
    return (scores.view(-1, *scores.shape[2:]).softmax(-1) @ v).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("masks", ["none", "bias", "windows", "truth values"])
def test_attention_over_short_rows(masks: str, dtype: torch.dtype) -> None:
    """So many heads of so few tokens are a kernel of ours; a row that is shut gives zeros."""
    x, bias = gpu(256, 49, 3, 3, 32, dtype=dtype), gpu(1, 3, 49, 49, dtype=dtype)
    far = torch.where(gpu(16, 49, 49) > -1, 0.0, -100.0).to(dtype)
    open_ = gpu(256, 1, 49, 49) > -1
    open_[7, :, 3] = False
    given = {"none": (None,), "bias": (bias,), "windows": (bias, far), "truth values": (open_,)}[masks]
    fn = _windows if masks == "windows" else _of_joint
    wide = [t.double() if t is not None and t.is_floating_point() else t for t in (x, *given)]
    expected, compiled = fn(*wide), intarsia.compile(fn)
    for _ in range(4):
        torch.testing.assert_close(compiled(x, *given).double(), expected, atol=4e-2, rtol=4e-2)


def test_attention_of_growing_keys() -> None:
    fn = intarsia.compile(lambda q, k, v: F.scaled_dot_product_attention(q, k, v))
    for keys in range(64, 72):
        q, k, v = _heads(1, keys, 64, torch.bfloat16)
        torch.testing.assert_close(fn(q, k, v), F.scaled_dot_product_attention(q, k, v), atol=2e-2, rtol=2e-2)


def test_the_fast_path_of_multi_head_attention() -> None:
    layer = nn.MultiheadAttention(64, 4, batch_first=True, device=GPU, dtype=torch.bfloat16).eval()
    with torch.no_grad():
        check(lambda x: layer(x, x, x, need_weights=False)[0], [gpu(2, 50, 64, dtype=torch.bfloat16)], calls=4)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "first": lambda: nn.Conv2d(3, 16, 7, 2, 3),
    "patches": lambda: nn.Conv2d(3, 32, 8, 8),
    "one pixel": lambda: nn.Sequential(nn.Conv2d(3, 64, 3), nn.Conv2d(64, 128, 1, bias=False), nn.BatchNorm2d(128)),
    "depthwise": lambda: nn.Sequential(
        nn.Conv2d(3, 32, 1), nn.Conv2d(32, 32, 7, 1, 3, groups=32), nn.Conv2d(32, 64, 1)
    ),
    "depthwise, steps": lambda: nn.Sequential(nn.Conv2d(3, 64, 1), nn.Conv2d(64, 64, 3, 2, 1, groups=64), nn.SiLU()),
    "grouped": lambda: nn.Sequential(nn.Conv2d(3, 32, 1), nn.Conv2d(32, 32, 3, 1, 1, groups=4), nn.ReLU()),
    "pixels of one image": lambda: _Branches(),
    "flattened": lambda: nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(32 * 81, 64), nn.GELU()
    ),
}


class _Branches(nn.Module):
    """Products of the pixels of one image, and a pool of it, whose results lie side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 3)
        self.branches = nn.ModuleList(nn.Conv2d(64, n, 1, bias=False) for n in (16, 32, 24))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        a, b, c = self.branches
        return torch.cat([a(x).relu(), b(F.avg_pool2d(x, 3, 1, 1)), c(x), x[:, :8]], 1)


@pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_convolutions(name: str, last: bool, dtype: torch.dtype) -> None:
    form = torch.channels_last if last else torch.contiguous_format
    layer = LAYERS[name]().to(GPU, dtype).eval().to(memory_format=form)
    x = gpu(2, 3, 40, 41, dtype=dtype).to(memory_format=form)
    with torch.no_grad():
        check(lambda x: layer(x).relu(), [x], calls=4)
