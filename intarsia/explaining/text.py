"""The text of an `Explanation`: at most about 100 columns, short for many graphs."""

from __future__ import annotations

import os
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from ..frontend.errors import SourceLine
from ..ir.syntax import visible
from .logs import count
from .roofline import table, wrapped

if TYPE_CHECKING:
    from ..partition.choose import Partition
    from .explanation import BreakInfo, Explanation, GraphInfo, KernelInfo

__all__ = ["short", "text_of"]

WIDTH = 96
_DETAILED = 8  # with more graphs than this, each has one line
_SHOWN_SAVED = 6
_SHOWN = 12  # guards of a graph, recompiles, kernels of a graph


def text_of(e: Explanation) -> str:
    """The text: a headline, then a section for each kind of thing there is."""
    summary = [count(e.graph_count, "graph"), count(e.op_count, "operation"), count(e.graph_break_count, "graph break")]
    summary += [f"{len(e.kernels)} kernels" if len(e.kernels) != 1 else "1 kernel"] if e.kernels else []
    out = [f"{e.name}: {', '.join(summary)}; compiled in {_seconds(e.compile_seconds)}"]
    sections = (
        ("Graphs", _graphs(e.graphs)),
        ("Time of each kernel and library call", _steps(e.graphs)),
        ("Graph breaks", _breaks(e.breaks)),
        ("Runs in eager", _fallbacks(e)),
        ("Compiled again", _recompiles(e)),
        ("Checked before each call", _guards(e.graphs)),
        ("Seconds", _times(e.seconds)),
    )
    for title, lines in sections:
        body = list(lines)
        if body:
            out += ["", title, *body]
    return visible("\n".join(out))


def short(file: str) -> str:
    """A file name as seen from the current folder, or from the folder of installed packages, where it lies below one."""
    here = os.getcwd().rstrip(os.sep) + os.sep
    return file.rpartition(f"site-packages{os.sep}")[2].removeprefix(here)


def _at(place: SourceLine) -> str:
    return f"{short(place.filename)}:{place.lineno}"


def _line(place: SourceLine) -> str:
    return f"{_at(place)}: {place.text}" if place.text else _at(place)


def _seconds(value: float) -> str:
    return f"{value:.2g} s" if value < 10 else f"{value:.0f} s"


def _graphs(graphs: list[GraphInfo]) -> Iterator[str]:
    widest = min(50, max((len(_where(g)) for g in graphs), default=0))
    for g in graphs:
        made = _made(g)
        ends = f", ends at the break in line {g.broken.line}" if g.broken and len(graphs) > _DETAILED else ""
        yield f"  {g.index:>2}  {_where(g):<{widest}}  {count(g.op_count, 'operation')}{f', {made}' if made else ''}{ends}"
        if len(graphs) > _DETAILED:
            continue
        yield from _field("operations", _counted(op.name for op in g.ops))
        yield from _files(g)
        yield from _kernel_lines(g)
        yield from _library_lines(g)
        yield from _field("CUDA graph", g.recording)
        yield from _field("memory", _memory(g))
        if g.partition is not None:
            yield from _saved(g.partition)
        if g.broken is not None:
            yield from _field("ends at", f"the graph break at {short(g.broken.file)}:{g.broken.line}")


def _steps(graphs: list[GraphInfo]) -> Iterator[str]:
    for g in graphs:
        for times in g.times:
            alone = len({place.filename for place in g.lines}) <= 1
            rows = table(times, WIDTH - 2, partial(_from, alone=alone))
            if rows and sum(bool(other.times) for other in graphs) > 1:
                yield f"  graph {g.index}, {g.function}"
            yield from (f"  {row}" for row in rows)


def _memory(g: GraphInfo) -> str:
    if g.memory is None:
        return ""
    eager = f"; eager: {_mib(g.eager_memory)}" if g.eager_memory is not None else ""
    kept = f", {_mib(g.kept_memory)} of them kept between calls" if g.kept_memory else ""
    again = f", {_mib(g.result_memory)} of large results used again once dropped" if g.result_memory else ""
    return f"{_mib(g.memory)} at most{kept}{again}{eager}"


def _saved(found: Partition) -> Iterator[str]:
    """What is saved for backward, the largest first, and what backward computes again."""
    if not found.most:
        return
    each = Counter((s.name, s.type, s.place) for s in found.saved)
    modules: dict[Any, dict[str, None]] = {}
    for s in found.saved:
        modules.setdefault((s.name, s.type, s.place), {}).update(dict.fromkeys([s.module] if s.module else ()))
    size = {(s.name, s.type, s.place): s.bytes for s in found.saved}
    largest = sorted(each, key=lambda k: -size[k] * each[k])
    ends = f"; {_mib(found.most)} with 1, {_mib(found.least)} with 0" if found.budget < 1 else ""
    made = count(len(found.saved), "tensor")
    yield from _field("saved", f"{_mib(found.bytes)} in {made} for backward, with memory_budget={found.budget:g}{ends}")
    for key in largest[:_SHOWN_SAVED]:
        name, type_, place = key
        number = f"{each[key]} x " if each[key] > 1 else ""
        line = f" ({_at(place)})" if place is not None else ""
        yield from _field("", f"{number}{_mib(size[key])}: {name}, {type_}{line}{_of_modules(tuple(modules[key]))}")
    if len(largest) > _SHOWN_SAVED:
        rest = sum(size[k] * each[k] for k in largest[_SHOWN_SAVED:])
        yield from _field("", f"and {_mib(rest)} of {len(largest) - _SHOWN_SAVED} more")
    yield from _field("again", _list(found.again) and f"{_list(found.again)}, in backward")


def _mib(size: int) -> str:
    if size < 1024:
        return f"{size} bytes"
    return f"{size / 1024:.3g} KiB" if size < 1024**2 else f"{size / 1024**2:.3g} MiB"


def _where(g: GraphInfo) -> str:
    lines = g.lines
    files = {f.filename for f in lines}
    numbers = [f.lineno for f in lines]
    if not numbers:
        return g.function
    span = f"line {numbers[0]}" if len(set(numbers)) == 1 else f"lines {min(numbers)}-{max(numbers)}"
    if len(files) > 1:
        return f"{g.function} ({count(len(lines), 'line')} of {count(len(files), 'file')})"
    file = short(lines[0].filename)
    return f"{g.function} ({file}, {span})" if len(file) < 40 else f"{g.function} ({span})"


def _made(g: GraphInfo) -> str:
    if g.eager:
        return "runs in eager"
    library = sum(g.library.values())
    parts = [count(len(g.kernels), "kernel")] if g.kernels else []
    parts += [count(library, "library call")] if library else []
    return ", ".join(parts) + (" (from the cache)" if g.cached and parts else "")


def _counted(names: Iterable[str]) -> str:
    return _list(Counter(names))


def _list(counts: Mapping[str, int]) -> str:
    """`add, 3 mul`; the wrapping keeps a number with its name."""
    return ", ".join(n if c == 1 else f"{c}{_TIE}{n}" for n, c in counts.items())


_TIE = "\u00a0"


def _field(name: str, text: str) -> list[str]:
    """`name` and its text, wrapped beside it; nothing without text."""
    if not text:
        return []
    head = f"      {name:<11}"
    return [row.replace(_TIE, " ") for row in wrapped(text, WIDTH, head, " " * len(head))]


def _files(g: GraphInfo) -> Iterator[str]:
    """The files that the operations come from, those with most lines first, where there are several."""
    lines = Counter(place.filename for place in g.lines)
    if len(lines) > 1:
        named = (f"{short(file)} ({count(number, 'line')})" for file, number in lines.most_common())
        yield from _field("files", ", ".join(named))


def _kernel_lines(g: GraphInfo) -> Iterator[str]:
    alone = len({place.filename for place in g.lines}) <= 1
    for i, kernel in enumerate(g.kernels[:_SHOWN]):
        half = f"{kernel.half}: " if kernel.half else ""
        times = f"{kernel.calls} x " if kernel.calls > 1 else ""
        text = f"{half}{times}{kernel.name}{_from(kernel.lines, alone)}{_of_modules(kernel.modules)}{_moves(kernel)}"
        yield from _field("kernels" if i == 0 else "", text)
    if len(g.kernels) > _SHOWN:
        yield from _field("", f"and {len(g.kernels) - _SHOWN} more")


def _library_lines(g: GraphInfo) -> Iterator[str]:
    """Library calls with the lines and modules that they stand for; those of which nothing is known by name."""
    known = [call for call in g.library_calls if call.lines or call.modules]
    left = {n: c for n, c in g.library.items() if n.removesuffix(".default") not in {call.name for call in known}}
    alone = len({place.filename for place in g.lines}) <= 1
    for i, call in enumerate(known[:_SHOWN]):
        half = f"{call.half}: " if call.half else ""
        times = f"{call.calls} x " if call.calls > 1 else ""
        text = f"{half}{times}{call.name}{_from(call.lines, alone)}{_of_modules(call.modules)}"
        yield from _field("library" if i == 0 else "", text)
    yield from _field("" if known else "library", _list(left))


def _of_modules(paths: tuple[str, ...]) -> str:
    """` of transformer.h.0.attn.c_attn and 11 more`."""
    if not paths:
        return ""
    return f" of {', '.join(paths[:2])}" + (f" and {len(paths) - 2} more" if len(paths) > 2 else "")


def _moves(kernel: KernelInfo) -> str:
    """How a kernel is laid out on a GPU, and the bytes that it has to move."""
    if kernel.facts is None:
        return ""
    facts, parts = kernel.facts, []
    if facts.grid is not None:
        blocks = count(facts.grid, "block") if isinstance(facts.grid, int) else f"{facts.grid} blocks"
        parts.append(f"{blocks} of {count(facts.warps, 'warp')}" if facts.warps else blocks)
    moved = ((facts.read, "read"), (facts.written, "written"))
    parts += [f"{_mib(n) if isinstance(n, int) else f'{n} bytes'} {what}" for n, what in moved]
    return f": {', '.join(parts)}"


def _from(places: tuple[str, ...], alone: bool = False) -> str:
    """The lines of a kernel: numbers alone where the graph is of one file."""
    if not places:
        return ""
    split = [p.rpartition(":") for p in places]
    if alone and len({file for file, _, _ in split}) == 1:
        numbers = [n for _, _, n in split]
        more = f" and {len(numbers) - 6} more" if len(numbers) > 6 else ""
        return f" (line{'s' if len(numbers) > 1 else ''} {', '.join(numbers[:6])}{more})"
    shown = [f"{os.path.basename(file)}:{n}" for file, _, n in split]
    return f" ({', '.join(shown[:4])}{f' and {len(shown) - 4} more' if len(shown) > 4 else ''})"


def _breaks(breaks: list[BreakInfo]) -> Iterator[str]:
    for b in breaks:
        yield f"  {short(b.file)}:{b.line}, in {b.function}: {b.text}"
        for caller in b.callers[:4]:
            yield from _field("called from", _line(caller))
        yield from _field("why", b.reason)
        yield from _field("what to do", b.remedy)
        yield from _field("goes on", " or ".join(f"in {name} at line {line}" for name, line in b.goes_on))


def _fallbacks(e: Explanation) -> Iterator[str]:
    for f in e.fallbacks:
        yield f"  {f.what}" + (f", because of {short(f.file)}:{f.line}: {f.text}" if f.file else "")
        yield from _field("why", " ".join(f.reason.split()))
        yield from _field("what to do", f.remedy)


def _recompiles(e: Explanation) -> Iterator[str]:
    for r in e.recompiles[-_SHOWN:]:
        if not r.part:
            yield from _paragraph(f"{r.function}: {r.reason}")
            continue
        yield from _paragraph(f"{r.function}: {r.part} was {r.got}, expected {r.expected}")
        yield from _field("needed by", _line(r.place) if r.place else "")
        yield from _field("what to do", r.remedy)
    if len(e.recompiles) > _SHOWN:
        yield f"  and {len(e.recompiles) - _SHOWN} before these"


def _guards(graphs: list[GraphInfo]) -> Iterator[str]:
    """What a person can change comes first; that modules and globals are what they were is counted only."""
    for g in graphs:
        quiet = [x for x in g.guards if _is_quiet(x.text)]
        spoken = [x for x in g.guards if not _is_quiet(x.text)]
        if len(graphs) > _DETAILED:
            yield f"  {g.index:>2}  {count(len(g.guards), 'check')}"
            continue
        yield f"  graph {g.index}: {count(len(g.guards), 'check')}"
        for x in sorted(spoken, key=lambda x: _rank(x.text))[:_SHOWN]:
            place = f"  ({_brief(x.place)})" if x.place else ""
            yield f"      {_clip(x.text, max(40, WIDTH - 6 - len(place)))}{place}"
        rest = len(spoken) - _SHOWN
        if rest > 0:
            yield f"      and {rest} more of arguments and settings"
        if quiet:
            yield f"      {count(len(quiet), 'check')} that functions, modules and their parts are those that were captured"


_QUIET = re.compile(r": (the same |keys |no '|no attribute |empty$|type builtins\.)|^__\w+__|^self[.\[]")


def _rank(text: str) -> int:
    """Tensors first, then sizes, then the rest."""
    return 0 if ", strides " in text else 1 if ".shape[" in text else 2


def _clip(text: str, width: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= width else f"{text[: width // 2 - 2]}...{text[-(width - width // 2 - 1) :]}"


def _brief(place: SourceLine) -> str:
    """`file:line` with at most one folder."""
    return os.sep.join(_at(place).split(os.sep)[-2:])


def _is_quiet(text: str) -> bool:
    return _QUIET.search(text) is not None


_ORDER = ("capture", "autograd", "functionalize", "import", "load", "passes", "emit", "c++", "forward", "backward")


def _times(seconds: dict[str, float]) -> list[str]:
    """Phases in the order in which they run; forward and backward hold phases of their own."""
    known = [n for n in _ORDER if n in seconds] + [n for n in seconds if n not in _ORDER]
    text = ", ".join(f"{n} {seconds[n]:.2g}" for n in known if seconds[n] >= 0.001)
    return _paragraph(text) if text else []


def _paragraph(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="    ", break_long_words=False)
