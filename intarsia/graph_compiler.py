"""Everything after capture: a torch-level FX graph in, a callable out. `compile_graph` is the main road; read it first."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any
from weakref import WeakKeyDictionary, finalize

import torch
import torch.utils._pytree as pytree
from torch import fx
from xdsl.dialects.builtin import ModuleOp

from .artifact import graph_key
from .config import DECIDE_NO_CODE, Config
from .counters import COUNTERS
from .explaining import logs, program_logs
from .explaining.roofline import WATCH
from .extend.configured import Passes, pipeline_of
from .extend.failures import blame, culprits, put_back, with_reproducer
from .frontend.branches.random_state import rewound
from .frontend.branches.written import WRITTEN, or_put_back
from .frontend.distributed.agreement import compare
from .frontend.errors import Unsupported
from .frontend.functional.trace import functionalize
from .frontend.gradients.grads import takes_gradients
from .frontend.gradients.nodes import WHOLE, in_eager
from .frontend.runtime.collector import collector_paused
from .frontend.runtime.error_origin import blamed
from .frontend.runtime.profiling import STARTED
from .frontend.torch_private.autograd import VISIBLE
from .frontend.torch_private.dispatch import without_autocast
from .frontend.torch_private.foreign.plans import Unlike
from .ir.dtypes import UnknownDType
from .ir.fx.importer import ImportFailure, import_fx, user_line
from .ir.interpreter.loops import main_function
from .ir.text import print_module
from .linear_losses import without_logits
from .partition.choose import Partition
from .partition.step import compute_again
from .passes.analysis.machine import CPUS, Machine, gpu_facts
from .passes.core.base import Pass, PassError
from .passes.core.context import CompileContext, Diagnostics
from .passes.core.fingerprint import pass_fingerprint
from .passes.core.plugins import forget_warnings as forget_left_out
from .passes.core.run import PassFailure, run_pipeline
from .passes.core.syntax import pipeline_text
from .reports.record import PassRecord
from .targets.build.cache import Cache, Entry, NoRoom, cache_key, shared_cache
from .targets.build.program import Program, UnusableLibrary, build, generate, load
from .targets.build.toolchain import (
    CompilerError,
    CompilerNotFound,
    Toolchain,
    cpu_identity,
    dots_bfloat16,
    find_toolchain,
)
from .targets.build.versions import versions
from .targets.errors import Unassumed, UnplannedResult
from .targets.host.kernels import SeveralGPUs
from .targets.host.library import Library
from .targets.host.pool import Results
from .targets.measure.autotune import MeasuredProducts
from .targets.measure.choices import Choices
from .targets.run.numbers import with_numbers
from .targets.run.profiling import show_kernels
from .targets.torch_private import (
    convolutions_in_tf32,
    onednn_bfloat16,
    products_in_tf32,
)
from .targets.triton.device import (
    NoTriton,
    capability,
    gpu_identity,
    gpu_of,
    multiprocessors,
)
from .targets.triton.launch import DriverError
from .targets.triton.worker import TritonError
from .tools.debug import DebugFolder

log = logging.getLogger("intarsia")
_DECIDE_NO_CODE = {name: getattr(Config(), name) for name in DECIDE_NO_CODE}
GraphFunction = Callable[..., Sequence[Any]]
STARTED.append(show_kernels)


@dataclass
class Report:
    """What became of one graph; `explain` and `counters` read it.

    Attributes:
        program: the compiled program, None when the graph runs in eager.
        reason: why it runs in eager, or "".
        diagnostics: remarks and statistics of the passes (empty when the program came from the cache).
        cached: whether it came from the cache.
        half: "forward" or "backward" of a graph with gradients, else "".
        partition: what a forward half saves for backward; of a program that takes its gradients itself, what it keeps.
        record: the IR behind each pass, where a recording was under way (`reports/record.py`).
    """

    program: Program | None = None
    reason: str = ""
    diagnostics: Diagnostics = field(default_factory=Diagnostics)
    cached: bool = False
    half: str = ""
    partition: Partition | None = None
    record: PassRecord | None = None


def compile_graph(
    gm: fx.GraphModule, example_inputs: Sequence[Any], config: Config, passes: Passes = (), scope: str = "inference"
) -> tuple[GraphFunction, Report]:
    """Compile one graph as it is. What cannot be compiled runs as `gm` itself, with one warning that says why.

    `scope`: what passes of others are told that it is, "inference", or "forward" or "backward" of a training graph.
    """
    scope = "step" if takes_gradients(gm) else scope
    debug = DebugFolder.create(config, gm, scope)
    try:
        with collector_paused():
            function, report = _compile(gm, example_inputs, config, passes, debug, scope)
    except (Unsupported, ImportFailure, UnknownDType, CompilerNotFound, NoTriton, SeveralGPUs) as error:
        return run_eager(gm, str(error))
    except (MemoryError, torch.OutOfMemoryError):  # the program's own: eager has no more
        raise
    except (CompilerError, TritonError, DriverError, NoRoom, UnusableLibrary) as error:
        # It says itself what to look at.
        if config.strict:
            raise
        return run_eager(gm, str(error))
    except Exception as error:  # a mistake of ours must not stop a program that eager can run
        given = bool(config.pipeline or config.passes or passes)
        asked_for = given and isinstance(error, PassError) and not isinstance(error, PassFailure)  # it cannot be
        if config.strict or asked_for:
            raise
        return run_eager(gm, internal_reason(error))
    _count(report)
    gradients, taken = frozenset(gm.meta.get("gradients", ())), takes_gradients(gm)
    for recorded in () if report.program is None else report.program.recorded:
        if gradients:
            recorded.hand_out(gradients)  # they are let go of before the next step (frontend/gradients/grads.py)
        if taken:
            recorded.take_handed()
    if report.program is not None:
        compare(report.program.generated.host.talks)
    # On a CPU arguments are written to when nothing can fail any more (passes/memory/written_arguments.py).
    function.writes_last = report.program is not None and report.program.generated.host.gpu is None  # type: ignore[attr-defined]
    return function, report


def _compile(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    config: Config,
    passes: Passes,
    debug: DebugFolder,
    scope: str,
) -> tuple[GraphFunction, Report]:
    """The callable of a graph: takes its inputs, gives what the graph gives."""
    debug.write_graph("captured", gm)
    with COUNTERS.phase("key"):
        toolchain = find_toolchain()
        key = _name_of(gm, example_inputs, toolchain, config, passes, debug)
    stored = _stored(key, config)
    if stored is not None:
        _watched(stored)
        return _checked(stored.run, stored, gm, config), Report(stored, cached=True)
    with COUNTERS.phase("functionalize"):
        functional = functionalize(gm, example_inputs)
        without_logits(functional.graph_module, config)
        partition = compute_again(functional, config.memory_budget)
    debug.write_graph("functional", functional.graph_module)
    logs.imported(functional.graph_module, scope)
    with COUNTERS.phase("import"):
        imported = import_fx(functional)
    program, report = compile_module(imported.module, toolchain, config, passes, debug, scope)
    report.partition = partition
    if key is not None and not imported.constants and functional.output_tree == _flat_tree(functional.output_tree):
        _remember(key, program, config)
    _watched(program)
    run = with_numbers(_bind_constants(program, imported.constants), main_function(imported.module))
    return _checked(_as_the_graph(run, functional.output_tree), program, gm, config), report


def _watched(program: Program) -> None:
    """What runs goes through the watch that `explain` has set."""
    watch = WATCH.get()
    if watch is not None:
        program.run = watch(program)


def _checked(run: GraphFunction, program: Program, gm: fx.GraphModule, config: Config) -> GraphFunction:
    """With a way back to eager, where the program calls a library, or a GPU's kernels, which may be given sizes that they cannot count."""
    host = program.generated.host
    if host.operators and (any(map(torch.is_autocast_enabled, ("cpu", "cuda"))) or relies_on_casts(gm)):
        run = without_casts(run)
    return _or_eager(run, gm, program) if may_run_eager(program) and not config.verify_each else run


def may_run_eager(program: Program | None) -> bool:
    """Whether a call may run operators of torch's: those of a library, or all where the program, or its kernels, cannot take the sizes."""
    host = None if program is None else program.generated.host
    return host is None or bool(host.operators or host.steps or host.gpu is not None)


def relies_on_casts(gm: fx.GraphModule) -> bool:
    """Whether the graph enters or leaves autocast, so that it may run under another than it was compiled under."""
    return any("autocast" in getattr(node.target, "__name__", "") for node in gm.graph.nodes)


def without_casts(run: GraphFunction) -> GraphFunction:
    """Casts are explicit in a compiled graph: the operators of libraries that it calls make none of their own."""

    def call(*args: Any) -> Sequence[Any]:
        with without_autocast():
            return run(*args)

    return call


def _name_of(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    toolchain: Toolchain,
    config: Config,
    passes: Passes,
    debug: DebugFolder,
) -> str | None:
    """The key under which the graph's program may be kept, None where it has to take the whole road."""
    given = passes or config.passes or config.pipeline
    if given or config.verify_each or not config.cache or debug or logs.shows_passes():
        return None
    plain = repr(replace(config, **_DECIDE_NO_CODE))
    settings = {"config": plain, "toolchain": toolchain.identity, "cpu": cpu_identity(), "gpu": gpu_identity()}
    return graph_key(gm, example_inputs, settings | {"machine": repr(machine(toolchain, config))})


def _stored(key: str | None, config: Config) -> Program | None:
    """The program that was kept for the same graph, by this process or an earlier one."""
    if key is None:
        return None
    with COUNTERS.phase("load"):
        cache = open_cache(config)
        named = cache.get(key)
        entry = cache.get(str(named.meta["program"])) if named is not None else None
        return None if entry is None else _loaded(cache, entry, _library(config), config)


def _library(config: Config, choices: Choices | None = None) -> Library:
    return Library(config.packing, choices, record=config.cuda_graphs, record_custom=config.record_custom)


def _loaded(cache: Cache, entry: Entry, library: Library, config: Config) -> Program | None:
    """The program of an entry; None, and the entry is gone, where its libraries do not load: a cache copied from another machine."""
    try:
        program = load(entry, library, results_of(config))
    except OSError as error:
        cache.drop(entry, error)
        return None
    program_logs.generated(program.generated)
    return program


def _remember(key: str, program: Program, config: Config) -> None:
    """Keep the program under the graph's name as well; without room for it the next process takes the whole road."""
    with COUNTERS.phase("key"), suppress(OSError, NoRoom):
        open_cache(config).put(key, {}, {"program": program.key})


def compile_module(
    module: ModuleOp,
    toolchain: Toolchain,
    config: Config,
    passes: Passes,
    debug: DebugFolder,
    scope: str = "inference",
    without: frozenset[str] = frozenset(),
) -> tuple[Program, Report]:
    """From the `aten` level to a callable: out of the cache, or through the passes and the C++ compiler.

    Where a pass of others fails, the way begins again without it (`without`), with a warning that names it.
    """
    with COUNTERS.phase("key"):
        gpu = gpu_of(module)
        here = machine(toolchain, config, "" if gpu is None else capability(gpu))
        ctx = CompileContext(here, Diagnostics(want_remarks=bool(config.debug) or logs.wants_remarks()))
        pipeline = pipeline_of(config, passes, gpu=gpu is not None, scope=scope, without=without)
        cache = open_cache(config)
        choices = Choices(cache.root if config.cache else None) if config.libraries == "measure" else None
        library = _library(config, choices)
        text = print_module(module)
        debug.write("0-aten.ir", text)
        key = _key(text, pipeline, config, here, toolchain, gpu is not None)
    with COUNTERS.phase("load"):
        share = config.cache and not debug and not logs.shows_passes()
        entry = cache.get(key) if share else None
        stored = None if entry is None else _loaded(cache, entry, library, config)
        if stored is not None:
            return stored, Report(stored, cached=True)
    if gpu is not None and config.max_autotune and config.libraries == "measure" and torch.cuda.is_available():
        ctx = replace(ctx, tuner=MeasuredProducts(ctx, toolchain, cache, gpu, config.cache))
    pass_log = logs.PassLog(text)

    def on_pass(name: str, current: ModuleOp, seconds: float, phase: str) -> None:
        debug.on_pass(name, current, seconds, phase)
        pass_log.on_pass(name, current, seconds, phase)

    try:
        with COUNTERS.phase("passes"):
            verify = config.verify_each
            run_pipeline(ctx, module, pipeline, verify_each=verify, on_pass=on_pass, limit=config.pass_seconds)
        with COUNTERS.phase("emit"):
            generated = generate(module, library)
    except Exception as error:
        theirs = culprits(error, pipeline, bool(passes or config.passes or config.pipeline))
        if isinstance(error, PassFailure):
            failure, cause = with_reproducer(error, text, ctx.machine, pipeline, config, debug.path), error.__cause__
            if config.strict or not theirs:
                raise failure from cause
            error = failure
        elif config.strict or not theirs:
            raise
        put_back(module, text)
        blamed = blame(error, theirs, module)
        made = compile_module(module, toolchain, config, passes, debug, scope, without | theirs)
        _warn_once(blamed)
        return made
    logs.decided(ctx.diagnostics)
    with COUNTERS.phase("emit"):
        generated = replace(generated, ir=print_module(module))
        debug.write_sources(generated, module)
        program_logs.generated(generated)
    with COUNTERS.phase("c++"):
        memory = results_of(config)
        program = build(
            generated,
            key,
            lambda: toolchain,
            cache,
            library,
            progress=_progress(),
            results=memory,
            gpu="" if generated.host.gpu is None else capability(generated.host.gpu),
            share=share,
        )
    return program, Report(program, diagnostics=ctx.diagnostics, record=pass_log.record)


def _key(text: str, pipeline: Sequence[Pass], config: Config, here: Machine, toolchain: Toolchain, gpu: bool) -> str:
    """The name in the cache of what is made of this text: all that the code depends on is in it."""
    return cache_key(
        ir_text=text,
        pass_sources=pass_fingerprint(pipeline),
        config={
            "pipeline": pipeline_text(pipeline),
            "settings": repr(replace(config, **_DECIDE_NO_CODE)),
            "machine": repr(here),
        },
        versions=versions(),
        isa=toolchain.identity + cpu_identity() + (gpu_identity() if gpu else ""),
    )


def internal_reason(error: Exception) -> str:
    """The text of a warning for an error that nobody expected: whose it is, and what went wrong."""
    what = "\n".join(str(error).splitlines()[:8])
    kind = "" if isinstance(error, PassFailure) else f"{type(error).__name__}: "
    if isinstance(error, PassFailure) and error.owner:
        return what
    return f"{blamed(error)}: {kind}{what}"


def _first_line(gm: fx.GraphModule) -> str:
    """The user's line that a graph begins with, for the head of a message; "" where that is not known."""
    places = (user_line(node.meta.get("stack_trace")) for node in gm.graph.nodes)
    place = next((p for p in places if p is not None), None)
    return f"{place.filename.data}:{place.line.data}: " if place is not None else ""


def default_backend(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> GraphFunction:
    """Everything after capture, as a plain FX backend.

    Args:
        gm: a torch-level graph (torch functions, methods, modules).
        example_inputs: a tensor (real or fake), int or SymInt for each placeholder.

    Returns:
        A callable that takes the inputs by position and returns the graph's results as a tuple.
    """
    return backend_for(Config.from_environment())(gm, example_inputs)


default_backend.takes_floats = default_backend.takes_gradients = True  # type: ignore[attr-defined]


def backend_for(
    config: Config, passes: Passes = (), reports: list[Report] | None = None
) -> Callable[..., GraphFunction]:
    """A backend with these settings; each graph's report is appended to `reports`, and kept for `reports_of`."""

    def backend(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> GraphFunction:
        from .buckets import bucket_of, compile_parts, split
        from .fused_attention import prepare_attention
        from .training import compile_training, needs_gradients

        kept = _Reports(reports)
        _reports[gm] = kept
        prepare_attention(gm)
        if needs_gradients(gm, example_inputs):
            bucket = None if WHOLE in gm.meta else bucket_of(gm)
            parts = [] if bucket is None else split(gm, bucket)
            if parts:
                logs.split(len(parts), bucket or 0)
                return compile_parts(gm, parts, backend_for(config, passes, kept))
            run = compile_training(gm, example_inputs, config, passes, kept)
            finalize(run, kept.clear).atexit = False  # AOTAutograd's part of it, which refers to the list, is a cycle
            return run
        function, report = compile_graph(gm, example_inputs, config, passes)
        kept.append(report)
        tracked = any(isinstance(x, torch.Tensor) and x.requires_grad for x in example_inputs)
        if not (tracked and torch.is_grad_enabled()):
            return function
        unseen = _unseen_by_autograd(function, _detached(gm))
        unseen.writes_last = getattr(function, "writes_last", False)  # type: ignore[attr-defined]
        return unseen

    backend.takes_floats = backend.takes_gradients = True  # type: ignore[attr-defined]  # symbolic floats among the example inputs
    backend.forget = _forget_reports  # type: ignore[attr-defined]
    return backend


def _unseen_by_autograd(function: GraphFunction, detached: Sequence[int]) -> GraphFunction:
    """The program used tensors that require gradients only where autograd does not look; so does the compiled graph.

    A view that is made there of a tensor that requires gradients does so itself: that of a detached one, `detached`, does not.
    """

    def run(*args: Any) -> Sequence[Any]:
        with torch.no_grad():
            results = function(*args)
            if not detached:
                return results
            made = {id(results[i]): results[i].detach() for i in detached if results[i].requires_grad}
            return tuple(made.get(id(r), r) for r in results)

    return run


def _detached(gm: fx.GraphModule) -> list[int]:
    """Which results capture found to be views that require no gradients."""
    (results,) = gm.graph.find_nodes(op="output")[0].args
    if not isinstance(results, tuple | list):
        return []
    made = [r.meta.get("example_value") if isinstance(r, fx.Node) and r.op != "placeholder" else None for r in results]
    return [i for i, v in enumerate(made) if isinstance(v, torch.Tensor) and v._is_view() and not v.requires_grad]


class _Reports(list[Report]):
    """The reports of one captured graph: one, or one for each half with gradients; each goes to another list as well."""

    def __init__(self, also: list[Report] | None) -> None:
        super().__init__()
        self.also = also

    def append(self, report: Report) -> None:
        super().append(report)
        if self.also is not None:
            self.also.append(report)


_reports: WeakKeyDictionary[fx.GraphModule, list[Report]] = WeakKeyDictionary()  # for `explain` only


def _forget_reports(gm: fx.GraphModule) -> None:
    """What a graph was captured for is gone. The graph is a cycle; what was compiled must not wait for the collector with it."""
    _reports.pop(gm, None)


def reports_of(gm: fx.GraphModule) -> list[Report]:
    """What became of a captured graph; empty when another backend has it."""
    return list(_reports.get(gm, ()))


def machine(toolchain: Toolchain, config: Config, gpu: str = "") -> Machine:
    """The machine as the passes see it; `gpu` is what kernels for it are compiled for, "sm_90"."""
    threads = config.threads or torch.get_num_threads()
    return Machine(
        replace(CPUS[toolchain.isa], threads=threads if toolchain.openmp else 1, dots_bfloat16=dots_bfloat16()),
        replace(gpu_facts(gpu or "sm_90"), multiprocessors=multiprocessors()),
        bfloat16=onednn_bfloat16,
        tf32=convolutions_in_tf32(),
        tf32_products=products_in_tf32(),
    )


def open_cache(config: Config) -> Cache:
    """The cache on disk; with `cache=False` still the place where libraries are built."""
    return shared_cache(Path(config.cache_dir) if config.cache_dir else None)


def results_of(config: Config) -> Results:
    """Where the memory of a program's large results comes from."""
    return Results(config.result_memory << 20 if config.result_memory > 0 else config.result_memory)


def _bind_constants(program: Program, constants: Sequence[torch.Tensor]) -> GraphFunction:
    run, extra = program.run, tuple(constants)
    program.constants = extra or program.constants
    return (lambda *args: run(*args, *extra)) if extra else run


def _or_eager(run: GraphFunction, gm: fx.GraphModule, program: Program) -> GraphFunction:
    """Where a library call or a size is not as planned, the graph runs in eager from then on; where one that values decide is not, once. Inputs are written last."""
    chosen = [rewound(run, gm, Unassumed)]

    def call(*args: Any) -> Sequence[Any]:
        try:
            return chosen[0](*args)
        except (UnplannedResult, Unlike) as error:
            if isinstance(error, Unassumed) and VISIBLE in gm.meta:
                raise  # a forward half is not what the program says: see `as_assumed`
            eager = or_put_back(run_eager(gm, str(error))[0], gm.meta.get(WRITTEN))
            kept = chosen[0], program.may_take
            chosen[0], program.may_take = kept if isinstance(error, Unassumed) else (eager, False)
        return eager(*args)

    return call


def _as_the_graph(run: GraphFunction, tree: pytree.TreeSpec) -> GraphFunction:
    """Results in the graph's own nesting; a flat tuple, as capture makes it, costs nothing."""
    if tree == _flat_tree(tree):
        return run
    return lambda *args: pytree.tree_unflatten(list(run(*args)), tree)


def _flat_tree(tree: pytree.TreeSpec) -> pytree.TreeSpec:
    return pytree.tree_structure(tuple(range(tree.num_leaves)))


def _count(report: Report) -> None:
    COUNTERS.add("graphs")
    COUNTERS.add("cache_hits" if report.cached else "cache_misses")
    if report.program is not None:
        COUNTERS.add("kernels", len(report.program.generated.host.kernels))
        COUNTERS.add("externs", len(report.program.generated.host.operators))
        COUNTERS.add("compiler_calls", report.program.compiler_calls)


_warned: set[str] = set()  # reasons that a warning was given for: one warning each


def forget_warnings() -> None:
    """Warn again about reasons that were given before."""
    _warned.clear()
    forget_left_out()


def _warn_once(text: str) -> None:
    if text not in _warned:
        _warned.add(text)
        log.warning("%s", text)


def run_eager(gm: fx.GraphModule, reason: str) -> tuple[GraphFunction, Report]:
    """Run the graph as it was captured, visibly."""
    COUNTERS.add("fallbacks")
    if reason not in _warned:
        _warned.add(reason)
        place = _first_line(gm)
        head = "" if reason.startswith(place.removesuffix(": ")) else place  # some name the lines of their kernel
        log.warning("%sthis graph runs in eager: %s", head, reason)
    return in_eager(gm), Report(reason=reason)


def _progress() -> Callable[[int, int, str], None] | None:
    """A line that is written over itself, in a terminal only, and only when it takes longer than a second."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        return None
    start = perf_counter()

    def tell(done: int, total: int, name: str) -> None:
        if done == total:
            sys.stderr.write("\r\x1b[K")
        elif perf_counter() - start > 1.0 or done == 0:
            sys.stderr.write(f"\r\x1b[Kintarsia: compiling C++, {done} of {total} files")
        sys.stderr.flush()

    return tell
