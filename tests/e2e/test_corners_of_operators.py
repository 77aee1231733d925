"""What operators give at corners: signs of zeros behind integers, strides of unique lines, shifts by tensors of other types."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import intarsia

FRACTIONS = torch.tensor([-0.0, 0.0, -0.5, 0.5, -1.5, -0.999, 3.9, -100.25])


def exactly(mine: Any, eager: Any) -> None:
    """The same values, signs of zeros, types and strides."""
    assert (mine.dtype, mine.shape, mine.stride()) == (eager.dtype, eager.shape, eager.stride())
    assert torch.equal(mine, eager)
    if mine.is_floating_point():
        assert torch.equal(mine.signbit(), eager.signbit())


def whole_and_back(x: Tensor) -> list[Tensor]:
    """A float as each integer, and that as each float: gcc would make one rounding of both, which keeps -0.5's sign."""
    whole = [x.to(kind) for kind in (torch.int8, torch.int16, torch.int32, torch.int64)]
    return [i.to(kind) for i in whole for kind in (torch.float32, torch.float64, torch.float16, torch.bfloat16)]


def quotients(x: Tensor) -> list[Tensor]:
    """Quotients of integers are whole in a float's clothes on the way."""
    i = (x * 4).to(torch.int32)
    return [torch.div(i, 7, rounding_mode=mode).to(torch.float64) for mode in ("trunc", "floor")]


@pytest.mark.parametrize("program", [whole_and_back, quotients])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_integers_have_no_negative_zero(program: Callable[[Tensor], list[Tensor]], dtype: torch.dtype) -> None:
    x = FRACTIONS.to(dtype).repeat(5)
    for mine, eager in zip(intarsia.compile(program)(x), program(x), strict=True):
        exactly(mine, eager)


@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 2)])
def test_strides_of_unique_lines(shape: tuple[int, ...]) -> None:
    def program(x: Tensor, dim: int | None) -> list[Tensor]:
        consecutive = torch.unique_consecutive(x, dim=dim)
        return [*torch.unique(x, dim=dim, return_inverse=True), consecutive, consecutive + 1]

    compiled, x = intarsia.compile(program, options={"on_error": "raise"}), torch.randint(0, 2, shape)
    for dim in (*range(len(shape)), -1, None):
        for given in (x, x.transpose(0, 1).contiguous().transpose(0, 1)):
            for mine, eager in zip(compiled(given, dim), program(given, dim), strict=True):
                exactly(mine, eager)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8])
def test_shifts_by_tensors(dtype: torch.dtype, caplog: pytest.LogCaptureFixture) -> None:
    x, y = torch.tensor([1, 5, 64, 127], dtype=dtype), torch.tensor([0, 1, 7, 70], dtype=dtype)

    def program(x: Tensor, y: Tensor) -> list[Tensor]:
        return [x << y, x >> y, x << 3, x & y, x ^ 5]

    with caplog.at_level(logging.WARNING, "intarsia"):
        for mine, eager in zip(intarsia.compile(program)(x, y), program(x, y), strict=True):
            exactly(mine, eager)
    assert not caplog.text


def test_labels_without_a_class_when_their_number_changes() -> None:
    """The third number is a symbol."""
    compiled = intarsia.compile(nn.functional.one_hot)
    for count in (3, 4, 5):
        exactly(compiled(torch.tensor([0, 2, 1]), count), nn.functional.one_hot(torch.tensor([0, 2, 1]), count))
    for labels, words in (([0, 6, 1], "smaller than num_classes"), ([-1, 0, 1], "non-negative")):
        with pytest.raises(RuntimeError, match=words):
            compiled(torch.tensor(labels), 6)


@torch.enable_grad()
def test_sparse_gradients_that_are_replaced() -> None:
    def run(compiled: Callable[[Any], Any]) -> list[Tensor]:
        torch.manual_seed(1)
        table = nn.Embedding(5, 2, sparse=True)
        optimizer = torch.optim.SparseAdam(table.parameters())

        def step(rows: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = table(rows).square().sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        step = compiled(step)
        return [step(torch.tensor([0, 1])), step(torch.tensor([1, 1, 4])), table.weight.detach()]

    strictly = {"on_error": "raise"}
    for mine, eager in zip(run(lambda f: intarsia.compile(f, options=strictly)), run(lambda f: f), strict=True):
        torch.testing.assert_close(mine, eager)
