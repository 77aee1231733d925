"""Which kernels around a contraction may become part of its kernel: its prologue in front of it, its epilogue behind it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from xdsl.ir import Block, Operation, SSAValue

from ...ir.dialects import kernel, prim
from .join import ONE_TO_ONE, uses_of, viewed

ELEMENTWISE = (prim.Elementwise, prim.Cast)
# Beside operations on single elements, what a factor may be computed by: elements at places that an index says.
PARTS = (prim.Slice, prim.Take, prim.Gather)  # each is one more place at which memory is read
MOVED = (*PARTS, prim.Reshape, prim.Permute, prim.Flip, prim.Pad, prim.Concat)
IN_FRONT = (*ELEMENTWISE, *MOVED, prim.Broadcast, *prim.SOURCES, kernel.Yield)
MOST_WORK = 128  # operations for an element; windows of pixels and the like are worth a kernel of their own
READ = 16  # operations in whose time an element at a place of its own is read; assumed, not measured


@dataclass
class Prologue:
    """A kernel that computes factors of a product alone, and the operations for an element of either factor."""

    kernel: kernel.Fused
    work: tuple[float, float]


def prologues(product: Operation, factors: Sequence[SSAValue], added: SSAValue | None) -> Iterator[Prologue]:
    """The kernels that compute a factor element by element, and nothing that others read."""
    bases = [viewed(v, prim.VIEWS)[0] for v in factors]
    for op in dict.fromkeys(base.owner for base in bases):
        if type(op) is not kernel.Fused or not all(isinstance(inner, IN_FRONT) for inner in op.block_body.ops):
            continue
        if any(use.operation is not product for result in op.results for use in uses_of(result, prim.VIEWS)):
            continue
        if added is not None and viewed(added, prim.VIEWS)[0].owner is op:
            continue
        first, second = (_work(op, base.index) if base.owner is op else 0.0 for base in bases)  # type: ignore[attr-defined]
        if max(first, second) <= MOST_WORK:
            yield Prologue(op, (first, second))


def _work(op: kernel.Fused, number: int) -> float:
    """Operations for an element of a result, with those of reading what it is made of."""
    yielded = op.block_body.last_op.operands[number]  # type: ignore[union-attr]  # a kernel ends in what it yields
    needed, stack = {yielded}, [yielded]
    while stack:
        owner = stack.pop().owner
        operands = owner.operands if isinstance(owner, Operation) else ()
        stack += [v for v in operands if v not in needed]
        needed.update(operands)
    owners = [v.owner for v in needed]
    read = READ if any(isinstance(each, MOVED) for each in owners) else 1
    reads = sum(isinstance(each, (Block, *PARTS)) for each in owners)
    costs = [
        each.row.cost if isinstance(each, prim.Elementwise) else 1 for each in owners if isinstance(each, ELEMENTWISE)
    ]
    return float(sum(costs) + read * reads)


def first_reader(value: SSAValue) -> kernel.Fused | None:
    """The first kernel that reads a value, if nothing else needs it earlier."""
    users = dict.fromkeys(use.operation for use in uses_of(value))
    found: kernel.Fused | None = None
    for user in users:
        if isinstance(user, kernel.Fused) and (found is None or user.is_before_in_block(found)):
            found = user
    if found is None or any(user is not found and user.is_before_in_block(found) for user in users):
        return None
    return found


def is_epilogue(fused: kernel.Fused, value: SSAValue) -> bool:
    """Whether a kernel computes single elements from single elements of the value, and nothing else."""
    block, depends = fused.block_body, _arguments(fused, value)
    for op in block.ops:
        if isinstance(op, (*prim.JOINS, prim.Scan)):
            return False
        if isinstance(op, kernel.Yield):
            return all(v in depends for v in op.operands)
        if any(v in depends for v in op.operands):
            if not _computes_elements(op):
                return False
            depends.update(op.results)
    return False


def reduces(fused: kernel.Fused, value: SSAValue) -> bool:
    """Whether a kernel reads each element of the value at one place only, to compute with it and to reduce."""
    block, depends = fused.block_body, _arguments(fused, value)
    for op in block.ops:
        if isinstance(op, kernel.Yield) or not any(v in depends for v in op.operands):
            continue
        if _computes_elements(op):
            depends.update(op.results)
        elif not isinstance(op, prim.Reduce):
            return False
    return True


def _arguments(fused: kernel.Fused, value: SSAValue) -> set[SSAValue]:
    """What a kernel's block has of a value."""
    pairs = zip(fused.block_body.args, fused.operands, strict=True)
    return {arg for arg, operand in pairs if viewed(operand)[0] is value}


def _computes_elements(op: Operation) -> bool:
    """Whether each element of the result is computed from one of each operand; views of all of it among them."""
    return isinstance(op, (*ELEMENTWISE, *ONE_TO_ONE))
