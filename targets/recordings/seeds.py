"""Seeds of programs that draw random numbers: an argument of a recording, so that recording one draws nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

Run = Callable[..., Sequence[Any]]


class FixedSeed:
    """The memory that a recorded program reads its seed from: each playback draws one, and puts it there.

    Attributes:
        memory: 64 bits on the GPU.
        asked: whether the program has asked for a seed.
    """

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory, self.asked = memory, False

    def run(self, work: Run, args: Sequence[Any]) -> list[Any]:
        """What the program gives with this seed."""
        _thread.fixed = self
        try:
            return list(work(*args))
        finally:
            _thread.fixed = None


_thread = threading.local()


def draw_seed(device: str) -> torch.Tensor:
    """64 random bits that the generator of a device counts; while the program is recorded the memory that playbacks fill.

    A recorded program asks for one seed (`HostSource.not_recorded`), again where it begins again with copies of what is not aligned.
    """
    fixed: FixedSeed | None = getattr(_thread, "fixed", None)
    if fixed is not None:
        fixed.asked = True
        return fixed.memory
    low, high = -(2**63), 2**63 - 1
    return torch.ops.aten.randint.low(  # type: ignore[no-any-return]
        low, high, (), dtype=torch.int64, device=device, pin_memory=False
    )
