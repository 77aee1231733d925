"""`torch.istft` in the graph: its waves, gradients and errors are eager's, with any windows, hops and lengths."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import compiled

import intarsia

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "hop": {"hop_length": 4},
    "shorter windows": {"win_length": 10, "hop_length": 3},
    "not centered": {"center": False, "hop_length": 4},
    "normalized": {"normalized": True},
    "length": {"length": 30, "onesided": True},
    "one sample": {"length": 1},
}
WINDOWS = {"hann": torch.hann_window, "hamming": torch.hamming_window, "zeros": torch.zeros}


def outcome(function: Any, *args: Any) -> Any:
    try:
        return function(*args)
    except (RuntimeError, IndexError) as error:
        return str(error)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("options", OPTIONS)
def test_as_eager(options: str, window: str) -> None:
    given = OPTIONS[options]
    of = WINDOWS[window](given.get("win_length", 16))

    def function(spectrum: torch.Tensor) -> torch.Tensor:
        return torch.istft(spectrum * 2, 16, window=of, **given) + 1

    fast, log = compiled(function)
    for sizes in ((2, 9, 12), (2, 9, 12), (3, 9, 15), (9, 12), (2, 9, 1)):
        spectrum = torch.randn(*sizes, dtype=torch.complex64)
        found, wanted = outcome(fast, spectrum), outcome(function, spectrum)
        if isinstance(wanted, str):
            assert found == wanted
        else:
            torch.testing.assert_close(found, wanted, rtol=0, atol=0)
            assert found.stride() == wanted.stride()
        if sizes[-1] != 1:
            assert log.breaks == [] == log.fallbacks


def test_both_sides_and_what_is_left_to_eager() -> None:
    window = torch.hann_window(16)

    def both(s: torch.Tensor) -> torch.Tensor:
        return torch.istft(s, 16, window=window, onesided=False)

    fast, log = compiled(both)
    spectrum = torch.randn(2, 16, 9, dtype=torch.complex64)
    torch.testing.assert_close(fast(spectrum), both(spectrum), rtol=0, atol=0)
    assert log.breaks == []
    for odd in (
        lambda s: torch.istft(s, 16),  # warns
        lambda s: torch.istft(s, 16, window=window, length=500),  # warns, and adds zeros
        lambda s: torch.istft(s, 16, window=window, return_complex=True, onesided=False),
        lambda s: torch.istft(s, 16, window=window, hop_length=0),  # an error, as the next two
        lambda s: torch.istft(s.real, 16, window=window),
        lambda s: torch.istft(s, 18, window=window),
    ):
        fast, log = compiled(odd)
        found, wanted = outcome(fast, spectrum), outcome(odd, spectrum)
        assert found == wanted if isinstance(wanted, str) else torch.equal(found, wanted)
        assert log.breaks


def test_a_wave_that_is_made_again_and_its_gradients() -> None:
    def function(wave: torch.Tensor, window: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            spectrum = torch.stft(wave, 16, 4, window=window, return_complex=True)
            wave = torch.istft(spectrum * 0.5, 16, 4, window=window, length=wave.shape[-1])
        return wave

    fast = intarsia.compile(function, fullgraph=True)
    for length in (32, 32, 40, 48):
        given = [torch.randn(2, length), torch.hann_window(16)]
        leaves = [[t.clone().requires_grad_() for t in given] for _ in range(2)]
        found, wanted = fast(*leaves[0]), function(*leaves[1])
        torch.testing.assert_close(found, wanted)
        found.square().sum().backward()
        wanted.square().sum().backward()
        torch.testing.assert_close([t.grad for t in leaves[0]], [t.grad for t in leaves[1]])
    for one in (function, fast):  # behind calls that are right
        with pytest.raises(RuntimeError, match="window overlap add min"):
            one(torch.randn(2, 32), torch.zeros(16))
