"""An operator of our own over weights; weights as kernels of our own read them, and the way back: what the attribute `packed` of a call means.

packed = [outputs, inputs, rows, columns]   the weight of a convolution. How it is packed, its rank says, with output channels in blocks of 16,
                                            the last block filled up with zeros:
    5   (blocks, rows, columns, inputs, block)
    4   (blocks, 36, inputs, block): G w G' for each pair of channels, as Winograd's F(4x4, 3x3) wants it (`winograd_weight`)
    3   (rows, columns, channels), with one filter a channel
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

POINTS = (0.0, 0.75, -0.75, 1.5, -1.5)  # and infinity (targets/cpp/include/intarsia_winograd.h)
WINOGRAD = "aten.ops.intarsia.winograd_weight.default"
BLOCK = 16

_LIBRARY = torch.library.Library("intarsia", "DEF")
_LIBRARY.define("winograd_weight(Tensor weight) -> Tensor")


@cache
def _points_of_taps() -> Tensor:
    """G: what three taps, as a polynomial, are at the points, each divided by the distances of its point to the others; (6, 3) float64."""
    rows = []
    for p in POINTS:
        distance = 1.0
        for q in POINTS:
            distance *= p - q if p != q else 1.0
        rows.append([1 / distance, p / distance, p * p / distance])
    return torch.tensor([*rows, [0.0, 0.0, 1.0]], dtype=torch.float64)


@torch.library.impl(_LIBRARY, "winograd_weight", "CompositeExplicitAutograd")
def winograd_weight(weight: Tensor) -> Tensor:
    """(outputs, inputs, 3, 3) -> (blocks, 36, inputs, 16), the same dtype: the weight at the points of Winograd's transform."""
    outputs, inputs = weight.shape[:2]
    blocks = -(-outputs // BLOCK)
    if blocks * BLOCK != outputs:
        weight = torch.cat((weight, weight.new_zeros(blocks * BLOCK - outputs, inputs, 3, 3)))
    taps = weight.reshape(blocks, BLOCK, inputs, 9).permute(0, 3, 2, 1).reshape(blocks, 9, inputs * BLOCK)
    g = _points_of_taps()
    return torch.matmul(torch.kron(g, g).to(weight.dtype), taps).reshape(blocks, 36, inputs, BLOCK)


def unpack(weight: Tensor, shape: Sequence[int]) -> Tensor:
    """The weight of that shape from its packed form."""
    if weight.dim() == 3:
        return weight.permute(2, 0, 1).reshape(tuple(shape))
    if weight.dim() == 4:
        inverse = torch.linalg.pinv(_points_of_taps())
        points = weight.double().reshape(weight.shape[0], 6, 6, *weight.shape[2:])
        weight = torch.einsum("ip,npqcb,jq->nijcb", inverse, points, inverse).to(weight.dtype)
    blocks, rows, columns, inputs, size = weight.shape
    return weight.permute(0, 4, 3, 1, 2).reshape(blocks * size, inputs, rows, columns)[: shape[0]]
