"""Values that are only moved keep their bits; loops over repeated memory have no division inside."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import intarsia

HALVES = (torch.bfloat16, torch.float16)
MOVES = {
    "cat": lambda x: torch.cat([x, x], 1),
    "repeat": lambda x: x.repeat(2, 3),
    "rotate_half": lambda x: torch.cat([-x[:, 32:], x[:, :32]], 1),
    "pad": lambda x: torch.nn.functional.pad(x, (1, 2, 3, 4), value=0.1),
    "where": lambda x: torch.where(x > 0, x, 3.0),
    "select": lambda x: x.index_select(0, torch.tensor([3, 1, 2, 2])),
}


def values(dtype: torch.dtype) -> Tensor:
    """Numbers, zeros of both signs, infinities and the least subnormal."""
    x = torch.linspace(-3, 3, 33 * 64).view(33, 64).to(dtype)
    x[0, :6] = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), torch.finfo(dtype).smallest_normal / 64, 1.0])
    return x


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", MOVES)
def test_bits_are_kept(name: str, dtype: torch.dtype) -> None:
    fn, x = MOVES[name], values(dtype)
    found, expected = intarsia.compile(fn)(x), fn(x)
    assert found.dtype == expected.dtype
    assert torch.equal(found.view(torch.int16), expected.view(torch.int16))


@pytest.mark.parametrize("name", ["cat", "repeat", "rotate_half", "pad"])
def test_moves_do_not_convert(name: str) -> None:
    text = intarsia.lower(MOVES[name], values(torch.bfloat16)).source()
    assert "float" not in text and ".bits" in text


def test_a_value_that_is_computed_with_is_converted() -> None:
    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.cat([x, x], 1), torch.cat([x * 3, x], 1)

    x = values(torch.bfloat16)
    for found, expected in zip(intarsia.compile(fn)(x), fn(x), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("shape", [(32, 64), (48, 100)])
def test_repeats_have_no_division_inside(shape: tuple[int, int]) -> None:
    x = torch.randn(*shape)
    text = intarsia.lower(lambda x: x.repeat(2, 2) + 1, x).source().partition('#include "intarsia_call.h"')[0]
    assert "%" not in text and "/ " not in text.split("{", 1)[1]
    assert torch.equal(intarsia.compile(lambda x: x.repeat(2, 2) + 1)(x), x.repeat(2, 2) + 1)


@pytest.mark.parametrize("least", [False, True])
def test_extreme_with_its_place(least: bool) -> None:
    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        return tuple(x.min(1) if least else x.max(1))

    x = torch.randint(-9, 9, (40, 777)).float()
    x[3, 50] = x[3, 70] = float("nan")
    x[4] = -float("inf")
    x[5] = float("inf")
    (value, place), (expected, at) = intarsia.compile(fn)(x), fn(x)
    assert torch.equal(value.nan_to_num(99), expected.nan_to_num(99)) and torch.equal(place, at)
    text = intarsia.lower(fn, x).source()
    assert text.count("#pragma omp simd reduction") == 2
