"""Whether memory was written to, also by ways that torch does not count: `.data`, NumPy, a pointer.

A tensor's version counts what is written through it. What is made of a weight and kept between calls (a packed copy, a folded
batch norm, a hoisted constant) must notice every other write as well. Linux (6.7 and later) tells: pages of a range can be marked, a
write takes the mark off, and one system call says whether any is off, and marks them again. For 340 MiB of weights that takes 0.1 ms,
where reading them all takes 20 ms and more. It sees writes of the kernel too, and costs a write to a marked page a fault, once.

Where the system has no such call, refuses it, or cannot know (memory that other processes or devices write to), a checksum over
all of the contents decides.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import threading
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakValueDictionary

import torch

from ...ir.symbols import span

__all__ = ["PAGES", "Contents", "Fingerprint", "seconds_to_ask"]

# The address of a table of (address, bytes) pairs and its length in bytes -> a number that changes with what is there.
Fingerprint = Callable[[int, int], int]

LEAST = 1 << 16  # bytes: less is read faster than asked for


class Contents:
    """What some tensors hold. `same()` says whether they still hold it; addresses and versions are the caller's business.

    Args:
        tensors: on the CPU, with their memory alive as long as this is.
        fingerprint: the compiled checksum.
        watched: whether to watch large ones: it pays for what is asked about again.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], fingerprint: Fingerprint, watched: bool) -> None:
        self.fingerprint, self.asked, self.tensors = fingerprint, watched, [_span(t) for t in tensors]
        self.watched: list[tuple[_Pages, int]] = []
        read: list[tuple[int, int]] = []
        for tensor, (address, size) in zip(tensors, self.tensors, strict=True):
            pages = PAGES.of(tensor) if watched and size >= LEAST else None
            if pages is None:
                read.append((address, size))
                continue
            self.watched.append((pages, pages.now()))  # from here on; then what it holds is read
            read += [(a, b - a) for a, b in ((address, pages.start), (pages.end, address + size)) if b > a]
        self.table = _table(read)
        self.mark = self._read(self.table)
        self.whole = self.mark if not self.watched else self._read(_table(self.tensors))

    def _read(self, table: Any) -> int:
        return self.fingerprint(ctypes.addressof(table), ctypes.sizeof(table)) if table else 0

    def same(self) -> bool:
        """Whether nothing was written; also False where a write may have been seen that changed nothing."""
        for pages, epoch in self.watched:
            if pages.now() != epoch:
                return False
        return not self.table or self._read(self.table) == self.mark


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Address and bytes of the memory from a tensor's first to its last element."""
    return tensor.data_ptr(), span(tensor.shape, tensor.stride()) * tensor.itemsize


def _table(spans: Sequence[tuple[int, int]]) -> Any:
    numbers = [n for span in spans if span[1] for n in span]
    return (ctypes.c_int64 * len(numbers))(*numbers)


def seconds_to_ask(size: int) -> float:
    """About what a call takes to see that so many bytes were not written to (on two cores of a Zen 5)."""
    return 3e-6 + size * (5e-13 if PAGES.works() else 1e-10)


class _Scan(ctypes.Structure):
    """struct pm_scan_arg."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            *("size", "flags", "start", "end", "walk_end", "vec", "vec_len", "max_pages"),
            *("category_inverted", "category_mask", "category_anyof_mask", "return_mask"),
        )
    ]


# From Linux' userfaultfd.h and fs.h.
_USER_MODE_ONLY, _WP_UNPOPULATED, _WP_ASYNC, _REGISTER_WP = 1, 1 << 13, 1 << 15, 1 << 1
_API, _REGISTER, _SCAN = 0xC018AA3F, 0xC020AA00, 0xC0606610
_MARK_AGAIN, _ONLY_MARKED = 1, 2
_WRITTEN, _OF_FILE = 1 << 1, 1 << 2
_SYSCALL = {"x86_64": 323, "aarch64": 282}


class _Pages:
    """A range of whole pages that is watched. `now()` is a number that grows when any of it was written to."""

    def __init__(self, owner: _AllPages, start: int, end: int) -> None:
        self.owner, self.start, self.end = owner, start, end
        self.epoch = 0
        self.lock = threading.Lock()  # around one system call
        self.regions = (ctypes.c_uint64 * 24)()
        self.scan = _Scan(
            ctypes.sizeof(_Scan), _MARK_AGAIN | _ONLY_MARKED, start, end, 0, ctypes.addressof(self.regions), 8, 0,
            0, _WRITTEN, 0, _WRITTEN,
        )  # fmt: skip
        self.address = ctypes.addressof(self.scan)

    def now(self) -> int:
        """How often a write was noticed so far."""
        with self.lock:
            scan, written = self.scan, False
            scan.start = self.start
            while True:
                found = self.owner.ioctl(self.owner.pagemap, _SCAN, self.address)
                written = written or found != 0
                if found < 0 or scan.walk_end >= self.end:  # not watched any more: never the same again
                    break
                scan.start = scan.walk_end
            self.epoch += written
            return self.epoch


class _AllPages:
    """The watched ranges of this process: one for each piece of memory, whoever asks about it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.opened = False
        self.faults = self.pagemap = -1
        self.ranges: WeakValueDictionary[tuple[int, int], _Pages] = WeakValueDictionary()

    def forget(self) -> None:
        """As at the start; a forked child has no watched pages, and must not touch its parent's."""
        for handle in (self.faults, self.pagemap):
            if handle >= 0:
                os.close(handle)
        for pages in list(self.ranges.values()):
            pages.lock = threading.Lock()
        self.__init__()  # type: ignore[misc]

    def of(self, tensor: torch.Tensor) -> _Pages | None:
        """The pages that lie within the memory of a tensor; None where they cannot be watched."""
        if tensor.is_shared() or (torch.cuda.is_initialized() and tensor.is_pinned()):
            return None  # others write to it
        page, (address, size) = mmap.PAGESIZE, _span(tensor)
        start, end = -(-address // page) * page, (address + size) // page * page
        if end - start < LEAST:
            return None
        with self.lock:
            if not self.works():
                return None
            known = self.ranges.get((start, end))
            if known is not None and self._is_watchable(known):
                return known
            if any(start < b and a < end and (a, b) != (start, end) for a, b in list(self.ranges)):
                return None  # one would take the other's notice away
            if not self._register(start, end):
                return None
            made = self.ranges[start, end] = _Pages(self, start, end)
            return made if self._is_watchable(made) else None

    def works(self) -> bool:
        """Whether the system tells."""
        with self.lock:
            if not self.opened:
                self.opened = True
                self._open()
            return self.pagemap >= 0

    def _open(self) -> None:
        number = _SYSCALL.get(platform.machine())
        if number is None or not os.path.exists("/proc/self/pagemap"):
            return
        libc = ctypes.CDLL(None, use_errno=True)
        self.ioctl = libc.ioctl
        self.ioctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p)
        faults = libc.syscall(number, os.O_CLOEXEC | os.O_NONBLOCK | _USER_MODE_ONLY)
        if faults < 0:
            return
        asked = (ctypes.c_uint64 * 3)(0xAA, _WP_UNPOPULATED | _WP_ASYNC, 0)
        if self.ioctl(faults, _API, ctypes.addressof(asked)) != 0:
            os.close(faults)
            return
        try:
            self.faults, self.pagemap = faults, os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            os.close(faults)

    def _register(self, start: int, end: int) -> bool:
        asked = (ctypes.c_uint64 * 4)(start, end - start, _REGISTER_WP, 0)
        return self.ioctl(self.faults, _REGISTER, ctypes.addressof(asked)) == 0

    def _is_watchable(self, pages: _Pages) -> bool:
        """Whether the range is watched, and no page belongs to a file, whose contents others may change."""
        found = (ctypes.c_uint64 * 3)()
        place = pages.start, pages.end, 0, ctypes.addressof(found), 1, 1
        scan = _Scan(ctypes.sizeof(_Scan), _ONLY_MARKED, *place, 0, _OF_FILE, 0, _OF_FILE)
        return bool(self.ioctl(self.pagemap, _SCAN, ctypes.addressof(scan)) == 0)


PAGES = _AllPages()  # what the kernel watches for this process
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=PAGES.forget)
