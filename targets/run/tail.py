"""Recordings with a tail: steps that run after a recording, into memory of the caller's own (see host/tail.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..torch_private import storage_address
from .playback import Gpu, Maker, result_makers

Run = Callable[..., Sequence[Any]]


@dataclass(frozen=True)
class Divided:
    """A program as two functions.

    Attributes:
        make: makes what is recorded, which gives values for the tail, and the tail, which takes these and the program's arguments.
        steps: of the tail.
        results: positions of the results whose memory the tail takes.
    """

    make: Callable[[], Sequence[Run]]
    steps: int
    results: Sequence[int]


class Ending:
    """The tail of a recorded program.

    Args:
        run: the function.
        values: what the recording gives, as it lies in its memory.
        gpu: where it runs.
    """

    def __init__(self, run: Run, values: Sequence[Any], gpu: Gpu) -> None:
        self.run, self.values, self.gpu = run, tuple(values), gpu
        self.places = {storage_address(v) for v in values if isinstance(v, torch.Tensor)}
        self.copied: list[tuple[int, Maker]] | None = (
            None  # results in the recording's memory; known after the first call
        )

    def __call__(self, args: Sequence[Any], stream: int) -> list[Any]:
        """The user's results. The caller holds the lock of the recording's memory."""
        results = list(self.run(self.values, *args))
        if self.copied is None:
            ours = [
                k for k, r in enumerate(results) if isinstance(r, torch.Tensor) and storage_address(r) in self.places
            ]
            makers, _ = result_makers([results[k] for k in ours], (), self.gpu)
            self.copied = list(zip(ours, makers, strict=True))
        done: list[Any] = []
        for k, make in self.copied:
            done.append(make((), done, stream))
            results[k] = done[-1]
        return results
