"""Convolutions with windows of one pixel, and their gradients, by the kernel of our own: against float64, for odd sizes and for each processor."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import intarsia
from intarsia.targets.build.toolchain import runs_here

# images, inputs, rows, columns; outputs
SHAPES = [
    ((2, 16, 6, 6), 24),
    ((3, 33, 7, 9), 5),
    ((5, 9, 1, 1), 70),
    ((1, 130, 16, 20), 13),
    ((2, 1, 8, 8), 1),
    ((7, 72, 4, 4), 66),
    ((3, 300, 2, 3), 31),
]


def gradients(images: list[Tensor], weights: list[Tensor], biases: list[Tensor | None]) -> list[Tensor]:
    """Results, and gradients of images, weights and biases; the last image has none."""
    results = [F.conv2d(x, w, b) for x, w, b in zip(images, weights, biases, strict=True)]
    loss = sum([(y * y).sum() for y in results], images[0].new_zeros(()))
    wanted = [*images[:-1], *weights, *(b for b in biases if b is not None)]
    return [*results, *torch.autograd.grad(loss, wanted)]


@pytest.mark.parametrize("processor", ["", "avx512", "avx2", "plain"])
def test_points(processor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processors than this one by the same headers: their vectors are shorter, and their registers fewer."""
    if processor:
        if not runs_here(processor):
            pytest.skip("this machine lacks the instructions")
        monkeypatch.setenv("INTARSIA_PROCESSOR", processor)
    torch.manual_seed(0)
    images = [torch.randn(shape).requires_grad_(k + 1 < len(SHAPES)) for k, (shape, _) in enumerate(SHAPES)]
    weights = [torch.randn(outputs, shape[1], 1, 1, requires_grad=True) for shape, outputs in SHAPES]
    biases = [torch.randn(outputs, requires_grad=True) if k % 2 else None for k, (_, outputs) in enumerate(SHAPES)]
    exact = gradients(
        [x.detach().double().requires_grad_() for x in images],
        [w.detach().double().requires_grad_() for w in weights],
        [None if b is None else b.detach().double().requires_grad_() for b in biases],
    )
    found = intarsia.compile(gradients)(images, weights, biases)
    for one, expected in zip(found, exact, strict=True):
        torch.testing.assert_close(one.double(), expected, rtol=1e-5, atol=2e-5 * expected.abs().max().item())
    x, w = images[0].detach(), weights[0].detach()
    assert count(x, w, (1, 1), (0, 0)) == (processor != "plain")
    assert count(x, w, (2, 1), (0, 0)) == count(x, w, (1, 1), (0, 1)) == 0
    assert count(x.to(memory_format=torch.channels_last), w, (1, 1), (0, 0)) == 0


def count(x: Tensor, weight: Tensor, stride: tuple[int, int], padding: tuple[int, int]) -> int:
    """How often the kernel is called for the gradients of one convolution."""

    def backward(g: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        how = ([weight.shape[0]], stride, padding, (1, 1), False, (0, 0), 1, [True, True, True])
        return torch.ops.aten.convolution_backward(g, x, weight, *how)

    with torch.no_grad():
        g = torch.ones_like(F.conv2d(x, weight, None, stride, padding))
        return intarsia.lower(backward, g, x, weight).ir("buffer").count('own = "points"')


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_do_not_change_a_bit(threads: int) -> None:
    """Sums are taken in the same order by any number of threads."""
    torch.manual_seed(1)
    before = torch.get_num_threads()
    x, w = torch.randn(4, 48, 14, 14, requires_grad=True), torch.randn(96, 48, 1, 1, requires_grad=True)
    run = intarsia.compile(gradients)
    try:
        torch.set_num_threads(1)
        expected = run([x, x.detach()], [w, w], [None, None])
        torch.set_num_threads(threads)
        found = run([x, x.detach()], [w, w], [None, None])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
