"""What a report says of one program: its steps, kernels, memory, passes and code. All of it plain data, with places as numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..explaining.kernel_facts import KernelFacts, kernel_facts
from ..explaining.roofline import Times
from ..explaining.steps import Step, steps_of
from ..graph_compiler import Report
from ..ir.text import parse_module
from ..passes.core.base import LEVELS
from ..passes.core.context import Remark
from ..passes.pipeline import registry
from ..targets.build.program import Generated
from ..targets.triton.program import KERNELS
from .memory import drawn_plan
from .places import Places
from .record import PassRecord
from .texts import Texts


def program_facts(report: Report, times: Times | None, places: Places, texts: Texts) -> dict[str, Any]:
    """All that is known of a compiled program, by what became of its graph."""
    generated = None if report.program is None else report.program.generated
    found: dict[str, Any] = {
        "half": report.half,
        "cached": report.cached,
        "eager": report.reason,
        "passes": [] if report.record is None else pass_facts(report.record, places, texts),
        "remarks": remark_facts(report.diagnostics.remarks, places),
        "counts": report.diagnostics.statistics,
        "times": None if times is None else times_facts(times, places),
    }
    return found | (generated_facts(generated, places, texts) if generated is not None else {})


def generated_facts(generated: Generated, places: Places, texts: Texts) -> dict[str, Any]:
    """Steps, kernels, memory and code of a program."""
    module = parse_module(generated.ir)
    facts = kernel_facts(generated.ir)
    units: dict[tuple[str, str], dict[str, Any]] = {}
    steps = []
    for step in steps_of(module, generated.host.lines):
        unit = units.setdefault((step.kind, step.name), _unit(step, len(units), facts.get(step.name)))
        unit["calls"] += 1
        unit["places"] = list(dict.fromkeys([*unit["places"], *places.all_of(step.lines)]))
        at = places.all_of([step.line] if step.line else step.lines)
        steps.append({"unit": unit["index"], "places": at, "module": step.module, "why": step.why})
    code = [] if generated.gpu is None else [(KERNELS, generated.gpu.text)]
    code += [(f"{unit.name}.cpp", unit.text) for unit in generated.units]
    code += [("host.py", generated.host.text)]
    return {
        "steps": steps,
        "units": list(units.values()),
        "memory": drawn_plan(module, places),
        "code": [{"name": name, "text": texts.plain(text)} for name, text in code],
    }


def _unit(step: Step, index: int, facts: KernelFacts | None) -> dict[str, Any]:
    """A kernel of our own, or a library's operator: what its steps have in common."""
    unit: dict[str, Any] = {"name": step.name, "kind": step.kind, "places": [], "calls": 0}
    if facts is not None:
        named = ("grid", "read", "written", "operations", "products")
        numbers = {what: getattr(facts, what) for what in named}
        unit |= {"device": facts.device, "warps": facts.warps}
        unit |= {what: n if n is None or isinstance(n, int) else str(n) for what, n in numbers.items()}
    return unit | {"index": index}


def pass_facts(passes: PassRecord, places: Places, texts: Texts) -> list[dict[str, Any]]:
    """The imported module and each pass: level behind it, seconds, and its text, which is that of the step before where nothing changed."""
    known = registry().classes
    text, level = texts.ir(passes.imported), LEVELS[0]
    found = [{"name": "imported", "level": level, "seconds": 0.0, "text": text, "changed": True, "about": ""}]
    for step in passes.steps:
        kind = known.get(step.name)
        if step.text is not None:
            text = texts.ir(step.text)
        level = level if kind is None else kind.gives or kind.level
        about = "" if kind is None else (kind.__doc__ or "").strip().partition("\n")[0]
        changed = step.text is not None
        found.append(
            {
                "name": step.name,
                "level": level,
                "seconds": step.seconds,
                "text": text,
                "changed": changed,
                "about": about,
            }
        )
    return found


def remark_facts(remarks: Iterable[Remark], places: Places) -> list[dict[str, Any]]:
    """What passes did and refused."""
    return [
        {
            "pass": r.pass_name,
            "kind": r.kind,
            "text": r.message,
            "places": places.all_of(r.lines or ([r.location] if r.location else [])),
            "numbers": dict(r.numbers),
        }
        for r in remarks
    ]


def times_facts(times: Times, places: Places) -> dict[str, Any]:
    """What was measured."""
    return {
        "device": times.device,
        "reason": times.reason,
        "copy": times.copy,
        "products": [list(row) for row in times.products],
        "seconds": times.seconds,
        "best": times.at_the_limits,
        "steps": [
            {
                "name": s.name,
                "places": places.all_of(s.lines),
                "calls": s.calls,
                "seconds": s.seconds,
                "bytes": s.bytes,
                "operations": s.operations,
                "limit": s.limit,
                "share": s.share,
            }
            for s in times.steps
        ],
    }
