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
import logging
import math
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO

from .processes import ProcessGroup

log = logging.getLogger("intarsia")
_topic = logging.getLogger("intarsia.compiler")  # of `intarsia.set_logs`
HEADER_DIR = Path(__file__).resolve().parents[1] / "cpp" / "include"
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
COMPILE_SECONDS = 600.0  # a file; what takes longer waits for something that does not come
ASK_SECONDS = 30.0  # a compiler's version
LIGHT = "-O1"  # instead of the first of them, where code runs once: less than half of the time
Progress = Callable[[int, int, str], None]


class CompilerNotFound(RuntimeError):
    """No C++ compiler: the text says what was looked for and what to do."""


class CompilerError(RuntimeError):
    """The compiler rejected a file: at most 15 lines, with the path of the kept source file, and of the command beside it.

    `source` is that path.
    """

    def __init__(self, source: Path, command: Sequence[str], status: int, diagnosis: str) -> None:
        shown = [line[:220] for line in diagnosis.splitlines() if line.strip()][:10]
        ended = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
        lines = [f"the C++ compiler failed ({ended}) on {source}", *(f"  {line}" for line in shown)]
        script = Path(source).with_suffix(".sh")
        try:
            script.write_text(shlex.join(command) + "\n", encoding="utf-8")
            lines.append(f"to see it again: sh {script}")
        except OSError:  # a full disk
            lines.append(f"the compiler: {command[0] if command else 'unknown'}")
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
    """A compiler and what is passed to it. `identity` changes when any of it does, and with the compiler's binary."""

    compiler: Path
    words: tuple[str, ...]  # the rest of CXX: "ccache g++", "g++ -m64"
    kind: str  # "gcc" or "clang"
    isa: str
    openmp: bool
    flags: tuple[str, ...]
    link_flags: tuple[str, ...]
    behind: str = ""  # what compiles where `compiler` starts another program
    environment: tuple[tuple[str, str], ...] = ()  # variables that the compiler reads

    @property
    def identity(self) -> str:
        facts = [(f.name, getattr(self, f.name)) for f in fields(self)]
        return hashlib.sha256(repr((facts, _binary(self.compiler))).encode()).hexdigest()

    def version(self) -> str:
        """First line of `--version`. Starts the compiler: for messages only, the cache key uses `identity`."""
        return (_ask((str(self.compiler), *self.words), "--version").splitlines() or ["unknown"])[0]

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
    environment = compiler_environment(os.environ)
    return _toolchain(os.environ.get("CXX", ""), os.environ.get("PATH", ""), openmp, environment, processor())


# What decides where compilers look for headers, libraries and their own parts, and what launchers in front of them start.
_VARIABLES = frozenset(
    [
        "CPATH",
        "C_INCLUDE_PATH",
        "CPLUS_INCLUDE_PATH",
        "LIBRARY_PATH",
        "COMPILER_PATH",
        "GCC_EXEC_PREFIX",
        "GCC_ROOT",
        "DEPENDENCIES_OUTPUT",
        "SUNPRO_DEPENDENCIES",
        "SDKROOT",
        "MACOSX_DEPLOYMENT_TARGET",
        "DEVELOPER_DIR",
        "INCLUDE",
        "LIB",
        "CL",
        "CCC_OVERRIDE_OPTIONS",
        "CLANG_CONFIG_FILE_USER_DIR",
    ]
)
_FAMILIES = ("CCACHE_", "SCCACHE_", "DISTCC_", "ICECC_", "NIX_CFLAGS", "NIX_LDFLAGS", "NIX_CXXSTDLIB")


def compiler_environment(environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The variables that change what a compiler makes of the same command; LD_PRELOAD and the like are not counted."""
    return tuple(sorted((k, v) for k, v in environment.items() if v and (k in _VARIABLES or k.startswith(_FAMILIES))))


@functools.lru_cache(maxsize=8)
def _toolchain(
    cxx: str, path: str, openmp: bool, environment: tuple[tuple[str, str], ...] = (), machine: str = ""
) -> Toolchain:
    try:
        first, *words = shlex.split(cxx) or [""]
    except ValueError as error:
        raise CompilerNotFound(f"CXX is no command ({error}): {cxx!r:.200}") from None
    wanted = [first] if first else list(COMPILERS)
    found = next((found for name in wanted if (found := shutil.which(name, path=path))), None)
    if found is None:
        raise CompilerNotFound(
            f"no C++ compiler found: looked for {', '.join(wanted)} on PATH{' (CXX is set)' if cxx else ''}.\n"
            "Install g++ >= 9 or clang++ >= 10, or set CXX to the compiler to use."
        )
    compiler = Path(found)
    kind, behind = compiler_kind(compiler, tuple(words))
    isa = detect_isa()
    threads, link = openmp_flags(kind, loaded_openmp()) if openmp else ((), ())
    if kind == "gcc" and sys.platform == "linux" and not words and _is_program(compiler):
        link = (*link, *libraries(bool(threads)))
    if openmp and not threads:
        log.warning(
            "kernels run on one thread: %s cannot share torch's OpenMP runtime (%s); install g++ or set CXX",
            compiler.name,
            loaded_openmp(),
        )
    flags = (
        "-std=c++17",
        "-shared",
        "-fPIC",
        "-pipe",
        "-w",
        "-fno-exceptions",
        *OPTIMIZE,
        *isa_flags(kind, isa),
        *(threads or ("-fopenmp-simd",)),
    )
    return Toolchain(compiler, tuple(words), kind, isa, bool(threads), flags, link, behind, environment)


def compiler_kind(compiler: Path, words: tuple[str, ...] = ()) -> tuple[str, str]:
    """("gcc" or "clang", what compiles behind a launcher).

    The names of a program say it; the compiler is asked where they may not: launchers ("ccache g++", "env g++"), scripts, and macOS, where
    clang is installed as g++.
    """
    name = compiler.resolve().name
    if _is_program(compiler) and sys.platform != "darwin":
        if "clang" in name:
            return "clang", ""
        if "g++" in name or "gcc" in name:
            return "gcc", ""
    command = (str(compiler), *words)
    version = _ask(command, "--version")
    kind = "clang" if "clang" in version.lower() else "gcc"
    # What does the work.
    part = Path(_ask(command, f"-print-prog-name={'clang' if kind == 'clang' else 'cc1plus'}").strip())
    return kind, repr((version, _binary(part) if part.is_absolute() else None))


def _is_program(path: Path) -> bool:
    """Whether a file is machine code; a script may start anything."""
    try:
        with open(path, "rb") as file:
            return file.read(2) != b"#!"
    except OSError:
        return False


def _binary(path: Path) -> tuple[str, int, int] | None:
    """What changes with a program's file; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return str(path), found.st_size, found.st_mtime_ns


def _ask(command: tuple[str, ...], question: str) -> str:
    """What a compiler says of itself; "" where it fails, or does not answer."""
    with ProcessGroup() as group, tempfile.TemporaryFile() as said:
        try:
            process = group.start(
                [*command, question], stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.DEVNULL
            )
            process.wait(ASK_SECONDS)
        except (OSError, subprocess.SubprocessError):
            return ""
        said.seek(0)
        return said.read(1 << 16).decode(errors="replace")


# Processors of x86 with less than this one may have, for tests and for kernels that other machines will run: INTARSIA_PROCESSOR names one.
# Each has the features of those before it; the flag is what the compiler is told instead of -march=native.
PROCESSORS = {
    "plain": ("-march=x86-64", {"sse2"}),
    "avx2": ("-march=x86-64-v3", {"avx", "avx2", "fma", "f16c", "bmi1", "bmi2"}),
    "avx512": ("-march=x86-64-v4", {"avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512cd"}),
    "avx512-bf16": ("-march=x86-64-v4 -mavx512bf16", {"avx512_bf16"}),
    # No kernel of our own uses tiles, but the choice between them knows.
    "amx": ("-march=x86-64-v4 -mavx512bf16", {"amx_tile", "amx_bf16"}),
}


def processor() -> str:
    """The processor that kernels are compiled for: a name of PROCESSORS, or "" for this one.

    Raises:
        CompilerNotFound: there is none of that name.
    """
    name = os.environ.get("INTARSIA_PROCESSOR", "")
    if name and name not in PROCESSORS:
        raise CompilerNotFound(f"INTARSIA_PROCESSOR={name!r} is none of {', '.join(PROCESSORS)}")
    return name


def runs_here(name: str) -> bool:
    """Whether this machine runs code for that one of PROCESSORS: those that are only chosen for, always."""
    names = list(PROCESSORS)
    wanted = {f for n in names[: names.index(name) + 1] if n != "amx" for f in PROCESSORS[n][1]}
    return wanted <= _this_processor()[1]


def cpu_facts() -> tuple[str, frozenset[str]]:
    """Model name and feature flags of the processor that kernels are compiled for; empty where /proc/cpuinfo does not exist."""
    name, (model, flags) = processor(), _this_processor()
    if not name:
        return model, flags
    names = list(PROCESSORS)
    return f"{model} ({name})", frozenset(f for n in names[: names.index(name) + 1] for f in PROCESSORS[n][1])


@functools.cache
def _this_processor() -> tuple[str, frozenset[str]]:
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
    """avx512, avx2, neon or plain: what the vector code may use."""
    _, flags = cpu_facts()
    if {"avx512f", "avx512dq", "avx512bw", "avx512vl"} <= flags:
        return "avx512"
    if {"avx2", "fma"} <= flags:
        return "avx2"
    if platform.machine().lower() in ("aarch64", "arm64"):
        return "neon"
    return "plain"


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
    if name := processor():
        march = tuple(PROCESSORS[name][0].split())
        return (*march, "-mprefer-vector-width=512") if isa == "avx512" else march
    return (native, "-mprefer-vector-width=512") if isa == "avx512" else (native,)


def cores() -> int:
    """How many cores this process may use, by its affinity and its container's quota."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(found, cpu_quota())))


@functools.cache
def cpu_quota(system: Path = Path("/sys/fs/cgroup"), process: Path = Path("/proc/self/cgroup")) -> float:
    """How many cores' time the control group of this process, or one around it, may use; infinite without a limit."""
    least = float("inf")
    try:
        groups = [line.split(":", 2) for line in process.read_text().splitlines()]
    except OSError:
        return least
    for _, controllers, path in (group for group in groups if len(group) == 3):
        if controllers == "":  # version 2
            top = system
            names: tuple[str, ...] = ("cpu.max",)
        elif "cpu" in controllers.split(","):
            top = next((p for p in (system / controllers, system / "cpu") if p.is_dir()), system)
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts) + 1):  # a container may see its own group as the top
            least = min(least, _quota(top.joinpath(*parts[:depth]), names))
    return least


def _quota(group: Path, names: Sequence[str]) -> float:
    try:
        quota, period = " ".join((group / name).read_text() for name in names).split()[:2]
        return int(quota) / int(period) if quota != "max" and int(quota) > 0 and int(period) > 0 else float("inf")
    except (OSError, ValueError):
        return float("inf")


@functools.cache
def loaded_openmp() -> str | None:
    """Path of the OpenMP runtime that torch has loaded into this process, None when there is none to be seen.

    Other packages may have brought runtimes of their own: torch's lies beside it, unless it was built with the system's.
    """
    import torch  # loads it

    home = str(Path(torch.__file__).parent)
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:  # macOS: torch's wheels bring it
        brought = (Path(home) / "lib" / name for name in ("libomp.dylib", "libiomp5.dylib"))
        return next((str(path) for path in brought if path.exists()), None)
    found = re.findall(r"^\S+ .*?(/\S*/lib(?:gomp|omp|iomp5)[^/\s]*\.so[^/\s]*)$", maps, re.MULTILINE)
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
        if name.endswith(".dylib"):  # Apple's driver refuses the flag, its compiler takes it
            return ("-Xclang", "-fopenmp"), (str(runtime), f"-Wl,-rpath,{Path(str(runtime)).parent}")
        return ("-fopenmp",), ("-Wl,--as-needed", str(runtime))
    return (), ()


def libraries(threads: bool) -> tuple[str, ...]:
    """What gcc links: not the C++ library, which no kernel uses and which takes half of the linker's time.

    For a compiler that is called by its name alone: other words, and scripts, may ask for code that needs more (sanitizers do).
    """
    return ("-nodefaultlibs", "-Wl,--as-needed", *(("-lgomp",) if threads else ()), "-lm", "-lgcc", "-lc")


@dataclass
class _Job:
    source: Path
    output: Path
    partial: Path
    command: list[str]
    diagnosis: IO[bytes]
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0


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
    (its .cpp stays), or takes longer than COMPILE_SECONDS. On any exception, Ctrl-C too, the running compilers are ended and no partial
    .so remains; they also end when this process is killed.
    """
    with contextlib.suppress(OSError):  # reported with the first file
        out_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    limit = jobs or cores()
    waiting: list[_Job] = []
    for source in sources:
        path, output = out_dir / f"{source.name}.cpp", out_dir / f"{source.name}.so"
        partial = out_dir / f".{source.name}.{os.getpid()}.so"
        try:
            path.write_text(source.text, encoding="utf-8")
            diagnosis = tempfile.TemporaryFile(dir=out_dir)  # noqa: SIM115  (closed below)
        except OSError as error:  # a full disk
            text = f"cannot write the source file: {error.strerror}"
            raise CompilerError(path, toolchain.command(path, partial), 1, text) from error
        command = toolchain.command(path, partial, source.light)
        waiting.append(_Job(path, output, partial, command, diagnosis))
    every, done = list(waiting), 0
    running: list[_Job] = []
    waiting.reverse()
    report = progress or (lambda done, total, name: None)
    report(0, len(every), "")
    group = ProcessGroup()
    try:
        while waiting or running:
            while waiting and len(running) < max(1, limit):
                running.append(waiting.pop())
                _start(running[-1], group)
            for job in running:
                if time.monotonic() - job.started > COMPILE_SECONDS:
                    group.end()
                    text = f"it took longer than {COMPILE_SECONDS:g} seconds and was ended"
                    raise CompilerError(job.source, job.command, -signal.SIGTERM, text)
            finished = [job for job in running if job.process is not None and job.process.poll() is not None]
            for job in finished:
                running.remove(job)
                _finish(job)
                done += 1
                report(done, len(every), job.source.stem)
            if not finished:
                time.sleep(0.002)
    except BaseException:
        group.end()
        for job in every:
            with contextlib.suppress(OSError):
                job.partial.unlink(missing_ok=True)
        raise
    finally:
        group.end()
        for job in every:
            job.diagnosis.close()
    return [job.output for job in every]


def _start(job: _Job, group: ProcessGroup) -> None:
    # What the compiler writes between its steps goes where the result goes: that disk has room, and the folder is removed.
    environment = {**os.environ, "TMPDIR": str(job.output.parent)}
    try:
        job.process = group.start(
            job.command, stdin=subprocess.DEVNULL, stdout=job.diagnosis, stderr=subprocess.STDOUT, env=environment
        )
    except OSError as error:
        raise CompilerError(job.source, job.command, 127, str(error)) from error
    job.started = time.monotonic()
    _topic.debug("    %s", shlex.join(map(str, job.command)))


def _finish(job: _Job) -> None:
    assert job.process is not None
    status = job.process.returncode
    if status != 0 or not job.partial.exists():
        job.diagnosis.seek(0)
        raise CompilerError(job.source, job.command, status, job.diagnosis.read().decode(errors="replace"))
    os.replace(job.partial, job.output)
