"""What a report says of a function: everything that `explain` and the recording of its compilation know, as plain data."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from ..explaining.explanation import BreakInfo, Explanation, FallbackInfo, GraphInfo, RecompileInfo
from ..frontend.errors import SourceLine
from ..graph_compiler import reports_of
from ..ir.fx.importer import user_frames
from ..partition.choose import Partition
from .places import Places
from .programs import program_facts
from .record import OWN_WORK, Recording
from .texts import Texts

FORMAT = 1  # of these facts; the page is made for the same


def facts_of(explanation: Explanation, recorded: Recording) -> dict[str, Any]:
    """The facts of a function that was compiled during a recording."""
    places = Places()
    texts = Texts(places)
    graphs = [graph_facts(graph, places, texts) for graph in explanation.graphs]
    return {
        "format": FORMAT,
        "title": explanation.name,
        "made": made(),
        "seconds": explanation.compile_seconds,
        "graphs": graphs,
        "breaks": [break_facts(b, places) for b in explanation.breaks],
        "fallbacks": [fallback_facts(f, places) for f in explanation.fallbacks],
        "recompiles": [recompile_facts(r, places) for r in explanation.recompiles],
        "events": event_facts(recorded),
        **places.facts(),
        "texts": texts.facts,
    }


def made() -> dict[str, str]:
    """With what the report was made, and when."""
    try:
        own = version("intarsia")
    except PackageNotFoundError:
        own = ""
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return {"intarsia": own, "torch": torch.__version__, "python": platform.python_version(), "time": now}


def place_of(place: SourceLine | None, places: Places) -> int | None:
    """The number of a line."""
    return None if place is None else places.at(place.filename, place.lineno)


def graph_facts(graph: GraphInfo, places: Places, texts: Texts) -> dict[str, Any]:
    """One captured graph, and its programs: one, or a forward and a backward half."""
    nodes = [n for n in graph.graph_module.graph.nodes if n.op not in ("placeholder", "output", "get_attr")]
    reports = reports_of(graph.graph_module)
    return {
        "index": graph.index,
        "function": graph.function,
        "eager": graph.eager,
        "cached": graph.cached,
        "recording": graph.recording,
        "memory": graph.memory,
        "kept": graph.kept_memory,
        "eagerMemory": graph.eager_memory,
        "captureSeconds": graph.capture_seconds,
        "compileSeconds": graph.compile_seconds,
        "broken": None if graph.broken is None else break_facts(graph.broken, places),
        "ops": [
            {
                "name": op.name,
                "place": place_of(op.place, places),
                "stack": places.stack(user_frames(node.meta.get("stack_trace"))),
                "module": op.module,
                "type": type_of(node.meta.get("example_value")),
            }
            for op, node in zip(graph.ops, nodes, strict=True)
        ],
        "guards": [{"text": g.text, "place": place_of(g.place, places)} for g in graph.guards],
        "saved": None if graph.partition is None else partition_facts(graph.partition, places),
        "programs": [program_facts(r, graph.measured.get(id(r.program)), places, texts) for r in reports],
    }


def type_of(value: Any) -> str:
    """`float32[2, 3]` of a tensor; "" of anything else."""
    if not isinstance(value, torch.Tensor):
        return ""
    return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(map(str, value.shape))}]"


def break_facts(broken: BreakInfo, places: Places) -> dict[str, Any]:
    """A graph break."""
    return {
        "place": places.at(broken.file, broken.line),
        "text": broken.text,
        "function": broken.function,
        "reason": broken.reason,
        "remedy": broken.remedy,
        "callers": [places.at(c.filename, c.lineno) for c in broken.callers],
        "goesOn": [f"{function}, line {line}" for function, line in broken.goes_on],
    }


def fallback_facts(found: FallbackInfo, places: Places) -> dict[str, Any]:
    """Something that runs in eager."""
    return {
        "what": found.what,
        "reason": found.reason,
        "remedy": found.remedy,
        "text": found.text,
        "place": places.at(found.file, found.line) if found.file else None,
    }


def recompile_facts(found: RecompileInfo, places: Places) -> dict[str, Any]:
    """A call that fitted nothing compiled before."""
    return {
        "function": found.function,
        "part": found.part,
        "expected": found.expected,
        "got": found.got,
        "reason": found.reason,
        "remedy": found.remedy,
        "place": place_of(found.place, places),
    }


def partition_facts(found: Partition, places: Places) -> dict[str, Any]:
    """What forward saves for backward, and what backward computes again."""
    return {
        "budget": found.budget,
        "bytes": found.bytes,
        "most": found.most,
        "least": found.least,
        "tensors": [
            {"name": s.name, "type": s.type, "bytes": s.bytes, "place": place_of(s.place, places), "module": s.module}
            for s in found.saved
        ],
        "again": [[name, count, found.costly.get(name, 0)] for name, count in found.again.items()],
    }


def event_facts(*recorded: Recording) -> list[dict[str, Any]]:
    """What took time, in the order of its beginning; threads are counted from 0."""
    events = sorted((e for r in recorded for e in r.events), key=lambda e: (e.start, -e.seconds))
    threads: dict[int, int] = {}
    return [
        {
            "name": e.name,
            "start": e.start,
            "seconds": e.seconds,
            "thread": threads.setdefault(e.thread, len(threads)),
            "about": e.about,
            "own": e.name == OWN_WORK,
        }
        for e in events
    ]
