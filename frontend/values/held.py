"""What objects hold beside their attributes, in memory of C's: items, slots, the place of an iterator."""

from __future__ import annotations

import array
import collections
import io
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from .kinds import isinstance

__all__ = ["held_in_c", "reduced"]


def held_in_c(value: Any) -> list[Any] | None:
    """Objects, the same ones as long as nothing is changed; None where that cannot be known. No code of the program's runs."""
    kind, found = type(value), list[Any]()
    base = next((c for c in kind.__mro__ if c in _HELD), None)
    if base is not None:
        found += _HELD[base](value)
    elif hasattr(kind, "__next__") and not kind.__flags__ & _HEAP:
        try:
            found += _flat(reduced(value)[1:])
        except TypeError:
            return None
    for cls in kind.__mro__:
        if cls.__flags__ & _HEAP:
            slots = [v for v in cls.__dict__.values() if isinstance(v, types.MemberDescriptorType)]
            found += [slot.__get__(value) for slot in slots if _is_set(slot, value)]
    return found


def reduced(iterator: Any) -> Any:
    """What an iterator of Python's own says of itself for pickling, of which 3.12 and 3.13 warn.

    Raises:
        TypeError: it says nothing.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return iterator.__reduce__()


_HEAP = 1 << 9  # classes made by Python code


def _is_set(slot: Any, value: Any) -> bool:
    try:
        slot.__get__(value)
    except AttributeError:
        return False
    return True


def _flat(value: Any) -> Iterator[Any]:
    """The parts of what an iterator says of itself; numbers and text as their characters, which are the same objects each time."""
    if type(value) in (tuple, list):
        for item in value:
            yield from _flat(item)
    elif type(value) is range:
        yield from _flat((value.start, value.stop, value.step))
    elif type(value) in (int, str, bytes):
        yield from str(value).encode()
    else:
        yield value


_HELD: dict[type, Callable[[Any], Any]] = {
    collections.OrderedDict: lambda v: [*collections.OrderedDict.keys(v), *dict.values(v)],
    dict: lambda v: [*dict.keys(v), *dict.values(v)],
    list: list.__iter__,
    set: set.__iter__,
    collections.deque: collections.deque.__iter__,
    bytearray: lambda v: bytearray.__iter__(v),
    array.array: lambda v: v.tobytes(),
    io.StringIO: lambda v: [*v.getvalue().encode(), *str(v.tell()).encode()],
    io.BytesIO: lambda v: [*v.getvalue(), *str(v.tell()).encode()],
    BaseException: lambda v: _flat(v.args),
}
