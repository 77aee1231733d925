"""Two kernels as one: what the second reads of the first is computed where it is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from xdsl.ir import Block, SSAValue, Use

from ...ir.dialects import kernel, prim
from ...ir.dtypes import F32
from ...ir.syntax import Op, single_block
from ..core.rewriter import copy_with, erase_dead

ONE_TO_ONE = (prim.Reshape, prim.Permute)  # views with as many elements as there are
Views = tuple[type[Op], ...]


def join(producer: kernel.Fused, consumer: kernel.Fused) -> kernel.Fused:
    """One kernel in the place of the consumer, around the contraction that one of the two may have.

    What others read of the producer stays a result. Eager's rounding to a half type between the two is skipped, as in
    all kernels.
    """
    region = single_block()
    block, parent = region.block, consumer.parent
    assert parent is not None
    inputs: dict[SSAValue, SSAValue] = {}  # values outside -> arguments
    made: dict[SSAValue, SSAValue] = {}  # values of both kernels -> of the new one
    exact: dict[SSAValue, SSAValue] = {}  # values of the consumer -> what they are before they are rounded

    def read(value: SSAValue) -> SSAValue:
        if value not in inputs:
            inputs[value] = block.insert_arg(value.type, len(block.args))
        return inputs[value]

    made.update((arg, read(value)) for arg, value in zip(producer.block_body.args, producer.operands, strict=True))
    for op in _computed(producer):
        made[op.results[0]] = _again(block, op, [made[v] for v in op.operands])
    results: dict[SSAValue, SSAValue] = dict(zip(producer.results, (made[v] for v in _yielded(producer)), strict=True))
    for arg, value in zip(consumer.block_body.args, consumer.operands, strict=True):
        base, views = viewed(value, prim.VIEWS)
        if base not in results:
            made[arg] = read(value)
            continue
        found, wide = results[base], _before_rounding(results[base])
        for view in views:
            found, wide = _again(block, view, [found]), wide and _again(block, view, [wide])
        made[arg] = found
        if wide is not None:
            exact[arg] = wide
    for op in _computed(consumer):
        result, wide = op.results[0], exact.get(op.operands[0]) if op.operands else None
        if wide is not None and isinstance(op, prim.Cast) and op.type.dtype == F32:
            made[result] = wide
            continue
        if wide is not None and type(op) in ONE_TO_ONE:
            exact[result] = _again(block, op, [wide])
        made[result] = _again(block, op, [made[v] for v in op.operands])
    kept = [r for r in producer.results if any(use.operation is not consumer for use in uses_of(r, prim.VIEWS))]
    olds = [*consumer.results, *kept]
    block.add_op(kernel.Yield.make([*(made[v] for v in _yielded(consumer)), *(results[r] for r in kept)]))
    erase_dead(block)
    first = next((op for op in (producer, consumer) if isinstance(op, kernel.Contract)), producer)
    attributes = {k: v for k, v in first.literals.items() if k != "strides"}
    strides = [layout_of(value) for value in olds]
    if any(s is not None for s in strides):
        attributes["strides"] = strides
    joined = type(first).make(list(inputs), [v.type for v in olds], attributes, [region], first.location)
    parent.insert_op_before(joined, consumer)
    late = [view for result in kept for view in views_of(result)]  # the result is there later than before
    for old, new in zip(olds, joined.results, strict=True):
        new.name_hint = old.name_hint
        old.replace_all_uses_with(new)
    erase(consumer)
    for view in reversed(late):
        view.detach()
        parent.insert_op_after(view, joined)
    erase(producer)
    return joined


def _computed(op: kernel.Fused) -> Iterator[Op]:
    return (inner for inner in op.block_body.ops if isinstance(inner, Op) and not isinstance(inner, kernel.Yield))


def _yielded(op: kernel.Fused) -> list[SSAValue]:
    return list(cast(kernel.Yield, op.block_body.last_op).operands)


def _again(block: Block, op: Op, operands: list[SSAValue]) -> SSAValue:
    made = copy_with(op, operands)
    block.add_op(made)
    return made.results[0]


def _before_rounding(value: SSAValue) -> SSAValue | None:
    """The float32 that a value of a half type is rounded from, where the program does not ask for that."""
    owner = value.owner
    if not isinstance(owner, prim.Cast) or owner.get("rounds") or owner.type.dtype.compute == owner.type.dtype:
        return None
    return owner.operands[0] if prim.tensor(owner.operands[0]).dtype == F32 else None


def layout_of(value: SSAValue) -> object:
    """The strides that a kernel or a call stores one of its results with; None: contiguous."""
    strides = cast(Op, value.owner).get("strides")
    return strides[value.index] if strides else None  # type: ignore[attr-defined]  # a result of an operation


def erase(op: Op) -> None:
    """Erase a kernel or a call that nothing reads but views, and these."""
    for view in [view for result in op.results for view in views_of(result)][::-1]:
        view.detach()
        view.erase()
    op.detach()
    op.erase()


def uses_of(value: SSAValue, views: Views = ONE_TO_ONE) -> list[Use]:
    """The uses of a value, also through such views."""
    found: list[Use] = []
    for use in value.uses:
        found += uses_of(use.operation.results[0], views) if type(use.operation) in views else [use]
    return found


def views_of(value: SSAValue, views: Views = prim.VIEWS) -> list[Op]:
    """The views of a value, in an order in which each follows what it is a view of."""
    found: list[Op] = []
    for use in value.uses:
        if type(use.operation) in views:
            found += [use.operation, *views_of(use.operation.results[0], views)]
    return found


def viewed(value: SSAValue, views: Views = ONE_TO_ONE) -> tuple[SSAValue, list[Op]]:
    """What a value is a view of, and the views that lead from there to it."""
    steps: list[Op] = []
    while type(owner := value.owner) in views:
        steps.append(cast(Op, owner))
        value = steps[-1].operands[0]
    return value, steps[::-1]
