"""Weights as kernels of our own read them, and the way back: what the attribute `packed` of a library call means.

packed = [outputs, inputs, rows, columns]   the weight of a convolution in blocks of output channels, (blocks, rows, columns, inputs, block),
                                            the last block filled up with zeros; with one filter a channel, (rows, columns, channels)
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def unpack(weight: Tensor, shape: Sequence[int]) -> Tensor:
    """The weight of that shape from its packed form."""
    if weight.dim() == 3:
        return weight.permute(2, 0, 1).reshape(tuple(shape))
    blocks, rows, columns, inputs, size = weight.shape
    return weight.permute(0, 4, 3, 1, 2).reshape(blocks * size, inputs, rows, columns)[: shape[0]]
