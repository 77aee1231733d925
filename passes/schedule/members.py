"""Kernels that are equal but for their sizes, as in the steps of optimizers over lists of tensors: one kernel, launched once for all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

from xdsl.ir import Block, Operation, SSAValue

from ...ir.dialects import kernel, loop, prim
from ...ir.symbols import symbol
from ...ir.syntax import Op, single_block
from ...ir.types import LiteralAttr, RefType, TensorType, ref_type, tensor_type
from ..analysis.cost import FEWEST_MEMBERS, WAITING_BYTES
from ..analysis.strides import is_dense, is_view
from ..core.clauses import Clauses, broken

CPU_VALUES = 960  # of a launch: a ctypes function takes 1024 arguments
GRID_VALUES = 480  # a kernel's parameters take 4 KiB on every GPU and driver

Refs = Callable[[SSAValue], RefType]


def takes_member(op: kernel.Fused, inputs: Sequence[RefType], outputs: Sequence[RefType]) -> Clauses:
    """What a kernel has to be to be walked over as one row of elements, whatever its shape is."""
    whole = outputs[0] if outputs else None
    yield type(op) is kernel.Fused and whole is not None, "a kernel with results, that is no contraction"
    assert whole is not None
    yield all(type(n) is int for n in whole.shape), "its sizes are known"
    single = all(isinstance(inner, _SINGLE) for inner in op.block_body.ops)
    yield single, "it computes single elements from the same elements of what it reads"
    yield all(out.shape == whole.shape for out in outputs), "all its results have one shape"
    yield 0 < math.prod(map(int, whole.shape)) < 1 << 31, "they have elements, so many that 32 bits count them"
    yield all(ref.shape in (whole.shape, ()) for ref in inputs), "it reads tensors of that shape, and numbers"
    spread = [inner.operands[0] for inner in op.block_body.ops if isinstance(inner, prim.Broadcast)]
    yield all(prim.tensor(v).shape == () for v in spread), "only numbers are repeated"
    lie = [ref.strides for ref in (*inputs, *outputs) if ref.shape == whole.shape]
    yield is_dense(whole.shape, whole.strides), "no memory lies between its elements"
    yield all(strides == whole.strides for strides in lie), "all its tensors lie in the same order"
    yield all(ref.dtype.kind != "complex" for ref in (*inputs, *outputs)), "its dtypes have loops"
    yield len({ref.device for ref in (*inputs, *outputs)}) == 1, "its memory is on one device"


_SINGLE = (prim.Elementwise, prim.Cast, prim.Full, prim.Broadcast, kernel.Yield)


@dataclass
class Group:
    """Kernels of one form, none of which needs another's results; they are launched where the last of them stands.

    Attributes:
        ops: the kernels.
        places: for each, which of its operands the form uses first, second, ...; the operands may be replaced meanwhile.
        shared: which of these are the same number for all of them.
        beside: how many results they have that are not written where an operand is.
        waiting: bytes that live until the launch because of it.
    """

    ops: list[kernel.Fused] = field(default_factory=list)
    places: list[list[int]] = field(default_factory=list)
    shared: list[int] = field(default_factory=list)
    beside: int = 0
    waiting: int = 0

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many elements each has."""
        return tuple(int(prim.tensor(op.results[0]).numel) for op in self.ops)

    @property
    def orders(self) -> list[list[SSAValue]]:
        """The operands of each in the form's order."""
        return [[op.operands[k] for k in places] for op, places in zip(self.ops, self.places, strict=True)]

    def shared_with(self, order: list[SSAValue]) -> list[int]:
        """What one more would share with them."""
        if not self.ops:
            return [k for k, v in enumerate(order) if prim.tensor(v).shape == ()]
        return [k for k in self.shared if order[k] is self.ops[0].operands[self.places[0][k]]]

    def values_with(self, order: list[SSAValue], beside: int) -> int:
        """How many addresses a launch takes with one more."""
        shared = len(self.shared_with(order))
        return shared + (len(self.ops) + 1) * (len(order) - shared) + self.beside + beside

    def add(self, op: kernel.Fused, order: list[SSAValue], beside: int, waiting: int) -> None:
        """Take one more."""
        self.shared = self.shared_with(order)
        self.ops.append(op)
        self.places.append([op.operands.index(v) for v in order])
        self.beside += beside
        self.waiting += waiting

    def operands(self) -> list[SSAValue]:
        """What a launch of them reads: see `loop.kernel`."""
        shared = self.shared
        orders = self.orders
        own = [v for order in orders for k, v in enumerate(order) if k not in shared]
        return [*(orders[0][k] for k in shared), *own]

    def template(self) -> kernel.Fused:
        """The kernel for a row of `n` elements; its operands are those of the first one, the shared ones first. It stands nowhere."""
        source, shared = self.ops[0], self.shared
        whole = prim.tensor(source.results[0]).shape
        order = self.orders[0]
        given = [*(order[k] for k in shared), *(v for k, v in enumerate(order) if k not in shared)]

        def row(value: SSAValue) -> TensorType:
            kind = prim.tensor(value)
            return tensor_type((symbol(loop.MEMBER),), kind.dtype, kind.device) if kind.shape == whole else kind

        # A number that is read beside tensors of its own shape is one of them.
        types = [row(v) for v in given]
        region = single_block(arg_types=types)
        arguments = dict(zip(source.operands, source.block_body.args, strict=True))
        local: dict[SSAValue, SSAValue] = {arguments[v]: a for v, a in zip(given, region.block.args, strict=True)}
        last = cast(kernel.Yield, source.block_body.last_op)
        for value in _walk(last.operands):
            op = cast(Op, value.owner)
            copy = type(op).create(
                operands=[local[v] for v in op.operands],
                result_types=[row(value)],
                attributes=dict(op.attributes),
                location=op.location,
            )
            region.block.add_op(copy)
            local[value] = copy.results[0]
        region.block.add_op(kernel.Yield.make([local[v] for v in last.operands]))
        return kernel.Fused.make(given, [row(r) for r in source.results], {}, [region], source.location)


def groups_of(func: prim.Func, refs: Refs, is_grid: Callable[[str], bool]) -> Iterator[Group]:
    """The kernels of a function that become one launch: each group in a run of the program in which nobody reads their results."""
    written = {value: argument for argument, value in _mutations(func)}
    open_groups: dict[str, Group] = {}
    holder: dict[Operation, str] = {}

    def close(key: str) -> Iterator[Group]:
        group = open_groups.pop(key)
        for op in group.ops:
            holder.pop(op, None)
        if len(group.ops) >= FEWEST_MEMBERS:
            yield group

    for op in func.block_body.ops:
        for value in op.operands:
            if (key := holder.get(_memory(value))) is not None and not isinstance(op, prim.Return):  # type: ignore[arg-type]
                yield from close(key)
        if not isinstance(op, kernel.Fused) or isinstance(op, kernel.Contract):  # whose operands may be views
            continue
        found = _form(op, refs)
        if found is None:
            continue
        key, order = found
        device = prim.tensor(op.results[0]).device
        beside = sum(written.get(r) not in order for r in op.results)
        waits = sum(_bytes(v) for v in order if isinstance(v.owner, Operation))
        group = open_groups.setdefault(key, Group())
        most = GRID_VALUES if is_grid(device) else CPU_VALUES
        if group.ops and (group.values_with(order, beside) > most or group.waiting + waits > WAITING_BYTES):
            yield from close(key)
            group = open_groups.setdefault(key, Group())
        group.add(op, order, beside, waits)
        holder[op] = key
    for key in list(open_groups):
        yield from close(key)


def _mutations(func: prim.Func) -> Iterator[tuple[SSAValue, SSAValue]]:
    """Arguments that get a new value, and that value."""
    returned = cast(Operation, func.block_body.last_op).operands
    for argument, k in func.get("mutations", ()):
        yield func.block_body.args[argument], returned[k]


def _memory(value: SSAValue) -> Operation | Block:
    """What makes the memory of a value."""
    owner = value.owner
    while is_view(owner):
        owner = cast(Operation, owner).operands[0].owner
    return owner


def _bytes(value: SSAValue) -> int:
    kind = prim.tensor(value)
    return int(kind.numel) * kind.dtype.bytes


def _form(op: kernel.Fused, refs: Refs) -> tuple[str, list[SSAValue]] | None:
    """What a kernel computes, in a text that is the same for all shapes, and its operands in the order in which that uses them."""
    inputs, outputs = [refs(v) for v in op.operands], [refs(v) for v in op.results]
    if broken(takes_member(op, inputs, outputs)) is not None:
        return None
    block, whole = op.block_body, outputs[0].shape
    last = cast(kernel.Yield, block.last_op)
    number: dict[SSAValue, int] = {}
    lines, order = [outputs[0].device], []

    def use(value: SSAValue) -> int:
        if value not in number:  # an argument: all else was walked over before
            number[value] = len(number)
            place = value.index  # type: ignore[attr-defined]
            order.append(op.operands[place])
            lines.append(f"{inputs[place].dtype.name}{'' if inputs[place].shape == whole else '[]'}")
        return number[value]

    for value in _walk(last.operands):
        owner, kind = cast(Op, value.owner), prim.tensor(value)
        if isinstance(owner, prim.Full) and kind.shape != whole and all(_repeats(u.operation) for u in value.uses):
            continue  # a constant is the same for a number as for a row
        if _repeats(owner) and isinstance(owner.operands[0].owner, prim.Full):
            owner = owner.operands[0].owner
        operands = [use(v) for v in owner.operands]
        number[value] = len(number)
        attrs = [f"{k}={v.text}" for k, v in owner.attributes.items() if isinstance(v, LiteralAttr) and k != "dims"]
        lines.append(f"{owner.name}{operands}{attrs}{kind.dtype.name}{'' if kind.shape == whole else '[]'}")
    lines.append(f"{[use(v) for v in last.operands]}{[out.dtype.name for out in outputs]}")
    return ("\n".join(lines), order) if len(order) == len(op.operands) else None


def _repeats(op: Operation) -> bool:
    return isinstance(op, prim.Broadcast)


def _walk(values: Sequence[SSAValue]) -> list[SSAValue]:
    """The operations' results that values depend on, each behind what it needs, in an order that depends on what is computed alone."""
    found: dict[SSAValue, None] = {}
    stack = [v for v in reversed(values) if not isinstance(v.owner, Block)]
    while stack:
        value = stack[-1]
        needed = [v for v in cast(Operation, value.owner).operands if v not in found and not isinstance(v.owner, Block)]
        if needed and value not in found:
            stack += reversed(needed)
        else:
            stack.pop()
            found.setdefault(value)
    return list(found)


def row_ref(value: SSAValue) -> RefType:
    """The memory of an operand or a result of a group's template."""
    kind = prim.tensor(value)
    return ref_type(kind.shape, None, kind.dtype, kind.device)
