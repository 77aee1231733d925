"""`python -m intarsia doctor`: what was found on this machine, and whether kernels compiled here give right answers."""

from __future__ import annotations

import ctypes
import platform
import re
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..compile import compile
from ..explaining.stages import lower
from ..frontend import versions
from ..frontend.runtime.error_origin import blamed
from ..targets.build.cache import shared_cache
from ..targets.build.load import Library
from ..targets.build.toolchain import (
    CompilerError,
    CompilerNotFound,
    Source,
    compile_sources,
    cpu_facts,
    find_toolchain,
    loaded_openmp,
)
from ..targets.triton.device import NoTriton, capability, triton_version
from ..targets.triton.launch import DriverError
from ..targets.triton.worker import TritonError

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
    found = f"{platform.python_version()} ({platform.machine()})"
    return Finding("Python", found, ok, "" if ok else "needs Python 3.11 or newer", not ok)


def _torch() -> Finding:
    version = str(torch.__version__)
    found = f"{version}\ntried with {versions.tried()}"
    if versions.minor(version) < versions.OLDEST:
        return Finding("torch", found, False, f"needs torch {'.'.join(map(str, versions.OLDEST))} or newer", True)
    untried = versions.is_untried(version)
    advice = "newer than those tried: what does not fit runs in eager" if untried else ""
    return Finding("torch", found, not untried, advice)


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
    """Triton is needed where there is a GPU only."""
    needed = torch.cuda.is_available()
    try:
        return Finding("Triton", triton_version())
    except NoTriton as error:
        found = str(error) if needed else f"{error} (only needed for GPUs)"
        return Finding("Triton", found, not needed, "compiled functions run in eager on GPUs" if needed else "")


def _gpu() -> Finding:
    driver = driver_versions()
    built = torch.version.cuda or torch.version.hip or ""
    if not torch.cuda.is_available():
        if not driver:
            return Finding("GPU", "none")
        if not built:
            return Finding(
                "GPU", f"{driver}\nthis torch is built for CPUs", False, "install a torch that is built for GPUs"
            )
        advice = f"torch, built for CUDA {built}, cannot use it: install a newer driver, or a torch for an older CUDA"
        return Finding("GPU", driver, False, advice)
    lines = []
    for gpu in range(torch.cuda.device_count()):
        memory = torch.cuda.get_device_properties(gpu).total_memory / 2**30
        lines.append(f"{gpu}: {torch.cuda.get_device_name(gpu)}, {capability(gpu)}, {memory:.0f} GiB")
    return Finding("GPU", "\n".join([*lines, f"{driver or 'driver unknown'}; torch for {built}"]))


def driver_versions() -> str:
    """The NVIDIA driver, and the newest CUDA that it runs; "" without one."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ""
    number = ctypes.c_int()
    known = library.cuDriverGetVersion(ctypes.byref(number)) == 0
    version = f", up to CUDA {number.value // 1000}.{number.value % 1000 // 10}" if known else ""
    with suppress(OSError):
        found = re.search(r"\b\d+\.\d+(\.\d+)?\b", Path("/proc/driver/nvidia/version").read_text())
        return f"driver {found.group() if found else 'unknown'}{version}"
    return f"driver{version}"


def _gpu_kernel() -> Finding:
    """Compiles one kernel with Triton; where there is a GPU it runs there too."""
    here = torch.cuda.is_available()
    try:
        triton_version()
    except NoTriton:
        return Finding("GPU test kernel", "skipped: no Triton")
    target = capability(torch.cuda.current_device()) if here else "sm_90"
    start = time.perf_counter()
    try:
        lowered = lower(_doctor_function, torch.zeros(8, 64), target="triton" if here else "triton:sm_90")
        lowered.compile()
    except (CompilerNotFound, TritonError, ValueError) as error:
        return Finding(
            "GPU test kernel", str(error), not here, "compiled functions run in eager on GPUs" if here else ""
        )
    seconds = time.perf_counter() - start
    if not here:
        return Finding("GPU test kernel", f"compiled for {target} in {seconds:.2f} s, not run: no GPU")
    try:
        error_seen = _error_on_gpu()
    except (DriverError, RuntimeError) as error:
        text = str(error).partition("; 'python -m intarsia doctor'")[0]
        advice = "driver, torch and Triton do not fit together: install a newer driver, or a torch for an older CUDA"
        return Finding("GPU test kernel", text, False, advice)
    if not error_seen < 1e-5:
        return Finding("GPU test kernel", f"wrong answer, off by {error_seen:.3g}", False, "please report it")
    return Finding("GPU test kernel", f"compiled for {target} in {seconds:.2f} s, right answer")


def _error_on_gpu() -> float:
    """How far the compiled function is from eager on the GPU."""
    x = torch.linspace(-5.0, 5.0, 4096, device="cuda").view(64, 64)
    compiled = compile(_doctor_function, options={"on_error": "raise", "cache": False})
    with torch.no_grad():
        return float((compiled(x) - _doctor_function(x)).abs().max())


def _doctor_function(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(torch.erf(x), -1)


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
    _gpu_kernel,
)


def _safely(check: Callable[[], Finding]) -> Finding:
    """What a check finds; that it failed, and where, if it did."""
    what = getattr(check, "__name__", "check").strip("_").replace("_", " ")
    try:
        return check()
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        text = " ".join(str(error).split())[:300]
        return Finding(
            what,
            f"the check failed: {type(error).__name__}: {text} ({Path(at.filename).name}:{at.lineno})",
            False,
            blamed(error),
            fatal=check in (_python, _torch, _compiler, _kernel),
        )


def doctor(console: Console | None = None) -> int:
    """Prints the table; returns 0 when Intarsia can compile here, else 1 and says what to do."""
    console = console or Console()
    findings = [_safely(check) for check in CHECKS]
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
