"""`x[mask] = number` is a choice, element by element: no library call, which on a GPU would wait for the mask."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import intarsia


def put(x: Tensor, mask: Tensor, value: Any) -> Tensor:
    y = x.clone()
    y[mask] = value
    return y


def behind_a_dimension(x: Tensor, mask: Tensor, value: Any) -> Tensor:
    y = x.clone()
    y[:, mask] = value
    return y


def added(x: Tensor, mask: Tensor, value: Any) -> Tensor:
    return x.index_put((mask,), torch.full((), value, dtype=x.dtype), accumulate=True)


def calls(function: Callable[..., Any], *args: Any, target: str) -> bool:
    return "buffer.extern<aten.index_put" in intarsia.lower(function, *args, target=target).ir()


@pytest.mark.parametrize("target", ["cpp", "triton:sm_90"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_one_value(dtype: torch.dtype, target: str) -> None:
    x = torch.randn(4, 6).to(dtype)
    for function, mask in (
        (put, torch.rand(4, 6) > 0.5),
        (put, torch.rand(4) > 0.5),
        (behind_a_dimension, torch.rand(6) > 0.5),
    ):
        for value in (1, torch.tensor(1).to(dtype), torch.tensor([1]).to(dtype)):
            assert not calls(function, x, mask, value, target=target)
            if target == "cpp":
                assert torch.equal(intarsia.compile(function)(x, mask, value), function(x, mask, value))


def test_what_is_the_librarys() -> None:
    """A value for each element that is taken, sums, places by their numbers."""
    x, mask = torch.randn(4, 6), torch.tensor([True, False, True, True])
    for function, *args in (
        (put, x, mask, torch.arange(6.0)),
        (put, x, mask, torch.randn(3, 6)),
        (added, x, mask, 2.0),
        (put, x, torch.tensor([2, 0]), 1.0),
    ):
        assert calls(function, *args, target="cpp")
        assert torch.equal(intarsia.compile(function)(*args), function(*args))


def test_random_writes() -> None:
    rng = random.Random(0)
    for _ in range(12):
        shape = tuple(rng.randrange(1, 4) for _ in range(rng.randrange(1, 4)))
        first = rng.randrange(len(shape))
        mask = torch.rand(shape[first : rng.randrange(first, len(shape)) + 1]) > 0.5
        x = torch.randn(shape)
        taken = x[(slice(None),) * first + (mask,)]
        value = rng.choice([torch.tensor(2.0), torch.full((1,), 2.0), torch.randn(taken.shape)])

        def write(x: Tensor, mask: Tensor, value: Tensor, first: int = first) -> Tensor:
            y = x * 2
            y[(slice(None),) * first + (mask,)] = value
            return y

        assert torch.equal(intarsia.compile(write)(x, mask, value), write(x, mask, value))


def test_gradients() -> None:
    found = []
    for compile in (lambda f: f, intarsia.compile):
        x, value = torch.linspace(-1, 1, 6).requires_grad_(), torch.tensor(3.0, requires_grad=True)

        def function(x: Tensor, value: Tensor) -> Tensor:
            y = x * 2
            y[x > 0] = 1.5
            y[x < -0.5] = value
            return y.square().sum()

        compile(function)(x, value).backward()
        found.append((x.grad, value.grad))
    torch.testing.assert_close(*found)
