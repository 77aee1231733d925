"""The counter-based random numbers of the scalar table."""

import pytest
import torch

from intarsia.ir.philox import philox, philox_block

# Known answers of the authors' library (Random123, kat_vectors): counter, key, result.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]) -> None:
    low, high = (torch.tensor([k]) for k in key)
    words = philox_block((low, high), tuple(torch.tensor([c]) for c in counter))
    assert tuple(int(w) for w in words) == expected


def test_words_are_numbered_through_the_blocks() -> None:
    seed = torch.full((8,), -(1 << 40) - 12345)
    words = philox(seed, torch.arange(8))
    key = (torch.tensor([int(seed[0]) & 0xFFFFFFFF]), torch.tensor([int(seed[0]) >> 32 & 0xFFFFFFFF]))
    blocks = [int(w) for n in range(2) for w in philox_block(key, (torch.tensor([n]),))]
    assert [int(w) & 0xFFFFFFFF for w in words] == blocks
    far = philox(seed[:1], torch.tensor([4 * (1 << 35) + 2]))
    assert int(far) & 0xFFFFFFFF == int(philox_block(key, (torch.tensor([0]), torch.tensor([8])))[2])
