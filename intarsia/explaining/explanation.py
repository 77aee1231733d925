"""`intarsia.explain`: what became of a function, as an object and as a text to read.

    print(intarsia.explain(fn)(x, y))

The call is made once, as ever; graphs, breaks, guards and kernels are read from what was compiled for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import fx

from ..compile import compile
from ..config import Config
from ..counters import COUNTERS
from ..frontend.breaks.hints import remedy
from ..frontend.entry.capture import Capture
from ..frontend.errors import SourceLine
from ..frontend.guards.guards import GuardSet
from ..frontend.runtime.callable import compile_callable
from ..graph_compiler import Report, open_cache, reports_of
from ..ir.fx.importer import user_line
from ..ir.text import parse_module
from ..partition.choose import Partition
from ..reports.record import now_recording
from ..targets.host.memory import eager_bytes
from ..targets.host.render import render
from ..targets.recordings.graphs import WARM
from ..targets.recordings.recordable import of_a_library
from ..targets.triton.program import KERNELS
from .history import Compiled, Fallback, History, Recompile
from .kernel_facts import KernelFacts, kernel_facts
from .logs import count, guard_lines, next_pieces
from .roofline import Times, measured, watching
from .steps import LIBRARY, Step, module_of_node, steps_of
from .text import text_of

__all__ = [
    "BreakInfo",
    "Explanation",
    "FallbackInfo",
    "GraphInfo",
    "GuardInfo",
    "KernelInfo",
    "LibraryInfo",
    "OpInfo",
    "RecompileInfo",
    "explain",
]


@dataclass(frozen=True)
class OpInfo:
    """One operation of a graph: its name, the function or method name that the graph calls, the user's line.

    `module`: the path of the module whose code makes it, as "transformer.h.0.attn"; "" in the compiled module itself, and outside of all.
    """

    name: str
    target: Any
    place: SourceLine | None
    module: str = ""


@dataclass(frozen=True)
class KernelInfo:
    """One generated kernel: its name, the user's lines that it computes (`file:line`), and the half it is in ("" without gradients).

    `facts`: its device, grid and warps, and the bytes that it has to move; None for a kernel that stands for a library call.
    `calls`: how often a call of the program launches it. `modules`: the modules whose parameters it reads, in the order of its launches.
    """

    name: str
    lines: tuple[str, ...] = ()
    half: str = ""
    facts: KernelFacts | None = None
    calls: int = 0
    modules: tuple[str, ...] = ()


@dataclass(frozen=True)
class LibraryInfo:
    """A library's operator that a program calls: how often, and for which of the user's lines (`file:line`) and modules."""

    name: str
    calls: int
    lines: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    half: str = ""


@dataclass(frozen=True)
class GuardInfo:
    """One check before a call: what it says, and the user's line that needs it (None where no single line does)."""

    text: str
    place: SourceLine | None
    graph: int


@dataclass(frozen=True)
class BreakInfo:
    """One place where a graph broke.

    `callers` are the lines that led there, innermost first; `goes_on` where the call may go on, as (function, line).
    """

    file: str
    line: int
    text: str
    function: str
    reason: str
    remedy: str
    callers: tuple[SourceLine, ...] = ()
    goes_on: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}: {self.reason}; {self.remedy}"


@dataclass(frozen=True)
class FallbackInfo:
    """Something that runs in eager: a call that could not be captured, or a graph that could not be compiled."""

    what: str
    reason: str
    file: str = ""
    line: int = 0
    text: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class RecompileInfo:
    """A call that fitted nothing compiled before: what was checked, and what it was; `remedy` may be ""."""

    function: str
    part: str
    expected: str
    got: str
    place: SourceLine | None
    remedy: str
    reason: str


@dataclass
class GraphInfo:
    """One captured graph.

    Attributes:
        index: counted from 1, in the order of capture.
        function: the function, or the part of it, that the graph was captured from.
        graph_module: the graph itself.
        ops: its operations.
        kernels: what was generated for it.
        library: library calls by name, and how many places call each.
        library_calls: the same with the user's lines and modules.
        eager: why it runs in eager, or "".
        cached: whether the kernels came from the cache on disk.
        broken: the graph break that ends it, or None.
        guards: what is checked before it runs.
        code: what was generated, by file name: `kernels.py` is Triton, `host.py` calls the kernels, the rest is C++; those of a
            backward pass begin with `backward/`.
        recording: of a program on a GPU: how often it was recorded as a CUDA graph and played back, or why it is not; else "".
        memory: most bytes that the plan has in use at once; None where that depends on sizes, or nothing was generated.
        kept_memory: how many of these are kept between calls.
        result_memory: bytes of large results; their memory is used again for those of a later call, once the program drops them.
        eager_memory: most bytes in use at once when eager runs the same graph.
        capture_seconds, compile_seconds: what it took.
        measured: what was measured of programs, by their ids.
        compiled: the callable, whose programs this tells of: they live as long as it does.
    """

    index: int
    function: str
    graph_module: fx.GraphModule
    ops: list[OpInfo]
    kernels: list[KernelInfo] = field(default_factory=list)
    library: dict[str, int] = field(default_factory=dict)
    library_calls: list[LibraryInfo] = field(default_factory=list)
    eager: str = ""
    cached: bool = False
    broken: BreakInfo | None = None
    guards: list[GuardInfo] = field(default_factory=list)
    code: dict[str, str] = field(default_factory=dict)
    recording: str = ""
    memory: int | None = None
    kept_memory: int = 0
    result_memory: int = 0
    eager_memory: int | None = None
    capture_seconds: float = 0.0
    compile_seconds: float = 0.0
    measured: Mapping[int, Times] = field(default_factory=dict, repr=False)
    compiled: Any = field(default=None, repr=False)

    @property
    def op_count(self) -> int:
        """How many operations it has."""
        return len(self.ops)

    @property
    def times(self) -> list[Times]:
        """What each step takes, of a call with `timed=True`; with gradients two, when backward has run."""
        found = []
        for report in reports_of(self.graph_module):
            known = self.measured.get(id(report.program))
            if known is not None:
                found.append(replace(known, steps=tuple(replace(s, half=report.half) for s in known.steps)))
        return found

    @property
    def partition(self) -> Partition | None:
        """What forward saves for backward, with gradients; known before the first backward."""
        return next((r.partition for r in reports_of(self.graph_module) if r.partition is not None), None)

    @property
    def lines(self) -> list[SourceLine]:
        """The user's lines it was made from, in order, each once."""
        return list(dict.fromkeys(op.place for op in self.ops if op.place is not None))


@dataclass
class Explanation:
    """What became of a function; `str()` is the text.

    Attributes:
        name: the function's.
        result: what the call gave.
        graphs: the graphs, in the order of capture; a part of a function without operations is none.
        breaks: the places where graphs broke, each once.
        guards: all checks.
        recompiles: calls that fitted nothing compiled before.
        fallbacks: what runs in eager, and why.
        seconds: seconds by phase of what was compiled during this call.
        compile_seconds: seconds spent on all that is shown, capture included.
    """

    name: str
    result: Any
    graphs: list[GraphInfo]
    breaks: list[BreakInfo]
    guards: list[GuardInfo]
    recompiles: list[RecompileInfo]
    fallbacks: list[FallbackInfo]
    seconds: dict[str, float]
    compile_seconds: float
    # The compiled callable: reports, to which backward adds its own when it runs, live as long as it.
    _compiled: Any = field(default=None, repr=False, compare=False)

    @property
    def kernels(self) -> list[KernelInfo]:
        """All generated kernels."""
        return [kernel for graph in self.graphs for kernel in graph.kernels]

    @property
    def graph_count(self) -> int:
        """How many graphs there are."""
        return len(self.graphs)

    @property
    def graph_break_count(self) -> int:
        """In how many places graphs broke."""
        return len(self.breaks)

    @property
    def op_count(self) -> int:
        """The operations of all graphs."""
        return sum(self.ops_per_graph)

    @property
    def ops_per_graph(self) -> list[int]:
        """The operations of each graph."""
        return [graph.op_count for graph in self.graphs]

    @property
    def break_reasons(self) -> list[BreakInfo]:
        """Another name of `breaks`."""
        return self.breaks

    @property
    def out_guards(self) -> list[GuardInfo]:
        """Another name of `guards`."""
        return self.guards

    def __str__(self) -> str:
        return text_of(self)


def explain(
    fn: Any,
    *,
    timed: bool = False,
    backend: str | Callable[..., Any] = "auto",
    dynamic: bool | None = None,
    options: Mapping[str, Any] | None = None,
    passes: Sequence[Any] = (),
) -> Callable[..., Explanation]:
    """Tell what `intarsia.compile` makes of a function: `explain(fn)(*args, **kwargs)`.

    The returned callable makes the call, once, with all its effects, and gives an `Explanation` whose `result` is the call's.
    A function that `intarsia.compile` has compiled is explained as it stands after the call, with what was compiled before; its
    own settings hold. Any other is compiled for the purpose with the settings given here, as `intarsia.compile` takes them.

    With `timed=True` the function is compiled anew (out of the cache, where it is there), and every kernel and library call that the call runs
    is timed, each many times, with the call's own arguments: `times` of its graphs tell how near each is to what the machine can do. A backward pass
    is in it from its first run on: `e = explain(fn, timed=True)(x); e.result.sum().backward(); print(e)`.

    Raises:
        TypeError: `fn` cannot be called. What the call itself raises is raised.
    """

    def call(*args: Any, **kwargs: Any) -> Explanation:
        roots = _roots(fn)
        compiled, times = fn, dict[int, Times]()
        if not roots:
            compiled = compile(fn, backend=backend, dynamic=dynamic, options=options, passes=passes)
        elif timed or now_recording() is not None:  # a report wants to see it being compiled
            compiled = _anew(fn, roots[0])
        before = COUNTERS.read()["seconds"]
        if timed:
            with watching(measured(times, _folder(options))):
                result = compiled(*args, **kwargs)
        else:
            result = compiled(*args, **kwargs)
        spent = {k: s - before.get(k, 0.0) for k, s in COUNTERS.read()["seconds"].items()}
        return _explanation(compiled, {k: s for k, s in spent.items() if s > 0}, result, times)

    if not callable(fn):
        raise TypeError(f"intarsia.explain takes a function or an nn.Module, not {type(fn).__name__}: {fn!r:.80}")
    return call


def _folder(options: Mapping[str, Any] | None) -> Path | None:
    """Where numbers about this machine are kept."""
    config = Config.from_environment(options)
    return open_cache(config).root if config.cache else None


def _anew(fn: Any, root: Any) -> Any:
    """A callable with the settings of a compiled one that has compiled nothing yet."""
    target = getattr(fn, "__dict__", {}).get("_orig_mod", root.target)
    settings = {name: getattr(root.options, name) for name in ("backend", "fullgraph", "dynamic", "recompile_limit")}
    return compile_callable(target, **settings, observer=History())


def _roots(fn: Any) -> list[Any]:
    """The runtimes of a compiled callable; none when it is not compiled."""
    runtime = getattr(fn, "_intarsia_runtime", None) or getattr(fn, "__dict__", {}).get("_runtime")
    exact = getattr(fn, "__dict__", {}).get("_exact_call")
    return [r for r in (runtime, getattr(exact, "_intarsia_runtime", None)) if hasattr(r, "family")]


def _explanation(compiled: Any, seconds: dict[str, float], result: Any, times: Mapping[int, Times]) -> Explanation:
    roots = _roots(compiled)
    families = [r.family for r in roots]
    history = roots[0].options.observer
    history = history if isinstance(history, History) else History()
    alive = {id(c) for f in families for r in _runtimes(roots, f) for c in r.captures if c is not None}
    graphs: list[GraphInfo] = []
    breaks: dict[BreakInfo, None] = {}
    spent = 0.0
    for record in history.compiled:
        capture = record.capture()
        if capture is None or id(capture) not in alive:
            continue
        spent += record.capture_seconds + record.compile_seconds
        broken = break_info(capture)
        if broken is not None:
            breaks[broken] = None
        if capture.operations:
            graphs.append(graph_info(len(graphs) + 1, record, capture, broken))
            graphs[-1].measured, graphs[-1].compiled = times, compiled
    fallbacks = [fallback_info(f) for f in _of(families, history.fallbacks)]
    fallbacks += [FallbackInfo(f"graph {g.index}", g.eager) for g in graphs if g.eager]
    return Explanation(
        roots[0].name(),
        result,
        graphs,
        list(breaks),
        [guard for graph in graphs for guard in graph.guards],
        [recompile_info(r) for r in _of(families, history.recompiles)],
        list(dict.fromkeys(fallbacks)),
        seconds,
        spent,
        compiled,
    )


def _runtimes(roots: list[Any], family: Any) -> list[Any]:
    return [*(r for r in roots if r.family is family), *family.pieces.values()]


def _of(families: list[Any], records: Sequence[Recompile | Fallback]) -> list[Any]:
    return [r for r in records if any(r.family() is f for f in families)]


def graph_info(index: int, record: Compiled, capture: Capture, broken: BreakInfo | None) -> GraphInfo:
    gm = capture.graph_module
    nodes = [n for n in gm.graph.nodes if n.op not in ("placeholder", "output", "get_attr")]
    info = GraphInfo(
        index,
        record.name,
        gm,
        [OpInfo(_op_name(n.target), n.target, _place(n), module_of_node(n)) for n in nodes],
        broken=broken,
        guards=guards_of(capture.guards, index),
        capture_seconds=record.capture_seconds,
        compile_seconds=record.compile_seconds,
    )
    reports = reports_of(gm)
    library: Counter[str] = Counter()
    for report in reports:
        steps = _steps(report)
        info.kernels += _kernels(report, steps)
        info.library_calls += _library_calls(report, steps)
        library += _library(report)
        info.code |= _code(report)
    info.library = dict(library)
    info.recording = "; ".join(filter(None, map(_recording, reports)))
    plans = [r.program.generated.host.memory for r in reports if r.program is not None]
    if len(plans) == len(reports) == 1 and plans[0] is not None:  # with gradients there are two, with more between them
        info.kept_memory, info.memory = plans[0]
        info.eager_memory = eager_bytes(gm)
    info.result_memory = sum(r.program.generated.host.large for r in reports if r.program is not None)
    info.eager = next((r.reason for r in reports if r.reason), "")
    info.cached = bool(reports) and all(r.cached for r in reports)
    return info


def guards_of(guards: GuardSet, graph: int = 1) -> list[GuardInfo]:
    """The checks of one capture, those of what the user passed first."""
    found = [GuardInfo(text, place, graph) for text, place in guard_lines(guards)]
    return [g for g in dict.fromkeys(found) if g.text]


def _op_name(target: Any) -> str:
    if isinstance(target, str):
        return target
    return str(getattr(target, "__name__", None) or target).strip("_")


def _place(node: fx.Node) -> SourceLine | None:
    found = user_line(node.meta.get("stack_trace"))
    return None if found is None else SourceLine(found.filename.data, found.line.data, "")


def _steps(report: Report) -> dict[str, list[Step]]:
    """The steps of a program, by name."""
    found: dict[str, list[Step]] = {}
    if report.program is not None and report.program.generated.ir:
        generated = report.program.generated
        for step in steps_of(parse_module(generated.ir), generated.host.lines):
            found.setdefault(step.name, []).append(step)
    return found


def _modules(steps: Sequence[Step]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(step.module for step in steps if step.module))


def _kernels(report: Report, steps: Mapping[str, list[Step]]) -> list[KernelInfo]:
    if report.program is None:
        return []
    generated = report.program.generated
    lines = generated.host.lines
    facts = kernel_facts(generated.ir)
    made = []
    for name in generated.host.kernels:
        runs = steps.get(name, [])
        made.append(KernelInfo(name, lines.get(name, ()), report.half, facts.get(name), len(runs), _modules(runs)))
    return made


def _library_calls(report: Report, steps: Mapping[str, list[Step]]) -> list[LibraryInfo]:
    return [
        LibraryInfo(name, len(runs), tuple(dict.fromkeys(s.line for s in runs if s.line)), _modules(runs), report.half)
        for name, runs in steps.items()
        if runs[0].kind == LIBRARY
    ]


def _code(report: Report) -> dict[str, str]:
    """The generated text by file name."""
    if report.program is None:
        return {}
    generated, folder = report.program.generated, "backward/" if report.half == "backward" else ""
    found = {} if generated.gpu is None else {f"{folder}{KERNELS}": generated.gpu.text}
    found |= {f"{folder}{unit.name}.cpp": unit.text for unit in generated.units}
    halves = generated.host.halves
    return found | {f"{folder}host.py": generated.host.text + (f"\n\n{render(halves.program)}" if halves else "")}


def _recording(report: Report) -> str:
    """What became of a program on a GPU as a CUDA graph."""
    if report.program is None or report.program.generated.host.gpu is None:
        return ""
    host, recorded = report.program.generated.host, report.program.recorded
    half = f"{report.half}: " if report.half else ""
    if host.not_recorded:
        return f"{half}not recorded: {host.not_recorded}"
    if not recorded:
        custom = of_a_library(host.operators.values(), wanted=False)
        return f"{half}not recorded: {custom or 'cuda_graphs is off'}"
    if refused := next((r.reason for r in recorded if r.reason), ""):
        return f"{half}not recorded any more: {refused}"
    made, replays = sum(len(r.made) for r in recorded), sum(r.replays for r in recorded)
    note = next((f"; some sizes are not recorded: {r.note}" for r in recorded if r.note), "")
    parts = sum(r.pieces.recorded for r in recorded if r.pieces is not None)
    if parts:
        note += f"; {count(parts, 'part')} recorded that are the same for all sizes"
    if tail := next((r.divided.steps for r in recorded if r.divided is not None and r.endings), 0):
        note += f"; large results are not copied: {count(tail, 'step')} of the program {'runs' if tail == 1 else 'run'} after the recording"
    if not made and not parts:
        return f"{half}will be recorded after {count(WARM, 'call')}{note}"
    return f"{half}{count(made, 'recording')}, {count(replays, 'replay')}{note}"


def _library(report: Report) -> Counter[str]:
    """Library calls by name; the host program holds one name an operator, or one a packed weight."""
    found: Counter[str] = Counter()
    if report.program is None:
        return found
    host = report.program.generated.host
    for name, target in host.operators.items():
        found[target] += max(1, host.calls_of(name))
    for step in host.steps.values():
        if step.builder != "packed-panels":  # the weight of a kernel of our own
            found[step.builder] += 1
    return found


def break_info(capture: Capture) -> BreakInfo | None:
    broken = capture.broken
    if broken is None:
        return None
    place = broken.place
    callers = tuple(f for f in broken.frames[::-1] if f != place)
    goes_on = tuple(dict.fromkeys((piece.code.co_name, piece.line) for piece in next_pieces(capture)))
    return BreakInfo(
        place.filename, place.lineno, place.text, place.function, broken.reason, broken.advice, callers, goes_on
    )


def fallback_info(record: Fallback) -> FallbackInfo:
    """A call that runs in eager."""
    what = f"a call of {record.name}"
    return FallbackInfo(what, record.reason, record.file, record.line, record.text, remedy(record.reason))


def recompile_info(record: Recompile) -> RecompileInfo:
    miss = record.miss
    if miss is None:
        return RecompileInfo(record.name, "", "", "", None, "", record.reason)
    return RecompileInfo(record.name, miss.part, miss.expected, miss.got, miss.place, miss.advice, record.reason)
