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


def same(fn: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Compiled equals eager, also when called again."""
    compiled, want = intarsia.compile(fn), fn(x)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("shape", [(1, 1), (0, 5), (5, 0), (0, 0), (1, 17), (17, 1)])
def test_empty_and_single(name: str, shape: tuple[int, ...]) -> None:
    same(FUNCTIONS[name], torch.randn(shape))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_enormous_strides(name: str) -> None:
    memory = torch.randn(3_000_019)
    same(FUNCTIONS[name], memory.as_strided((3, 5), (1_000_003, 199_999)))


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_unaligned_storage_offset(name: str, dtype: torch.dtype) -> None:
    memory = torch.randn(40 * 67 + 3).to(dtype)
    x = memory[3:].view(40, 67)
    want = FUNCTIONS[name](x)
    torch.testing.assert_close(intarsia.compile(FUNCTIONS[name])(x), want, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_more_threads_than_rows(name: str) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(16)
    try:
        same(FUNCTIONS[name], torch.randn(3, 50_000))
    finally:
        torch.set_num_threads(before)


FIRST: dict[str, Callable[[Tensor], Tensor]] = {
    "argmax": lambda x: x.argmax(-1),
    "argmin": lambda x: x.argmin(-1),
    "of_all": lambda x: x.argmax(),
    "columns": lambda x: x.argmin(0),
    "computed": lambda x: (x * 2).max(-1)[1],
}


@pytest.mark.parametrize("name", FIRST)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8])
def test_first_of_the_extreme(name: str, dtype: torch.dtype) -> None:
    for shape in ((3,), (5, 1), (7, 33), (2, 3, 50), (1, 70_000)):
        x = (torch.randn(shape) * 3).abs().to(dtype)
        for special in (None, torch.nan, torch.inf, -torch.inf):
            if special is not None and not dtype.is_floating_point:
                continue
            if special is not None:
                x.view(-1)[x.numel() // 2] = special
                x.view(-1)[-1] = special
            assert torch.equal(intarsia.compile(FIRST[name])(x), FIRST[name](x))
    if dtype.is_floating_point:
        x = torch.full((4, 100), -torch.inf, dtype=dtype)
        assert torch.equal(intarsia.compile(FIRST[name])(x), FIRST[name](x))
