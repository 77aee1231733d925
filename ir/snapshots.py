"""What weak collections hold, while other threads add to them."""

from __future__ import annotations

from typing import TypeVar
from weakref import WeakSet

__all__ = ["members"]

_T = TypeVar("_T")


def members(held: WeakSet[_T]) -> list[_T]:
    """The members that are alive now. A loop over the set itself, `list(held)` too, fails when another thread adds one meanwhile."""
    references = list(held.data)  # type: ignore[attr-defined]  # one step of the interpreter
    return [member for reference in references if (member := reference()) is not None]
