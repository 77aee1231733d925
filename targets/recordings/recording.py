"""One recording: what a playback copies and gives, and the memory that it shares with other recordings of a training step."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ..torch_private import Storage, counts_uses, storage_address
from .capture import Replay
from .pieces import Ending
from .recording_memory import WARM, Gpu, Memory, Pool, storages
from .seeds import FixedSeed

RENEWALS = 8  # times that both halves of a step are recorded anew because arguments move
# A program that empties the list of its arguments, and gives each up after its last use.
Taking = Callable[[list[Any]], Sequence[Any]]


@dataclass(eq=False)
class Recording:
    replay: Replay
    inputs: list[Memory]  # what is copied in
    back: list[Memory]  # and what is copied back
    makers: list[Callable[[Sequence[Any], list[Any], int], Any]]  # of the results
    place: Place
    held: list[Any]  # results that callers are given as they lie in the recording's memory
    storages: list[Storage]  # theirs: no other may use one when it is written again
    seed: FixedSeed | None = None  # where the program draws
    ending: Ending | None = None  # gives the results, where large ones are not copied
    replays: int = 0
    last: int = 0  # the program's call that played it back last
    spare: Recording | None = None  # another one, for calls that find results of this one in use
    busy: int = 0  # calls that did before there was one
    dropped: bool = False  # it is not played back any more
    given: Given | None = None  # its results, where another recording may take their memory
    taken: list[Taken] = field(
        default_factory=list
    )  # arguments whose memory it takes, so that only `take` plays it back
    spared: set[Recording] = field(default_factory=set)  # others whose results it does not write to

    @property
    def was_taken(self) -> bool:
        """Whether another recording has taken the memory of one of its results."""
        return self.given is not None and self.given.was_taken

    def is_idle(self) -> bool:
        """Whether nobody uses its results."""
        return all(storage.is_free() for storage in self.storages)

    def is_free(self) -> bool:
        """Whether nobody uses what playing it back would write: its results, and those of others in the same memory that it does not spare."""
        others = self.place.handing
        return self.is_idle() and all(r is self or r in self.spared or r.is_idle() for r in others)


@dataclass
class Place:
    """The memory of recordings, and those of them that hand out results there, in the order in which they were made."""

    pool: Pool
    handing: list[Recording] = field(default_factory=list)

    def sweep(self) -> None:
        """Forget those that are not played back any more once nobody uses their results."""
        self.handing = [r for r in self.handing if not (r.dropped and r.is_idle())]


class Given:
    """Results of a recording that another may take the memory of: callers are given tensors that do not own it.

    Args:
        recorded: the results as they own their memory.
        given: the arguments.
        handed: which results are handed out.

    Attributes:
        results: the results, of which those that are handed out alone do not own their memory.
        was_taken: whether some of it is memory of another recording, too.
    """

    def __init__(
        self, recorded: Sequence[Any], given: Sequence[Any], handed: Container[int], gpu: Gpu, memory: Any
    ) -> None:
        self.results, self.was_taken = list(recorded), False
        self._owners: dict[int, torch.Tensor] = {}  # by storage of what callers are given
        self._shown: dict[int, torch.Tensor] = {}  # the bytes there
        kept = storages(given) | storages([r for k, r in enumerate(recorded) if k not in handed])
        bytes_of: dict[int, torch.Tensor] = {}
        made: dict[int, torch.Tensor] = {}  # a result that is there twice stays one
        for k, r in enumerate(recorded):
            if not isinstance(r, torch.Tensor) or not gpu.holds(r) or (storage := storage_address(r)) in kept:
                continue
            if storage not in bytes_of and r.untyped_storage().nbytes():
                bytes_of[storage] = whole = gpu.shown(r, memory)
                self._owners[storage_address(whole)], self._shown[storage_address(whole)] = r, whole
            if storage in bytes_of:
                self.results[k] = made.setdefault(id(r), Layout.of(r).over(bytes_of[storage]))

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies in this memory."""
        return storage_address(tensor) in self._shown

    def lost(self, tensor: torch.Tensor) -> bool:
        """Whether it does, and another recording has taken the memory."""
        storage = storage_address(tensor)
        return storage in self._shown and storage not in self._owners

    def shown(self, storage: int) -> torch.Tensor:
        """The bytes of a storage."""
        return self._shown[storage]

    def owner(self, storage: int) -> torch.Tensor:
        """What owns them."""
        return self._owners[storage]

    def give_up(self, storage: int) -> torch.Tensor:
        """The same, for the last time; the bytes themselves where that was before."""
        self.was_taken = True
        return self._owners.pop(storage, self._shown[storage])


@dataclass(frozen=True)
class Layout:
    """How a tensor lies in its storage."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: torch.dtype

    @staticmethod
    def of(tensor: torch.Tensor) -> Layout:
        """That of a tensor."""
        return Layout(tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()), tensor.dtype)

    def over(self, base: torch.Tensor) -> torch.Tensor:
        """A tensor that lies so in the storage of this one."""
        made = torch.empty(0, dtype=self.dtype, device=base.device)
        return made.set_(base.untyped_storage(), self.offset, self.shape, self.strides)  # type: ignore[call-overload,no-any-return]


class Taken:
    """An argument whose memory a recording takes.

    Args:
        argument: its number.
        tensor: the argument.
        there: what it is one of.
    """

    def __init__(self, argument: int, tensor: torch.Tensor, there: Given) -> None:
        self.argument, self.there, self.storage, self.layout = (
            argument,
            there,
            storage_address(tensor),
            Layout.of(tensor),
        )
        self._owner = StorageWeakRef(there.owner(self.storage).untyped_storage())

    def again(self) -> torch.Tensor:
        """The argument, made anew; it does not own its memory."""
        return self.layout.over(self.there.shown(self.storage))

    def is_held(self) -> bool:
        """Whether the memory is still the argument's, after the program that takes it has run."""
        return not self._owner.expired()


def handed_over(given: Sequence[Any], taken: Sequence[Taken]) -> list[Any]:
    """The arguments, of which the list holds alone those that are taken, with their memory."""
    made, owners = list(given), dict[int, torch.Tensor]()
    for each in taken:
        if each.storage not in owners:
            owners[each.storage] = each.there.give_up(each.storage)
        made[each.argument] = each.layout.over(owners[each.storage])
    return made


class Halves:
    """The recordings of both halves of a training step: backward's takes the memory of what forward saved, as it reads that for the last time.

    So gradients lie where saved tensors were, as in eager, but forward is not played back while a gradient is in use, nor backward while
    somebody else uses what was saved. Where that happens more than once, each half has memory of its own from then on.

    Attributes:
        places: the memory, by stream.
        takes: whether it is shared.
        version: how often that has changed.
        saved: bytes that forward saves.
    """

    def __init__(self, saved: int = 0) -> None:
        self.saved = saved
        self.places: dict[int, Any] = {}
        self.takes, self.version, self.late = counts_uses, 0, 0

    def find_late(self) -> None:
        """What was saved is in use behind backward's call."""
        self.late += 1
        if self.late >= WARM:
            self.stop()

    def renew(self) -> None:
        """Recordings are made anew; in the end each half's in memory of its own."""
        if self.version >= RENEWALS:
            self.stop()
        elif self.takes:
            self._leave()

    def stop(self) -> None:
        """Recordings are made anew, each half's in memory of its own."""
        if self.takes:
            self.takes = False
            self._leave()

    def _leave(self) -> None:
        """No recording is played back in this memory any more: it goes with the last of them, which nothing here keeps alive."""
        for place in self.places.values():
            place.handing.clear()
        self.places, self.version = {}, self.version + 1
