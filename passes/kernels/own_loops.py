"""Calls that earlier passes gave to loops of our own (`own = ...`, on a GPU) become launches of these loops.

Equal calls share a kernel. `LoopWriter` is what the loops are written with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Protocol

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Region, SSAValue

from ...ir.dialects import kernel, loop, prim
from ...ir.dtypes import F32, DType
from ...ir.symbols import Dim, dim
from ...ir.syntax import Op, line_of
from ...ir.types import ref_type, scalar_type
from ..analysis.machine import Machine
from ..analysis.strides import memory_strides
from ..core.rewriter import replace


class Plan(Protocol):
    """One call as loops: the memories that are read, a name (equal names, equal kernels), and the loops."""

    bases: list[SSAValue]

    @property
    def name(self) -> str: ...

    def kernel(self) -> loop.Kernel:
        """The loops."""


def launch_own(module: ModuleOp, own: str, plan_of: Callable[[kernel.Extern], Plan], machine: Machine) -> int:
    """Put launches in the place of the calls marked `own`, and their kernels into the module; how many there were."""
    made: dict[str, loop.Kernel] = {}
    count = 0
    for func in [op for op in module.body.block.ops if isinstance(op, prim.Func)]:
        for op in [op for op in func.block_body.ops if isinstance(op, kernel.Extern) and op.get("own") == own]:
            if not machine.at(prim.tensor(op.results[0]).device).is_grid:
                continue
            plan = plan_of(op)
            found = made.get(plan.name)
            if found is None:
                found = made[plan.name] = plan.kernel()
                module.body.block.add_op(found)
            _add_line(found, op)
            attrs: dict[str, object] = {"kernel": plan.name, "strides": (memory_strides(op.results[0]),)}
            launch = loop.Launch.make(plan.bases, [op.results[0].type], attrs, loc=op.location)
            replace(op, launch.results, [launch])
            count += 1
    return count


def _add_line(made: loop.Kernel, op: Op) -> None:
    line = line_of(op)
    if line and line not in made.get("lines", ()):
        made["lines"] = (*made.get("lines", ()), line)


class LoopWriter:
    """Writes loops over the memories that are a block's arguments. Sums are float32."""

    def __init__(self, block: Block) -> None:
        self.blocks, self.memories = [block], list(block.args)

    def add(self, op: Op) -> SSAValue:
        """Put an operation into the innermost open loop; its result, where it has one."""
        self.blocks[-1].add_op(op)
        return op.results[0] if op.results else self.memories[0]

    @contextmanager
    def loop(self, kind: str, var: Dim, stop: Dim, block: int = 1) -> Iterator[None]:
        """What is written inside is the body."""
        self.blocks.append(Block())
        yield
        attrs: dict[str, object] = {"kind": kind, "var": var, "stop": stop} | ({"block": block} if block > 1 else {})
        body = self.blocks.pop()
        self.add(loop.For.make([], [], attrs, [Region(body)]))

    @contextmanager
    def nest(self, extents: Sequence[tuple[Dim, Dim, int]]) -> Iterator[None]:
        """Parallel loops inside each other: variable, stop and block of each."""
        with ExitStack() as stack:
            for var, stop, block in extents:
                stack.enter_context(self.loop("parallel", var, stop, block))
            yield

    def local(self, value: float = 0.0) -> SSAValue:
        """A number that loops change."""
        return self.add(loop.Local.make([], [ref_type([1], None, F32)], {"size": 1, "value": value}))

    def load(self, memory: SSAValue, index: Dim, mask: Sequence[Dim] = (), dtype: DType = F32) -> SSAValue:
        """An element of a memory, zero where one of `mask` is negative."""
        attrs: dict[str, object] = {"index": dim(index)} | ({"mask": tuple(mask), "other": 0.0} if mask else {})
        return self.add(loop.Load.make([memory], [scalar_type(dtype)], attrs))

    def read(self, memory: SSAValue, index: Dim = 0) -> SSAValue:
        return self.load(memory, index)

    def store(self, value: SSAValue, memory: SSAValue, index: Dim, mask: Sequence[Dim] = ()) -> None:
        """Write an element, where none of `mask` is negative."""
        attrs: dict[str, object] = {"index": dim(index)} | ({"mask": tuple(mask)} if mask else {})
        self.add(loop.Store.make([value, memory], [], attrs))

    def accumulate(self, kind: str, value: SSAValue, into: SSAValue) -> None:
        self.add(loop.Accumulate.make([value, into], [], {"kind": kind, "index": 0}))

    def number(self, value: float) -> SSAValue:
        return self.add(loop.Constant.make([], [scalar_type(F32)], {"value": value}))

    def scalar(self, name: str, *operands: SSAValue) -> SSAValue:
        """A row of the scalar table."""
        return self.add(loop.scalar_op(name, *operands))
