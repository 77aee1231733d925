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

from torch import Tensor, nn

from ..breaks.breaks import Nowhere
from ..errors import GraphBreak, UserRaise
from ..state import Interpreter
from .constant import is_constant
from .kinds import HEAP_TYPE, IMMUTABLE_TYPE, SYMBOLIC, isinstance, namespace_of
from .lazy import Unread

__all__ = [
    "PROXIES",
    "behind",
    "check_alive",
    "check_let_go",
    "check_last_acts",
    "held_in_c",
    "held_now",
    "in_eager",
    "is_dropped",
    "lets_go",
    "reduced",
]

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
    if value is not None and is_dropped(vm, value) and not any(held is value for held in held_now(vm)):
        raise in_eager("a weak reference is read to an object that may be gone")


def held_now(vm: Interpreter) -> Iterator[Any]:
    """What the variables and value stacks of frames lead to, without what the caller's objects hold."""
    waiting = [value for frame in vm.frames for value in (*frame.fast.values(), *frame.stack)]
    seen: set[int] = set()
    while waiting and len(seen) < _MOST:
        value = waiting.pop()
        if id(value) in seen or isinstance(value, _KEPT):
            continue
        seen.add(id(value))
        yield value
        if vm.is_frontend_class(type(value)) and "frame" in (namespace_of(value) or ()):  # a generator
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
    if id(proxy) in vm.effects.dead:
        raise UserRaise(ReferenceError("weakly-referenced object no longer exists"))
    if recipe is None:
        raise GraphBreak("a weak proxy of the caller's is used")
    check_alive(vm, recipe[1][0])
    return recipe[1][0]


# ---- what the caller's objects hold no more: they let go of it when the entry replays the change ----


def lets_go(vm: Interpreter) -> bool:
    """Whether the caller's objects hold something no more that they held before the call."""
    return next(_let_go(vm), None) is not None


def check_let_go(vm: Interpreter, what: str, value: Any = None) -> None:
    """Break before weak references of the caller's are looked at, to `value` or to any, where what they refer to may be gone by then."""
    given = [v.value for v in vm.user.given if type(v) is Unread]  # a piece keeps what a variable of it lets go of
    asked = [v for v in given if v is value or value is None and weakref.getweakrefcount(v) > 0]
    if _may_be_gone(vm, value) or asked and not {*map(id, asked)} <= {id(_real(vm, held)) for held in held_now(vm)}:
        raise GraphBreak(f"{what}, and the program has let go of an object that others may not hold")


def _may_be_gone(vm: Interpreter, value: Any) -> bool:
    """Whether what the caller's objects hold no more leads to `value`, or to anything that is weakly referred to; or to too much to look at."""
    value, left = vm.user.real(value), _MOST
    for old in _let_go(vm):
        for held in _within(old, left):
            left -= 1
            if held is value or value is None and weakref.getweakrefcount(held) > 0:
                return True
    return left <= 0


def _real(vm: Interpreter, value: Any) -> Any:
    return value.value if type(value) is Unread else vm.user.real(value)


def check_last_acts(vm: Interpreter) -> None:
    """Break where something of the program's runs when CPython drops an object: a finalizer, a callback of a weak reference. It has its
    place among the other effects.
    """
    for value in _let_go(vm):
        for held in _within(value):
            if _has_last_act(held):
                raise in_eager(
                    f"code of the program's runs when CPython drops a {type(held).__qualname__} that is replaced or removed"
                )


def _let_go(vm: Interpreter) -> Iterator[Any]:
    """What containers, attributes, cells and globals of the caller's held before the call and do not hold now."""
    effects = vm.effects
    for shadow in vm.user.shadows:
        if shadow.changed():
            left = set(map(id, _items(shadow.copy)))
            yield from (vm.user.real(v) for v in shadow.before if id(v) not in left and _may_end(v))
    before: list[tuple[Any, Any]] = []
    for (_, name), (owner, value) in effects.attrs.items():
        if not vm.is_created(owner) and not isinstance(owner, Tensor):
            before.append(((namespace_of(owner) or {}).get(name), value))
            if isinstance(owner, nn.Module):
                before += [
                    (kept[name], value) for kept in (owner._parameters, owner._buffers, owner._modules) if name in kept
                ]
    before += [(cell.cell_contents, value) for cell, value in effects.cells.values() if not _is_empty(cell)]
    before += [(namespace.get(name), value) for (_, name), (namespace, value) in effects.globals.items()]
    yield from (old for old, new in before if old is not vm.user.real(new) and _may_end(old))


def _items(value: Any) -> Iterator[Any]:
    return (x for pair in value.items() for x in pair) if isinstance(value, dict) else iter(value)


def _is_empty(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False


def _may_end(value: Any) -> bool:
    return value is not None and type(value) not in SYMBOLIC and not isinstance(value, _KEPT) and not is_constant(value)


def _within(value: Any, most: int = 200) -> Iterator[Any]:
    """An object and what it alone may hold, so many objects at most."""
    waiting, seen = [value], set[int]()
    while waiting and len(seen) < most:
        value = waiting.pop()
        if id(value) not in seen and _may_end(value):
            seen.add(id(value))
            yield value
            if not isinstance(value, (Tensor, types.FunctionType, types.FrameType)):
                waiting += gc.get_referents(value)


def _has_last_act(value: Any) -> bool:
    if any("__del__" in vars(cls) for cls in type(value).__mro__ if _is_pythons(cls)):
        return True
    if isinstance(value, PROXIES):
        return False
    callbacks = (getattr(reference, "__callback__", None) for reference in weakref.getweakrefs(value))
    return any(callback is not None and not _is_bookkeeping(callback) for callback in callbacks)


def _is_bookkeeping(callback: Any) -> bool:
    """Whether the callback keeps a weak container in order, which is asked by `check_let_go`, or is none of the program's."""
    if isinstance(callback, weakref.finalize):
        return False
    module = getattr(callback, "__module__", None) or type(callback).__module__
    return module.partition(".")[0] in ("weakref", "_weakrefset", "torch", __name__.partition(".")[0])
