"""Common subexpression elimination: what is computed twice from the same operands is computed once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute, Block, SSAValue

from ...ir.dialects.prim import Elementwise
from ...ir.syntax import Op
from ..core.base import Pass
from ..core.context import CompileContext
from ..core.levels import bodies

Key = tuple[str, tuple[int, ...], tuple[tuple[str, Attribute], ...], tuple[Attribute, ...]]


@dataclass(frozen=True)
class CSE(Pass):
    """Compute equal values once: same operation, operands, attributes and types."""

    name: ClassVar[str] = "cse"
    accepts: ClassVar[tuple[str, ...]] = ("aten", "kernel")
    after: ClassVar[tuple[str, ...]] = ("canonicalize", "constant-fold")

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        removed = sum(_merge_equal(body.block_body) for body in bodies(module))
        ctx.diagnostics.count(self.name, "removed", removed)


def _merge_equal(block: Block) -> int:
    """One walk forward: a straight line, so the first of two equal operations stands before all uses of the second."""
    seen: dict[Key, Op] = {}
    removed = 0
    for op in list(block.ops):
        if not isinstance(op, Op) or op.regions or not op.results or not op.is_pure or op.get("effect", False):
            continue
        first = seen.setdefault(_key(op), op)
        if first is not op:
            for old, new in zip(op.results, first.results, strict=True):
                old.replace_all_uses_with(new)
            block.erase_op(op)
            removed += 1
    return removed


def _key(op: Op) -> Key:
    operands: list[SSAValue] = list(op.operands)
    identities = [id(v) for v in operands]
    if isinstance(op, Elementwise) and op.row.commutative:
        identities.sort()
    attributes = tuple(sorted(op.attributes.items()))
    return op.name, tuple(identities), attributes, tuple(r.type for r in op.results)
