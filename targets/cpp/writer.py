"""The state of a C++ function that is being written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import sympy
from xdsl.ir import Operation, SSAValue

from ...ir.dialects import loop
from ...ir.dtypes import DType
from ...ir.symbols import Dim
from ...ir.syntax import Op
from ..text.walk import Walk, dtype_of
from .text import cpp_index, index_text

JOINS = {"sum": "Sum", "prod": "Product", "max": "Largest", "min": "Smallest"}  # names in the headers


@dataclass(kw_only=True)
class Writer(Walk):
    """The function being written.

    Attributes:
        stack: the scratch that lies on the stack.
        moved: what is held as the bits of its half type.
        checks: whether a place may lie outside of its dimension.
        near: angles are known to be small.
        streams: stores that go to memory past the caches: their elements.
    """

    indent: ClassVar[str] = "  "
    comment: ClassVar[str] = "//"
    stack: set[Operation] = field(default_factory=set)
    moved: dict[SSAValue, DType] = field(default_factory=dict)
    checks: bool = False
    in_parallel: bool = False
    near: bool = False
    streams: dict[Operation, str] = field(default_factory=dict)

    def value(self, op: Op, expression: str) -> None:
        """Bind the result of an operation to a named constant."""
        name = self.fresh("t")
        result = op.results[0]
        self.names[result] = name
        kind = "uint16_t" if result in self.moved else dtype_of(result).cpp
        self.line(f"const {kind} {name} = {expression};")

    def element(self, memory: SSAValue, index: Dim) -> str:
        """The text of one element of memory."""
        name = self.names[memory]
        return name if loop.is_register(memory) else f"{name}[{cpp_index(index)}]"

    def address(self, memory: SSAValue, index: sympy.Expr) -> str:
        """The text of the address of an element."""
        return self.names[memory] if index == 0 else f"{self.names[memory]} + {index_text(index, 1)}"
