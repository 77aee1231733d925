"""Lowering: operators of others in primitives, as a pass in front of `decompose`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp

from ...ir.dialects import prim
from ...ir.dialects.aten import AtenOp
from ...ir.syntax import line_of
from ..core.base import Pass
from ..core.context import CompileContext
from .aten_rules.builder import Builder, Rule
from .decompose import replace_by


@dataclass(frozen=True)
class Lowering(Pass):
    """Write operators out in primitives: the base of passes that know operators of a library.

    `operators` has a rule for each, by its name: "mylib::softcap", or "mylib::softcap.out" for an overload that is not the default one.
    A rule takes a builder and gives the value of each result, one or a list; where the operator changes arguments, their new values
    behind them. A rule that raises `NotCovered` leaves the call as it is. That the rule is all that the operator does is its author's word:
    an operator of a library may have effects that nobody sees, and stays a call otherwise.
    """

    level: ClassVar[str] = "aten"
    before: ClassVar[tuple[str, ...]] = ("decompose",)
    operators: ClassVar[Mapping[str, Rule]] = {}

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        rules = {target: rule for name, rule in self.operators.items() for target in targets_of(name)}
        for func in [op for op in module.body.block.ops if isinstance(op, prim.Func)]:
            for op in [op for op in func.block_body.ops if isinstance(op, AtenOp) and op.target in rules]:
                place = line_of(op)
                why = replace_by(op, Builder(op, ctx.machine), rules[op.target])
                what = f"{op.target} stays a library call: its rule {why}" if why else f"{op.target} is written out"
                ctx.diagnostics.remark(self.name, "kept" if why else "lowered", lambda what=what: what, place)  # type: ignore[misc]
                ctx.diagnostics.count(self.name, "kept" if why else "operators written out")


def targets_of(name: str) -> tuple[str, str]:
    """How an operator is called in the IR: as it is, and in the form that gives the new values of the arguments that it changes."""
    space, _, operator = name.partition("::")
    operator = operator if "." in operator else f"{operator}.default"
    word, _, overload = operator.partition(".")
    plain = f"aten.{operator}" if space == "aten" else f"aten.ops.{space}.{operator}"
    return plain, f"aten.ops.intarsia_functional.{space}__of__{word}.{overload}"
