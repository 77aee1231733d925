"""Passes with a mistake, one a level, that the tests look for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from intarsia.passes.core.base import Pass


@dataclass(frozen=True)
class WrongSub(Pass):
    """Turn subtractions around."""

    name: ClassVar[str] = "wrong-sub"
    level: ClassVar[str] = "prim"
    after: ClassVar[tuple[str, ...]] = ("dce",)
    before: ClassVar[tuple[str, ...]] = ("fuse",)

    def apply(self, ctx, module):
        for op in module.walk():
            if op.name == "prim.sub":
                op.operands = op.operands[::-1]


@dataclass(frozen=True)
class WrongLoop(Pass):
    """Take the sine where the cosine belongs, in loops."""

    name: ClassVar[str] = "wrong-loop"
    level: ClassVar[str] = "loop"
    after: ClassVar[tuple[str, ...]] = ("choose-forms",)
    before: ClassVar[tuple[str, ...]] = ("plan-buffers",)

    def apply(self, ctx, module):
        from intarsia.ir.dialects.loop import SCALAR_DIALECT_OPS

        sine = next(op for op in SCALAR_DIALECT_OPS if op.name == "scalar.sin")
        for op in list(module.walk()):
            if op.name == "scalar.cos":
                made = sine.make(op.operands, [op.results[0].type], op.literals)
                op.parent.insert_op_before(made, op)
                op.results[0].replace_all_uses_with(made.results[0])
                op.detach()
                op.erase()


@dataclass(frozen=True)
class Raises(Pass):
    """Cannot take a division."""

    name: ClassVar[str] = "raises"
    level: ClassVar[str] = "prim"
    after: ClassVar[tuple[str, ...]] = ("dce",)
    before: ClassVar[tuple[str, ...]] = ("fuse",)

    def apply(self, ctx, module):
        for op in module.walk():
            if op.name == "prim.div":
                raise KeyError("div")
