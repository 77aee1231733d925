"""Layers on odd inputs: nothing in them, one element, memory that overlaps or lies far apart, threads that change between calls."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intarsia


def same(fn: Callable[..., Tensor], *args: Tensor) -> None:
    """Compiled equals eager, also when called again."""
    compiled, want = intarsia.compile(fn), fn(*args)
    for _ in range(2):
        torch.testing.assert_close(compiled(*args), want, rtol=1e-4, atol=1e-4)


LINEAR, NORM = nn.Sequential(nn.Linear(24, 40), nn.GELU(), nn.Linear(40, 8)).eval(), nn.LayerNorm(24).eval()
CONV = nn.Sequential(nn.Conv2d(16, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.Conv2d(24, 24, 1)).eval()
DEPTH = nn.Conv2d(16, 16, 3, padding=1, groups=16).eval()
TABLE = nn.Embedding(10, 24).eval()


@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize("layer", [LINEAR, NORM], ids=["linear", "norm"])
def test_few_rows(layer: nn.Module, rows: int) -> None:
    same(layer, torch.randn(rows, 24))


@pytest.mark.parametrize("layer", [CONV, DEPTH], ids=["dense", "depthwise"])
@pytest.mark.parametrize("size", [(0, 16, 5, 5), (1, 16, 1, 1), (1, 16, 1, 7), (2, 16, 3, 1)], ids=str)
def test_few_pixels(layer: nn.Module, size: tuple[int, ...]) -> None:
    same(layer, torch.randn(size))


@pytest.mark.parametrize("sizes", [(0, 2, 4, 4), (1, 2, 1, 1), (1, 2, 0, 5), (1, 1, 1, 300)], ids=str)
def test_few_queries_and_keys(sizes: tuple[int, ...]) -> None:
    batch, heads, queries, keys = sizes
    q, (k, v) = torch.randn(batch, heads, queries, 8), torch.randn(2, batch, heads, keys, 8)
    same(F.scaled_dot_product_attention, q, k, v)


@pytest.mark.parametrize("places", [(0,), (1,), (3, 0), (2, 1)], ids=str)
def test_few_places(places: tuple[int, ...]) -> None:
    same(TABLE, torch.randint(0, 10, places))


def spread(shape: tuple[int, ...], kind: str) -> Tensor:
    """Normal numbers of that shape in odd memory."""
    if kind == "expanded":
        return torch.randn(*shape[:-2], 1, shape[-1]).expand(shape)
    if kind == "one number":
        return torch.randn(1).expand(shape)
    if kind == "windows":
        strides = [3] * (len(shape) - 1) + [1]
        return torch.randn(3 * sum(shape) + 8).as_strided(shape, strides)
    if kind == "far apart":
        strides = [1]
        for n in reversed(shape[1:]):
            strides.insert(0, strides[0] * n * 7 + 5)
        return torch.randn(1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))).as_strided(shape, strides)
    numbers = 1
    for n in shape:
        numbers *= n
    return torch.randn(numbers + 3)[3:].view(shape)  # "offset": 12 bytes from the start


KINDS = ["expanded", "one number", "windows", "far apart", "offset"]


@pytest.mark.parametrize("kind", KINDS)
def test_odd_memory(kind: str) -> None:
    same(LINEAR, spread((6, 24), kind))
    same(CONV, spread((2, 16, 5, 6), kind))
    same(DEPTH, spread((2, 16, 5, 6), kind))
    same(F.scaled_dot_product_attention, *(spread((2, 2, 5, 8), kind) for _ in range(3)))
    same(lambda x, y: (x @ y).softmax(-1), spread((3, 5, 6), kind), spread((3, 6, 4), kind))


def test_threads_that_change_between_calls() -> None:
    x, image = torch.randn(300, 24), torch.randn(1, 16, 20, 20)
    compiled = [intarsia.compile(LINEAR), intarsia.compile(CONV), intarsia.compile(lambda x: x.softmax(-1).cumsum(0))]
    want = [LINEAR(x), CONV(image), x.softmax(-1).cumsum(0)]
    for threads in (1, 4, 2, 16, 1):
        torch.set_num_threads(threads)
        for fn, arg, expected in zip(compiled, (x, image, x), want, strict=True):
            torch.testing.assert_close(fn(arg), expected, rtol=1e-4, atol=1e-4)
