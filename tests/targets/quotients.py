"""`quotient` gives the nearest float32: of any numbers, of those near halves (ties of rounding), and next to those between two floats."""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl

from intarsia.targets.triton.language import quotient

ROW, ROWS = 256, 160


@triton.jit
def divide(x, y, out, number: tl.constexpr):
    row = tl.program_id(0)
    place = row * number + tl.arange(0, number)
    tl.store(out + place, quotient(tl.load(x + place), tl.load(y + row + tl.arange(0, 1))))


def numbers() -> tuple[np.ndarray, np.ndarray]:
    """Rows of dividends, and a divisor for each."""
    random = np.random.default_rng(0)
    bits = random.integers(0, 1 << 23, ROWS, dtype=np.uint32) | (random.integers(1, 255, ROWS).astype(np.uint32) << 23)
    y = bits.view(np.float32) * np.where(random.random(ROWS) < 0.3, -1, 1).astype(np.float32)
    y[20:80] = np.ldexp(np.abs(y[20:80]) % 1 + 0.5, random.integers(-58, 58, 60))
    y[:6] = 0.0, np.inf, np.nan, 1e-42, 3.4e38, -1.1754944e-38
    x = random.integers(0, 1 << 32, (ROWS, ROW), dtype=np.uint32).view(np.float32).copy()
    halves = (random.integers(-128, 128, (ROWS, 64)) + 0.5) * y[:, None].astype(np.float64)
    x[:, :64] = np.nextafter(
        halves.astype(np.float32), random.choice([-np.inf, 0, np.inf], (ROWS, 64)).astype(np.float32)
    )
    between = 1 + (2 * random.integers(0, 1 << 23, (ROWS, 64)) + 1) / (1 << 24)
    x[:, 64:128] = between * y[:, None].astype(np.float64)
    x[:, 128:133] = 0.0, -0.0, np.inf, -np.inf, np.nan
    return x, y


def wrong() -> str:
    """Compare with NumPy's division, under Triton's interpreter."""
    with np.errstate(all="ignore"):
        x, y = numbers()
        out = np.zeros_like(x)
        divide[(ROWS,)](torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(out), ROW)
        expected = x / y[:, None]
        same = (out.view(np.uint32) == expected.view(np.uint32)) | (np.isnan(out) & np.isnan(expected))
        close = (np.abs(out - expected) <= np.spacing(np.abs(expected))) & (np.signbit(out) == np.signbit(expected))
    tiny = np.abs(expected) < 2.0**-40  # as `quotient` says
    found = ~same & ~(tiny & close)
    where = np.argwhere(found)[:3]
    return "" if not found.any() else f"{found.sum()} quotients, as {[(x[i, j], y[i]) for i, j in where]}"
