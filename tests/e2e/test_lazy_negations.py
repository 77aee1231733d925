"""Imaginary parts of conjugates, which torch negates only when they are read: in kernels, behind writes, as arguments, as results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import intarsia


def read_twice(x: Tensor) -> list[Tensor]:
    part = x.conj().imag
    return [part + 0, part.neg() * x.real, part[1:].t().exp(), part.sum(0)]


def written(x: Tensor) -> list[Tensor]:
    y = x * 2
    part = y.conj().imag[:, 1:]
    part.add_(5)
    part[0] = x.real[0, 1:]
    return [part * 1, y]


def beyond(x: Tensor) -> list[Tensor]:
    return [x.conj().as_strided((2, 2), (1, 2)) * 1, x.mH.real * 2, torch.view_as_real(x.mT.conj().resolve_conj()) + 1]


def returned(x: Tensor) -> list[Tensor]:
    part = (x * 2).conj().imag
    return [part, part + 1]


def kept_by_functions(x: Tensor) -> list[Tensor]:
    return [(lambda: x + k)() for k in range(2)]


def numbers(x: Tensor) -> Any:
    return x.dtype, x.is_conj(), x.is_neg(), x.stride(), x.resolve_conj().resolve_neg().tolist()


@pytest.mark.parametrize("f", [read_twice, written, beyond, returned, kept_by_functions])
@pytest.mark.parametrize("lazy", [False, True])
def test_as_eager(f: Callable[[Tensor], list[Tensor]], lazy: bool) -> None:
    torch.manual_seed(0)
    x = torch.randint(-9, 9, (3, 4, 2)).float()
    x = torch.view_as_complex(x).conj() if lazy else torch.view_as_complex(x)
    fast = intarsia.compile(f, options={"on_error": "warn"})
    for _ in range(2):
        assert [numbers(t) for t in fast(x)] == [numbers(t) for t in f(x)]


@torch.enable_grad()
def test_gradients() -> None:
    def f(x: Tensor) -> Tensor:
        part = x.conj().imag
        return (part.neg() ** 2 * x.real + part.exp()).sum()

    leaves = [torch.view_as_complex(torch.arange(12.0).view(3, 2, 2) / 5).requires_grad_() for _ in range(2)]
    for g, leaf in zip((f, intarsia.compile(f)), leaves, strict=True):
        g(leaf).backward()
    torch.testing.assert_close(leaves[1].grad, leaves[0].grad)
