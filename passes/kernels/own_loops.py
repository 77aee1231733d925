"""Calls that earlier passes gave to loops of our own (`own = ...`, on a GPU) become launches of these loops; equal calls share a kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from ...ir.dialects import kernel, loop, prim
from ...ir.syntax import Op, location_of
from ...ir.types import is_gpu
from ..analysis.strides import memory_strides


class Plan(Protocol):
    """One call as loops: the memories that are read, a name (equal names, equal kernels), and the loops."""

    bases: list[SSAValue]

    @property
    def name(self) -> str: ...

    def kernel(self) -> loop.Kernel:
        """The loops."""


def launch_own(module: ModuleOp, own: str, plan_of: Callable[[kernel.Extern], Plan]) -> int:
    """Put launches in the place of the calls marked `own`, and their kernels into the module; how many there were."""
    made: dict[str, loop.Kernel] = {}
    count = 0
    for func in [op for op in module.body.block.ops if isinstance(op, prim.Func)]:
        for op in [op for op in func.block_body.ops if isinstance(op, kernel.Extern) and op.get("own") == own]:
            if not is_gpu(prim.tensor(op.results[0]).device):
                continue
            plan = plan_of(op)
            found = made.get(plan.name)
            if found is None:
                found = made[plan.name] = plan.kernel()
                module.body.block.add_op(found)
            _add_line(found, op)
            attrs: dict[str, object] = {"kernel": plan.name, "strides": (memory_strides(op.results[0]),)}
            launch = loop.Launch.make(plan.bases, [op.results[0].type], attrs, loc=op.location)
            launch.results[0].name_hint = op.results[0].name_hint
            func.block_body.insert_op_before(launch, op)
            op.results[0].replace_all_uses_with(launch.results[0])
            op.detach()
            op.erase()
            count += 1
    return count


def _add_line(made: loop.Kernel, op: Op) -> None:
    place = location_of(op)
    line = f"{place[0]}:{place[1]}" if place else ""
    if line and line not in made.get("lines", ()):
        made["lines"] = (*made.get("lines", ()), line)
