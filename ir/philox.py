"""Counter-based random numbers: Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011).

A stream has a seed of 64 bits. Its words of 32 bits are numbered: word n is part n % 4 of the block with the counter n // 4, so that any word is
computed without the ones before it, by any kernel and in any order.
"""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = 0xFFFFFFFF


def philox(seed: Tensor, number: Tensor) -> Tensor:
    """Words of streams, 32 random bits each, as int32.

    Args:
        seed: of the stream (int64).
        number: of the word, not negative (int64, the shape of `seed`).
    """
    parts = torch.stack(philox_block((seed & _LOW, _high(seed)), (number >> 2 & _LOW, _high(number >> 2))))
    word = torch.gather(parts, 0, (number & 3).unsqueeze(0)).squeeze(0)
    return torch.where(word > 0x7FFFFFFF, word - (1 << 32), word).to(torch.int32)


def philox_block(key: tuple[Tensor, Tensor], counter: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The four words of a block: numbers of 32 bits in int64, as all operands are.

    Args:
        key: two words.
        counter: up to four words, the lowest first; what is missing is 0.
    """
    a, b, c, d = (*counter, *[torch.zeros_like(counter[0])] * (4 - len(counter)))
    for k in range(ROUNDS):
        first, second = a * MULTIPLIERS[0], c * MULTIPLIERS[1]  # int64 wraps: all 64 bits of the products are right
        left, right = ((word + k * step) & _LOW for word, step in zip(key, WEYL, strict=True))
        a, b, c, d = _high(second) ^ b ^ left, second & _LOW, _high(first) ^ d ^ right, first & _LOW
    return a, b, c, d


def _high(value: Tensor) -> Tensor:
    return value >> 32 & _LOW
