"""`python -m intarsia doctor`: what was found on this machine, and whether a kernel compiled here gives right answers."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .targets.build import (
    CompilerError,
    CompilerNotFound,
    Source,
    compile_sources,
    cpu_facts,
    find_toolchain,
    loaded_openmp,
)
from .targets.cache import shared_cache
from .targets.load import Library

KERNEL = """\
#include "intarsia_math.h"
extern "C" void intarsia_doctor(const float* __restrict__ x, float* __restrict__ y, int64_t n) {
#pragma omp parallel for simd
  for (int64_t i = 0; i < n; i++) y[i] = im::erf(x[i]) * im::exp(-x[i] * x[i]);
}
"""


@dataclass(frozen=True)
class Finding:
    """One row: `advice` says what to do when something is missing, `fatal` that Intarsia cannot compile without it."""

    what: str
    found: str
    ok: bool = True
    advice: str = ""
    fatal: bool = False


def _python() -> Finding:
    ok = sys.version_info >= (3, 11)
    return Finding(
        "Python",
        f"{platform.python_version()} ({platform.machine()})",
        ok,
        "" if ok else "needs Python 3.11 or newer",
        not ok,
    )


def _torch() -> Finding:
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    ok = (major, minor) >= (2, 11)
    return Finding("torch", torch.__version__, ok, "" if ok else "needs torch 2.11 or newer", not ok)


def _compiler() -> Finding:
    try:
        toolchain = find_toolchain()
    except CompilerNotFound as error:
        return Finding("C++ compiler", "not found", False, str(error), True)
    return Finding("C++ compiler", f"{toolchain.version()}\n{toolchain.compiler}")


def _isa() -> Finding:
    model, _ = cpu_facts()
    try:
        isa = find_toolchain().isa
    except CompilerNotFound:
        isa = "no compiler to use it"
    return Finding("processor", f"{model or 'unknown'}: {isa} (torch: {torch.backends.cpu.get_cpu_capability()})")


def _threads() -> Finding:
    return Finding("threads", str(torch.get_num_threads()))


def _openmp() -> Finding:
    runtime = loaded_openmp() or "not seen in this process"
    try:
        shared = find_toolchain().openmp
    except CompilerNotFound:
        return Finding("OpenMP", runtime)
    advice = (
        ""
        if shared
        else "kernels run on one thread: this compiler cannot share torch's OpenMP runtime; install g++ or set CXX"
    )
    return Finding(
        "OpenMP", f"{runtime}\n{'shared with kernels' if shared else 'not usable by kernels'}", shared, advice
    )


def _cache() -> Finding:
    cache = shared_cache()
    entries, size = cache.state()
    if cache.private:
        return Finding(
            "cache",
            f"{cache.folder} cannot be used",
            False,
            "fix its permissions, or set INTARSIA_CACHE_DIR to a folder of yours",
        )
    return Finding("cache", f"{cache.root}\n{entries} entries, {size / 2**20:.1f} of {cache.max_bytes / 2**20:.0f} MiB")


def _triton() -> Finding:
    if importlib.util.find_spec("triton") is None:
        return Finding("Triton", "not installed (only needed for GPUs)")
    try:
        return Finding("Triton", importlib.metadata.version("triton"))
    except importlib.metadata.PackageNotFoundError:
        return Finding("Triton", "installed, version unknown")


def _gpu() -> Finding:
    if not torch.cuda.is_available():
        return Finding("GPU", "none")
    return Finding("GPU", ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())))


def _kernel() -> Finding:
    """Compiles one kernel and compares its answer with torch's."""
    advice = "run again with CXX set to another compiler"
    try:
        toolchain = find_toolchain()
    except CompilerNotFound:
        return Finding("test kernel", "skipped: no compiler", False, "", True)
    folder = Path(tempfile.mkdtemp(prefix="intarsia-doctor-"))
    start = time.perf_counter()
    try:
        [path] = compile_sources([Source("doctor", KERNEL)], toolchain, folder)
        seconds = time.perf_counter() - start
        kernel = Library(path).function("intarsia_doctor", 3)
    except CompilerError as error:  # its source file is kept
        return Finding("test kernel", str(error), False, advice, True)
    except OSError as error:
        return Finding("test kernel", f"cannot be loaded: {error}", False, advice, True)
    x = torch.linspace(-5.0, 5.0, 4099)
    y = torch.full_like(x, float("nan"))
    kernel(x.data_ptr(), y.data_ptr(), x.numel())
    shutil.rmtree(folder, ignore_errors=True)
    error_seen = float((y - torch.erf(x) * torch.exp(-x * x)).abs().max())
    if not error_seen < 1e-6:
        return Finding("test kernel", f"wrong answer, off by {error_seen:.3g}", False, advice, True)
    return Finding("test kernel", f"compiled in {seconds:.2f} s, right answer")


CHECKS: tuple[Callable[[], Finding], ...] = (
    _python,
    _torch,
    _compiler,
    _isa,
    _threads,
    _openmp,
    _cache,
    _triton,
    _gpu,
    _kernel,
)


def doctor(console: Console | None = None) -> int:
    """Prints the table; returns 0 when Intarsia can compile here, else 1 and says what to do."""
    console = console or Console()
    findings = [check() for check in CHECKS]
    table = Table(title="Intarsia doctor", show_lines=False)
    table.add_column("what", no_wrap=True)
    table.add_column("found", overflow="fold")
    table.add_column("", no_wrap=True)
    for finding in findings:
        mark = "[green]ok" if finding.ok else ("[red]missing" if finding.fatal else "[yellow]look")
        table.add_row(finding.what, Text(finding.found), mark)
    console.print(table)
    for finding in findings:
        if finding.advice:
            console.print(f"{finding.what}: {finding.advice}", markup=False, highlight=False)
    usable = not any(finding.fatal for finding in findings)
    if usable:
        console.print("Intarsia can compile on this machine.")
    else:
        console.print("Intarsia cannot compile here: compiled functions would run in eager.")
    return 0 if usable else 1
