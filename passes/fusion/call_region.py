"""The region of a call that a kernel of our own carries out: what its factors are computed by, and what its result goes on with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from ..core.rewriter import copy_with

MOST_OPERATIONS = 64
LEFT = frozenset(f"prim.{name}" for name in ("sin", "cos", "tan"))  # their loops look for the largest angle first
# Bytes of x that the kernel computes. 1.5 MiB (512 rows of 768): 2.7 ms, 2.4 ms with a kernel in front; why was not looked for.
LARGEST_COPY = 1 << 17
Memory = dict[SSAValue, None]


def in_front(call: kernel.Extern, name: str, shared: bool = False) -> Memory | None:
    """What the operand of that name is computed from, element by element; None where it is computed otherwise, or not at all.

    Values that are spread over it are not computed again.

    Args:
        shared: others may read what is computed on the way.
    """
    value = call.operands[list(call["operands"]).index(name)]
    size = prim.tensor(value).numel
    ops, memory, todo = dict[Op, None](), Memory(), [value]
    while todo:
        value = todo.pop()
        owner = value.owner
        is_small = prim.tensor(value).numel != size
        if isinstance(owner, prim.Full) or value in memory:
            continue
        if (
            not isinstance(owner, Op)
            or isinstance(owner, kernel.Extern)
            or (is_small and not _is_plain_view(owner, prim.Cast))
        ):
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
    alone = all(use.operation in (*ops, call) for op in inside for use in op.results[0].uses)
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
    there = all(isinstance(v, BlockArgument) or isinstance(v.owner, kernel.Extern) for v in memory)
    return there and not broken(takes_memory(memory))


def rebuilt(
    call: kernel.Extern,
    behind: Sequence[Op] = (),
    factors: Mapping[str, SSAValue] | None = None,
    extras: Mapping[SSAValue, Strides | None] | None = None,
) -> kernel.Extern:
    """The call with more in its region, not yet in a block.

    Args:
        behind: operations on the result, in order.
        factors: the operands that are computed, each with the memory that stands in its place.
        extras: the other memory that is read, with the strides in which it is (None: contiguous).
    """
    factors, extras = factors or {}, extras or {}
    literals, names, operands = call.literals, list(call["operands"]), list(call.operands)
    strides = list(call.get("operand_strides") or [None] * len(names))
    computed = {name: operands[names.index(name)] for name in factors}
    for name, value in factors.items():
        operands[names.index(name)], strides[names.index(name)] = value, None
    first = sum(name.startswith(PREFIX) for name in names)
    names += [f"{PREFIX}{first + k}" for k in range(len(extras))]
    operands, strides = [*operands, *extras], [*strides, *extras.values()]
    literals["operands"] = tuple(names)
    if factors:
        literals["computed"] = (*call.get("computed", ()), *factors)
    literals.pop("operand_strides", None)
    if any(strides):
        literals["operand_strides"] = tuple(strides)
    before = kernel.read_by_region(call) if call.regions else []
    read = [k for k, name in enumerate(names) if name.startswith(PREFIX) or name in literals.get("computed", ())]
    region = single_block(arg_types=[call.results[0].type, *(operands[k].type for k in read)])
    block = region.block
    arguments = dict(zip(read, block.args[1:], strict=True))
    inner: dict[SSAValue, SSAValue] = {operands[k]: argument for k, argument in arguments.items()}
    inner[call.results[0]] = block.args[0]
    given = list[SSAValue]()
    if call.regions:
        new = [block.args[0], *(arguments[k] for k in before)]
        again: dict[SSAValue, SSAValue] = dict(zip(call.block_body.args, new, strict=True))
        for op in call.block_body.ops:
            if isinstance(op, kernel.Yield):
                inner[call.results[0]], *given = [again[v] for v in op.operands]
            else:
                _copy(cast(Op, op), again, block)
    for value in computed.values():
        _bring(value, inner, block)
        given.append(inner[value])
    for op in behind:
        for value in op.operands:
            _bring(value, inner, block)
        _copy(op, inner, block)
    last = behind[-1].results[0] if behind else call.results[0]
    block.add_op(kernel.Yield.make([inner[last], *given]))
    made = kernel.Extern.make(operands, [last.type], literals, [region], call.location)
    made.results[0].name_hint = last.name_hint
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
