"""What a mask of attention is known to let through: everything, or a triangle.

Libraries have their fastest attention for calls without a mask. Programs often build one from positions that says no
more than that.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import sympy
import torch
from xdsl.ir import Block, SSAValue

from ....ir.dialects import prim
from ....ir.dtypes import BOOL, DType
from ....ir.symbols import Dim, dim, is_nonnegative, known_equal
from ...analysis.known_values import known_value
from ...schedule.expressions import Node
from ...schedule.plain.elements import Lowering

FULL, CAUSAL = "full", "causal"
OPPOSITE = {"ge": "lt", "gt": "le", "le": "gt", "lt": "ge"}
COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    name: getattr(operator, name) for name in ("eq", "ne", "ge", "gt", "le", "lt")
}
LEAST = {"f64": -1.7976931348623157e308, "f32": -3.4028234663852886e38, "f16": -65504.0, "bf16": -3.3895313892515355e38}


def mask_kind(mask: SSAValue) -> str | None:
    """FULL or CAUSAL where that follows from how the mask is computed, or from its numbers, else None."""
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
        """A truth value of where(c, number, number) alone: c and whether it is the same, or a constant."""
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
