"""hoist: what depends on parameters alone is computed once for each state of the parameters, by a function of its own.

`@constants` takes the parameters that it needs and returns tensors that `@main` takes as further arguments. The host program calls it
again when one of its parameters is another tensor or was changed, as it does for packed weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, BlockArgument, Operation, Region, SSAValue

from ...ir.dialects import kernel, prim
from ...ir.packing import WINOGRAD
from ...ir.syntax import Op
from ...ir.types import TensorType
from ..analysis.aliases import makes_memory
from ..analysis.machine import Machine
from ..analysis.strides import recorded_strides
from ..core.base import Pass
from ..core.context import CompileContext
from ..kernels.microkernel import KEPT_BYTES

# Dear enough to be kept in memory: reading it back is cheaper, for tensors of some size.
DEAR = {
    "prim.gather",
    "prim.take",
    "prim.reduce",
    "prim.scan",
    *(
        f"prim.{name}"
        for name in ("exp", "log", "sin", "cos", "tan", "tanh", "erf", "pow", "sigmoid", "atan2", "log1p")
    ),
    "kernel.extern",
}


@dataclass(frozen=True)
class Hoist(Pass):
    """Compute what depends on parameters alone once, not in every call.

    Kept are operands of library calls, and what takes gathers, reductions or transcendental functions to compute.

    Options:
        min_elements: the least size of a value that only kernels read.
        max_bytes: the largest value that is kept, unless it is no larger than what it is computed from.
        max_growth: how many bytes all that is kept may be larger than what it is computed from: integers that a call makes
            floating numbers of are a quarter of them.
    """

    name: ClassVar[str] = "hoist"
    level: ClassVar[str] = "prim"
    after: ClassVar[tuple[str, ...]] = ("dce",)
    before: ClassVar[tuple[str, ...]] = ("channels-last", "fuse")

    least: ClassVar[Mapping[str, float]] = MappingProxyType({"min_elements": 0, "max_bytes": 0, "max_growth": 0})
    min_elements: int = 2048
    max_bytes: int = KEPT_BYTES
    max_growth: int = KEPT_BYTES

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        functions = [op for op in module.body.block.ops if isinstance(op, prim.Func)]
        if len(functions) != 1 or not functions[0].get("arg_static"):
            return
        moved = _Hoist(self, functions[0], ctx.machine).run()
        if moved is not None:
            module.body.block.insert_op_after(moved, functions[0])
            ctx.diagnostics.count(self.name, "values kept", len(moved["result_strides"]))


class _Hoist:
    def __init__(self, options: Hoist, func: prim.Func, machine: Machine) -> None:
        self.options, self.func = options, func
        self.static: dict[SSAValue, bool] = {}  # values of parameters alone -> whether they are dear to compute
        written = {argument for argument, _ in func.get("mutations", ())}
        for arg, static in zip(func.block_body.args, func["arg_static"], strict=True):
            # A write through `.data` would go unseen where memory cannot be looked at in every call.
            unseen = isinstance(arg.type, TensorType) and machine.at(arg.type.device).is_asynchronous
            if static and arg.index not in written and not unseen:
                self.static[arg] = False

    def run(self) -> prim.Func | None:
        """The function @constants, or None where nothing is worth it. What it returns are arguments of @main now."""
        for op in self.func.block_body.ops:
            if isinstance(op, Op) and self._movable(op):
                dear = op.name in DEAR or any(self.static[v] for v in op.operands)
                self.static |= dict.fromkeys(op.results, dear)
        returned = {_base(v) for v in self.func.block_body.last_op.operands}  # type: ignore[union-attr]
        kept = [v for v in self.static if v not in returned and self._worth(v)]
        kept = list(dict.fromkeys(_base(v) for v in kept))
        kept = self._that_fit([v for v in kept if not isinstance(v, BlockArgument) and v not in returned])
        return self._outline(kept) if kept else None

    def _movable(self, op: Op) -> bool:
        if not op.results or op.get("effect") or not op.is_pure or op.regions:
            return False
        if isinstance(op, kernel.Extern) and not makes_memory(op):
            return False
        if any(v not in self.static for v in op.operands):
            return False
        numbers = [n for t in (*op.operands, *op.results) for n in getattr(t.type, "shape", (None,))]
        return all(isinstance(n, int) for n in numbers) and not _mentions_symbols(op.literals)

    def _worth(self, value: SSAValue) -> bool:
        """Whether something that runs in every call reads the value, and would be better off with it in memory."""
        users = [u.operation for u in value.uses if any(r not in self.static for r in u.operation.results)]
        if isinstance(_base(value), BlockArgument):
            return False
        if any(isinstance(user, kernel.Contract | kernel.Extern) for user in users):
            return True
        return bool(users) and self.static[value] and prim.tensor(_base(value)).numel >= self.options.min_elements

    def _that_fit(self, values: list[SSAValue]) -> list[SSAValue]:
        """Those that are not too large, and as many of those that grow as there is room for."""
        found, room = [], self.options.max_growth
        for value in values:
            if isinstance(value.owner, kernel.Extern) and value.owner["target"] == WINOGRAD:
                found.append(value)  # four times what it is computed from
                continue
            t = prim.tensor(value)
            size = t.numel * t.dtype.bytes
            growth = size - sum(a.numel * a.dtype.bytes for a in map(prim.tensor, _parameters(value)))
            if growth <= 0 or (size <= self.options.max_bytes and growth <= room):
                found.append(value)
                room -= max(0, growth)
        return found

    def _outline(self, kept: list[SSAValue]) -> prim.Func:
        needed: dict[Operation, None] = {}
        for value in kept:
            _collect(value, needed)
        body = [op for op in self.func.block_body.ops if op in needed]
        inputs = list(dict.fromkeys(v for op in body for v in op.operands if isinstance(v, BlockArgument)))
        block = Block(arg_types=[v.type for v in inputs])
        new: dict[SSAValue, SSAValue] = dict(zip(inputs, block.args, strict=True))
        for op in body:
            block.add_op(op.clone(new))
        block.add_op(prim.Return.make([new[v] for v in kept]))
        places = [v.index for v in inputs if isinstance(v, BlockArgument)]
        attributes: dict[str, Any] = {
            "sym_name": "constants",
            "arg_names": tuple(self.func["arg_names"][i] for i in places),
            "arg_strides": tuple(self.func["arg_strides"][i] for i in places),
            "arg_static": (True,) * len(places),
            "result_strides": tuple(recorded_strides(v) for v in kept),
            "symbols": (),
            "results": tuple(("value", k) for k in range(len(kept))),
            "mutations": (),
            "parameters": tuple(places),
        }
        self._replace(kept)
        return prim.Func.make([], [], attributes, [Region(block)])

    def _replace(self, kept: list[SSAValue]) -> None:
        func = self.func
        func["arg_names"] += tuple(f"constant.{k}" for k in range(len(kept)))
        func["arg_strides"] += tuple(recorded_strides(v) for v in kept)
        func["arg_static"] += (True,) * len(kept)
        for value in kept:
            argument = func.block_body.insert_arg(value.type, len(func.block_body.args))
            value.replace_all_uses_with(argument)
        for op in reversed(list(func.block_body.ops)):
            moved = isinstance(op, Op) and op.results and all(r in self.static for r in op.results)
            if moved and not any(r.first_use for r in op.results):
                func.block_body.erase_op(op)


def _base(value: SSAValue) -> SSAValue:
    """The value itself, or what it is a rearrangement of."""
    while isinstance(value.owner, prim.VIEWS):
        value = value.owner.operands[0]
    return value


def _collect(value: SSAValue, needed: dict[Operation, None]) -> None:
    stack = [value]
    while stack:
        owner = stack.pop().owner
        if isinstance(owner, Operation) and owner not in needed:
            needed[owner] = None
            stack += owner.operands


def _parameters(value: SSAValue) -> list[SSAValue]:
    needed: dict[Operation, None] = {}
    _collect(value, needed)
    return list(dict.fromkeys(v for op in needed for v in op.operands if isinstance(v, BlockArgument)))


def _mentions_symbols(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_mentions_symbols, value.values()))
    if isinstance(value, tuple | list):
        return any(map(_mentions_symbols, value))
    return bool(getattr(value, "free_symbols", False))
