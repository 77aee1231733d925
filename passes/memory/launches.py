"""What the kernels of a program do to the memory that they are launched on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.ir import Block, Operation, SSAValue

from ...ir.dialects import buffer, loop, prim
from ...ir.syntax import Op
from ...ir.types import RefType
from ..analysis.cost import STACK_BYTES
from ..analysis.strides import is_view

_DIVISIONS = ("scalar.floordiv", "scalar.mod", "scalar.fmod")
_POINTWISE = (loop.For, loop.Load, loop.Store, loop.Index, loop.ScalarOp, loop.Constant, loop.ScalarCast)


@dataclass(frozen=True)
class Launches:
    """The kernels of a module by name, asked through their launches."""

    kernels: Mapping[str, loop.Kernel]

    def body(self, op: loop.Launch) -> Block:
        return self.kernels[op["kernel"]].block_body

    def updated(self, op: object) -> SSAValue | None:
        """The value of which a kernel changes some elements."""
        place = self.kernels[op["kernel"]].get("updates") if isinstance(op, loop.Launch) else None
        return op.operands[place] if isinstance(op, loop.Launch) and place is not None else None

    def updated_unread(self, op: object) -> SSAValue | None:
        """The same, of a kernel that does not read that value elsewhere, as when rows of a cache are moved within it."""
        before = self.updated(op)
        if before is None or not isinstance(op, loop.Launch):
            return None
        return None if self.body(op).args[self.kernels[op["kernel"]]["updates"]].uses else before

    def pairs(self, op: loop.Launch, operand: int, result: int) -> bool:
        """Whether each element of a result is written where, and only where, the same element of an operand is read last.

        True when every access to either is in one loop body, at one index, with the loads before the store.
        """
        kernel = self.kernels[op["kernel"]]
        (first, mine), (second, its) = kernel.argument(operand), kernel.argument(len(op.operands) + result)
        if mine not in (None, its):  # another run reads it
            return False
        args = kernel.block_body.args
        source, target = args[first], args[second]
        accesses = [use.operation for value in (source, target) for use in value.uses]
        if source.type.dtype != target.type.dtype or len({a.parent for a in accesses}) != 1:  # type: ignore[attr-defined]
            return False
        if not all(isinstance(a, loop.Load | loop.Store) and not a.get("mask") for a in accesses):
            return False
        if len({str(a["index"]) for a in accesses if isinstance(a, Op)}) != 1:
            return False
        order = {each: i for i, each in enumerate(accesses[0].parent.ops)}
        stores = [order[a] for a in accesses if isinstance(a, loop.Store)]
        loads = [order[a] for a in accesses if isinstance(a, loop.Load)]
        return len(stores) == 1 and bool(loads) and max(loads) < stores[0]

    def is_pointwise(self, op: loop.Launch) -> bool:
        """Whether a kernel does nothing but compute the elements of its results one by one."""
        return all(isinstance(each, _POINTWISE) for each in self.body(op).walk())

    def sure_from(self, func: prim.Func) -> int:
        """The number of the step from which on nothing can fail: all that follow are kernels that look at no index and no divisor,
        and whose scratch lies on the stack."""
        sure = {
            name: self._is_sure(name)
            for name in {op["kernel"] for op in func.block_body.ops if isinstance(op, loop.Launch)}
        }
        steps = list(func.block_body.ops)
        for number in reversed(range(len(steps))):
            op = steps[number]
            if not (sure[op["kernel"]] if isinstance(op, loop.Launch) else is_view(op) or isinstance(op, prim.Return)):
                return number + 1
        return 0

    def _is_sure(self, name: str) -> bool:
        inside = list(self.kernels[name].block_body.walk())
        if any(isinstance(op, loop.Bind) or op.name in _DIVISIONS for op in inside):
            return False
        return sum(map(_scratch, inside)) <= STACK_BYTES


def _scratch(op: Operation) -> float:
    """Bytes of scratch that an operation takes; of an unknown size any number."""
    if not isinstance(op, loop.Local) or op["size"] == 1:
        return 0
    ref = op.results[0].type
    assert isinstance(ref, RefType)
    return op["size"] * ref.dtype.bytes if isinstance(op["size"], int) else math.inf


def read_where_written(kernel: loop.Kernel, launches: Sequence[buffer.Launch]) -> None:
    """Inputs of members that each launch gives as memory that is written anew, too, are no arguments of their own any more."""
    inputs, shared = int(kernel["inputs"]), int(kernel.get("shared", 0))
    runs = [[op.operands[k] for k in kernel.places(m)] for op in launches for m in range(len(kernel.members))]
    outputs = range(inputs, len(kernel.block_body.args))
    pairs = [
        (i, next((k for k in outputs if all(run[k] is run[i] for run in runs)), None)) for i in range(shared, inputs)
    ]
    gone = [i for i, k in pairs if k is not None]
    left = [[k for k in range(len(op.operands)) if kernel.argument(k)[0] not in gone] for op in launches]
    arguments = list(kernel.block_body.args)
    for i, k in pairs:
        if k is not None:
            arguments[i].replace_all_uses_with(arguments[k])
            kernel.block_body.erase_arg(arguments[i])
    kernel["inputs"] = inputs - len(gone)
    for op, places in zip(launches, left, strict=True):
        op.operands = [op.operands[k] for k in places]
