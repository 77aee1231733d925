"""attention-mask: a mask that lets everything through is no mask, and a triangle is `is_causal`.

Libraries have their fastest attention for calls without a mask. Programs often build one from positions that says no more than that.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import sympy
import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, SSAValue

from ...ir.dialects import kernel, prim
from ...ir.dtypes import BOOL, DType
from ...ir.symbols import Dim, dim, is_nonnegative, known_equal
from ..analysis.known_values import known_value
from ..core.base import Pass
from ..core.context import CompileContext
from ..schedule.elements import Lowering
from ..schedule.expressions import Node

ATTENTION = "aten.scaled_dot_product_attention.default"
FULL, CAUSAL = "full", "causal"
OPPOSITE = {"ge": "lt", "gt": "le", "le": "gt", "lt": "ge"}
COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    name: getattr(operator, name) for name in ("eq", "ne", "ge", "gt", "le", "lt")
}
LEAST = {"f64": -1.7976931348623157e308, "f32": -3.4028234663852886e38, "f16": -65504.0, "bf16": -3.3895313892515355e38}


@dataclass(frozen=True)
class AttentionMask(Pass):
    """Drop masks of attention that are known to be full, and say `is_causal` for those that are a triangle."""

    name: ClassVar[str] = "attention-mask"
    level: ClassVar[str] = "prim"
    after: ClassVar[tuple[str, ...]] = ("decompose", "canonicalize", "cse")
    before: ClassVar[tuple[str, ...]] = ("dce",)

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        kinds: dict[SSAValue, str | None] = {}  # layers share masks
        for op in list(module.walk()):
            if isinstance(op, kernel.Extern) and op["target"] == ATTENTION and "attn_mask" in op["operands"]:
                place = list(op["operands"]).index("attn_mask")
                mask = op.operands[place]
                if mask not in kinds:
                    kinds[mask] = mask_kind(mask)
                kind = kinds[mask]
                if kind is None or op.get("is_causal"):
                    continue
                _without(op, place, kind == CAUSAL)
                ctx.diagnostics.count(self.name, f"{kind} masks")


def _without(op: kernel.Extern, place: int, causal: bool) -> None:
    """The same call without the operand at `place`."""
    literals = dict(op.literals)
    for name in ("operands", "operand_strides"):
        if name in literals:
            literals[name] = tuple(v for k, v in enumerate(literals[name]) if k != place)
    if all(s is None for s in literals.get("operand_strides", (None,))):
        literals.pop("operand_strides", None)
    if causal:
        literals["is_causal"] = True
    operands = [v for k, v in enumerate(op.operands) if k != place]
    new = kernel.Extern.make(operands, [r.type for r in op.results], literals, loc=op.location)
    block = op.parent
    assert block is not None
    block.insert_op_before(new, op)
    for old, result in zip(op.results, new.results, strict=True):
        result.name_hint = old.name_hint
        old.replace_all_uses_with(result)
    op.detach()
    op.erase()


def mask_kind(mask: SSAValue) -> str | None:
    """FULL or CAUSAL where that follows from how the mask is computed, or from the mask itself where its sizes are known, else None."""
    return _lowered_kind(mask) or _known_kind(mask)


def _known_kind(mask: SSAValue) -> str | None:
    """By its numbers."""
    value = known_value(mask) if prim.tensor(mask).dtype == BOOL or prim.tensor(mask).dtype.is_float else None
    if value is None or value.dim() < 2 or value.numel() == 0:
        return None
    opened = value if value.dtype == torch.bool else value == 0
    if value.dtype != torch.bool and not bool(
        (opened | (value <= LEAST.get(prim.tensor(mask).dtype.name, -math.inf))).all()
    ):
        return None
    if bool(opened.all()):
        return FULL
    rows, columns = value.shape[-2:]
    return CAUSAL if rows > 1 and bool((opened == torch.ones(rows, columns, dtype=torch.bool).tril()).all()) else None


def _lowered_kind(mask: SSAValue) -> str | None:
    if not _computed(mask):
        return None
    lowering = Lowering()
    shape = prim.tensor(mask).shape
    index = tuple(0 if s == 1 else lowering.variable("o", s) for s in shape)
    if len(index) < 2:
        return None
    node = lowering.lower(mask, index)
    return _Classifier(lowering, index[-2], index[-1], prim.tensor(mask).dtype).kind(node)


def _computed(mask: SSAValue) -> bool:
    """Whether a value depends on sizes and positions alone."""
    seen: set[SSAValue] = set()
    stack = [mask]
    while stack:
        value = stack.pop()
        owner = value.owner
        if isinstance(owner, (Block, *prim.JOINS, prim.Scan)) or not isinstance(owner, prim.PrimOp):
            return False
        if value not in seen:
            seen.add(value)
            stack += owner.operands
        if len(seen) > 64:
            return False
    return True


@dataclass
class _Classifier:
    """What a mask is at query `row` and key `column`."""

    lowering: Lowering
    row: Dim
    column: Dim
    dtype: DType

    def kind(self, node: Node, negated: bool = False) -> str | None:
        """FULL or CAUSAL: what the truth value (or, `negated`, its opposite) or number lets through."""
        if node.kind == "const" and node.dtype.kind == "bool":
            return FULL if bool(node.data[0]) != negated else None
        if node.kind == "const" and node.dtype.is_float:
            return FULL if node.data[0] == 0 and not negated else None
        decided = self._decided(node)
        if decided is not None:
            condition, value = decided
            return (
                self.kind(condition, negated is value)
                if isinstance(condition, Node)
                else FULL
                if condition != negated
                else None
            )
        if node.kind == "cast" and node.dtype.kind == node.args[0].dtype.kind:
            return self.kind(node.args[0], negated)
        if node.kind != "op":
            return None
        name = node.data[0]
        if name == "not":
            return self.kind(node.args[0], not negated)
        if name in ("and", "or"):
            kinds = {self.kind(a, negated) for a in node.args}
            if (name == "or") != negated:  # one that is full is enough
                return FULL if FULL in kinds else None
            return None if None in kinds else CAUSAL if CAUSAL in kinds else FULL
        if name == "where" and node.dtype.is_float and not negated:
            condition, here, there = node.args
            if self.kind(here) == FULL and self._shuts(there):
                return self.kind(condition)
            return self.kind(condition, True) if self.kind(there) == FULL and self._shuts(here) else None
        if name in OPPOSITE:
            return self._compared(OPPOSITE[name] if negated else name, *node.args)
        return None

    @staticmethod
    def _decided(node: Node) -> tuple[Node | bool, bool] | None:
        """A truth value that depends on the condition of where(c, number, number) alone: c and whether it is the same, or a constant."""
        if node.dtype.kind != "bool":
            return None
        test: Callable[[Any], bool] = bool
        choice = node if node.kind == "op" and node.data[0] == "where" else node.args[0] if node.args else None
        if node.kind == "op" and node.data[0] in COMPARED and node.args[1].kind == "const":
            test = partial(_holds, COMPARED[node.data[0]], node.args[1].data[0])
        elif choice is None or (choice is not node and node.kind != "cast"):
            return None
        if (
            choice is None
            or choice.kind != "op"
            or choice.data[0] != "where"
            or any(a.kind != "const" for a in choice.args[1:])
        ):
            return None
        here, there = (bool(test(a.data[0])) for a in choice.args[1:])
        return (here, True) if here == there else (choice.args[0], here)

    def _shuts(self, node: Node) -> bool:
        """A number that added to a score leaves nothing of it."""
        value = node.data[0] if node.kind == "const" else None
        return isinstance(value, float) and (value == -math.inf or value <= LEAST.get(self.dtype.name, -math.inf))

    def _compared(self, name: str, a: Node, b: Node) -> str | None:
        left, right = (self.lowering.expression(x, floats=True) for x in (a, b))
        if left is None or right is None:
            return None
        if name in ("le", "lt"):
            left, right = right, left
        apart = dim(left - right - (1 if name in ("gt", "lt") else 0))  # holds where this is not negative
        if is_nonnegative(apart, self.lowering.ranges):
            return FULL
        both = isinstance(self.row, sympy.Symbol) and isinstance(self.column, sympy.Symbol)
        return CAUSAL if both and known_equal(apart, dim(self.row - self.column)) else None


def _holds(compare: Callable[[Any, Any], bool], number: Any, value: Any) -> bool:
    return compare(value, number)
