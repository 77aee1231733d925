"""The reference interpreter for host programs of the `buffer` level: who owns which memory is followed, step by step.

Memory that was given to another value, or given back, may not be read any more, neither by name nor through a view or a library call's alias.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from xdsl.ir import Operation, SSAValue

from ..dialects.aten import may_share
from ..symbols import span
from ..types import RefType
from .loops import find_kernel, poison, run_kernel
from .tensors import InterpreterError, Machine, Rule, bind_late, call, fits, restride, run_region


def _alloc(machine: Machine, op: Any) -> list[Tensor]:
    ref = op.results[0].type
    shape, strides = machine.shape(ref), machine.strides(ref)
    if op["pool"] != "arena":  # "output" and "device" are memory of their own
        result = torch.empty_strided(shape, strides, dtype=ref.dtype.torch)
        poison(result)
        return [result]
    size, offset = span(shape, strides) * ref.dtype.bytes, machine.number(op["offset"])
    if machine.arena is None:
        machine.arena = torch.zeros(_arena_size(machine, op.parent), dtype=torch.uint8)
        machine.owners = torch.zeros(machine.arena.numel(), dtype=torch.int32)
    flat = machine.arena[offset : offset + size].view(ref.dtype.torch)
    if not op.get("in_place"):  # else the next launch takes it, which reads what is there
        poison(flat)
        _take(machine, op.results[0], offset, size)
    return [flat.as_strided(shape, strides)]


def _take(machine: Machine, value: SSAValue, offset: int, size: int) -> None:
    """From now on this memory is the value's: reading another one there is an error."""
    assert machine.owners is not None
    machine.allocations += 1
    machine.taken[value] = machine.allocations
    machine.owners[offset : offset + size] = machine.allocations


def _place(machine: Machine, x: Tensor) -> tuple[int, int] | None:
    """Where in the arena a tensor lies: offset and bytes; None for memory of its own."""
    if machine.arena is None or x.numel() == 0:
        return None
    if x.untyped_storage().data_ptr() != machine.arena.untyped_storage().data_ptr():
        return None
    return x.data_ptr() - machine.arena.data_ptr(), span(x.shape, x.stride()) * x.element_size()


def _operands(machine: Machine, op: Any) -> list[Any]:
    """The operands of a step.

    Raises:
        InterpreterError: the memory of one was given to another value since.
    """
    found = machine.operands(op)
    for value, given in zip(op.operands, found, strict=True):
        place = _place(machine, given) if isinstance(given, Tensor) else None
        if place is not None:
            assert machine.owners is not None
            newest = int(machine.owners[place[0] : sum(place)].max())
            if value in machine.taken and newest > machine.taken[value]:
                raise InterpreterError(
                    f"a value of type {value.type} is read after its memory was given to another one"
                )
    return found


def _inherit(machine: Machine, op: Any, results: Sequence[Tensor]) -> None:
    """Results that lie in the memory of operands are valid as long as these are."""
    known = [machine.taken[v] for v in op.operands if v in machine.taken]
    for value, result in zip(op.results, results, strict=True):
        if known and _place(machine, result) is not None:
            machine.taken[value] = min(known)


def _arena_size(machine: Machine, function: Any) -> int:
    """The bytes that the arena's allocations in the block of a function reach over."""
    end = 0
    for op in function.ops:
        if op.name == "buffer.alloc" and op["pool"] == "arena":
            ref = op.results[0].type
            assert isinstance(ref, RefType)
            size = span(machine.shape(ref), machine.strides(ref)) * ref.dtype.bytes
            end = max(end, machine.number(op["offset"]) + size)
    return end


def _view(machine: Machine, op: Any) -> list[Tensor]:
    (x,) = _operands(machine, op)
    ref = op.results[0].type
    found = x.as_strided(
        machine.shape(ref), machine.strides(ref), x.storage_offset() + machine.number(op.get("offset", 0))
    )
    _inherit(machine, op, [found])
    return [found]


def _buffer_launch(machine: Machine, op: Any) -> list[Tensor]:
    kernel = find_kernel(machine, op["kernel"])
    tensors = _operands(machine, op)
    first = kernel.operand_count
    inputs, outputs = tensors[:first], tensors[first:]
    shared = any(_overlap(a, b) for a in inputs for b in outputs)
    for value, target in zip(op.operands[first:], outputs, strict=True):
        over = [a for a in inputs if _overlap(a, target)]
        if len(over) > 1 or any(a.data_ptr() != target.data_ptr() for a in over):
            raise InterpreterError(f"@{kernel['sym_name']} reads memory that it overwrites in another place")
        place, made = _place(machine, target), _allocation(value)
        if place is not None and made.owner.get("in_place"):  # type: ignore[union-attr]
            _take(machine, made, *place)
            machine.taken[value] = machine.allocations
    # In place: pieces in reverse order, so that a value that is overwritten before another iteration reads it shows.
    run_kernel(machine, kernel, tensors, machine.reverse or shared)
    return []


def _overlap(a: Tensor, b: Tensor) -> bool:
    if a.numel() == 0 or b.numel() == 0:
        return False
    ends = [t.data_ptr() + span(t.shape, t.stride()) * t.element_size() for t in (a, b)]
    return a.data_ptr() < ends[1] and b.data_ptr() < ends[0]


def _buffer_extern(machine: Machine, op: Any) -> list[Tensor]:
    values = _operands(machine, op)
    if op.get("out"):
        given = len(op["operands"])
        for target, result in zip(values[given:], call(machine, op, op["target"], values[:given]), strict=True):
            target.copy_(result)
        return []
    results = call(machine, op, op["target"], values)
    if not op.results:  # it wrote to its operand, or read a number
        return results if "binds" in op.attributes else []
    if "binds" in op.attributes:  # the types of the results are made of what is bound
        bind_late(machine, op, results)
    fitted = []
    for value, result, shared in zip(results, op.results, may_share(op), strict=True):
        strides = machine.strides(result.type)
        if not fits(value, strides) and shared:
            raise InterpreterError(
                f"{op['target']} gives a view with strides {list(value.stride())}, not {result.type}"
            )
        fitted.append(value if fits(value, strides) else restride(value, strides))
    _inherit(machine, op, fitted)
    return fitted


def _buffer_contract(machine: Machine, op: Any) -> list[Tensor]:
    *values, target = _operands(machine, op)
    (result,) = run_region(machine, op, values)
    target.copy_(result)
    return []


def _copy(machine: Machine, op: Any) -> list[Tensor]:
    source, target = _operands(machine, op)
    target.copy_(source)
    return []


def _free(machine: Machine, op: Any) -> list[Tensor]:
    machine.read(op.operands[0])
    machine.freed.add(op.operands[0])
    value = machine.values[op.operands[0]]
    made = op.operands[0].owner
    own = made.name == "buffer.alloc" or (made.name == "buffer.extern" and not any(may_share(made)))
    if own and not _is_shared(machine, op.operands[0]):
        poison(value)  # views of it read nonsense from here on
    return []


def _is_shared(machine: Machine, freed: SSAValue) -> bool:
    """Whether the memory is that of an argument or of another call, too: some calls give an operand back, which their schemas do not say."""
    storage = machine.values[freed].untyped_storage().data_ptr()
    for other, given in machine.values.items():
        if other is freed or other in machine.freed or not isinstance(given, Tensor):
            continue
        if given.untyped_storage().data_ptr() == storage and _allocation(other) is other:
            return True
    return False


def _allocation(value: SSAValue) -> SSAValue:
    """The value that memory was given to: what this is a view of, as its operation says."""
    while isinstance(value.owner, Operation):
        view = value.owner.name == "buffer.view"
        places = may_share(value.owner)[value.index] if value.owner.name == "buffer.extern" else (0,) if view else ()  # type: ignore[attr-defined,arg-type]
        if not places:
            break
        value = value.owner.operands[places[0]]
    return value


BUFFER_RULES: dict[str, Rule] = {
    "buffer.alloc": _alloc,
    "buffer.view": _view,
    "buffer.launch": _buffer_launch,
    "buffer.extern": _buffer_extern,
    "buffer.contract": _buffer_contract,
    "buffer.copy": _copy,
    "buffer.free": _free,
}
