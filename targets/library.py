"""The seam to the libraries behind ATen: which call carries out an extern operation.

The default is the operator itself. Where a library offers a faster way to do the same, `Library.choose` returns a `Step`
that describes it; the host program calls the step with the operation's tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..ir.dialects import prim
from ..ir.syntax import Op


@dataclass(frozen=True)
class Step:
    """A library call other than the operator itself: which builder in `BUILDERS`, with which options (plain data)."""

    builder: str
    options: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Plain data for the cache."""
        return {"builder": self.builder, "options": self.options}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Step:
        """The inverse of `as_json`."""
        return Step(data["builder"], data["options"])


BUILDERS: dict[str, Callable[..., Callable[..., Any]]] = {}
CHOOSERS: dict[str, Callable[[Op, prim.Func], Step | None]] = {}


@dataclass
class Library:
    """The choice of library calls."""

    def choose(self, op: Op, func: prim.Func) -> Step | None:
        """A faster way to do this `buffer.extern`, or None for the operator itself."""
        chooser = CHOOSERS.get(op["target"])
        return None if chooser is None else chooser(op, func)

    def build(self, step: Step) -> Callable[..., Any]:
        """The callable of a step."""
        return BUILDERS[step.builder](**step.options)
