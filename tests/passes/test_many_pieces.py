"""Concatenations of many pieces: each piece has a loop of its own, where that is not longer than a body that selects among all of them."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import intarsia


def _texts(fn: object, args: list[Tensor]) -> str:
    return "\n".join(kernel.text for kernel in intarsia.lower(fn, *args).kernels)


@pytest.mark.parametrize("count", [2, 12, 30])
def test_a_loop_for_each_piece(count: int) -> None:
    text = _texts(lambda *t: torch.stack([x.tanh() for x in t], 1), [torch.randn(64, 20)] * count)
    assert " ? " not in text and text.count("= in") >= count


def test_a_long_body_is_not_written_for_every_border() -> None:
    def f(x: Tensor) -> Tensor:  # borders of borders: at each seam the whole body, not a piece of it
        for _ in range(4):
            x = F.pad(x.sin() + x.roll(1, -1) * 2, (1, 1, 1, 1))
        return x

    assert _texts(f, [torch.randn(9, 9)]).count("sin") < 80


@pytest.mark.parametrize("seed", range(3))
def test_as_eager(seed: int) -> None:
    draw = random.Random(seed)
    torch.manual_seed(seed)
    d, count = draw.randint(0, 2), draw.choice((5, 11, 19))
    shapes = [[3, 4, 5] for _ in range(count)]
    for shape in shapes:
        shape[d] = draw.randint(1, 4)
    given = [torch.randn(shape) for shape in shapes]
    scale = torch.randn(5) if d != 2 else torch.randn(1)

    def f(*pieces: Tensor) -> Tensor:
        made = [x * 2 if k % 3 else (x * scale).exp() for k, x in enumerate(pieces)]
        return F.pad(torch.cat([*made, made[0]], d), (1, 0, 0, 2)).relu() - 1

    found, wanted = intarsia.compile(f)(*given), f(*given)
    torch.testing.assert_close(found, wanted)
    assert found.stride() == wanted.stride()
