"""Convolutions with one filter a channel, and their gradients, by the kernel of our own: against float64, for odd sizes and for each processor."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import intarsia
from intarsia.targets.build.toolchain import runs_here

# images, channels, rows, columns; window; steps; zeros around the image
SHAPES = [
    ((2, 16, 6, 6), (3, 3), (1, 1), (1, 1)),
    ((3, 33, 7, 9), (5, 5), (1, 1), (2, 2)),
    ((1, 9, 11, 8), (3, 5), (2, 3), (0, 4)),
    ((5, 40, 5, 16), (7, 1), (2, 1), (3, 0)),
    ((2, 300, 4, 4), (4, 6), (1, 2), (3, 5)),
    ((1, 17, 21, 20), (2, 7), (3, 2), (1, 6)),
]  # fmt: skip


def gradients(images: list[Tensor], weights: list[Tensor]) -> list[Tensor]:
    """Results, and gradients of images and weights; the last image has none."""
    results = [
        F.conv2d(x, w, None, stride, padding, 1, x.shape[1])
        for x, w, (_, _, stride, padding) in zip(images, weights, SHAPES, strict=True)
    ]
    loss = sum([(y * y).sum() for y in results], images[0].new_zeros(()))
    wanted = [*images[:-1], *weights]
    return [*results, *torch.autograd.grad(loss, wanted)]


@pytest.mark.parametrize("processor", ["", "avx2", "plain"])
def test_planes(processor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processors than this one by the same headers: their vectors are shorter, and their registers fewer."""
    if processor:
        if not runs_here(processor):
            pytest.skip("this machine lacks the instructions")
        monkeypatch.setenv("INTARSIA_PROCESSOR", processor)
    torch.manual_seed(0)
    images = [torch.randn(shape).requires_grad_(k + 1 < len(SHAPES)) for k, (shape, *_) in enumerate(SHAPES)]
    weights = [torch.randn(shape[1], 1, *window, requires_grad=True) for shape, window, *_ in SHAPES]
    exact = gradients(
        [x.detach().double().requires_grad_() for x in images], [w.detach().double().requires_grad_() for w in weights]
    )
    with torch.no_grad():
        calls = (
            intarsia.lower(gradients_of_one, *[t.detach() for t in (images[0], weights[0])])
            .ir("buffer")
            .count('own = "planes"')
        )
    assert calls == (processor != "plain")
    for found, expected in zip(intarsia.compile(gradients)(images, weights), exact, strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=2e-5 * expected.abs().max().item())


def gradients_of_one(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Of the first shape, by the operator."""
    how = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 16, [True, True, False])
    of_x, of_weight, _ = torch.ops.aten.convolution_backward(torch.ones_like(x), x, weight, *how)
    return of_x, of_weight
