"""Packed copies of weights that are alive in this process: one for all programs that want the same, counted, and bounded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from weakref import WeakValueDictionary, finalize

import torch


@dataclass(eq=False)
class Copy:
    """A packed copy.

    Attributes:
        packed: the copy.
        storage: the memory that was packed. Held, its address is not given to other data: equal address and version mean the same memory.
    """

    packed: torch.Tensor
    storage: torch.UntypedStorage


@dataclass
class Copies:
    """All copies that some program holds. Safe to use from several threads."""

    alive: WeakValueDictionary[Hashable, Copy] = field(default_factory=WeakValueDictionary)
    bytes: int = 0
    refused: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)

    def get(
        self, key: Hashable, weight: torch.Tensor, pack: Callable[[torch.Tensor], torch.Tensor], limit: int
    ) -> Copy | None:
        """The copy of that key, made if there is none; None where the copies would take more than `limit` bytes (-1: no limit)."""
        with self.lock:
            found = self.alive.get(key)
            if found is not None:
                return found
            size = weight.nbytes  # the library does not tell the size of its own format: about that of the weight
            if 0 <= limit < self.bytes + size:
                self.refused += 1
                return None
            made = Copy(pack(weight.detach()), weight.untyped_storage())
            self.bytes += size
            self.alive[key] = made
            finalize(made, self._released, size)
            return made

    def _released(self, size: int) -> None:
        with self.lock:
            self.bytes -= size


COPIES = Copies()  # a cache of what can be made again, and statistics


def packed_bytes() -> int:
    """Bytes of the packed copies of weights that are alive in this process."""
    return COPIES.bytes
