"""narrow-weights: a parameter of integers, or of a half type, that a product in float32 widens stays narrow in memory.

linear(x, cast(w) * broadcast(scale), bias) -> narrow_linear(x, w, scale, bias), by a kernel that widens a panel of the weight at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from ...ir.dialects import kernel, prim
from ...ir.dtypes import F32
from ...ir.packing import NARROW
from ...ir.syntax import Op
from ..analysis.machine import Processor
from ..core.base import Pass
from ..core.clauses import broken
from ..core.context import CompileContext
from ..core.rewriter import is_dead, producer, splat
from ..kernels.linear import KEPT_BYTES, LINEAR, NARROW_TYPES, OPERANDS, linear_tile, takes_narrow
from ..kernels.own_kernels import is_row_by_row


@dataclass(frozen=True)
class NarrowWeights(Pass):
    """Leave weights that are widened for a product narrow in memory: the kernel of the product widens them.

    Options:
        kept: the first weights stay for `hoist`, which keeps them widened: as many as grow by no more bytes than these in all.
    """

    name: ClassVar[str] = "narrow-weights"
    level: ClassVar[str] = "prim"
    after: ClassVar[tuple[str, ...]] = ("decompose", "dce")
    before: ClassVar[tuple[str, ...]] = ("hoist", "own-kernels", "fuse")

    kept: int = KEPT_BYTES

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        kept: dict[SSAValue, int] = {}  # by how much they grow
        for op in list(module.walk()):
            if not isinstance(op, kernel.Extern) or op["target"] not in OPERANDS or op.get("own"):
                continue
            found = _widened(op)
            made = _narrow(op, ctx.machine.cpu, *found) if found is not None and is_row_by_row(found[0]) else None
            if found is None or made is None:
                continue
            refused = op.get("strides") is not None or broken(takes_narrow(made[-1], ctx.machine))
            if refused or self._is_kept(found[0], kept):
                for new in reversed(made):
                    new.erase()
                continue
            ctx.diagnostics.count(self.name, "products")
            _replace(op, made)

    def _is_kept(self, weight: SSAValue, kept: dict[SSAValue, int]) -> bool:
        """Whether `hoist` has room for it; what it keeps is read faster than it is widened."""
        t = prim.tensor(weight)
        if weight in kept or not isinstance(t.numel, int):
            return True
        growth = t.numel * (F32.bytes - t.dtype.bytes)
        if t.numel * F32.bytes > KEPT_BYTES or sum(kept.values()) + growth > self.kept:
            return False
        kept[weight] = growth
        return True


def _widened(op: kernel.Extern) -> tuple[SSAValue, SSAValue | None] | None:
    """w and what its rows are multiplied by, spread to all columns, where the call's weight is cast(w) or cast(w) * broadcast(factors), perhaps with its dimensions exchanged."""
    if op.get("epilogue") or op.get("beta", 1) != 1 or op.get("alpha", 1) != 1:
        return None
    value = op.operands[list(op["operands"]).index(OPERANDS[op["target"]][1])]
    if op["target"] != LINEAR:
        view = producer(value, prim.Permute)
        if view is None or tuple(view["perm"]) != (1, 0):
            return None
        value = view.operands[0]
    product = value.owner
    if not isinstance(product, Op) or product.name != "prim.mul":
        narrow = _before_cast(value)
        return None if narrow is None else (narrow, None)
    for wide, other in (product.operands, product.operands[::-1]):
        narrow = _before_cast(wide)
        if narrow is not None:
            return narrow, other
    return None


def _before_cast(value: SSAValue) -> SSAValue | None:
    cast = producer(value, prim.Cast)
    narrow = None if cast is None else cast.operands[0]
    return narrow if narrow is not None and prim.tensor(narrow).dtype in NARROW_TYPES else None


def _of_rows(value: SSAValue) -> list[Op] | None:
    """A number for each row, where all columns have the same."""
    t, number, spread = prim.tensor(value), splat(value), producer(value, prim.Broadcast)
    rows = t.shape[:1]
    if number is not None:
        return [prim.full(number, t.with_(shape=rows))]
    if spread is None:
        return None
    sizes = dict(zip(spread["dims"], prim.tensor(spread.operands[0]).shape, strict=True))
    if sizes.get(1, 1) != 1:
        return None
    if sizes.get(0, 1) == rows[0]:
        return [prim.reshape(spread.operands[0], rows)]
    one = prim.reshape(spread.operands[0], ())
    return [one, prim.broadcast(one.results[0], rows, ())]


def _narrow(op: kernel.Extern, cpu: Processor, weight: SSAValue, factors: SSAValue | None) -> list[Op] | None:
    """The call that takes its place, and what stands before it; None where the factors are not those of rows."""
    named, (given, _, bias) = dict(zip(op["operands"], op.operands, strict=True)), OPERANDS[op["target"]]
    operands, made = {"input": named[given], "weight": weight}, [] if factors is None else _of_rows(factors)
    if made is None:
        return None
    if made:
        operands["scale"] = made[-1].results[0]
    if bias in named:
        operands["bias"] = named[bias]
    literals = {"target": NARROW, "operands": tuple(operands), "own": "narrow", "tile": linear_tile(cpu)}
    call = kernel.Extern.make([*operands.values()], [op.results[0].type], literals, loc=op.location)
    return [*made, call]


def _replace(op: kernel.Extern, made: list[Op]) -> None:
    block = op.parent
    assert block is not None
    block.insert_ops_before(made, op)
    op.results[0].replace_all_uses_with(made[-1].results[0])
    unread: list[Op] = [op]
    while unread:
        old = unread.pop()
        if old.parent is block and is_dead(old):
            unread += [v.owner for v in old.operands if isinstance(v.owner, Op)]
            block.erase_op(old)
