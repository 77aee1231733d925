"""What all compiled callables of the process do for the time being: run compiled, run in eager, or refuse to compile again."""

from __future__ import annotations

import threading
from typing import Any
from weakref import WeakSet

from ...ir.snapshots import members
from ..torch_private.dynamo import torch_stance

__all__ = ["STANCES", "Stance"]

STANCES = ("default", "force_eager", "eager_on_recompile", "fail_on_recompile", "eager_then_compile")


class Stance:
    """The current stance. While eager is forced, the entries of every callable are put aside: calls that hit cost nothing more."""

    def __init__(self) -> None:
        self.name = "default"
        self._runtimes: WeakSet[Any] = WeakSet()
        # Held for a few steps on lists of entries, never while anything runs; a finalizer may come in between, on the same thread.
        self.changing = threading.RLock()

    def now(self) -> str:
        """The stance that holds for a call that fits nothing compiled: this one, or else the one set for torch.compile."""
        if self.name != "default":
            return self.name
        stance = torch_stance()
        return stance if stance in STANCES else "default"

    def join(self, runtime: Any) -> None:
        """A new compiled callable."""
        with self.changing:
            self._runtimes.add(runtime)

    def runtimes(self) -> list[Any]:
        """All compiled callables that are alive, and their pieces."""
        with self.changing:
            return members(self._runtimes)

    def set(self, name: str) -> None:
        """Change it for all callables."""
        with self.changing:
            if name == "force_eager" != self.name:
                for runtime in self.runtimes():
                    runtime.parked, runtime.entries[:] = list(runtime.entries), []
            elif self.name == "force_eager" != name:
                for runtime in self.runtimes():
                    runtime.entries[:], runtime.parked = runtime.parked, []
            self.name = name


STANCE = Stance()  # process-wide on purpose, as torch's own is
