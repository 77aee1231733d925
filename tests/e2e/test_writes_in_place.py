"""Functions that write to their arguments: kernels write there, and torch hears of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import intarsia


def average(means: list[Tensor], values: list[Tensor]) -> None:
    torch._foreach_lerp_(means, values, 0.25)


def host(fn: Any, *args: Any) -> str:
    return str(intarsia.lower(fn, *args).host())


def test_nothing_is_copied_and_versions_count() -> None:
    ours, eager, values = ([torch.rand(shape) for shape in ((3, 5), (7,), (), (2, 0))] for _ in range(3))
    for a, b in zip(ours, eager, strict=True):
        a.copy_(b)
    fast = intarsia.compile(average, fullgraph=True)
    for _ in range(3):
        before = [t._version for t in ours]
        fast(ours, values)
        average(eager, values)
        assert all(t._version > v for t, v in zip(ours[:3], before, strict=False))
        torch.testing.assert_close(ours, eager)
    text = host(average, ours, values)
    assert "increment_version((a0, a1, a2,))" in text and "a0.copy_" not in text


def test_autograd_hears_of_a_write() -> None:
    with torch.enable_grad():
        x, w = torch.rand(4, requires_grad=True), torch.rand(4)
        y = (x * w).sum()
        intarsia.compile(lambda w: w.mul_(2), fullgraph=True)(w)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()


def test_a_packed_weight_is_packed_again() -> None:
    net = torch.nn.Linear(64, 64).eval()
    fast, halve = intarsia.compile(net), intarsia.compile(lambda w: w.mul_(0.5), fullgraph=True)
    x = torch.rand(32, 64)
    for _ in range(3):
        torch.testing.assert_close(fast(x), net(x))
        halve(net.weight.data)
        torch.testing.assert_close(fast(x), net(x))


def test_inference_tensors() -> None:
    with torch.inference_mode():
        x = torch.rand(5)
        wanted = x * 3
        intarsia.compile(lambda x: x.mul_(3), fullgraph=True)(x)
        torch.testing.assert_close(x, wanted)


def test_what_can_fail_writes_last() -> None:
    """An index out of range leaves the argument as it was, as when the write would come later."""

    def program(x: Tensor, i: Tensor) -> Tensor:
        y = x[i]
        x.mul_(2)
        return y

    fast, x = intarsia.compile(program, fullgraph=True), torch.arange(4.0)
    torch.testing.assert_close(fast(x, torch.tensor([3, 0])), torch.tensor([3.0, 0.0]))
    with pytest.raises(IndexError):
        fast(x, torch.tensor([4, 0]))
    torch.testing.assert_close(x, torch.arange(4.0) * 2)


def test_arguments_that_share_memory() -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return y * 2

    fast, base, other = intarsia.compile(program), torch.zeros(6), torch.zeros(6)
    for _ in range(2):
        torch.testing.assert_close(fast(base[:4], base[2:]), program(other[:4], other[2:]))
        torch.testing.assert_close(fast(base[:4], torch.ones(4)), program(other[:4], torch.ones(4)))
        torch.testing.assert_close(base, other)


def test_strided_and_expanded() -> None:
    def program(x: Tensor, y: Tensor) -> None:
        x.mul_(2).add_(y)

    fast = intarsia.compile(program)
    for make in (lambda: torch.rand(4, 6).t(), lambda: torch.rand(8, 8)[::2, ::2], lambda: torch.rand(3, 4).double()):
        ours = make()
        eager, y = ours.clone(), torch.rand(ours.shape).to(ours.dtype)
        fast(ours, y)
        program(eager, y)
        torch.testing.assert_close(ours, eager)
