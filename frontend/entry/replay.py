"""What entries call to bring the caller's objects into the state in which the program left them."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import fractions
import ipaddress
import itertools
import types
from collections import OrderedDict
from typing import Any

from ..errors import Unsupported
from ..guards.sameness import indistinguishable, same_keys
from ..guards.set_tables import made_set, recipe, removed, table
from ..values.constant import is_constant
from ..values.kinds import HEAP_TYPE, isinstance, namespace_of

__all__ = ["REDUCED", "change_set", "forget", "put", "refill", "refill_dict", "remake_set", "set_changes", "slots_of"]


def forget(target: Any, name: str) -> None:
    """Delete an attribute of the instance's own, where it has it."""
    namespace = namespace_of(target) or {}
    if name in namespace:
        del namespace[name]
    elif isinstance(getattr(type(target), name, None), types.MemberDescriptorType):
        with contextlib.suppress(AttributeError):
            object.__delattr__(target, name)


def put(target: Any, name: str, value: Any) -> None:
    """Set an attribute of the instance's own, as the last one, past descriptors of its class."""
    forget(target, name)
    if isinstance(getattr(type(target), name, None), types.MemberDescriptorType):
        object.__setattr__(target, name, value)
    else:
        namespace = namespace_of(target)
        (target.__dict__ if namespace is None else namespace)[name] = value


def refill(target: Any, items: list[Any]) -> None:
    """Give a deque other items."""
    target.clear()
    target.extend(items)


def refill_dict(target: Any, pairs: list[Any]) -> None:
    """Give a dict other items. What stays is not moved: iterators of the program's go on behind it."""
    base: Any = OrderedDict if isinstance(target, OrderedDict) else dict
    gone, kept = [], 0
    for key in base.__iter__(target):
        if kept < len(pairs) and indistinguishable(key, pairs[kept][0]):
            kept += 1
        else:
            gone.append(key)
    for key in gone:
        base.__delitem__(target, key)
    for key, item in pairs:
        base.__setitem__(target, key, item)


def set_changes(real: set[Any], copy: set[Any]) -> list[list[Any]] | tuple[Any, ...]:
    """Arguments of `change_set` (a list) or `remake_set` (a tuple) by which a set of the caller's becomes like its stand-in.

    Like it is: the same order, in a table of the same size. An item that was removed may have been in the way of a new one.
    """
    gone, new = [v for v in real if v not in copy], [v for v in copy if v not in real]
    if not all(map(is_constant, (*real, *copy))):
        return [gone, new, []]
    made, anew = recipe(real), recipe(copy)
    orders = [*map(list, itertools.permutations(new))] if len(new) <= 4 else [new, new[::-1]]
    ways = [[gone, order, []] for order in orders] + [[[], order, gone] for order in orders]
    same: list[Any] = []  # those that give the order
    for steps in ways if made is not None else ():
        trial = made_set(*made or ())
        change_set(trial, *steps)
        if same_keys(trial, [*copy]) and trial.__sizeof__() == copy.__sizeof__():
            same.append(steps)
            if removed(trial) == removed(copy) and table(trial) == table(copy):
                return steps
    if anew is not None and (not same or removed(copy) == 0 and table(made_set(*anew)) == table(copy)):
        return anew
    if not same:
        raise Unsupported("a set of the caller's is changed, and what is known of it does not tell its order")
    return same[0]  # type: ignore[no-any-return]


def change_set(target: Any, gone: list[Any], new: list[Any], passing: list[Any]) -> None:
    """Remove items, add new ones in turn, then remove those that were there while these came."""
    for item in gone:
        target.discard(item)
    for item in new:
        target.add(item)
    for item in passing:
        target.discard(item)


def remake_set(target: Any, items: list[Any], fillers: int, late: list[Any]) -> None:
    """Make a set anew, as `set_tables.recipe` says."""
    made_set(items, fillers, late, target)


def slots_of(cls: type) -> list[str]:
    """The names of the slots of an instance."""
    slots = [(n, d) for c in cls.__mro__ if c.__flags__ & HEAP_TYPE for n, d in c.__dict__.items()]
    return [name for name, raw in slots if isinstance(raw, types.MemberDescriptorType)]


# Values that say how they are made; `copy.copy` gives some of them back as they are.
REDUCED = (
    *(datetime.date, datetime.time, datetime.timedelta, decimal.Decimal, fractions.Fraction),
    *(ipaddress.IPv4Address, ipaddress.IPv6Address),
)
