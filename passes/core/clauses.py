"""What preconditions are made of: a call as a kernel sees it at any level, and clauses that are asked in order.

A precondition is a function that yields (holds, what has to hold). It is asked by the pass that gives a call to the kernel, by
`preconditions.check` after each pass, and by the tests that draw calls on both sides of every clause. What is faster is none of its business.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from ...ir.dialects.kernel import PREFIX
from ...ir.dtypes import DType
from ...ir.symbols import Dim, contiguous_strides
from ...ir.syntax import Op
from ...ir.types import RefType, TensorType
from ..analysis.strides import same_layout

Clauses: TypeAlias = Iterator[tuple[bool, str]]


def broken(clauses: Clauses) -> str | None:
    """The first clause that does not hold; later ones may count on those before them."""
    return next((what for holds, what in clauses if not holds), None)


@dataclass(frozen=True)
class Call:
    """A call of a library's operator: its tensors by name, as values or as memory, among them `result`, and `result1` ... of several."""

    op: Op
    tensors: Mapping[str, TensorType | RefType]

    @classmethod
    def of(cls, op: Op) -> Call:
        """Operands behind the named ones are the results where the operation has none of its own."""
        given = len(op["operands"])
        results = op.operands[given:] or op.results  # a check of errors gives nothing
        types = {name: value.type for name, value in zip(op["operands"], op.operands[:given], strict=True)}
        types |= {f"result{k or ''}": value.type for k, value in enumerate(results)}
        return cls(op, {name: kind for name, kind in types.items() if isinstance(kind, TensorType | RefType)})

    @property
    def names(self) -> tuple[str, ...]:
        """The operands, without the tensors of an epilogue."""
        return tuple(name for name in self.op["operands"] if not name.startswith(PREFIX))

    def shape(self, name: str) -> tuple[Dim, ...]:
        return self.tensors[name].shape

    def are(self, *dtypes: DType, names: tuple[str, ...] | None = None) -> bool:
        """Whether these tensors (default: all but an epilogue's, and the result) are there, have one of the dtypes, and all the same one."""
        found = {
            self.tensors[name].dtype if name in self.tensors else None for name in names or (*self.names, "result")
        }
        return len(found) == 1 and next(iter(found)) in dtypes

    @property
    def on_cpu(self) -> bool:
        return all(kind.device == "cpu" for kind in self.tensors.values())

    @property
    def empty(self) -> bool:
        """Whether a tensor is known to have no elements."""
        return any(0 in kind.shape for kind in self.tensors.values())

    def two_numbers(self, *attributes: str) -> bool:
        """Whether each attribute is a list of two numbers, one for each dimension of an image."""
        lists = [self.op.get(name) for name in attributes]
        return all(
            isinstance(found, tuple | list) and len(found) == 2 and all(isinstance(n, int) for n in found)
            for found in lists
        )

    def lies(self, name: str, strides: tuple[Dim, ...] | None) -> bool:
        """Whether memory lies with these strides; values have none yet."""
        kind = self.tensors[name]
        return not isinstance(kind, RefType) or strides is not None and same_layout(kind.shape, kind.strides, strides)

    def lies_in_order(self, *names: str) -> bool:
        """Whether memory has no gaps and its elements follow one another."""
        return all(self.lies(name, contiguous_strides(self.shape(name))) for name in names)
