"""Branches and loops on values inside of `with` blocks whose context manager is a generator, and beside other generators."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from harness import compiled, number_backend
from torch import Tensor

LOG: list[str] = []


@contextlib.contextmanager
def block(name: str) -> Iterator[str]:
    LOG.append(name)
    try:
        yield name
    finally:
        LOG.append(f"behind {name}")


def generator(x: Tensor) -> Iterator[Tensor]:
    try:
        yield x
        yield x + 1
    finally:
        LOG.append("closed")


def inner(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x * 2
    return x - 1


def in_a_block(x: Tensor) -> Tensor:
    with block("a"), block("b"):
        y = inner(x)
        if y.sum() > 0 or y.sum() < -9:
            y = y + 1
    return y


def loop_in_a_block(x: Tensor) -> Tensor:
    with block("a"):
        while x.abs().sum() < 50:
            x = x * 2 + 1
    return x


def way_out_of_a_block(x: Tensor) -> Tensor:
    with block("a"):
        if x.sum() > 0:
            return x * 2
    return x - 1


def left_half_way(x: Tensor) -> Tensor:
    made = generator(x)
    y = next(made)
    y = y * 2 if x.sum() > 0 else y - 1
    LOG.append("here")
    return y


def dropped_on_a_side(x: Tensor) -> Tensor:
    made: Any = generator(x)
    y = next(made)
    if x.sum() > 0:
        made = None
    else:
        y = y - 1
    LOG.append("here")
    return y


def taken_on_a_side(x: Tensor) -> Tensor:
    made = (v for v in (x, x + 1, x + 2))
    y = next(made)
    if x.sum() > 0:
        y = y + next(made)
    return y * next(made)


def inside_of_a_generator(x: Tensor) -> Any:
    return sum(inner(v) for v in generator(x))


def raised_in_a_block(x: Tensor) -> Tensor:
    with block("a"), contextlib.suppress(ValueError):
        y = inner(x)
        if x.sum() > 3:
            raise ValueError
        y = inner(y)
    return y


ONE = (in_a_block, loop_in_a_block)
OTHERS = (
    way_out_of_a_block,
    left_half_way,
    dropped_on_a_side,
    taken_on_a_side,
    inside_of_a_generator,
    raised_in_a_block,
)


def outcome(function: Any, x: Tensor) -> Any:
    LOG.clear()
    return function(x).tolist(), LOG[:]


@pytest.mark.parametrize("function", [*ONE, *OTHERS])
def test_as_eager(function):
    fast, log = compiled(function, number_backend)
    x = torch.tensor([1.0, 2.0])
    for factor in (1, -1, 3, -2, 0.25):
        assert outcome(fast, factor * x) == outcome(function, factor * x)
    assert log.fallbacks == []
    if function in ONE:
        assert log.breaks == [] and len(log.captures) == 1


def test_attention_without_dropout_draws_nothing():
    def function(x, rate):
        if x.sum() > 0:
            return torch.nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=rate)
        return x * 1

    x = torch.randn(1, 4, 8).abs()
    for rate, breaks in ((0.0, False), (0.5, True)):
        fast, log = compiled(function, number_backend)
        for y in (x, -x):
            torch.manual_seed(0)
            expected, state = function(y, rate), torch.get_rng_state()
            torch.manual_seed(0)
            torch.testing.assert_close(fast(y, rate), expected)
            assert torch.equal(torch.get_rng_state(), state)
        assert bool(log.breaks) is breaks
