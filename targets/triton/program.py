"""The part of a program that runs on a GPU: its text, its binaries in the cache, and the binding of launches to them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from ...ir.dialects import loop
from ..cache import Entry
from ..load import Library
from .compile import Binary, KernelSource
from .emit import emit_module
from .launch import Driver, kernel_source, launchers
from .worker import WORKERS

KERNELS, LAUNCHES = "kernels.py", "launches"


@dataclass(frozen=True)
class GpuSource:
    """The Triton module, what each of its kernels is compiled from, and the C++ of the launches."""

    text: str
    kernels: tuple[KernelSource, ...]
    launches: str


def gpu_source(kernels: Sequence[loop.Kernel]) -> GpuSource | None:
    """The text of these kernels; None for none."""
    if not kernels:
        return None
    return GpuSource(emit_module(kernels), tuple(map(kernel_source, kernels)), launchers(kernels))


def compile_kernels(source: GpuSource, target: str, folder: Path) -> Future[list[Binary]]:
    """Start compiling the kernels; the caller does other things meanwhile."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / KERNELS
    path.write_text(source.text, encoding="utf-8")
    pool = ThreadPoolExecutor(1)
    found = pool.submit(WORKERS.compile, path, source.kernels, target, folder)
    pool.shutdown(wait=False)
    return found


def stored_source(entry: Entry) -> GpuSource | None:
    """The text as an entry of the cache has it."""
    if KERNELS not in entry.files:
        return None
    return GpuSource(entry.files[KERNELS].read_text(), (), entry.files[f"{LAUNCHES}.cpp"].read_text())


def load_binaries(entry: Entry, launches: Library, gpu: int) -> None:
    """Load the entry's binaries on a GPU, and tell the launches where they are."""
    binaries = [
        Binary(b["name"], b["symbol"], entry.files[f"{b['name']}.cubin"].read_bytes(), b["shared"], b["warps"])
        for b in entry.meta["binaries"]
    ]
    with torch.cuda.device(gpu):
        torch.empty(1, device="cuda")  # makes the device's context the current one of this thread
        found = [driver().load(binary) for binary in binaries]
    functions = (ctypes.c_void_p * len(found))(*found)
    shared = (ctypes.c_uint * len(found))(*(b.shared for b in binaries))
    _tables.append((functions, shared))
    tell = launches.function("intarsia_gpu", 3)
    tell(driver().launch, ctypes.addressof(functions), ctypes.addressof(shared))  # type: ignore[call-arg]


_tables: list[object] = []  # what loaded launches point to: as long as these stay loaded, which is the process's life


@cache
def driver() -> Driver:
    """The CUDA driver.

    Raises:
        OSError: there is none.
    """
    return Driver()
