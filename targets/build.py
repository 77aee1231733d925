"""From C++ text to shared libraries: which compiler, with which flags, several at once, nothing left behind on failure.

One OpenMP runtime per process: torch has loaded one (libgomp in the Linux wheels) and kernels must use the same, or two thread pools
compete for the cores. A library compiled with `g++ -fopenmp` asks for the soname `libgomp.so.1`, and the dynamic loader gives it
the copy that torch loaded under that name. Where torch's copy has another name, it is linked by path, ahead of the compiler's own.
clang speaks only its own runtime's protocol, so with it kernels are threaded when torch runs on libomp or libiomp5, and else not.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

HEADER_DIR = Path(__file__).resolve().parent / "cpp"
COMPILERS = ("g++", "clang++", "c++")
# No -ffast-math: NaN, infinities and signed zeros mean what they mean in eager. Contraction is off because a*b - a*b must be 0, as
# in eager; the math header asks for fused multiply-add where it wants it. errno and floating-point traps are not observable in torch.
# Integers wrap, as in torch. One piece of memory holds values of several types in turn: aliasing is told by __restrict__ alone.
OPTIMIZE = (
    "-O3",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
    "-fwrapv",
    "-fno-strict-aliasing",
    "-fno-semantic-interposition",
)
LIGHT = "-O1"  # instead of the first of them, where code runs once: less than half of the time
Progress = Callable[[int, int, str], None]


class CompilerNotFound(RuntimeError):
    """No C++ compiler: the text says what was looked for and what to do."""


class CompilerError(RuntimeError):
    """The compiler rejected a file: at most 15 lines, with the path of the kept source file.

    `source` is that path.
    """

    def __init__(self, source: Path, command: Sequence[str], status: int, diagnosis: str) -> None:
        shown = [line[:220] for line in diagnosis.splitlines() if line.strip()][:10]
        ended = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
        lines = [
            f"the C++ compiler failed ({ended}) on {source}",
            *(f"  {line}" for line in shown),
            f"command: {' '.join(command)}",
        ]
        super().__init__("\n".join(lines))
        self.source = source


@dataclass(frozen=True)
class Source:
    """One translation unit: `name` (a file name without suffix, unique in its batch) and its text.

    `light`: its functions run too seldom for the compiler to spend long on them.
    """

    name: str
    text: str
    light: bool = False


@dataclass(frozen=True)
class Toolchain:
    """A compiler and what is passed to it. `identity` changes when the compiler's binary, its flags or the processor do."""

    compiler: Path
    words: tuple[str, ...]  # the rest of CXX: "ccache g++", "g++ -m64"
    kind: str  # "gcc" or "clang"
    isa: str
    openmp: bool
    flags: tuple[str, ...]
    link_flags: tuple[str, ...]

    @property
    def identity(self) -> str:
        stat = self.compiler.stat()
        facts = (str(self.compiler), self.words, stat.st_size, stat.st_mtime_ns, self.isa, self.flags, self.link_flags)
        return hashlib.sha256(repr(facts).encode()).hexdigest()

    def version(self) -> str:
        """First line of `--version`. Starts the compiler: for messages only, the cache key uses `identity`."""
        return (_ask_version((str(self.compiler), *self.words)).splitlines() or ["unknown"])[0]

    def command(self, source: Path, output: Path, light: bool = False) -> list[str]:
        """Command line that turns a source file into a shared library."""
        return [
            str(self.compiler),
            *self.words,
            *(LIGHT if light and flag == OPTIMIZE[0] else flag for flag in self.flags),
            f"-I{HEADER_DIR}",
            str(source),
            "-o",
            str(output),
            *self.link_flags,
        ]


def find_toolchain(*, openmp: bool = True) -> Toolchain:
    """The compiler named by CXX, else the first of g++, clang++ and c++ on PATH. No process is started for gcc.

    Raises CompilerNotFound.
    """
    return _toolchain(os.environ.get("CXX", ""), os.environ.get("PATH", ""), openmp)


@functools.lru_cache(maxsize=8)
def _toolchain(cxx: str, path: str, openmp: bool) -> Toolchain:
    first, *words = shlex.split(cxx) or [""]
    wanted = [first] if first else list(COMPILERS)
    found = next((found for name in wanted if (found := shutil.which(name, path=path))), None)
    if found is None:
        raise CompilerNotFound(
            f"no C++ compiler found: looked for {', '.join(wanted)} on PATH{' (CXX is set)' if cxx else ''}.\n"
            "Install g++ >= 9 or clang++ >= 10, or set CXX to the compiler to use."
        )
    compiler = Path(found)
    kind = compiler_kind(compiler, tuple(words))
    isa = detect_isa()
    threads, link = openmp_flags(kind, loaded_openmp()) if openmp else ((), ())
    flags = (
        "-std=c++17",
        "-shared",
        "-fPIC",
        "-pipe",
        "-w",
        *OPTIMIZE,
        *isa_flags(kind, isa),
        *(threads or ("-fopenmp-simd",)),
    )
    return Toolchain(compiler, tuple(words), kind, isa, bool(threads), flags, link)


def compiler_kind(compiler: Path, words: tuple[str, ...] = ()) -> str:
    """ "gcc" or "clang", from the names that the command leads to; asked of the compiler where they do not say."""
    names = " ".join((compiler.resolve().name, *words))
    if "clang" in names:
        return "clang"
    if "g++" in names or "gcc" in names:
        return "gcc"
    return "clang" if "clang" in _ask_version((str(compiler), *words)) else "gcc"


def _ask_version(command: tuple[str, ...]) -> str:
    try:
        return subprocess.run([*command, "--version"], capture_output=True, text=True, check=False, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


@functools.cache
def cpu_facts() -> tuple[str, frozenset[str]]:
    """Model name and feature flags of the first processor; empty where /proc/cpuinfo does not exist."""
    model, flags = platform.processor(), frozenset[str]()
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name.strip() == "model name":
                    model = value.strip()
                if name.strip() in ("flags", "Features"):
                    flags = frozenset(value.split())
                if not line.strip():  # the first processor ends here
                    break
    except OSError:
        pass
    return model, flags


def detect_isa() -> str:
    """avx512, avx2, neon or baseline: what the vector code may use."""
    _, flags = cpu_facts()
    if {"avx512f", "avx512dq", "avx512bw", "avx512vl"} <= flags:
        return "avx512"
    if {"avx2", "fma"} <= flags:
        return "avx2"
    if platform.machine().lower() in ("aarch64", "arm64"):
        return "neon"
    return "baseline"


def dots_bfloat16() -> bool:
    """Whether AVX-512's dot product of bfloat16 is the fastest way to multiply: it is there, and tiles (AMX) are not."""
    _, flags = cpu_facts()
    return "avx512_bf16" in flags and "amx_bf16" not in flags


def cpu_identity() -> str:
    """Hash of everything that -march=native looks at: part of the cache key."""
    model, flags = cpu_facts()
    return hashlib.sha256(repr((platform.machine(), model, sorted(flags))).encode()).hexdigest()[:16]


def isa_flags(kind: str, isa: str) -> tuple[str, ...]:
    """Flags for the machine that compiles; 512-bit vectors must be asked for, compilers prefer half of them."""
    native = "-mcpu=native" if isa == "neon" else "-march=native"
    return (native, "-mprefer-vector-width=512") if isa == "avx512" else (native,)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def loaded_openmp() -> str | None:
    """Path of the OpenMP runtime that torch has loaded into this process, None when there is none to be seen.

    Other packages may have brought runtimes of their own: torch's lies beside it, unless it was built with the system's.
    """
    import torch  # loads it

    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return None
    found = re.findall(r"^\S+ .*?(/\S*/lib(?:gomp|omp|iomp5)[^/\s]*\.so[^/\s]*)$", maps, re.MULTILINE)
    home = str(Path(torch.__file__).parent)
    return min(found, key=lambda path: not path.startswith(home), default=None)


def openmp_flags(kind: str, runtime: str | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(compile flags, link flags) that make kernels share `runtime`; two empty tuples where that is impossible."""
    name = Path(runtime).name if runtime else ""
    if kind == "gcc":
        if name in ("", "libgomp.so.1"):
            return ("-fopenmp",), ()
        # The path comes first and answers every symbol, so that the compiler's own libgomp is not needed.
        return ("-fopenmp",), ("-Wl,--as-needed", str(runtime))
    if name.startswith(("libomp", "libiomp5")):
        return ("-fopenmp",), ("-Wl,--as-needed", str(runtime))
    return (), ()


@dataclass
class _Job:
    source: Path
    output: Path
    partial: Path
    command: list[str]
    diagnosis: IO[bytes]
    process: subprocess.Popen[bytes] | None = None


def compile_sources(
    sources: Sequence[Source],
    toolchain: Toolchain,
    out_dir: Path,
    *,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> list[Path]:
    """Writes `out_dir/name.cpp` and compiles each to `out_dir/name.so`, at most `jobs` at once; returns the .so paths in order.

    `progress(done, total, name)` is called before the first file and after each. Raises CompilerError for the first file that fails
    (its .cpp stays). On any exception, Ctrl-C too, the running compilers are ended and no partial .so remains.
    """
    with contextlib.suppress(OSError):  # reported with the first file
        out_dir.mkdir(parents=True, exist_ok=True)
    limit = jobs or cores()
    waiting: list[_Job] = []
    for source in sources:
        path, output = out_dir / f"{source.name}.cpp", out_dir / f"{source.name}.so"
        partial = out_dir / f".{source.name}.{os.getpid()}.so"
        try:
            path.write_text(source.text, encoding="utf-8")
        except OSError as error:  # a full disk
            raise CompilerError(
                path, toolchain.command(path, partial), 1, f"cannot write the source file: {error}"
            ) from error
        diagnosis = tempfile.TemporaryFile()  # noqa: SIM115  (closed below)
        command = toolchain.command(path, partial, source.light)
        waiting.append(_Job(path, output, partial, command, diagnosis))
    every, done = list(waiting), 0
    running: list[_Job] = []
    waiting.reverse()
    tell = progress or (lambda done, total, name: None)
    tell(0, len(every), "")
    try:
        while waiting or running:
            while waiting and len(running) < max(1, limit):
                running.append(waiting.pop())
                _start(running[-1])
            finished = [job for job in running if job.process is not None and job.process.poll() is not None]
            for job in finished:
                running.remove(job)
                _finish(job)
                done += 1
                tell(done, len(every), job.source.stem)
            if not finished:
                time.sleep(0.002)
    except BaseException:
        for job in running:
            _stop(job)
        for job in every:
            job.partial.unlink(missing_ok=True)
        raise
    finally:
        for job in every:
            job.diagnosis.close()
    return [job.output for job in every]


def _start(job: _Job) -> None:
    # Its own session: Ctrl-C in a terminal reaches us alone, and the driver ends together with the programs that it runs.
    try:
        job.process = subprocess.Popen(
            job.command,
            stdin=subprocess.DEVNULL,
            stdout=job.diagnosis,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise CompilerError(job.source, job.command, 127, str(error)) from error


def _finish(job: _Job) -> None:
    assert job.process is not None
    status = job.process.returncode
    if status != 0 or not job.partial.exists():
        job.diagnosis.seek(0)
        raise CompilerError(job.source, job.command, status, job.diagnosis.read().decode(errors="replace"))
    os.replace(job.partial, job.output)


def _stop(job: _Job) -> None:
    if job.process is None or job.process.poll() is not None:
        return
    try:
        os.killpg(job.process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        job.process.kill()
    job.process.wait()
