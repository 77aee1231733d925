"""Programs of which some steps are recorded and others are not.

Of programs whose sizes change from call to call the parts whose sizes do not (host/partition.py) are recorded, each as a CUDA graph of its own:
`Pieces`. What one part gives lies at the same place in each call, where later parts find it without a copy. Of programs with large results the
steps that write these, the tail (host/tail.py), run after the recording, into memory of the caller's own: `Divided`, `Ending`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..torch_private import storage_address
from .capture import Replay, first_line
from .recording_memory import Gpu, Maker, Memory, Pool, owned, storages, with_copies

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
        # Tensors, by id, that are the same in each call: parameters while recording, and what parts give.
        self.fixed: set[int] = set()
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
        copied = owned(results, self.places, self.gpu)  # the next call writes there
        return with_copies(results, copied, key[0]) if copied else results

    @property
    def is_worth_it(self) -> bool:
        """Whether parameters stay where they are for long enough."""
        return self.changes < MOST_CHANGES

    def _part(self, function: Run) -> Run:
        self.parts.append(_Part(function, self))
        return self.parts[-1]


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
        whole.places |= storages(self.gives) - statics


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
        self.places = storages(values)
        self.copied: list[tuple[int, Maker]] | None = None  # known after the first call

    def __call__(self, args: Sequence[Any], stream: int) -> list[Any]:
        """The user's results. The caller holds the lock of the recording's memory."""
        results = self.run(self.values, *args)
        if self.copied is None:
            self.copied = owned(results, self.places, self.gpu)
        return with_copies(results, self.copied, stream)
