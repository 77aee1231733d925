"""The region of a call that a kernel of our own carries out: what its factors are computed by, and what its result goes on with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from xdsl.ir import Block, BlockArgument, SSAValue

from ...ir.dialects import kernel, prim
from ...ir.dialects.kernel import PREFIX
from ...ir.symbols import contiguous_strides
from ...ir.syntax import Op, single_block
from ...ir.types import TensorType
from ..analysis.strides import Strides, memory_strides, same_layout
from ..analysis.views import kept_dimensions
from ..core.clauses import Clauses, broken
from ..core.rewriter import copy_with, erase_unread
from .join import join

MOST_OPERATIONS = 64
LEFT = frozenset(f"prim.{name}" for name in ("sin", "cos", "tan"))  # their loops look for the largest angle first
# Bytes of x that the kernel computes. 1.5 MiB (512 rows of 768): 2.7 ms, 2.4 ms with a kernel in front; why was not looked for.
LARGEST_COPY = 1 << 17
Memory = dict[SSAValue, None]
CALLS = (kernel.Contract, kernel.Extern)


def in_front(reader: Op, value: SSAValue, shared: bool = False) -> Memory | None:
    """What an operand is computed from, element by element; None where it is computed otherwise, or not at all.

    Values that are spread over it are not computed again.

    Args:
        shared: others may read what is computed on the way.
    """
    size = prim.tensor(value).numel
    ops, memory, todo = dict[Op, None](), Memory(), [value]
    while todo:
        value = todo.pop()
        owner = value.owner
        is_small = prim.tensor(value).numel != size
        if isinstance(owner, prim.Full) or value in memory:
            continue
        if not isinstance(owner, Op) or isinstance(owner, CALLS) or (is_small and not _is_plain_view(owner, prim.Cast)):
            memory[value] = None
        elif _is_plain_view(owner) or (isinstance(owner, prim.Elementwise | prim.Cast) and owner.name not in LEFT):
            ops[owner] = None
            todo += reversed(owner.operands)
        else:
            return None
    work = [op for op in ops if type(op) not in prim.VIEWS]
    if not 0 < len(work) <= MOST_OPERATIONS:
        return None
    # Behind a view that others read, what is computed is read by others too.
    inside = [op for op in ops if op in work or any(v.owner in ops for v in op.operands)]
    alone = all(use.operation in (*ops, reader) for op in inside for use in op.results[0].uses)
    return memory if shared or alone else None


def _is_plain_view(op: Op, *others: type[Op]) -> bool:
    """A view that finds an element without division for each: reshapes leave rows what they are, or no two dimensions become one."""
    if not isinstance(op, prim.Reshape):
        return type(op) in prim.VIEWS + others
    kept, sizes = kept_dimensions(op), prim.tensor(op.operands[0]).shape
    if kept and kept[-1] is not None and kept[-1] == op.type.rank - 1:
        return True
    return all(k is not None or size == 1 for k, size in zip(kept, sizes, strict=True))


def takes_memory(memory: Memory) -> Clauses:
    """What is read in front of a product: the elements are found from the sizes alone."""
    tensors = [prim.tensor(v) for v in memory]
    yield all(t.device == "cpu" and t.dtype.kind != "complex" for t in tensors), "numbers in the host's memory"
    yield all(isinstance(n, int) and n > 0 for t in tensors for n in t.shape), "known sizes"
    ordered = (
        same_layout(t.shape, memory_strides(v), contiguous_strides(t.shape))
        for t, v in zip(tensors, memory, strict=True)
    )
    yield all(ordered), "memory without gaps"


def is_cheap_input(x: TensorType, memory: Memory) -> bool:
    """Whether no kernel is left in front of x: every element is computed once, from arguments and results of calls, into a small copy."""
    if not isinstance(x.numel, int) or x.numel * x.dtype.bytes > LARGEST_COPY:
        return False
    there = all(isinstance(v, BlockArgument) or isinstance(v.owner, CALLS) for v in memory)
    return there and not broken(takes_memory(memory))


def grouped(ops: Sequence[Op], given: Iterable[SSAValue]) -> kernel.Fused:
    """A kernel, not yet in a block, of operations on these values, and of what makes their other operands."""
    given, last = list(given), ops[-1].results[0]
    block = (region := single_block(arg_types=[v.type for v in given])).block
    inner: dict[SSAValue, SSAValue] = dict(zip(given, block.args, strict=True))
    for op in ops:
        for value in op.operands:
            _bring(value, inner, block)
        _copy(op, inner, block)
    block.add_op(kernel.Yield.make([inner[last]]))
    made = kernel.Fused.make(given, [last.type], {}, [region], ops[-1].location)
    made.results[0].name_hint = last.name_hint
    return made


def join_in_front(op: kernel.Contract, factor: SSAValue, memory: Memory) -> kernel.Contract:
    """The contraction with an operand computed in its kernel, from this memory."""
    made = grouped([cast(Op, factor.owner)], memory)
    cast(Block, op.parent).insert_op_before(made, op)
    op.operands[list(op.operands).index(factor)] = made.results[0]
    joined = cast(kernel.Contract, join(made, op))
    erase_unread(factor)
    return joined


def rebuilt(call: kernel.Extern, behind: Sequence[Op], extras: Mapping[SSAValue, Strides | None]) -> kernel.Extern:
    """The call with a region of the operations behind it, not yet in a block.

    Args:
        extras: the other memory that these read, with the strides in which they do (None: contiguous).
    """
    literals, names = call.literals, list(call["operands"])
    strides = [*(call.get("operand_strides") or [None] * len(names)), *extras.values()]
    literals["operands"] = (*names, *(f"{PREFIX}{k}" for k in range(len(extras))))
    literals.pop("operand_strides", None)
    if any(strides):
        literals["operand_strides"] = tuple(strides)
    fused = grouped(behind, (call.results[0], *extras))
    region = fused.detach_region(fused.regions[0])
    made = kernel.Extern.make(
        [*call.operands, *extras], [behind[-1].results[0].type], literals, [region], call.location
    )
    made.results[0].name_hint = behind[-1].results[0].name_hint
    fused.erase()
    return made


def _bring(value: SSAValue, inner: dict[SSAValue, SSAValue], block: Block) -> None:
    """Copy what makes a value, from memory on, into the region."""
    if value in inner:
        return
    owner = cast(Op, value.owner)
    for operand in owner.operands:
        _bring(operand, inner, block)
    _copy(owner, inner, block)


def _copy(op: Op, inner: dict[SSAValue, SSAValue], block: Block) -> None:
    copy = copy_with(op, [inner[v] for v in op.operands])
    block.add_op(copy)
    inner[op.results[0]] = copy.results[0]
