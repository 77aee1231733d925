"""Matrix products with what is computed from them, on a GPU: what eager gives, by the kernels that are chosen and by all others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import intarsia
from intarsia.testing import check

GPU = "cuda:0"


def half(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Random numbers."""
    return (torch.randn(shape, device=GPU) * 0.5).to(dtype)


def gelu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """The first layer of a transformer's block of two."""
    return F.gelu(F.linear(x, w, b))


def residual(x: Tensor, w: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    """A product that is a result as well."""
    y = x @ w
    return y, y.relu() + r


def gated(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    """Two products; one is read by the kernel of the other."""
    return F.silu(x @ w) * (x @ v)


CASES: dict[str, tuple[Callable[..., Any], Callable[[torch.dtype], list[Tensor]]]] = {
    "few_rows": (gelu, lambda d: [half(128, 768, dtype=d), half(3072, 768, dtype=d) * 0.1, half(3072, dtype=d)]),
    "chunks": (gelu, lambda d: [half(128, 3072, dtype=d), half(768, 3072, dtype=d) * 0.1, half(768, dtype=d)]),
    "chunks_of_a_norm": (
        lambda x, w, r: F.layer_norm(F.linear(x, w) + r, (768,)),
        lambda d: [half(128, 3072, dtype=d), half(768, 3072, dtype=d) * 0.1, half(128, 768, dtype=d)],
    ),
    "shallow": (gelu, lambda d: [half(4400, 96, dtype=d), half(384, 96, dtype=d), half(384, dtype=d)]),
    "large": (gelu, lambda d: [half(2048, 1024, dtype=d), half(1024, 1024, dtype=d) * 0.1, half(1024, dtype=d)]),
    "one_row": (gelu, lambda d: [half(1, 2048, dtype=d), half(5632, 2048, dtype=d) * 0.1, half(5632, dtype=d)]),
    "odd": (residual, lambda d: [half(77, 200, dtype=d), half(200, 136, dtype=d), half(77, 136, dtype=d)]),
    "walked": (gelu, lambda d: [half(4096, 1024, dtype=d), half(4096, 1024, dtype=d) * 0.1, half(4096, dtype=d)]),
    "vocabulary": (F.linear, lambda d: [half(600, 256, dtype=d), half(2051, 256, dtype=d)]),
    "vocabulary_of_few": (F.linear, lambda d: [half(4, 256, dtype=d), half(2051, 256, dtype=d)]),
    "padded_inner": (F.linear, lambda d: [half(4096, 1001, dtype=d), half(2048, 1001, dtype=d) * 0.1]),
    "dequantized": (
        lambda x, w, s: F.linear(x, w.to(x.dtype) * s[:, None]),
        lambda d: [
            half(64, 512, dtype=d),
            torch.randint(-127, 128, (384, 512), device="cuda").char(),
            half(384, dtype=d) / 64,
        ],
    ),
    "gated": (gated, lambda d: [half(128, 256, dtype=d), half(256, 512, dtype=d), half(256, 512, dtype=d)]),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_chosen(name: str, dtype: torch.dtype) -> None:
    fn, args = CASES[name]
    check(fn, args(dtype))


TILES = ("128x256x64x8x3", "256x128x64x8x3", "128x128x64x4x3", "64x32x128x4x4", "16x64x128x4x4", "64x128x32x4x3x2")
WALKED = ("128x256x64x8x3x1x132", "128x256x64x8x4x1x132", "128x128x64x4x3x1x264")


@pytest.mark.parametrize("tile", TILES + WALKED)
@pytest.mark.parametrize("name", ["chunks", "odd", "one_row", "shallow"])
def test_every_tile(name: str, tile: str) -> None:
    from intarsia.passes.kernels.choose_products import ChooseProducts

    fn, args = CASES[name]
    inputs = args(torch.bfloat16)
    compiled = intarsia.compile(fn, passes=[ChooseProducts(tile=tile)])
    exact = fn(*(x.double() for x in inputs))
    for found, expected in zip(_several(compiled(*inputs)), _several(exact), strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=2e-2, atol=2e-2)


def _several(value: Any) -> tuple[Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


def test_measured() -> None:
    """Mode max-autotune keeps what it found in a table, and a second program of the bucket measures nothing."""
    from intarsia.targets.build.cache import shared_cache

    fn, args = CASES["few_rows"]
    inputs = args(torch.bfloat16)
    compiled = intarsia.compile(fn, mode="max-autotune")
    torch.testing.assert_close(compiled(*inputs).double(), fn(*(x.double() for x in inputs)), rtol=2e-2, atol=2e-2)
    tables = list(shared_cache(None).root.glob("measured-*.json"))
    assert any("matmul 1x128x3072x768 bf16" in table.read_text() for table in tables)


def test_rows_that_change() -> None:
    """One kernel for any number of rows."""
    w, b = half(384, 96), half(384)
    compiled = intarsia.compile(gelu, dynamic=True)
    for rows in (4096, 5000, 9):
        x = half(rows, 96)
        torch.testing.assert_close(
            compiled(x, w, b).double(), gelu(x.double(), w.double(), b.double()), rtol=2e-2, atol=2e-2
        )


def test_a_new_thread() -> None:
    """A thread that never asked the driver for anything can call a compiled function."""
    fn, args = CASES["few_rows"]
    inputs = args(torch.bfloat16)
    compiled = intarsia.compile(fn)
    expected, found = compiled(*inputs), []
    torch.cuda.synchronize()
    thread = threading.Thread(target=lambda: found.append(compiled(*inputs)))
    thread.start()
    thread.join()
    torch.testing.assert_close(found[0], expected)
