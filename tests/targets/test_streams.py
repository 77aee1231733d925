"""Results larger than the caches, written past them: every place of a loop, of rows and of memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import intarsia


def source(fn: Callable[..., object], *args: Tensor) -> str:
    """The C++ of a program."""
    return intarsia.lower(fn, *args).source()


PROGRAMS: dict[str, tuple[Callable[..., Tensor], Callable[[], Tensor]]] = {
    "whole blocks": (lambda x: x * 2 + 1, lambda: torch.randn(4096, 2560)),
    "a rest": (lambda x: x * 2 + 1, lambda: torch.randn(3000 * 3001)),
    "rows of odd length": (lambda x: x - x.amax(-1, keepdim=True), lambda: torch.randn(9001, 1003)),
    "rows longer than a piece": (lambda x: x - x.amax(-1, keepdim=True), lambda: torch.randn(1201, 9001)),
    "half values": (lambda x: x / 2, lambda: torch.randn(3001, 6001).bfloat16()),
    "doubles": (lambda x: x / 2, lambda: torch.randn(1501, 3001, dtype=torch.float64)),
    "integers": (lambda x: x + 1, lambda: torch.randint(9, (1501, 3001))),
    "a transpose": (lambda x: x.t() + 1, lambda: torch.randn(3001, 3003)),
    "parts of a row": (lambda x: torch.cat([x, x * 2], -1), lambda: torch.randn(3001, 1503)),
    "sines of near and far angles": (lambda x: torch.sin(x), lambda: torch.randn(3001, 3003) * 1e4),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_streamed(name: str) -> None:
    fn, draw = PROGRAMS[name]
    args = (draw(),)
    assert "im::stream(" in source(fn, *args)
    compiled, before = intarsia.compile(fn), torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            torch.testing.assert_close(compiled(*args), fn(*args), rtol=2e-6, atol=1e-6)
    finally:
        torch.set_num_threads(before)


def test_smaller_results_are_not() -> None:
    assert "im::stream(" not in source(lambda x: x * 2, torch.empty(1 << 20))


def test_what_a_kernel_reads_again_is_not() -> None:
    """A result that holds values of a row until these are final."""
    x = torch.randn(100, 100_000)
    text = source(lambda x: torch.softmax(x, -1), x)
    assert "out0[" in text and "im::stream(" not in text
    torch.testing.assert_close(intarsia.compile(lambda x: torch.softmax(x, -1))(x), torch.softmax(x, -1))


def test_rows_by_number_are_asked_for_ahead() -> None:
    """The number of the next row is checked, too: the last row has none after it."""

    def norm(ids: Tensor, table: Tensor) -> Tensor:
        return torch.nn.functional.layer_norm(torch.nn.functional.embedding(ids, table), (768,))

    ids, table = torch.randint(999, (300,)), torch.randn(999, 768)
    assert "im::prefetch(" in source(norm, ids, table)
    compiled = intarsia.compile(norm)
    torch.testing.assert_close(compiled(ids, table), norm(ids, table))
    for place in (0, 150, 299):
        wrong = ids.clone()
        wrong[place] = 999
        with pytest.raises(IndexError):
            compiled(wrong, table)
