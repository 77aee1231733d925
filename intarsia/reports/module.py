"""What a report can say of a module of IR alone: the passes that ran on it, their decisions, and what it became."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from xdsl.dialects.builtin import ModuleOp

from ..ir.dialects import prim
from ..ir.syntax import Op, location_of
from ..ir.text import parse_module, print_module
from ..ir.types import RefType, TensorType
from ..passes.core.context import Diagnostics
from ..passes.core.levels import module_levels
from ..targets.build.program import generate
from ..targets.host.library import Library
from .gather import FORMAT, event_facts, made
from .places import Places
from .programs import generated_facts, pass_facts, remark_facts
from .record import PassRecord, Recording
from .texts import Texts


def module_facts(
    title: str, record: PassRecord, diagnostics: Diagnostics, module: ModuleOp, recorded: Recording
) -> dict[str, Any]:
    """The facts of a module that went through passes; code and memory where it has come to the `buffer` level."""
    places = Places()
    texts = Texts(places)
    program: dict[str, Any] = {
        "half": "",
        "cached": False,
        "eager": "",
        "passes": pass_facts(record, places, texts),
        "remarks": remark_facts(diagnostics.remarks, places),
        "counts": diagnostics.statistics,
        "times": None,
    }
    if "buffer" in module_levels(module):
        generated = replace(generate(module, Library()), ir=print_module(module))
        program |= generated_facts(generated, places, texts)
    graph: dict[str, Any] = {
        "index": 1,
        "function": "main",
        "eager": "",
        "cached": False,
        "recording": "",
        "memory": None,
        "kept": 0,
        "eagerMemory": None,
        "captureSeconds": 0.0,
        "compileSeconds": sum(step.seconds for step in record.steps),
        "broken": None,
        "ops": list(_operations(parse_module(record.imported), places)),
        "guards": [],
        "saved": None,
        "programs": [program],
    }
    facts = {"format": FORMAT, "title": title, "made": made(), "seconds": graph["compileSeconds"], "graphs": [graph]}
    facts |= {"breaks": [], "fallbacks": [], "recompiles": [], "events": event_facts(recorded)}
    return facts | places.facts() | {"texts": texts.facts}


def _operations(module: ModuleOp, places: Places) -> Iterator[dict[str, Any]]:
    """The operations of the module's functions as a graph."""
    for func in module.body.block.ops:
        for op in func.block_body.ops if isinstance(func, prim.Func) else ():
            if isinstance(op, prim.Return) or not isinstance(op, Op):
                continue
            kinds = [v.type for v in op.results if isinstance(v.type, TensorType | RefType)]
            shape = f"{kinds[0].dtype.name}[{', '.join(map(str, kinds[0].shape))}]" if kinds else ""
            at = location_of(op)
            place, stack = None if at is None else places.at(*at), places.stack([] if at is None else [at])
            yield {"name": op.name, "place": place, "stack": stack, "module": "", "type": shape}
