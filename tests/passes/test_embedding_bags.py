"""Embedding bags: which are kernels, and that all are right."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import intarsia


@pytest.fixture(autouse=True)
def no_gradients() -> Any:
    with torch.no_grad():
        yield


def operators(fn: Any, *args: Any, **options: Any) -> str:
    return str(intarsia.explain(fn)(*args, **options))


@pytest.mark.parametrize(("padding", "dtype"), [(None, torch.float32), (3, torch.bfloat16)])
def test_the_largest_of_equal_bags_is_a_kernel(padding: int | None, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    bag = nn.EmbeddingBag(10, 7, mode="max", padding_idx=padding).to(dtype)
    rows = torch.randint(0, 10, (6, 4))
    rows[0] = 3  # with padding an empty bag, which gives 0
    fast = intarsia.compile(bag, fullgraph=True, options={"verify_each": True})
    assert torch.equal(fast(rows), bag(rows))
    assert "_embedding_bag" not in operators(bag, rows)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_other_bags_are_the_librarys(mode: str) -> None:
    torch.manual_seed(0)
    bag, rows = nn.EmbeddingBag(10, 7, mode=mode), torch.randint(0, 10, (20,))
    weights = torch.rand(20) if mode == "sum" else None
    fast = intarsia.compile(bag, fullgraph=True, options={"verify_each": True})
    for offsets in (torch.tensor([0, 4, 4, 11]), torch.tensor([0, 0, 19, 20])):
        assert torch.equal(fast(rows, offsets, weights), bag(rows, offsets, weights))


def test_an_index_outside_the_table() -> None:
    bag = nn.EmbeddingBag(10, 7, mode="max")
    fast = intarsia.compile(bag, fullgraph=True, options={"verify_each": True})
    fast(torch.zeros(6, 4, dtype=torch.int64))
    with pytest.raises((IndexError, RuntimeError)):
        fast(torch.full((6, 4), 10))


def test_gradients() -> None:
    with torch.enable_grad():
        bag = nn.EmbeddingBag(10, 7, mode="max")
        rows = torch.randint(0, 10, (6, 4))
        fast = intarsia.compile(bag, fullgraph=True)
        fast(rows).square().sum().backward()
        found, bag.weight.grad = bag.weight.grad, None
        bag(rows).square().sum().backward()
    torch.testing.assert_close(found, bag.weight.grad)
