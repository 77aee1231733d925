"""Sets of the caller's: what an item that is added does to their order depends on items that were removed before, and on which was popped.

A stand-in has the items in the same order. Where its table is the same too, and nothing was removed from the caller's, it does
what that does; else CPython changes and copies the set.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any

from ..calls.registry import Rows
from ..errors import GraphBreak
from ..guards.source import Fetch
from ..state import Interpreter

__all__ = ["check_history", "rely_on_table", "removed", "table"]

ROWS = Rows()

_HEAD = object.__basicsize__
_FORM = struct.Struct(
    "nnnP"
)  # used and unused places, items, places - 1, where the places are: each a pointer and a hash


def _facts(value: set[Any]) -> tuple[int, int, int, int]:
    filled, count, most, start = _FORM.unpack(ctypes.string_at(id(value) + _HEAD, _FORM.size))
    return filled, count, most, start


def removed(value: set[Any]) -> int:
    """How many items have left a trace in a set's table; -1 where this Python keeps sets in another way."""
    if not _KNOWN:
        return -1
    filled, count, _, _ = _facts(value)
    return filled - count


def table(value: set[Any]) -> list[bool] | None:
    """Which places of a set's table are taken; None where this is not known."""
    if not _KNOWN:
        return None
    _, _, most, start = _facts(value)
    return [pointer != 0 for pointer in memoryview(ctypes.string_at(start, (most + 1) * 16)).cast("Q").tolist()[::2]]


def _is_known() -> bool:
    value = {0, 1, 2, 3}
    value.discard(2)
    filled, count, most, start = _facts(value)
    return (filled, count, most) == (4, 3, 7) and id(value) < start < id(value) + set.__basicsize__


_KNOWN = _is_known()
# Methods whose result or effect depends on the table, and not on the order alone.
_METHODS = frozenset(
    [
        *("add", "update", "copy", "union", "difference", "intersection", "symmetric_difference", "difference_update"),
        *("intersection_update", "symmetric_difference_update"),
    ]
)


def check_history(vm: Interpreter, function: Any, args: tuple[Any, ...]) -> None:
    """Rely on the tables of the caller's sets that a native function changes or copies."""
    owner = getattr(function, "__self__", None)
    if function in (set, frozenset) or getattr(function, "__name__", None) in _METHODS:
        for value in (owner, *args):
            rely_on_table(vm, value)


def rely_on_table(vm: Interpreter, value: Any) -> None:
    """Rely on a set of the caller's being kept as its stand-in is."""
    if type(value) is not set:
        return
    entry = vm.user.by_value.get(id(value))
    if entry is None or type(entry.real) is not set:
        return
    if id(value) not in vm.user.same_tables:
        raise GraphBreak(
            "a set of the caller's is added to or copied, whose order depends on items that were removed from it"
        )
    vm.guards.add("equals", Fetch(removed, entry.source), 0)


@ROWS.rule(set.pop)
def _pop(vm: Interpreter, items: Any) -> Any:
    if vm.user.source_of(items) is not None:
        raise GraphBreak("an item is popped from a set of the caller's: which one, its history decides")
    return vm.native(set.pop, items)
