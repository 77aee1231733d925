"""What passes over the loops of kernels share: one kernel at a time, those of a CPU only where a pass asks for no others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import sympy
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue

from ...ir.dialects import loop
from ...ir.scalars import SCALARS
from ...ir.symbols import Dim, Range, dim, free_symbols, symbol
from ...ir.syntax import Op
from ...ir.types import RefType
from ..analysis.machine import Machine
from ..core.base import Pass
from ..core.context import CompileContext
from .emit_loops import write
from .nests import Nest, Nests

PURE = (loop.Load, loop.ScalarOp, loop.ScalarCast, loop.Constant, loop.Index)


@dataclass(frozen=True)
class CpuLoopPass(Pass):
    """Base of passes that change the loops of a CPU's kernels, one kernel after another: they define `change`."""

    level: ClassVar[str] = "loop"
    after: ClassVar[tuple[str, ...]] = ("schedule",)
    requires: ClassVar[tuple[str, ...]] = ("schedule",)

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        """Change every kernel of a CPU in place."""
        for kernel in [op for op in module.ops if isinstance(op, loop.Kernel) and not is_grid(op, ctx.machine)]:
            self.change(ctx, kernel)

    def change(self, ctx: CompileContext, kernel: loop.Kernel) -> None:
        """Change one kernel in place."""
        raise NotImplementedError


def is_grid(kernel: loop.Kernel, machine: Machine) -> bool:
    """Whether programs over blocks run the kernel, by where its memory lies."""
    refs = [a.type for a in kernel.block_body.args]
    return any(isinstance(ref, RefType) and machine.at(ref.device).is_grid for ref in refs)


def loops_in(block: Block) -> list[loop.For]:
    """The loops that stand directly in a block."""
    return [op for op in block.ops if isinstance(op, loop.For)]


def innermost_loops(block: Block) -> Iterator[loop.For]:
    """The loops without a loop in them, in order."""
    for op in loops_in(block):
        if loops_in(op.block_body):
            yield from innermost_loops(op.block_body)
        else:
            yield op


def surrounding(outermost: loop.For) -> list[loop.For]:
    """A loop, and the loops in it that stand alone in the one around them, which has no scratch of its own."""
    found = [outermost]
    while True:
        block = found[-1].block_body
        inner = loops_in(block)
        if len(inner) != 1 or any(isinstance(op, loop.Local) for op in block.ops):
            return found
        found += inner


def variable(op: loop.For | loop.Bind) -> sympy.Symbol:
    """The variable of a loop, or the name of an integer from memory."""
    return symbol(str(op["var"]))


class FreshVariables:
    """Gives variables that nothing in a kernel has."""

    def __init__(self, kernel: loop.Kernel) -> None:
        self.taken = {str(op["var"]) for op in kernel.walk() if isinstance(op, loop.For | loop.Bind)}
        self.taken |= set(kernel.get("symbols", ()))

    def __call__(self, prefix: str) -> sympy.Symbol:
        name = next(name for k in range(len(self.taken) + 1) if (name := f"{prefix}{k}") not in self.taken)
        self.taken.add(name)
        return symbol(name)


def ranges_around(op: loop.For) -> dict[sympy.Symbol, Range]:
    """What is known of the variables of the loops around a loop."""
    found: dict[sympy.Symbol, Range] = {}
    while isinstance(above := op.parent_op(), loop.For):
        found[variable(above)] = (above.get("start", 0), dim(sympy.sympify(above["stop"]) - 1))
        op = above
    return found


def set_bounds(op: loop.For, start: Dim, stop: Dim) -> None:
    """Let a loop go from `start` below `stop`."""
    kept = {name: value for name, value in op.literals.items() if name not in ("kind", "var", "start", "stop")}
    attrs = {"kind": op["kind"], "var": op["var"], **({"start": start} if start != 0 else {}), "stop": stop, **kept}
    op.attributes.clear()
    for name, value in attrs.items():
        op[name] = value


def cost(op: Operation) -> int:
    """The cost of an operation on single elements; what changes or names nothing new has none."""
    if isinstance(op, loop.ScalarOp):
        return SCALARS[op.row.name].cost
    return int(isinstance(op, loop.Load | loop.ScalarCast))


def names_in(op: Op) -> set[sympy.Symbol]:
    """The variables and size symbols of an operation's attributes."""
    return {s for value in op.literals.values() for s in free_symbols(value if isinstance(value, tuple) else (value,))}


def needed_for(values: Iterable[SSAValue], made: Sequence[Operation]) -> list[Operation]:
    """The operations of `made`, in order, that values depend on."""
    work, inside, found = [v.owner for v in values], set(made), set()
    while work:
        owner = work.pop()
        if isinstance(owner, Operation) and owner in inside and owner not in found:
            found.add(owner)
            work += [v.owner for v in owner.operands]
    return [o for o in made if o in found]


def replace_nests(kernel: loop.Kernel, found: Nests, nests: list[Nest]) -> None:
    """Give a plain kernel other nests, which compute the same."""
    found.nests = nests
    body = Region(write(found))
    kernel.detach_region(kernel.regions[0]).erase()
    kernel.add_region(body)
