"""Generated kernels on odd memory: empty and single elements, large strides, unaligned storage, more threads than rows; first places."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import intarsia

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "pointwise": lambda x: torch.sin(x) * 2 + x.sigmoid(),
    "softmax": lambda x: torch.softmax(x, -1),
    "column_sum": lambda x: (x * x).sum(0),
    "full_sum": lambda x: (x + 1).sum(),
    "transpose": lambda x: x.t().contiguous() + 1,
    "cumsum": lambda x: torch.cumsum(x, -1),
    "cat": lambda x: torch.cat([x, x * 2], 0),
}


def apart(functions: dict[str, Callable[[Tensor], Tensor]]) -> Callable[[list[Tensor]], list[Tensor]]:
    """One program in which each function reads a tensor of its own for each tensor of the list, so that kernels stay apart."""
    chosen = list(functions.values())

    def every(inputs: list[Tensor]) -> list[Tensor]:
        return [chosen[i % len(chosen)](x) for i, x in enumerate(inputs)]

    return every


def same(x: Tensor, tolerance: float = 1e-5) -> None:
    """Compiled equals eager for all functions, also when called again; each function has a copy with x's strides and offset."""
    intarsia.reset()
    program = apart(FUNCTIONS)
    inputs = [like(x) for _ in FUNCTIONS]
    compiled, want = intarsia.compile(program), program(inputs)
    for _ in range(2):
        for name, found, expected in zip(FUNCTIONS, compiled(inputs), want, strict=True):
            torch.testing.assert_close(
                found, expected, rtol=tolerance, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}"
            )
    assert intarsia.counters()["graphs"] == 1 and intarsia.counters()["fallbacks"] == 0


def like(x: Tensor) -> Tensor:
    """A copy in memory of its own, with the same place in it."""
    memory = torch.empty(x.untyped_storage().nbytes() // x.element_size(), dtype=x.dtype)
    return memory.as_strided(x.shape, x.stride(), x.storage_offset()).copy_(x)


@pytest.mark.parametrize("shape", [(1, 1), (0, 5), (5, 0), (0, 0), (1, 17), (17, 1)])
def test_empty_and_single(shape: tuple[int, ...]) -> None:
    same(torch.randn(shape))


def test_enormous_strides() -> None:
    memory = torch.randn(3_000_019)
    same(memory.as_strided((3, 5), (1_000_003, 199_999)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_unaligned_storage_offset(dtype: torch.dtype) -> None:
    memory = torch.randn(40 * 67 + 3).to(dtype)
    same(memory[3:].view(40, 67), tolerance=2e-2)


def test_more_threads_than_rows() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(16)
    try:
        same(torch.randn(3, 50_000))
    finally:
        torch.set_num_threads(before)


FIRST: dict[str, Callable[[Tensor], Tensor]] = {
    "argmax": lambda x: x.argmax(-1),
    "argmin": lambda x: x.argmin(-1),
    "of_all": lambda x: x.argmax(),
    "columns": lambda x: x.argmin(0),
    "computed": lambda x: (x * 2).max(-1)[1],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8])
def test_first_of_the_extreme(dtype: torch.dtype) -> None:
    intarsia.reset()
    program = apart(FIRST)
    compiled = intarsia.compile(program)
    inputs = [
        (torch.randn(shape) * 3).abs().to(dtype)
        for shape in ((3,), (5, 1), (7, 33), (2, 3, 50), (1, 70_000), (4, 100))
        for _ in FIRST
    ]
    for special in (None, torch.nan, torch.inf, -torch.inf) if dtype.is_floating_point else (None,):
        if special is not None:
            for x in inputs:
                x.view(-1)[x.numel() // 2] = special
                x.view(-1)[-1] = special
        if special == -torch.inf:
            for x in inputs[-len(FIRST) :]:
                x.fill_(special)
        for i, (found, expected) in enumerate(zip(compiled(inputs), program(inputs), strict=True)):
            assert torch.equal(found, expected), (list(FIRST)[i % len(FIRST)], inputs[i].shape, special)
    assert intarsia.counters()["graphs"] == 1 and intarsia.counters()["fallbacks"] == 0
