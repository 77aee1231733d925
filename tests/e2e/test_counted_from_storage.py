"""`as_strided` and its relatives count from where a storage begins: in memory that the program makes, and in a caller's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import intarsia

STRICT = {"on_error": "raise"}


def written_beside_an_argument(x: Tensor) -> Any:
    """What is written here is not the first value in the program's memory."""
    x.mul_(2)
    y = x + 1
    y.as_strided((2,), (1,), 0).add_(1)
    return y


def written_by_reductions(x: Tensor) -> Any:
    x.mul_(3)
    y = x.sum(0)
    y.as_strided((2,), (1,), 1).mul_(7)
    return y, y * 2


def written_where_a_view_lies(x: Tensor) -> Any:
    x.mul_(3)
    y = (x + 2)[1:]
    y.as_strided((2, 2), (1, 4)).mul_(7)
    return y, y * 2


def copied(x: Tensor) -> Any:
    x.mul_(3)
    y = x + 1
    return torch.as_strided_scatter(y, x[0, :2] * 5, (2,), (1,), 1), torch.as_strided_copy(y[1:], (2,), (1,), 2), y * 3


def several(x: Tensor) -> Any:
    y = x * 2
    z = y + 1
    w = z.sum(0)
    y.as_strided((2, 2), (4, 1), 1).add_(w[:2])
    z.as_strided((2,), (2,), 1).mul_(3)
    return y, z, w


MADE = [written_beside_an_argument, written_by_reductions, written_where_a_view_lies, copied, several]


@pytest.mark.parametrize("program", MADE)
def test_memory_that_the_program_makes(program: Callable[[Tensor], Any]) -> None:
    compiled = intarsia.compile(program, options=STRICT)
    for rows, columns in ((3, 4), (5, 6)):
        mine, eager = torch.randn(rows, columns), torch.empty(rows, columns)
        eager.copy_(mine)
        torch.testing.assert_close(compiled(mine), program(eager))
        assert torch.equal(mine, eager)


def read_from_the_beginning(x: Tensor) -> Any:
    return x.as_strided((2,), (1,), 0) + 1


def read_from_its_own_place(x: Tensor) -> Any:
    return x.as_strided((2,), (1,)) + 1


def read_through_a_view(x: Tensor) -> Any:
    return torch.as_strided(x[1:], (2,), (1,), 2) + 1, torch.as_strided_copy(x[1:], (2,), (1,), 2)


def written_from_the_beginning(x: Tensor) -> Any:
    x.as_strided((2,), (1,), 0).add_(1)
    return x + 1


GIVEN = [read_from_the_beginning, read_from_its_own_place, read_through_a_view, written_from_the_beginning]


@pytest.mark.parametrize("program", GIVEN)
def test_an_argument_that_begins_elsewhere_in_a_later_call(program: Callable[[Tensor], Any]) -> None:
    compiled = intarsia.compile(program, options={"on_error": "warn", "verify_each": False})
    for first in (0, 1, 2, 0):
        mine, eager = torch.arange(24.0).view(6, 4), torch.arange(24.0).view(6, 4)
        torch.testing.assert_close(compiled(mine[first : first + 3]), program(eager[first : first + 3]))
        assert torch.equal(mine, eager)
