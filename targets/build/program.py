"""From the `buffer` level to a callable: kernels into a few translation units, compiled side by side, loaded, bound to the host program."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from torch import Tensor
from xdsl.dialects.builtin import ModuleOp

from ...ir.dialects import loop
from ...ir.syntax import Op
from ..cpp import call_kernels, emit
from ..cpp.translation_units import units_of
from ..host.host import host_source
from ..host.kernels import Callee, Callees, one_device, runs_on_gpu
from ..host.library import WEIGHTS_SOURCE, Fingerprint, Library
from ..host.pool import Results
from ..host.source import HostSource
from ..recordings.graphs import Recorded
from ..run.load import Run, load_program, load_taking
from ..triton import launch
from ..triton.program import KERNELS, LAUNCHES, GpuSource, compile_kernels, gpu_source, load_binaries, stored_source
from ..triton.worker import TritonError
from .cache import Cache, Entry, has_room
from .load import Calls, call_name
from .load import Library as SharedLibrary
from .toolchain import CompilerError, Progress, Source, Toolchain, compile_sources

_topic = logging.getLogger("intarsia.compiler")  # of `intarsia.set_logs`
HOST = "host.bin"  # of an entry: the host program as it is loaded; "host.py" is for readers


class UnusableLibrary(RuntimeError):
    """The machine does not load what its compiler made."""


# Of a kernel that Python calls as a function of its own; beyond, ctypes costs little beside reading them.
MOST_ARGUMENTS = 32


@dataclass(frozen=True)
class Generated:
    """All text that a module becomes.

    Attributes:
        units: the C++ translation units.
        host: the host program.
        ir: the module's text at the `buffer` level.
        gpu: the Triton module of kernels on a GPU, None without such.
    """

    units: tuple[Source, ...]
    host: HostSource
    ir: str = ""
    gpu: GpuSource | None = None


@dataclass
class Program:
    """A compiled program: `run(*args)` gives the user's results.

    Attributes:
        run: the callable.
        generated: its text.
        compiler_calls: how many times the C++ compiler ran for it (0 when it came from the cache).
        seconds: time by phase ("emit", "c++", "load").
        key: its key in the cache.
        recorded: its parts that become CUDA graphs.
        functions, library: what its text calls.
        constants: tensors of the graph that are given behind its inputs, as the last arguments.
        may_take: no call so far went to eager.
    """

    run: Run
    generated: Generated
    compiler_calls: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    key: str = ""
    recorded: list[Recorded] = field(default_factory=list)
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    library: Library = field(default_factory=Library)
    constants: tuple[Tensor, ...] = ()
    may_take: bool = True

    def take(self, results: Results | None = None) -> Callable[[list[Any]], Sequence[Any]] | None:
        """What calls a form of `run` with a list of the graph's inputs, which it empties, each after its last use; None: there is none.

        It has an arena of its own, and takes the place of `run`.
        """
        taken, constants = load_taking(self.generated.host, self.functions, self.library, results), self.constants
        if taken is None:
            return None
        self.run = lambda *args: taken([*args])

        def call(given: list[Any]) -> Sequence[Any]:
            given += constants
            return taken(given)

        return call if constants else taken

    def take_recorded(self, given: list[Any]) -> Sequence[Any] | None:
        """Play back a recording that takes the memory of some of the graph's inputs; None, and the list is as it was, where there is none."""
        count = len(given)
        given += self.constants
        results = self.recorded[0].take(given)
        if results is None:
            del given[count:]
        return results


def generate(module: ModuleOp, library: Library) -> Generated:
    """The C++, the Triton and the host program of a module at the `buffer` level.

    Raises:
        SeveralGPUs: kernels run on more than one GPU.
    """
    found = emit.kernels_of(module)
    for kernel in found:
        one_device(kernel)
    gpu = gpu_source([kernel for kernel in found if runs_on_gpu(kernel)])
    calls = call_kernels.call_kernels(module)
    host = host_source(module, library, callees(found, calls))
    weights = WEIGHTS_SOURCE if host.steps or host.make_constants is not None else ""
    units = units_of(module, calls, weights + (calls_source(host.kernels, host.quick) if gpu is None else ""))
    if gpu is not None:
        units = (Source(LAUNCHES, gpu.launches), *units)
    return Generated(units, host, gpu=gpu)


def callees(kernels: Sequence[loop.Kernel], calls: Mapping[Op, call_kernels.CallKernel]) -> Callees:
    """What the targets say of kernels, and of library calls that kernels carry out."""
    found: dict[Op, Callee] = {k: (launch.callee if runs_on_gpu(k) else emit.callee)(k) for k in kernels}
    return found | {op: Callee(c.name, c.symbols, True, packs=c.packs) for op, c in calls.items()}


def build(
    generated: Generated,
    key: str,
    toolchain: Callable[[], Toolchain],
    cache: Cache,
    library: Library,
    *,
    progress: Progress | None = None,
    results: Results | None = None,
    gpu: str = "",
    share: bool = True,
) -> Program:
    """Compile, keep in the cache, and load; wait for another thread or process that compiles the same.

    Args:
        gpu: what Triton compiles for, such as "sm_90".
        share: whether an entry that is there by now will do.

    Raises:
        CompilerNotFound, CompilerError: see `targets.build`.
        TritonError: see `targets.triton.worker`.
        NoRoom: see `targets.cache`.
        UnusableLibrary: what was compiled cannot be loaded.
    """
    seconds: dict[str, float] = {}
    compiled = partial(_compiled, generated, key, toolchain, cache, progress, gpu, seconds)
    with cache.alone(key):
        entry, program = cache.get(key) if share else None, None
        if entry is not None:  # somebody was first
            try:
                program = load(entry, library, results)
            except OSError as error:
                cache.drop(entry, error)
        if program is None:
            entry = _with_room(compiled, cache, key)
            try:
                program = load(entry, library, results)
            except OSError as error:
                raise UnusableLibrary(f"what was compiled cannot be loaded: {error}") from error
            program.compiler_calls = len(generated.units)
    program.seconds = seconds | program.seconds
    return program


def _with_room(compiled: Callable[[Path], Entry], cache: Cache, key: str) -> Entry:
    """A new entry, compiled beside the cache; on another disk, or in memory, where that one is full."""
    folder = cache.workplace(key)
    try:
        return compiled(folder)
    except (OSError, CompilerError, TritonError) as error:
        if has_room(folder):
            raise
        shutil.rmtree(folder, ignore_errors=True)
        cache.leave(error if isinstance(error, OSError) else OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    return compiled(cache.workplace(key))


def _compiled(
    generated: Generated,
    key: str,
    toolchain: Callable[[], Toolchain],
    cache: Cache,
    progress: Progress | None,
    gpu: str,
    seconds: dict[str, float],
    folder: Path,
) -> Entry:
    """Compile in `folder`, and keep the result; the folder stays where something fails to compile, so that it can be looked at."""
    start = time.perf_counter()
    libraries: Sequence[Path] = ()
    binaries = None if generated.gpu is None else compile_kernels(generated.gpu, gpu, folder)
    if generated.units:
        libraries = compile_sources(generated.units, toolchain(), folder, progress=progress)
    made = [] if binaries is None else binaries.result()
    if made:
        seconds["triton"] = time.perf_counter() - start
    seconds["c++"] = time.perf_counter() - start
    if made or libraries:
        what = [f"{unit.name}.cpp ({len(unit.text)} characters)" for unit in generated.units]
        what += [f"{len(made)} kernels of Triton"] if made else []
        _topic.info("compiled %s in %.2f s", " and ".join(what), seconds["c++"])
    files: dict[str, bytes | str | Path] = {path.name: path for path in libraries}
    files |= {f"{unit.name}.cpp": unit.text for unit in generated.units}
    files |= {"host.py": generated.host.text, "module.ir": generated.ir}
    files[HOST] = generated.host.as_bytes(f"<intarsia host program {key[:12]}>")
    meta: dict[str, Any] = {"units": [unit.name for unit in generated.units]}
    if generated.gpu is not None:
        files |= {KERNELS: generated.gpu.text} | {f"{b.name}.cubin": b.code for b in made}
        meta["binaries"] = [asdict(replace(b, code=b"")) | {"code": f"{b.name}.cubin"} for b in made]
    entry = cache.put(key, files, meta)
    shutil.rmtree(folder, ignore_errors=True)
    return entry


def load(entry: Entry, library: Library, results: Results | None = None) -> Program:
    """The program of a cache entry; `results` is where the memory of large results comes from."""
    start = time.perf_counter()
    host = HostSource.from_bytes(entry.data[HOST])
    units = tuple(Source(name, entry.text(f"{name}.cpp")) for name in entry.meta["units"])
    keep = host.gpu is not None  # the driver and recordings know what is in it
    shared = [SharedLibrary(entry.folder / f"{name}.so", keep) for name in entry.meta["units"]]
    functions = bind_kernels(host.kernels, shared, host.quick)
    if host.gpu is not None:
        load_binaries(entry, shared[units.index(next(u for u in units if u.name == LAUNCHES))], host.gpu)
    if host.steps or host.make_constants is not None:
        library = replace(library, fingerprint=_fingerprint(shared))
    recorded: list[Recorded] = []
    run = load_program(host, functions, library, entry.folder.name[:12], results, recorded)
    generated = Generated(units, host, entry.text("module.ir"), stored_source(entry))
    seconds = {"load": time.perf_counter() - start}
    return Program(run, generated, 0, seconds, entry.folder.name, recorded, functions, library)


def _fingerprint(shared: Sequence[SharedLibrary]) -> Fingerprint:
    """The compiled WEIGHTS_SOURCE, in the one library that holds it."""
    name = "intarsia_fingerprint"
    function = next(lib for lib in shared if lib.address(name)).function(name, 2)
    function.restype = ctypes.c_uint64  # type: ignore[attr-defined]
    return cast(Fingerprint, function)


def calls_source(arities: Mapping[str, int], quick: Collection[str]) -> str:
    """The text of what calls kernels from Python: see `intarsia_call.h`."""
    found = sorted({(name in quick, count) for name, count in arities.items() if count <= MOST_ARGUMENTS})
    lines = []
    for hurry, count in found:
        types, words = ", ".join(["void*"] * count), ", ".join(f"words[{k}]" for k in range(count))
        lines.append(f"INTARSIA_CALL({call_name(count, hurry)}, {int(hurry)}, {count}, ({types}), ({words}))\n")
    return f'#include "intarsia_call.h"\n\n// How Python calls the kernels.\n{"".join(lines)}' if lines else ""


def bind_kernels(
    arities: Mapping[str, int], shared: Sequence[SharedLibrary], quick: Collection[str] = ()
) -> dict[str, Callable[..., Any]]:
    """Each kernel's function, found in the one library that holds it. Those in `quick` run while the interpreter waits."""
    found: dict[str, Callable[..., Any]] = {}
    calls = next(filter(None, map(Calls.of, shared)), None)
    for name, arity in arities.items():
        library = next((library for library in shared if library.address(name)), None)
        if library is None:
            raise LookupError(f"no compiled library holds the kernel {name}")
        function = None if calls is None else calls.function(library, name, arity, name in quick)
        if function is not None:
            found[name] = function
            continue
        found[name] = library.function(name, arity, release_gil=name not in quick)
        found[name].restype = ctypes.c_int  # type: ignore[attr-defined]
    return found
