"""Values that equal not even themselves: containers and their searches find one by identity, so programs tell two of them apart."""

from __future__ import annotations

import decimal
import math
from collections.abc import Iterator
from typing import Any

from .sameness import is_numpy_number
from .source import Const, Item, Source

__all__ = ["Nans", "is_nan"]


def is_nan(value: Any) -> bool:
    """Whether `value` is a number that is none."""
    kind = type(value)
    if kind is float or kind is complex:
        return bool(value != value)
    if kind is decimal.Decimal:
        return bool(value.is_nan())
    return kind.__module__ == "numpy" and is_numpy_number(value) and bool(value != value)


class Nans:
    """Those that the guards of one capture expect: which of them are one object is guarded."""

    def __init__(self) -> None:
        nan = math.nan  # also torch's; code that reads it there has no guard
        self._known: dict[int, tuple[Any, Source]] = {id(nan): (nan, Const(nan, "math.nan"))}

    def relations(self, kind: str, source: Source, expected: Any) -> Iterator[tuple[str, Source, Any]]:
        """Guards beside that of `kind`: a NaN at one more place is the same object as an earlier one, or another."""
        if kind == "keys":
            for key in expected:  # the guard holds it by identity
                if is_nan(key):
                    yield from self._placed(key, Const(key, "nan"))
        elif type(expected) is tuple:
            for i, item in enumerate(expected):
                yield from self.relations(kind, Item(source, i), item)
        elif type(expected) in (frozenset, slice):
            parts = expected if type(expected) is frozenset else (expected.start, expected.stop, expected.step)
            held = [part for part in parts if is_nan(part)]
            if held:
                yield "is", source, expected
            for part in held:
                yield from self._placed(part, Const(part, "nan"))
        elif is_nan(expected):
            yield from self._placed(expected, source)

    def _placed(self, value: Any, source: Source) -> Iterator[tuple[str, Source, Source]]:
        known = self._known.setdefault(id(value), (value, source))[1]
        if known is not source:
            if isinstance(known, Const):
                yield "is", source, value
            elif known != source:
                yield "alias", source, known
            return
        for other, place in self._known.values():
            if other is not value:
                yield "other", source, place
