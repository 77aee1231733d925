"""Running reductions: the header's `scan` for every vector width, and whole programs, against torch."""

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

SCANS: dict[str, Callable[[Tensor], Tensor]] = {
    "Sum": lambda x: x.cumsum(0),
    "Product": lambda x: x.cumprod(0),
    "Largest": lambda x: x.cummax(0).values,
    "Smallest": lambda x: x.cummin(0).values,
}
TYPES = {"float": torch.float32, "double": torch.float64, "int64_t": torch.int64, "int32_t": torch.int32}
SOURCE = '#include "intarsia_kernel.h"\n' + "\n".join(
    f'extern "C" void {join}_{cpp}({cpp}* x, int64_t n, {cpp}* carry) {{ *carry = im::scan<im::{join}>(x, n, *carry); }}'
    for join in SCANS
    for cpp in TYPES
)
START = {"Sum": 0, "Product": 1}


@pytest.mark.parametrize("flags", MARCHES)
def test_header(flags: tuple[str, ...], tmp_path: Path) -> None:
    (path,) = compile_sources([Source("scans", SOURCE)], toolchain_for(flags), tmp_path)
    library = Library(path)
    torch.manual_seed(0)
    for join, torch_scan in SCANS.items():
        for cpp, dtype in TYPES.items():
            function = library.function(f"{join}_{cpp}", 3)
            for count in (0, 1, 7, 16, 33, 300):
                x = (torch.randn(count) * 3).to(dtype) if join != "Product" else torch.randint(1, 3, (count,)).to(dtype)
                if dtype.is_floating_point and join in ("Largest", "Smallest") and count > 40:
                    x[40] = torch.nan
                lowest = -(2**31) if join == "Largest" else 2**31 - 1
                start = torch.tensor(
                    [START.get(join, lowest if not dtype.is_floating_point else lowest * torch.inf)], dtype=dtype
                )
                if join == "Product" and count > 60:
                    x[50:] = 1
                got, half = x.clone(), count // 3  # in two calls: the carry goes on
                function(got.data_ptr(), half, start.data_ptr())
                function(got.data_ptr() + half * x.element_size(), count - half, start.data_ptr())
                want = torch_scan(x).to(dtype)
                torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-5, atol=1e-5)
                if count:
                    torch.testing.assert_close(start[0], got[-1], equal_nan=True)


PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "rows": lambda x: torch.cumsum(x, -1),
    "columns": lambda x: torch.cumsum(x, 0),
    "around": lambda x: torch.exp(torch.cumsum(x * 0.01, -1)) - x,
    "product": lambda x: torch.cumprod(1 + x * 0.01, -1),
    "two": lambda x: torch.cumsum(x, -1) + torch.cumsum(x * x, -1),
    "shifted": lambda x: torch.cumsum(x, -1).flip(-1) + x,
    "difference": lambda x: torch.cumsum(x, -1)[:, 1:] - torch.cumsum(x, -1)[:, :-1],
    "normalised": lambda x: torch.cumsum(x.exp(), -1) / x.exp().sum(-1, keepdim=True),
    "both": lambda x: torch.cumsum(torch.cumsum(x, -1) * 0.1, -1),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("shape", [(3, 5), (5, 700), (70, 257)])
def test_programs(name: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape)
    want = PROGRAMS[name](x.double()).float()
    torch.testing.assert_close(intarsia.compile(PROGRAMS[name])(x), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int32, torch.int64, torch.bool])
def test_dtypes(dtype: torch.dtype) -> None:
    x = (torch.randn(9, 300) * 2).to(dtype)
    want = torch.cumsum(x, -1)
    got = intarsia.compile(lambda x: torch.cumsum(x, -1))(x)
    assert got.dtype == want.dtype
    torch.testing.assert_close(got, want, rtol=1e-2 if dtype == torch.bfloat16 else 1e-6, atol=1e-6)


def test_infinities_and_nan_stay_behind_their_place() -> None:
    x = torch.ones(2, 600)
    x[0, 100], x[0, 301], x[1, 17] = torch.inf, -torch.inf, torch.nan
    got = intarsia.compile(lambda x: torch.cumsum(x, -1))(x)
    torch.testing.assert_close(got, torch.cumsum(x, -1), equal_nan=True)


def test_sums_are_as_exact_as_in_eager() -> None:
    x = torch.rand(4, 20_000)
    gold = torch.cumsum(x.double(), -1)
    ours = (intarsia.compile(lambda x: torch.cumsum(x, -1))(x) - gold).abs().max()
    assert ours <= (torch.cumsum(x, -1) - gold).abs().max()


def test_a_scan_with_a_follower_where_memory_is_lent() -> None:
    """With symbolic sizes a result's memory holds the softmax meanwhile: no value is stored before all are computed."""

    def f(x: Tensor) -> tuple[Tensor, ...]:
        v = x.softmax(-1).softmax(-1)
        sums = v.cumsum(-1)
        return v * 2, sums.clamp(max=0.5), v - sums

    compiled = intarsia.compile(f, fullgraph=True, dynamic=True)
    for rows in (9, 4):
        x = torch.randn(rows, 6, dtype=torch.float64)
        for got, want in zip(compiled(x), f(x), strict=True):
            torch.testing.assert_close(got, want)
