"""The plan of a program's memory over time: which bytes each value has, from which step to which."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from xdsl.ir import SSAValue

from ..ir.dialects import buffer, prim
from ..ir.symbols import dim
from ..ir.syntax import Op, line_of
from ..ir.types import RefType
from ..passes.analysis.aliases import Aliases
from ..passes.analysis.sizes import hint
from ..targets.host.kernels import is_step
from .places import Places


def memory_plan(main: prim.Func, places: Places) -> dict[str, Any]:
    """The values of a host program at the `buffer` level, as rectangles: bytes by steps.

    `first` and `last` number the steps that do work, both included. Values in the arena lie at their offsets; for the others, which the
    allocator or a library places, `offset` is one that draws them above it without overlaps. Sizes that change count as
    they were in the call that was captured.
    """
    known = dict(main.get("size_hints") or ())
    ops = list(main.block_body.ops)
    aliases = Aliases.of(main.block_body)
    last_use = aliases.last_uses(main.block_body)
    freed = {aliases.root(op.operands[0]): k for k, op in enumerate(ops) if isinstance(op, buffer.Free)}
    number, steps = [], 0  # of each operation: how many steps are done before it
    for op in ops:
        number.append(steps)
        steps += isinstance(op, Op) and is_step(op)
    found: list[dict[str, Any]] = []
    for k, op in enumerate(ops):
        for value in op.results if isinstance(op, buffer.Alloc | buffer.Extern) else ():
            if not isinstance(value.type, RefType) or aliases.root(value) is not value or not _bytes(value, known):
                continue
            end = freed.get(value, last_use.get(value, k))
            last = steps - 1 if isinstance(ops[end], prim.Return) else number[end] - isinstance(ops[end], buffer.Free)
            pool = op["pool"] if isinstance(op, buffer.Alloc) else "library"
            start = hint(op["offset"], known) if isinstance(op, buffer.Alloc) and pool == "arena" else -1
            found.append(
                {
                    "type": str(value.type).removeprefix("!buffer.ref"),
                    "bytes": _bytes(value, known),
                    "offset": start,
                    "pool": pool,
                    "first": number[k],
                    "last": max(last, number[k]),
                    "place": places.of(line_of(op)),
                }
            )
    arena = hint(main.get("arena_bytes", 0), known)
    top = _above(found, arena)
    given = [_bytes(a, known) for a in main.block_body.args if isinstance(a.type, RefType)]
    sizes = [a.type.shape for a in main.block_body.args if isinstance(a.type, RefType)]
    guessed = any(not isinstance(size, int) for shape in sizes for size in shape)
    return {"values": found, "steps": steps, "arena": arena, "top": top, "given": sum(given), "guessed": guessed}


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


def _bytes(value: SSAValue, known: Mapping[str, int]) -> int:
    ref = value.type
    assert isinstance(ref, RefType)
    sizes = zip(ref.shape, ref.strides, strict=True)
    return hint(dim(math.prod(size for size, stride in sizes if stride != 0)), known) * ref.dtype.bytes
