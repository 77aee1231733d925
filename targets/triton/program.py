"""The part of a program that runs on a GPU: its text, its binaries in the cache, and the binding of launches to them."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch

from ...ir.dialects import loop
from ..build.cache import Entry
from ..build.load import Library
from .compile import Binary, KernelSource
from .emit import emit_module
from .launch import Driver, kernel_source, launchers
from .worker import WORKERS, TritonError

KERNELS, LAUNCHES = "kernels.py", "launches"


@dataclass(frozen=True)
class GpuSource:
    """The Triton module, the C++ of the launches, what each kernel is compiled from, and the user's lines that it computes."""

    text: str
    launches: str
    kernels: tuple[KernelSource, ...] = ()
    lines: Mapping[str, Sequence[str]] = field(default_factory=dict)


def gpu_source(kernels: Sequence[loop.Kernel]) -> GpuSource | None:
    """The text of these kernels; None for none."""
    if not kernels:
        return None
    lines = {kernel["sym_name"]: kernel.get("lines", ()) for kernel in kernels}
    return GpuSource(emit_module(kernels), launchers(kernels), tuple(map(kernel_source, kernels)), lines)


def compile_kernels(source: GpuSource, target: str, folder: Path) -> Future[list[Binary]]:
    """Start compiling the kernels; the caller does other things meanwhile."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / KERNELS
    path.write_text(source.text, encoding="utf-8")
    pool = ThreadPoolExecutor(1)
    found = pool.submit(_compile, source, path, target)
    pool.shutdown(wait=False)
    return found


def _compile(source: GpuSource, path: Path, target: str) -> list[Binary]:
    try:
        return WORKERS.compile(path, source.kernels, target, path.parent)
    except TritonError as error:
        raise _reproducible(error, source, target) from None


_REPRODUCER = """\
\"\"\"Compiles the kernel {name} of {module} for {target}, as it failed to compile.\"\"\"

from pathlib import Path

from intarsia.targets.triton.compile import KernelSource, compile_kernel, load_text

module = load_text(Path(__file__).with_name("{module}"), "kernels")
compile_kernel(module, {source!r}, "{target}")
"""


def _reproducible(error: TritonError, source: GpuSource, target: str) -> TritonError:
    """The error with the user's line first, and with a folder of its own that is kept: the module, and a program that compiles the kernel."""
    kernel = next((k for k in source.kernels if k.name == error.kernel), None)
    lines = source.lines.get(error.kernel, ())
    where = f"{', '.join(lines[:4])}: " if lines else ""
    text = f"{where}Triton does not compile the kernel {error.kernel} for {target}:\n{error}"
    if kernel is not None:
        with suppress(OSError):  # a full disk hides no error
            folder = Path(tempfile.mkdtemp(prefix="intarsia-kernel-"))
            (folder / KERNELS).write_text(source.text, encoding="utf-8")
            program = _REPRODUCER.format(name=kernel.name, module=KERNELS, target=target, source=kernel)
            (folder / "reproduce.py").write_text(program, encoding="utf-8")
            text += f"\n  the module: {folder / KERNELS}\n  to see it again: python {folder / 'reproduce.py'}"
    return TritonError(text, error.kernel)


def stored_source(entry: Entry) -> GpuSource | None:
    """The text as an entry of the cache has it."""
    if KERNELS not in entry.data:
        return None
    return GpuSource(entry.text(KERNELS), entry.text(f"{LAUNCHES}.cpp"))


def load_binaries(entry: Entry, launches: Library, gpu: int) -> None:
    """Load the entry's binaries on a GPU, and tell the launches where they are."""
    binaries = [Binary(**b | {"code": entry.data[b["code"]]}) for b in entry.meta["binaries"]]
    with torch.cuda.device(gpu):
        torch.cuda.synchronize()  # makes the device's context the current one of this thread, which getting memory may not
        found = [driver().load(binary) for binary in binaries]
    functions = (ctypes.c_void_p * len(found))(*found)
    shared = (ctypes.c_uint * len(found))(*(b.shared for b in binaries))
    _tables.append((functions, shared))
    tell = launches.function("intarsia_gpu", 3)
    tell(driver().launch, ctypes.addressof(functions), ctypes.addressof(shared))  # type: ignore[call-arg]
    if any(b.boxes for b in binaries):
        numbers = [[n for box in b.boxes for n in box] for b in binaries]
        boxes = [(ctypes.c_uint * len(each))(*each) for each in numbers]
        table = (ctypes.c_void_p * len(boxes))(*map(ctypes.addressof, boxes))
        _tables.append((boxes, table))
        launches.function("intarsia_maps", 2)(driver().encode, ctypes.addressof(table))  # type: ignore[call-arg]


_tables: list[object] = []  # what loaded launches point to: as long as these stay loaded, which is the process's life


@cache
def driver() -> Driver:
    """The CUDA driver.

    Raises:
        DriverError: there is none.
    """
    return Driver()
