"""Rolls on a GPU are reads at other places, and go in front of reductions along other dimensions.

A window that moves (Swin) rolls the result of a layer norm: rows that a kernel has in order it would then have to store, and another to load.
`norm(roll(x))` is `roll(norm(x))` where the norm goes along other dimensions, and costs nothing but a remainder in the address of each row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import OpResult, SSAValue

from ...ir.dialects import prim
from ...ir.syntax import Op
from ..analysis.indexing import rolled
from ..analysis.views import kept_dimensions
from ..core.base import Pass
from ..core.context import CompileContext

Dimension: TypeAlias = int | None  # the one that is rolled, of a value; None where it has no such


@dataclass(frozen=True)
class SinkRolls(Pass):
    """Roll what a chain of operations with a reduction begins with instead of what it ends with."""

    name: ClassVar[str] = "sink-rolls"
    level: ClassVar[str] = "prim"
    after: ClassVar[tuple[str, ...]] = ("decompose", "canonicalize", "cse", "dce")
    before: ClassVar[tuple[str, ...]] = ("fuse",)

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        for func in [op for op in module.ops if isinstance(op, prim.Func)]:
            for op in list(func.block_body.ops):
                found = rolled(op) if isinstance(op, prim.Concat) else None
                if found is not None and isinstance(op, prim.Concat) and _sink(op, *found):
                    ctx.diagnostics.count(self.name, "rolls in front of reductions")


def _sink(op: prim.Concat, source: SSAValue, amount: int) -> bool:
    """The same for one roll of `source`: the operations stay as they are, on other operands."""
    slices = [v.owner for v in op.operands]
    if any(len(list(v.uses)) != 1 for v in op.operands) or any(u.operation not in slices for u in source.uses):
        return False
    dims: dict[SSAValue, Dimension] = {source: op["dim"]}
    chain = _chain(source, dims)
    if not any(isinstance(each, prim.Reduce) for each in chain):
        return False
    block = op.parent
    assert block is not None
    ends: dict[SSAValue, SSAValue] = {}
    for each in chain[::-1]:  # in the order of the block
        for k, value in enumerate(each.operands):
            dimension = dims.get(value)
            if value.owner in chain or dimension is None:
                continue
            if value not in ends:
                made = _roll(value, dimension, amount)
                block.insert_ops_before(made, each)
                ends[value] = made[-1].results[0]
            each.operands[k] = ends[value]
    result = op.results[0]
    if "strides" in op.attributes and isinstance(source.owner, Op):
        source.owner.attributes["strides"] = op.attributes["strides"]
    result.replace_all_uses_with(source)
    for dead in (op, *slices):
        block.erase_op(dead)  # type: ignore[arg-type]  # operations, as they have been matched
    return True


def _chain(source: SSAValue, dims: dict[SSAValue, Dimension]) -> list[prim.PrimOp]:
    """The operations that only `source` needs and that do not mix its elements along the dimension, last ones first.

    `dims` gets the dimension of each of their operands.
    """
    chain: list[prim.PrimOp] = []
    waiting = [source]
    while waiting:
        value = max(waiting, key=_place)
        waiting.remove(value)
        op, dimension = value.owner, dims[value]
        if dimension is None or not isinstance(op, prim.PrimOp) or op in chain:
            continue
        inside = value is source or all(use.operation in chain for use in value.uses)
        taken = _operand_dimensions(op, dimension) if inside and len(op.results) == 1 else None
        if taken is None or any(dims.get(v, d) != d for v, d in zip(op.operands, taken, strict=True)):
            continue
        chain.append(op)
        for operand, d in zip(op.operands, taken, strict=True):
            if operand not in dims:
                dims[operand] = d
                waiting.append(operand)
    return chain


def _place(value: SSAValue) -> int:
    """Where in its block a value is made; arguments come first."""
    op = value.op if isinstance(value, OpResult) else None
    block = op.parent if op is not None else None
    return -1 if block is None or op is None else block.get_operation_index(op)


def _operand_dimensions(op: prim.PrimOp, dimension: int) -> list[Dimension] | None:
    """For each operand the dimension that runs with one of the result; None where it is mixed with others."""
    if isinstance(op, prim.Elementwise | prim.Cast):
        return [dimension] * len(op.operands)
    if isinstance(op, prim.Full):
        return []
    if isinstance(op, prim.Reduce):
        kept = [d for d in range(prim.tensor(op.operands[0]).rank) if d not in op["dims"]]
        return [kept[dimension]]
    if isinstance(op, prim.Broadcast | prim.Reshape):
        places = kept_dimensions(op)
        if dimension in places:
            return [places.index(dimension)]
        return [None] if isinstance(op, prim.Broadcast) else None
    return None


def _roll(value: SSAValue, d: int, amount: int) -> list[prim.PrimOp]:
    """Operations of which the last one gives the elements from `amount` on along a dimension, and then those before."""
    t = prim.tensor(value)
    steps = (1,) * t.rank
    parts: list[prim.PrimOp] = []
    for start, count in ((amount, t.shape[d] - amount), (0, amount)):
        shape = (*t.shape[:d], count, *t.shape[d + 1 :])
        starts = tuple(start if k == d else 0 for k in range(t.rank))
        parts.append(prim.Slice.make([value], [t.with_(shape=shape)], {"starts": starts, "steps": steps}))
    return [*parts, prim.Concat.make([p.results[0] for p in parts], [t], {"dim": d})]
