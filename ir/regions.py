"""Operators of our own that call functions of the module: one of two, one again and again, one for each slice.

    %2 = aten.ops.intarsia.cond.default(%p, %a, %b) {operands = ["pred", "operands.0", "operands.1"],
                                                     true_body = "body0", false_body = "body1"} : !prim.tensor<[4], f32>

A body is a `prim.func` of the module beside `@main`, with arguments, strides and symbols of its own, and isolated from its caller: what it
reads it is given. So each pass sees it as it sees `@main`. Results are memory of their own.
`cond`: both bodies take the operands.
`while_loop`: condition and body take what is carried, then the operands; the body gives what is carried on.
`scan`: the body takes what is carried, a slice of each item, the operands; it gives what is carried on, then a slice of each result.
`map`: the same with nothing carried. Slices are along dimension 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .syntax import Op

__all__ = ["COND", "MAP", "RUNS", "SCAN", "WHILE_LOOP", "bodies", "groups"]

Body = Callable[..., Sequence[Tensor]]

COND = "aten.ops.intarsia.cond.default"

WHILE_LOOP = "aten.ops.intarsia.while_loop.default"
SCAN = "aten.ops.intarsia.scan.default"
MAP = "aten.ops.intarsia.map.default"

_LIBRARY = torch.library.Library("intarsia", "FRAGMENT")
_LIBRARY.define("cond(Tensor pred, Tensor[]? operands, str true_body, str false_body) -> Tensor[]")
_LIBRARY.define("while_loop(Tensor[] carried, Tensor[]? operands, str condition, str body) -> Tensor[]")
_LIBRARY.define("scan(Tensor[] carried, Tensor[] items, Tensor[]? operands, str body) -> Tensor[]")
_LIBRARY.define("map(Tensor[] items, Tensor[]? operands, str body) -> Tensor[]")


def cond(true_body: Body, false_body: Body, pred: Tensor, operands: Sequence[Tensor] = ()) -> Sequence[Tensor]:
    """What one of the bodies gives."""
    return (true_body if pred.item() else false_body)(*operands)


def while_loop(
    condition: Body, body: Body, carried: Sequence[Tensor], operands: Sequence[Tensor] = ()
) -> Sequence[Tensor]:
    """What is carried when the condition no longer holds."""
    values = carried
    while condition(*values, *operands)[0].item():
        values = body(*values, *operands)
    return copies(carried) if values is carried else values


def scan(
    body: Body,
    carried: Sequence[Tensor],
    items: Sequence[Tensor],
    operands: Sequence[Tensor] = (),
    nothing: Sequence[Any] | None = None,
) -> Sequence[Tensor]:
    """What is carried in the end, and the results of all rounds, one behind the other in memory that is taken in the first.

    `nothing`: sizes, strides and dtype of these results where there is no round.
    """
    values, results, count = carried, list[Tensor](), len(carried)
    length = items[0].shape[0]
    if length == 0:
        return [*copies(carried), *_of_no_round(body, carried, items, operands, nothing)]
    for k in range(length):
        made = body(*values, *(item[k] for item in items), *operands)
        values = made[:count]
        results = results or [y.new_empty((length, *y.shape)) for y in made[count:]]
        for result, y in zip(results, made[count:], strict=True):
            result[k] = y
    return [*values, *results]


def copies(values: Sequence[Tensor]) -> list[Tensor]:
    """The same in memory of their own, which lies as they do."""
    return [torch.empty_strided(v.shape, v.stride(), dtype=v.dtype, device=v.device).copy_(v) for v in values]


def _of_no_round(
    body: Body,
    carried: Sequence[Tensor],
    items: Sequence[Tensor],
    operands: Sequence[Tensor],
    nothing: Sequence[Any] | None,
) -> list[Tensor]:
    """The results of no round; where nobody says how they would lie, a round on zeros does."""
    if nothing is None:
        made = body(*carried, *(item.new_zeros(item.shape[1:]) for item in items), *operands)[len(carried) :]
        return [y.new_empty((0, *y.shape)) for y in made]
    return [torch.empty_strided(*geometry, dtype=d, device=items[0].device) for *geometry, d in nothing]


def map(
    body: Body, items: Sequence[Tensor], operands: Sequence[Tensor] = (), nothing: Sequence[Any] | None = None
) -> Sequence[Tensor]:
    """The results for all slices."""
    return scan(body, (), items, operands, nothing)


# What carries out each operator: a function of its bodies, then of its tensors and lists of tensors, in the schema's order.
RUNS: dict[str, tuple[Callable[..., Sequence[Tensor]], tuple[str, ...]]] = {
    COND: (cond, ("true_body", "false_body")),
    WHILE_LOOP: (while_loop, ("condition", "body")),
    SCAN: (scan, ("body",)),
    MAP: (map, ("body",)),
}


# The arguments of each operator that are tensors or lists of tensors, in order.
GROUPS = {
    COND: ("pred", "operands"),
    WHILE_LOOP: ("carried", "operands"),
    SCAN: ("carried", "items", "operands"),
    MAP: ("items", "operands"),
}


def bodies(op: Op) -> list[str]:
    """The functions that an operation calls; none where it is no such one."""
    run = RUNS.get(op.get("target") or op.name)
    return [] if run is None else [str(op[name]) for name in run[1]]


def groups(op: Op, values: Sequence[Any]) -> list[Any]:
    """The operands as the operator takes them: a tensor, or a tuple of tensors."""
    found: dict[str, Any] = dict.fromkeys(GROUPS[op.get("target") or op.name], ())
    for name, value in zip(op["operands"], values, strict=True):
        base, _, index = name.partition(".")
        found[base] = (*found.get(base, ()), value) if index else value
    return list(found.values())
