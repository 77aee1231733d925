"""What objects hold beside their attributes, in memory of C's: items, slots, the place of an iterator; and whether one is held at all."""

from __future__ import annotations

import array
import collections
import functools
import gc
import io
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from ..breaks.breaks import Nowhere
from ..errors import GraphBreak
from ..state import Interpreter
from .kinds import HEAP_TYPE, IMMUTABLE_TYPE, isinstance

__all__ = ["PROXIES", "behind", "check_alive", "held_in_c", "in_eager", "is_dropped", "reduced"]

_MOST = 20_000  # objects that are looked at
_KEPT = (type, types.ModuleType, types.BuiltinFunctionType)


def held_in_c(value: Any) -> list[Any] | None:
    """Objects, the same ones as long as nothing is changed; None where that cannot be known. No code of the program's runs."""
    kind, found = type(value), list[Any]()
    base = next((c for c in kind.__mro__ if c in _HELD), None)
    if base is not None:
        found += _HELD[base](value)
    elif hasattr(native := next(c for c in kind.__mro__ if not _is_pythons(c)), "__next__"):
        try:
            found += _flat(reduced(value, native)[1:])
        except TypeError:
            return None
    for cls in kind.__mro__:
        if _is_pythons(cls):
            slots = [v for v in cls.__dict__.values() if isinstance(v, types.MemberDescriptorType)]
            found += [slot.__get__(value) for slot in slots if _is_set(slot, value)]
    return found


def reduced(iterator: Any, kind: type) -> Any:
    """What an iterator says of itself for pickling by this class of C's, of which 3.12 and 3.13 warn.

    Raises:
        TypeError: it says nothing.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return kind.__reduce__(iterator)  # type: ignore[call-arg]


def _is_pythons(cls: type) -> bool:
    """Whether Python code made the class; from 3.12 on those of C modules, too, are made at run time, but nobody can change them."""
    return bool(cls.__flags__ & HEAP_TYPE) and not cls.__flags__ & IMMUTABLE_TYPE


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
    functools.partial: lambda v: [v.func, *v.args, *v.keywords.values()],
    types.MethodType: lambda v: [v.__self__],
    types.BuiltinMethodType: lambda v: [v.__self__],
    types.MethodWrapperType: lambda v: [v.__self__],
}


# ---- objects that may be gone: capture keeps what CPython drops with the last reference ----


def is_dropped(vm: Interpreter, value: Any) -> bool:
    """Whether an object may end within the call, which made it."""
    made = vm.is_created(value) or isinstance(value, Tensor) and vm.user.source_of(value) is None
    return made and not isinstance(value, _KEPT)


def in_eager(reason: str) -> GraphBreak:
    """The break that lets CPython run the whole call: what the rest of it is given would live as long as that."""
    error = GraphBreak(reason)
    error.split = Nowhere()
    return error


def check_alive(vm: Interpreter, value: Any) -> None:
    """Break where an object is reached by a weak reference and no variable is seen to lead to it."""
    if value is not None and is_dropped(vm, value) and not any(held is value for held in _reached(vm)):
        raise in_eager("a weak reference is read to an object that may be gone")


def _reached(vm: Interpreter) -> Iterator[Any]:
    """What the variables and value stacks of frames lead to, without what the caller's objects hold."""
    waiting = [value for frame in vm.frames for value in (*frame.fast.values(), *frame.stack)]
    seen: set[int] = set()
    while waiting and len(seen) < _MOST:
        value = waiting.pop()
        if id(value) in seen or isinstance(value, _KEPT):
            continue
        seen.add(id(value))
        yield value
        if vm.is_frontend_class(type(value)) and hasattr(value, "frame"):  # a generator
            waiting += [*value.frame.fast.values(), *value.frame.stack]
        elif isinstance(value, types.FunctionType):
            waiting += [*(value.__closure__ or ()), *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        elif type(value) in _HOLDERS or vm.is_created(value):
            waiting += gc.get_referents(value)


_HOLDERS = (list, tuple, dict, set, frozenset, collections.deque, types.CellType, types.MethodType)
PROXIES = (weakref.ProxyType, weakref.CallableProxyType)


def behind(vm: Interpreter, proxy: Any) -> Any:
    """The object that a weak proxy stands for; one of the caller's breaks the graph."""
    recipe = vm.recipes.get(id(proxy))
    if recipe is None:
        raise GraphBreak("a weak proxy of the caller's is used")
    check_alive(vm, recipe[1][0])
    return recipe[1][0]
