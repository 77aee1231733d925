"""Memory of large results that is given out again once nobody uses it.

The C library returns blocks of 32 MiB and more to the system when they are freed, so that each call of a function with large results
pays for fresh pages: 0.3 ms a MiB, where writing takes 0.06. Here a program keeps a tensor of its own over the memory of each large result. When
that tensor is the only user of the storage left, the memory can be the result of a later call.

Everything through which memory can be reached counts as a user: other tensors and views, the storage's Python object, NumPy arrays
and DLPack capsules (both hold a tensor), what autograd saved. A storage whose memory was replaced (`resize_`, `share_memory_`) has
another address, and is left alone. A result is a new tensor each time, with a version of its own.

Fresh blocks ask for huge pages, which makes their first use 3.5 times as fast.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import os
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import WeakSet

import torch

from ...ir.snapshots import members
from ...ir.symbols import span
from ..torch_private import Storage, counts_uses, empty_strided_cpu

LARGE = 8 << 20  # bytes: below, taking a block again gains nothing
OWN_PAGES = 32 << 20  # bytes: the C library maps blocks of this size for themselves
# Blocks of one result that are kept in sight; a program that holds more results at once does not drop them soon.
MOST = 4
RECENT = 8  # calls: blocks that none of them needed are given back
ALL = -1

Dims = tuple[int, ...]


class _Block(NamedTuple):
    """One result's memory: our tensor over it, its storage, and where it lies."""

    base: torch.Tensor
    storage: Storage
    address: int


def _is_idle(block: _Block) -> bool:
    return block.storage.is_free() and block.base.data_ptr() == block.address


class Slot:
    """The memory of one result of a program: calling it gives an uninitialised tensor that nobody else uses.

    Safe in several threads: a block is out of the list while it is looked at.
    """

    def __init__(self, limit: int, shape: Dims, strides: Dims, dtype: torch.dtype) -> None:
        self.limit, self.shape, self.strides, self.dtype = limit, shape, strides, dtype
        self.bytes = _bytes(shape, strides, dtype)
        # Tensors made in inference mode stay so for good, and those made outside never become so.
        self.blocks: tuple[list[_Block], list[_Block]] = ([], [])
        self.needed: deque[int] = deque(maxlen=RECENT)
        SLOTS.add(self)

    def __call__(self) -> torch.Tensor:
        if not counts_uses or self.bytes > self.limit:
            return self._fresh()
        blocks = self.blocks[torch.is_inference_mode_enabled()]
        busy, idle = [], []
        while blocks:
            try:
                block = blocks.pop()
            except IndexError:  # another thread took the last one
                break
            if _is_idle(block):
                idle.append(block)
            elif block.base.data_ptr() == block.address:
                busy.append(block)
        taken = idle.pop() if idle else self._new(len(busy))
        if taken is None:
            blocks += busy
            return self._fresh()
        result = taken.base.data
        self.needed.append(len(busy) + 1)
        kept = [taken, *busy[: MOST - 1]]
        kept += idle[: max(0, min(max(self.needed), MOST) - len(kept))]
        blocks += reversed(kept)  # the newest stands last, and is the first that the next call looks at
        return result

    def _fresh(self) -> torch.Tensor:
        """Memory from the system; where it has none, idle blocks are given back first."""
        try:
            try:
                tensor = empty_strided_cpu(self.shape, self.strides, self.dtype)
            except RuntimeError:
                if release_idle() == 0:
                    raise
                tensor = empty_strided_cpu(self.shape, self.strides, self.dtype)
        except RuntimeError as error:
            error.unwritten = True  # type: ignore[attr-defined]  # a program takes its memory in front of its first write
            raise
        want_huge_pages(tensor)
        return tensor

    def _new(self, busy: int) -> _Block | None:
        """A fresh block beside `busy` others, which are out of the list; None where no more may be kept."""
        mine = (busy + 1) * self.bytes
        if kept_bytes() + mine > self.limit:
            release_idle()
            if kept_bytes() + mine > self.limit:
                return None
        base = self._fresh()
        return _Block(base, Storage(base), base.data_ptr())

    def release(self, *, idle_only: bool) -> int:
        """Give blocks back, which ends our part in them; returns the bytes of those that were idle."""
        freed = 0
        for blocks in self.blocks:
            busy = []
            while blocks:
                with contextlib.suppress(IndexError):
                    block = blocks.pop()
                    if _is_idle(block):
                        freed += self.bytes
                    elif idle_only:
                        busy.append(block)
            blocks += busy
        return freed

    def kept(self, *, idle_only: bool = False) -> int:
        """Bytes of the blocks that are in sight, or of those among them that nobody uses."""
        both = [block for blocks in self.blocks for block in list(blocks)]
        return self.bytes * sum(not idle_only or block.storage.is_free() for block in both)


@dataclass
class Results:
    """The memory of a program's large results.

    Attributes:
        limit: bytes that the blocks of all programs may take together; ALL: a quarter of the machine's memory; 0: keep nothing.
    """

    limit: int = ALL
    slots: dict[tuple[object, ...], Slot] = field(default_factory=dict)

    def slot(self, number: int, shape: Dims, strides: Dims, dtype: torch.dtype) -> Slot:
        """The memory of result `number`, the same for all calls under way."""
        key = (number, shape, strides, dtype)
        found = self.slots.get(key)
        if found is None:
            limit = _quarter_of_memory() if self.limit == ALL else self.limit
            found = self.slots.setdefault(key, Slot(limit, shape, strides, dtype))
        return found

    def any(self, number: int, shape: Dims, strides: Dims, dtype: torch.dtype) -> torch.Tensor:
        """Memory of result `number` where its size is known at the call only: that of the last two sizes is kept."""
        key = (number, shape, strides, dtype)
        slot = self.slots.pop(key, None)
        if slot is None:
            slot = self.slot(*key)
            for old in [k for k in list(self.slots) if k[0] == number][:-2]:
                self.slots.pop(old, None)
        self.slots[key] = slot  # the last one used is the last one dropped
        return slot()


SLOTS: WeakSet[Slot] = WeakSet()  # of the programs that are alive: for statistics, and to give memory back


def kept_bytes(*, idle_only: bool = False) -> int:
    """Bytes of all blocks in sight, or of those that only wait to be used again."""
    return sum(slot.kept(idle_only=idle_only) for slot in _slots())


def release_idle() -> int:
    """Give all blocks back that nobody uses; returns their bytes."""
    return sum(slot.release(idle_only=True) for slot in _slots())


def forget_results() -> None:
    """Keep no block of any program in sight; what programs hold lives as long as they want."""
    for slot in _slots():
        slot.release(idle_only=False)


def _slots() -> list[Slot]:
    return members(SLOTS)


def _bytes(shape: Dims, strides: Dims, dtype: torch.dtype) -> int:
    return span(shape, strides) * dtype.itemsize


def _quarter_of_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4
    except (AttributeError, ValueError, OSError):
        return 4 << 30


# -- the C library's heap

FRESH = 4 << 20  # bytes that a call takes from the C library and gives back


@functools.cache
def keep_heap() -> None:
    """Once a process: let the C library keep what is freed at the end of its heap, up to twice OWN_PAGES.

    It would give more than 128 KiB there back to the system, until a block was freed that had pages of its own: then it takes that size
    as what the program works with, and keeps twice as much. What libraries give a step of training comes and goes in each call: a small
    GPT-2's takes 7,000 fresh pages without this, 11 of 66 ms of one core of a Zen 5.
    """
    torch.empty(OWN_PAGES - 4 * mmap.PAGESIZE, dtype=torch.uint8)


# -- huge pages


def _find_madvise() -> Callable[..., int] | None:
    if not sys.platform.startswith("linux") or not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    function = getattr(ctypes.CDLL(None), "madvise", None)
    if function is None:
        return None
    function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int), ctypes.c_int
    return function  # type: ignore[no-any-return]


_madvise = _find_madvise()


def want_huge_pages(tensor: torch.Tensor) -> None:
    """Ask for huge pages under a large tensor that is alone in its pages; a system that has none says so, which changes nothing."""
    size = _bytes(tuple(tensor.shape), tensor.stride(), tensor.dtype)
    if size < OWN_PAGES or _madvise is None:
        return
    page = mmap.PAGESIZE
    first, last = -(-tensor.data_ptr() // page) * page, (tensor.data_ptr() + size) // page * page
    _madvise(first, last - first, mmap.MADV_HUGEPAGE)
