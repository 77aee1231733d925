"""Reductions of columns: several rows a step, the rest, chunks for threads, first places, NaN; and gathers that ask ahead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from toolchains import MARCHES, toolchain_for
from torch import Tensor

import intarsia
from intarsia.targets.build.load import Library
from intarsia.targets.build.toolchain import Source, compile_sources

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: x.sum(0),
    "squares": lambda x: (x * x).sum(0),
    "max": lambda x: x.amax(0),
    "mean of middle": lambda x: x[None].expand(3, -1, -1).mean(1),
    "argmax": lambda x: x.argmax(0),
    "argmin": lambda x: x.argmin(0),
    "argmax of a sum": lambda x: (x + 1).argmax(0),
    "variance": lambda x: x.var(0),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("shape", [(1, 64), (3, 40), (7, 100), (33, 70), (1001, 129), (4100, 64)])
def test_columns(name: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x = torch.randint(-3, 4, shape).float()  # many ties: the first place counts
    if name == "variance" and shape[0] == 1:
        x = x.expand(2, -1).contiguous()
    torch.testing.assert_close(intarsia.compile(FUNCTIONS[name])(x), FUNCTIONS[name](x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int32, torch.int64, torch.int8])
@pytest.mark.parametrize("name", ["max", "argmax", "argmin"])
def test_dtypes(name: str, dtype: torch.dtype) -> None:
    x = torch.randint(-9, 10, (500, 90)).to(dtype)
    assert torch.equal(intarsia.compile(FUNCTIONS[name])(x), FUNCTIONS[name](x))


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_nan_and_infinities(name: str) -> None:
    x = torch.randn(700, 96)
    x[:, 0], x[:, 1] = -torch.inf, torch.inf
    x[300, 2] = x[301, 2] = x[0, 3] = torch.nan
    x[5:, 4] = torch.nan
    assert torch.equal(intarsia.compile(FUNCTIONS[name])(x), FUNCTIONS[name](x))


def test_sizes_that_change() -> None:
    for name in ("squares", "argmax"):
        compiled = intarsia.compile(FUNCTIONS[name], dynamic=True)
        for shape in ((5, 64), (66, 80), (1, 33), (2003, 70)):
            x = torch.randn(shape)
            torch.testing.assert_close(compiled(x), FUNCTIONS[name](x), rtol=1e-5, atol=1e-4)


ROWS = """#include "intarsia_kernel.h"
extern "C" void largest(const float* x, int64_t pitch, int64_t rows, int64_t at, float* best, int64_t* best_at, int64_t lanes) {
  im::arg_rows<im::Largest>(x, pitch, rows, at, best, best_at, lanes);
}
extern "C" void smallest(const int64_t* x, int64_t pitch, int64_t rows, int64_t at, int64_t* best, int64_t* best_at, int64_t lanes) {
  im::arg_rows<im::Smallest>(x, pitch, rows, at, best, best_at, lanes);
}
"""


@pytest.mark.parametrize("flags", MARCHES)
def test_header(flags: tuple[str, ...], tmp_path: Path) -> None:
    (path,) = compile_sources([Source("rows", ROWS)], toolchain_for(flags), tmp_path)
    library = Library(path)
    x = torch.randint(-3, 4, (37, 45)).float()
    x[20, 3] = torch.nan
    for name, values, start, want in (
        ("largest", x, -torch.inf, x.argmax(0)),
        ("smallest", x.nan_to_num().long(), 100, x.nan_to_num().argmin(0)),
    ):
        best, at = torch.full((45,), start, dtype=values.dtype), torch.zeros(45, dtype=torch.int64)
        function = library.function(name, 7)
        function(values.data_ptr(), 45, 20, 0, best.data_ptr(), at.data_ptr(), 45)
        function(values[20:].data_ptr(), 45, 17, 20, best.data_ptr(), at.data_ptr(), 45)
        assert torch.equal(at, want)


@pytest.mark.parametrize("shape", [(1, 300), (40, 2000), (5, 100)])
def test_gather_checks_and_stays_inside(shape: tuple[int, ...]) -> None:
    x, places = torch.randn(shape), torch.randint(shape[1], (shape[0], 77))
    compiled = intarsia.compile(lambda x, places: torch.gather(x, 1, places) * 2)
    assert torch.equal(compiled(x, places), torch.gather(x, 1, places) * 2)
    places[-1, -1] = shape[1]
    with pytest.raises((IndexError, RuntimeError), match="out of"):
        compiled(x, places)


@pytest.mark.parametrize("width, step", [(4, 4), (3, 2), (2, 5), (9, 9)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_max_pool1d(width: int, step: int, dtype: torch.dtype) -> None:
    """Written out as slices, the window of 9 is not; NaN wins."""
    x = torch.randn(3, 5, 60).to(dtype)
    x[0, 0, 7] = float("nan")
    for options in ({}, {"padding": 1}, {"dilation": 2}, {"ceil_mode": True}):

        def fn(x: torch.Tensor, options: dict[str, int] = options) -> torch.Tensor:
            return torch.nn.functional.max_pool1d(x, width, step, **options)

        torch.testing.assert_close(intarsia.compile(fn)(x), fn(x), rtol=0, atol=0, equal_nan=True)

    def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.nn.functional.max_pool1d(x, width, step, return_indices=True)

    for found, expected in zip(intarsia.compile(both)(x), both(x), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


WINDOWS = [
    ((2, 2, 0), True),
    ((3, 2, 1), True),  # padding, elements left out: the padded image is stored
    ((3, 1, 1), True),
    (((2, 3), (3, 2), (1, 1), (2, 1), True), True),
    ((4, 2, 1), False),  # more elements than are written out
]


@pytest.mark.parametrize(("how", "ours"), WINDOWS)
def test_max_pool2d_with_indices(how: tuple[object, ...], ours: bool) -> None:
    """Of equal elements the first counts, of NaN the last; channels-last images go to the library."""
    x = torch.randint(-2, 3, (2, 3, 9, 13)).float()
    x[0, 1, 2:4, 5:8] = float("nan")
    x[1, 0] = -float("inf")

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.nn.functional.max_pool2d(x, *how, return_indices=True)  # type: ignore[no-any-return, arg-type]

    for image in (x, x.to(memory_format=torch.channels_last), x.bfloat16()):
        last = image.is_contiguous(memory_format=torch.channels_last)
        called = "max_pool2d_with_indices" in str(intarsia.explain(fn)(image).graphs[0].library)
        assert called == (last or not ours)
        for found, expected in zip(intarsia.compile(fn)(image), fn(image), strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
            assert found.stride() == expected.stride()


def test_costly_values_of_columns_are_computed_once() -> None:
    x = torch.randn(3, 64, 300)

    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(x, 1) + torch.softmax(x, 1)

    text = intarsia.lower(lambda x: torch.log_softmax(x, 1), x).source()
    assert text.index("im::log(") < text.rindex("for (int64_t r")
    torch.testing.assert_close(intarsia.compile(fn)(x), fn(x))
