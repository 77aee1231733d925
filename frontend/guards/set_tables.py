"""How a set is kept: its table, and how another one of the same order is made.

The order of a set comes from its hashes, the size of its table and its history: an item that does not lie where it would go at once came
after those that were in its way.
"""

from __future__ import annotations

import ctypes
import itertools
import operator
import random
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from ..values.kinds import isinstance

__all__ = ["layout", "made_set", "recipe", "removed", "table"]

_HEAD = object.__basicsize__
# Used and unused places, items, places - 1, where the places are: each a pointer and a hash.
_FORM = struct.Struct("nnnP")
_LINEAR, _SHIFT = 9, 5  # LINEAR_PROBES and PERTURB_SHIFT: places that are looked at in turn, and how the next are found
_WORD = 1 << 64


def _facts(value: set[Any] | frozenset[Any]) -> tuple[int, int, int, int]:
    filled, count, most, start = _FORM.unpack(ctypes.string_at(id(value) + _HEAD, _FORM.size))
    return filled, count, most, start


def _places(value: set[Any] | frozenset[Any]) -> list[int]:
    """Of each place of a set's table the pointer and the hash, one after the other."""
    _, _, most, start = _facts(value)
    return memoryview(ctypes.string_at(start, (most + 1) * 16)).cast("Q").tolist()


def removed(value: set[Any] | frozenset[Any]) -> int:
    """How many items have left a trace in a set's table; -1 where this Python keeps sets in another way."""
    if not _KNOWN:
        return -1
    filled, count, _, _ = _facts(value)
    return filled - count


def table(value: set[Any] | frozenset[Any]) -> list[bool] | None:
    """Which places of a set's table are taken; None where this is not known."""
    return [pointer != 0 for pointer in _places(value)[::2]] if _KNOWN else None


def layout(value: set[Any] | frozenset[Any]) -> bytes:
    """Which places of a set's table are taken; nothing where items were removed from it, or where this is not known."""
    return b"" if removed(value) else bytes(table(value) or ())


def _is_known() -> bool:
    value = {0, 1, 2, 3}
    value.discard(2)
    filled, count, most, start = _facts(value)
    return (filled, count, most) == (4, 3, 7) and id(value) < start < id(value) + set.__basicsize__


_KNOWN = _is_known()


def made_set(
    items: Sequence[Any], fillers: int = 0, late: Sequence[Any] = (), into: set[Any] | None = None
) -> set[Any]:
    """A set of these items: put into a table that is as large as so many more need, in turn; `late` ones are added behind them."""
    more = range(_FILLER, _FILLER + fillers)
    made = set() if into is None else into
    set.clear(made)
    set.update(made, dict.fromkeys([*items, *more]))  # one table from the start: a set that grows is put in order anew
    for number in more:
        set.discard(made, number)
    for item in late:
        set.add(made, item)
    return made


def recipe(value: set[Any] | frozenset[Any]) -> tuple[Any, ...] | None:
    """Arguments for which `made_set` makes a set of the same order, in a table of the same size; None where none are found.

    Where nothing was removed from the set, the same places are taken, if that can be found.
    """
    base: Any = set if isinstance(value, set) else frozenset
    target = [*value]
    empty = base.__sizeof__(base.__new__(type(value)))  # a class of the program's adds to what a set takes
    slots = (base.__sizeof__(value) - empty) // 16 or 8  # a table of 8 is part of the object
    size = set().__sizeof__() + (slots * 16 if slots > 8 else 0)
    first = _by_places(value, target)
    if first is not None:
        where = table(value)
        both: tuple[tuple[list[Any], int, list[Any]], ...] = (([], 0, first), (first, 0, []))
        for ways in both:
            made = made_set(*ways)
            if table(made) == where and all(map(operator.is_, made, target)):
                return ways
    most = slots // 2 - 1 if slots > 8 else 3
    fillers = max(0, slots // 4 - len(target), 5 - len(target)) if slots > 8 else 0  # 4 items still fit into the 8
    for order in _orders(target, first):
        made = made_set(order[:most], fillers, order[most:])
        if made.__sizeof__() != size:
            return None
        if all(map(operator.is_, made, target)):
            return order[:most], fillers, order[most:]
    return None


def _by_places(value: set[Any] | frozenset[Any], target: list[Any]) -> list[Any] | None:
    """An order of insertion by which the items come to their places: first those that nothing was in the way of.

    None where each waits for another one: they came when others were in their way.
    """
    if not _KNOWN:
        return None
    words = _places(value)
    items, most = {id(item): item for item in target}, len(words) // 2 - 1
    taken = {place: pointer for place, pointer in enumerate(words[::2]) if pointer in items}
    waiting = {place: _in_the_way(words[2 * place + 1], place, most, taken) for place in taken}
    order: list[int] = []
    while waiting:
        free = [place for place, before in waiting.items() if not any(other in waiting for other in before)]
        if not free:
            return None
        order += free
        for place in free:
            del waiting[place]
    return [items[taken[place]] for place in order]


def _in_the_way(number: int, place: int, most: int, taken: dict[int, int]) -> list[int]:
    """Taken places at which an item of this hash is looked for before its own."""
    found: list[int] = []
    at, rest = number & most, number
    for _ in range(64 + most):
        for near in range(at, at + (_LINEAR if at + _LINEAR <= most else 0) + 1):
            if near == place:
                return found
            if near in taken:
                found.append(near)
        rest >>= _SHIFT
        at = (at * 5 + 1 + rest) % _WORD & most
    return found


def _orders(target: list[Any], first: list[Any] | None) -> Iterator[list[Any]]:
    """Orders of insertion that may give a set of this order: some items were in the way of others."""
    if first is not None:
        yield first
    if len(target) <= 5:
        yield from map(list, itertools.permutations(target))
        return
    order, chance = target, random.Random(0)
    for _ in range(200):
        yield order
        late = chance.sample(order, chance.choice((1, 1, 2)))
        moved = {id(item) for item in late}
        nearer = [item for item in order if id(item) not in moved] + late
        if _agreement(nearer, target) >= _agreement(order, target):
            order = nearer


def _agreement(order: list[Any], target: list[Any]) -> int:
    return sum(map(operator.is_, made_set(order), target))


_FILLER = 0x5E7 << 40  # no number that a program is likely to use
