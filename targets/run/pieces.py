"""Programs whose sizes change from call to call: the parts of them whose sizes do not are recorded, each as a CUDA graph of its own.

host/parts.py finds the parts, and `Pieces` runs a program with these recorded. What one part gives lies at the same place in each call, where
later parts find it without a copy.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..torch_private import storage_address
from .capture import Replay, first_line
from .playback import Gpu, Memory, Pool, result_makers

Run = Callable[..., Sequence[Any]]
WORTH = 50  # calls that pay for recording the parts
MOST_CHANGES = 3  # of parameters' places that came before that
log = logging.getLogger("intarsia")


class Pieces:
    """A program whose parts are recorded.

    Args:
        make: makes the program from what becomes of its parts.
        gpu: where it runs.
    """

    def __init__(self, make: Callable[[Callable[[Run], Run]], Run], gpu: Gpu) -> None:
        self.make, self.gpu = make, gpu
        self.key: tuple[Any, ...] = ()
        self.run: Run | None = None
        self.parts: list[_Part] = []
        self.pool: Pool | None = None
        self.recorded = self.calls = self.changes = 0
        self.fixed: set[int] = (
            set()
        )  # tensors, by id, that are the same in each call: parameters while recording, and what parts give
        self.places: set[int] = set()  # storages of what parts give

    def __call__(
        self, args: Sequence[Any], key: tuple[Any, ...], static: Sequence[torch.Tensor], pool: Pool
    ) -> Sequence[Any]:
        """The user's results. The caller holds the pool's lock.

        Args:
            key: stream and addresses of parameters; for others the parts are recorded anew.
            static: the parameters.
            pool: memory of the stream's recordings.
        """
        if self.run is None or key != self.key:
            self.changes += self.run is not None and self.calls < WORTH
            self.key, self.pool, self.calls, self.parts = key, pool, 0, []
            self.fixed, self.places = set(map(id, static)), set()
            self.run = self.make(self._part)
        self.calls += 1
        results = self.run(*args)
        if not any(isinstance(r, torch.Tensor) and storage_address(r) in self.places for r in results):
            return results
        return self._copied(results, key[0])

    @property
    def is_worth_it(self) -> bool:
        """Whether parameters stay where they are for long enough."""
        return self.changes < MOST_CHANGES

    def _part(self, function: Run) -> Run:
        self.parts.append(_Part(function, self))
        return self.parts[-1]

    def _copied(self, results: Sequence[Any], stream: int) -> list[Any]:
        """Results that lie where the next call writes as copies; the others as they are."""
        ours = [isinstance(r, torch.Tensor) and storage_address(r) in self.places for r in results]
        makers, _ = result_makers([r for r, our in zip(results, ours, strict=True) if our], (), self.gpu)
        made: list[Any] = []
        for make in makers:
            made.append(make((), made, stream))
        copies = iter(made)
        return [next(copies) if our else r for r, our in zip(results, ours, strict=True)]


class _Part:
    """One part: recorded when it is called first, then played back."""

    def __init__(self, function: Run, whole: Pieces) -> None:
        self.function, self.whole, self.is_plain = function, whole, False
        self.replay: Replay | None = None
        self.inputs: list[Memory] = []
        self.gives: Sequence[Any] = ()

    def __call__(self, *args: Any) -> Sequence[Any]:
        if self.replay is None and not self.is_plain:
            self._record(args)
        if self.replay is None:
            return self.function(*args)
        stream = self.whole.key[0]
        for memory in self.inputs:
            memory.fill(args[memory.place], stream)
        self.replay(stream)
        return self.gives

    def _record(self, args: Sequence[Any]) -> None:
        whole = self.whole
        assert whole.pool is not None
        given = list(args)
        for k, x in enumerate(args):
            if id(x) not in whole.fixed:
                self.inputs.append(Memory(k, x, whole.gpu))
                given[k] = self.inputs[-1].like(x)
        try:
            self.replay, self.gives = whole.gpu.record(lambda: list(self.function(*given)), whole.pool)
        except Exception as error:  # whatever it is: the program runs without
            log.info("a part of a program is not recorded as a CUDA graph: %s", first_line(error))
            self.is_plain = True
            return
        whole.recorded += 1
        statics = {storage_address(x) for x in args if id(x) in whole.fixed} - whole.places
        whole.fixed |= set(map(id, self.gives))
        whole.places |= {storage_address(x) for x in self.gives} - statics
