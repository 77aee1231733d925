"""NaN and infinities in the kernels of our own: what eager gives for them, in inputs, weights, masks and rows that see nothing."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intarsia

NAN, INF = math.nan, math.inf


def same(fn: Callable[..., list[Tensor]], *args: Tensor, **options: object) -> None:
    found, expected = intarsia.compile(fn, fullgraph=True, options=options)(*args), fn(*args)  # type: ignore[arg-type]
    half = args[0].dtype != torch.float32
    for k, (a, b) in enumerate(zip(found, expected, strict=True)):
        torch.testing.assert_close(
            a,
            b,
            rtol=2e-2 if half else 1e-4,
            atol=2e-2 if half else 1e-4,
            equal_nan=True,
            msg=lambda m, k=k: f"{k}: {m}",
        )


# inputs, outputs, window, groups, stride, padding, dilation, height, width
WINDOWS = [
    (3, 16, 3, 1, 2, 1, 1, 9, 9), (3, 16, 7, 1, 2, 3, 1, 20, 20), (1, 8, 3, 1, 1, 1, 1, 5, 5), (16, 32, 3, 1, 2, 1, 1, 9, 9),
    (16, 24, 5, 1, 1, 2, 1, 9, 10), (32, 32, 3, 32, 1, 1, 1, 9, 9), (33, 33, 5, 33, 2, 2, 1, 9, 12), (32, 32, 7, 32, 1, 3, 1, 7, 7),
    (16, 16, 3, 1, 1, (0, 1), 1, 8, 8), (16, 16, 3, 1, 1, 2, 2, 8, 8), (64, 16, 3, 1, 2, 1, 1, 3, 3),
]  # fmt: skip


@pytest.mark.parametrize("value", [NAN, -INF])
@torch.no_grad()
def test_weights_over_padding(value: float) -> None:
    """Padding adds nothing to a sum, whatever the weight that lies on it."""
    torch.manual_seed(0)
    models = nn.ModuleList(nn.Conv2d(i, o, k, s, p, d, g).eval() for i, o, k, g, s, p, d, _, _ in WINDOWS)
    for model in models:
        model.weight[1, 0, 0, 0] = model.weight[3, 0, -1, -1] = value
    xs = [torch.randn(2, i, h, w) for i, *_, h, w in WINDOWS]
    same(lambda *xs: [model(x) for model, x in zip(models, xs, strict=True)], *xs, winograd=False)


def attention(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, bias: Tensor) -> list[Tensor]:
    sdpa, scale = F.scaled_dot_product_attention, 1 / math.sqrt(q.shape[-1])
    scores = q @ k.transpose(-2, -1) * scale
    return [
        sdpa(q, k, v), sdpa(q, k, v, allowed), sdpa(q, k, v, bias), sdpa(q[0], k[0], v[0], bias),
        torch.softmax(scores, -1) @ v, torch.softmax(scores + bias, -1) @ v, torch.softmax(scores.masked_fill(~allowed, -INF), -1) @ v,
    ]  # fmt: skip


@pytest.mark.parametrize("keys, dtype", [(21, torch.float32), (9, torch.bfloat16)], ids=str)
@pytest.mark.parametrize("queries", [3, 40])
@torch.no_grad()
def test_attention(queries: int, keys: int, dtype: torch.dtype) -> None:
    """With fewer keys than a vector holds and with more: torch's operator forgets NaN in the last of them only."""
    if dtype is torch.bfloat16 and torch.backends.cpu.get_cpu_capability() != "AVX512":
        pytest.skip("vectors of half their length hold other keys: torch's operator forgets other NaN")
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, n, 8, dtype=dtype) for n in (queries, keys, keys))
    allowed, bias = torch.rand(queries, keys) > 0.5, torch.randn(queries, keys, dtype=dtype)
    allowed[0], bias[0] = False, -INF
    compiled = intarsia.compile(attention, fullgraph=True)
    for which, place, value in [(0, 0, NAN), (1, slice(None), NAN), (1, 1, INF), (1, 1, NAN), (2, 1, INF), (2, 1, NAN)]:
        args = [q.clone(), k.clone(), v.clone()]
        args[which][0, 0, place] = value
        for other in (bias, torch.full_like(bias, NAN), bias.abs().index_fill(1, torch.tensor([3]), INF)):
            for i, (a, b) in enumerate(
                zip(compiled(*args, allowed, other), attention(*args, allowed, other), strict=True)
            ):
                close = torch.isclose(a.float(), b.float(), rtol=2e-2, atol=2e-2, equal_nan=True)
                assert bool(close.all()), (which, place, value, i)


def whole(x: Tensor, half: Tensor, single: Tensor) -> list[Tensor]:
    return [
        x.abs().long(), x.abs().long() % 10, x.abs().int() % 10, half.abs().long(), half.abs().long() % 10,
        *torch.var_mean(single, dim=0, correction=0),
    ]  # fmt: skip


def test_whole_numbers_and_the_mean_of_one_element() -> None:
    """What no integer holds becomes the smallest one, also where a compiler knows the number's sign."""
    x = torch.tensor([NAN, 3.5, INF, -INF, 1e30, -1e30, -7.25, 0.0] * 4)
    same(whole, x, x.bfloat16(), x[None])


@torch.no_grad()
def test_windows_of_a_pool_that_see_nothing() -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 1), nn.MaxPool2d(2, 1, 1, 3)).eval()
    x = torch.randn(2, 3, 2, 5)
    torch.testing.assert_close(intarsia.compile(model, fullgraph=True)(x), model(x), rtol=1e-5, atol=1e-5)
    assert bool((model(x) == -INF).any())


def test_deviations_whose_squares_leave_the_range() -> None:
    """Eager adds the squares up in float64."""
    torch.manual_seed(0)
    for scale in (1e-30, 1e-20, 1.0, 1e19, 1e30):
        for dims in (0, 1, [0, 1]):
            x, function = torch.randn(8, 33) * scale, lambda x, d=dims: [x.std(d), *torch.std_mean(x, d, correction=0)]
            for found, expected in zip(intarsia.compile(function)(x), function(x), strict=True):
                torch.testing.assert_close(found / scale, expected / scale, rtol=1e-5, atol=1e-6)
