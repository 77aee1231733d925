"""Rolls on a GPU are reads at other places, and go in front of reductions along other dimensions.

A window that moves (Swin) rolls the result of a layer norm: rows that a kernel has in order it would then have to store, and another to load.
`norm(roll(x))` is `roll(norm(x))` where the norm goes along other dimensions, and costs nothing but a remainder in the address of each row.
"""

from __future__ import annotations

from typing import TypeAlias

from xdsl.ir import Block, OpResult, SSAValue

from ...ir.dialects import prim
from ...ir.syntax import Op
from ...ir.types import is_gpu
from ..analysis.indexing import rolled

Dimension: TypeAlias = int | None  # the one that is rolled, of a value; None where it has no such


def sink_rolls(block: Block) -> int:
    """Roll what a chain of operations with a reduction begins with instead of what it ends with; gives the number of rolls that moved."""
    moved = 0
    for op in list(block.ops):
        found = rolled(op) if isinstance(op, prim.Concat) and is_gpu(op.type.device) else None
        if found is not None and isinstance(op, prim.Concat):
            moved += _sink(op, *found)
    return moved


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
    if isinstance(op, prim.Broadcast):
        shape = prim.tensor(op.operands[0]).shape
        found = [k for k, d in enumerate(op["dims"]) if d == dimension and shape[k] != 1]
        return [found[0] if found else None]
    if isinstance(op, prim.Reduce):
        kept = [d for d in range(prim.tensor(op.operands[0]).rank) if d not in op["dims"]]
        return [kept[dimension]]
    if isinstance(op, prim.Reshape):
        return _reshaped(op, dimension)
    return None


def _reshaped(op: prim.Reshape, dimension: int) -> list[Dimension] | None:
    """Where a reshape only adds or takes away dimensions of one element."""
    before, after = prim.tensor(op.operands[0]).shape, op.type.shape
    old, new = ([k for k, s in enumerate(shape) if s != 1] for shape in (before, after))
    if [before[k] for k in old] != [after[k] for k in new] or dimension not in new:
        return None
    return [old[new.index(dimension)]]


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
