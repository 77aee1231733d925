"""What a host program has to know of the kernels and library calls that it starts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import sympy
from xdsl.ir import SSAValue

from ...ir.dialects import buffer, loop
from ...ir.symbols import Dim, free_symbols, span, substitute
from ...ir.syntax import Op
from ...ir.types import RefType, is_gpu


@dataclass(frozen=True)
class PackedOperand:
    """A matrix that a kernel reads in panels of columns: which operand, and whether it is (inner, columns)."""

    operand: int
    transposed: bool
    panel: int


@dataclass(frozen=True)
class Callee:
    """What a host program has to know of a generated function beside its memory.

    Attributes:
        name: the function's.
        symbols: the sizes that it takes behind its memory.
        fails: whether it gives a code that is not 0 where something went wrong on a CPU.
        counted: symbolic numbers that must fit into 32 bits.
        packs: the operand whose packed copy is one more argument.
    """

    name: str
    symbols: tuple[str, ...] = ()
    fails: bool = False
    counted: tuple[Dim, ...] = ()
    packs: PackedOperand | None = None


Callees: TypeAlias = Mapping[Op, Callee]  # of kernels, and of library calls that kernels carry out


def is_step(op: Op) -> bool:
    """Whether an operation of a host program does work on memory."""
    return isinstance(op, buffer.Launch | buffer.Extern | buffer.Contract | buffer.Copy)


class SeveralGPUs(RuntimeError):
    """A graph uses more than one GPU; it has to run in eager."""


def gpu_index(device: str) -> int:
    """The number in "cuda:1"."""
    return int(device.partition(":")[2] or 0)


def memories(kernel: loop.Kernel) -> list[RefType]:
    """The memory that a kernel is given."""
    return [a.type for a in kernel.block_body.args if isinstance(a.type, RefType)]


def runs_on_gpu(kernel: loop.Kernel) -> bool:
    """Whether a kernel's memory is on a GPU."""
    return any(is_gpu(ref.device) for ref in memories(kernel))


def viewed(value: SSAValue) -> SSAValue:
    """The value of which this one is a view, or a view of a view; itself where it is none."""
    while isinstance(value.owner, buffer.View):
        value = value.owner.operands[0]
    return value


def bytes_of(value: SSAValue, each: int | None = None) -> int | None:
    """How many bytes a value takes; None: that depends on sizes. With `each` all of these are this number."""
    ref = value.type
    assert isinstance(ref, RefType)
    size = span(ref.shape, ref.strides)
    numbers: dict[sympy.Symbol, Dim] = dict.fromkeys(free_symbols([size]), each or 0)
    return None if numbers and each is None else int(substitute(size, numbers)) * ref.dtype.bytes


def is_read_on_gpu(value: SSAValue, kernels: Mapping[str, loop.Kernel]) -> bool:
    """Whether a kernel on a GPU is given a value or a view of it."""
    users = [use.operation for use in value.uses]
    return any(
        is_read_on_gpu(user.results[0], kernels)
        if isinstance(user, buffer.View)
        else isinstance(user, buffer.Launch) and runs_on_gpu(kernels[user["kernel"]])
        for user in users
    )


QUICK = 1 << 15  # bytes of operands and results


def one_device(kernel: loop.Kernel) -> None:
    """A kernel reaches the memory of one device only.

    Raises:
        ValueError: its arguments are on several.
    """
    devices = sorted({ref.device for ref in memories(kernel)})
    if len(devices) > 1:
        raise ValueError(f"the kernel {kernel['sym_name']} has memory on {' and '.join(devices)}")


def is_quick(op: Op) -> bool:
    """Whether a kernel touches so little memory that letting other threads run meanwhile costs more than it does."""
    total = 0
    for value in op.operands:
        ref = value.type
        assert isinstance(ref, RefType)
        if free_symbols(ref.shape):
            return False
        total += math.prod(map(int, ref.shape)) * ref.dtype.bytes
    return total <= QUICK
