"""The plan of a program's memory over time, as a page draws it: rectangles, bytes by steps."""

from __future__ import annotations

from typing import Any

from xdsl.dialects.builtin import ModuleOp

from ..explaining.plan import memory_plan
from ..ir.interpreter.loops import main_function
from ..ir.symbols import span
from ..ir.types import RefType
from ..passes.analysis.sizes import hint
from .places import Places


def drawn_plan(module: ModuleOp, places: Places) -> dict[str, Any]:
    """The values of a host program at the `buffer` level, as rectangles.

    `first` and `last` number the steps that do work, both included. Values in the arena lie at their offsets; for the others, which the
    allocator or a library places, `offset` is one that draws them above it without overlaps. Sizes that change count as
    they were in the call that was captured.
    """
    main = main_function(module)
    known = dict(main.get("size_hints") or ())
    plan = memory_plan(module, known)
    found = [
        {
            "type": b.type.removeprefix("!buffer.ref"),
            "bytes": b.bytes,
            "offset": -1 if b.offset is None else b.offset,
            "pool": b.pool,
            "first": b.begin,
            "last": b.end,
            "place": places.of(b.line),
        }
        for b in plan.buffers
    ]
    top = _above(found, plan.arena)
    kinds = [a.type for a in main.block_body.args if isinstance(a.type, RefType)]
    given = sum(hint(span(kind.shape, kind.strides), known) * kind.dtype.bytes for kind in kinds)
    guessed = any(not isinstance(size, int) for kind in kinds for size in kind.shape)
    return {
        "values": found,
        "steps": len(plan.steps),
        "arena": plan.arena,
        "top": top,
        "given": given,
        "guessed": guessed,
    }


def _above(found: list[dict[str, Any]], start: int) -> int:
    """Give each value outside of the arena the lowest place above it that is free while it lives; the height of all."""
    done: list[dict[str, Any]] = []
    top = start
    for value in (v for v in found if v["offset"] < 0):
        offset = start
        rivals = [d for d in done if d["first"] <= value["last"] and value["first"] <= d["last"]]
        for rival in sorted(rivals, key=lambda d: d["offset"]):
            if offset + value["bytes"] <= rival["offset"]:
                break
            offset = max(offset, rival["offset"] + rival["bytes"])
        value["offset"] = offset
        top = max(top, offset + value["bytes"])
        done.append(value)
    return top
