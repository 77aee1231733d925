"""What capture learns of classes and functions: each look-up is an answer and a guard in one, for what is found and for what is not.

A look-up in a class goes along the whole resolution order, so that a class in front of the one where the name was found is part of the
answer. CPython numbers the changes of a class, of its bases and of its order with one *version tag*; a function keeps its code and
its defaults in three words beside each other. While the tags of all classes that capture asked, and these words of all functions that it
interpreted, are the same, so is every answer: one comparison of their memory says so. Where something has changed, the questions are
asked again one by one, and the memory is remembered anew, at intervals that double: a program may count in an attribute of a class.
"""

from __future__ import annotations

import abc
import ctypes
import itertools
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

from ..values.kinds import HEAP_TYPE, IMMUTABLE_TYPE, isinstance
from .emitter import Emitter
from .recompile_reason import Miss, show

__all__ = ["MISSING", "STANDS_FOR", "DefinitionCheck", "Definitions", "can_change", "lookup", "recording"]

MISSING = object()
STANDS_FOR = "__intarsia_original__"
_FRONTEND = __name__.rsplit(".", 2)[0]
_now = threading.local()


def can_change(cls: type) -> bool:
    """Whether attributes of the class can be set: it was made by a class statement, and not by the frontend."""
    return bool(cls.__flags__ & HEAP_TYPE and not cls.__flags__ & IMMUTABLE_TYPE) and not _is_of_frontend(cls)


def _is_of_frontend(cls: type) -> bool:
    return (cls.__module__ or "").startswith((_FRONTEND, "torch._subclasses"))


def _find(cls: Any, name: str, after: type | None) -> tuple[Any, Any]:
    order = cls.__mro__
    for owner in order if after is None else order[order.index(after) + 1 :]:
        namespace = owner.__dict__
        if name in namespace:
            return _original(namespace[name]), owner
    return MISSING, None


def _original(raw: Any) -> Any:
    """What a class holds, where a method has a stand-in for the time that C code runs (`classes.special_methods`)."""
    stands_for = type(raw) is types.FunctionType and raw.__name__ == STANDS_FOR
    return getattr(raw, STANDS_FOR) if stands_for else raw


def lookup(cls: type, name: str, after: type | None = None) -> tuple[Any, Any]:
    """The raw class attribute and the class that defines it, or (MISSING, None); guarded where a capture asks.

    Args:
        after: the class behind which the search begins, as `super()` does.
    """
    known = getattr(_now, "definitions", None)
    return _find(cls, name, after) if known is None else known.lookup(cls, name, after)


@contextmanager
def recording(known: Definitions) -> Iterator[None]:
    """What this thread looks up goes into `known`."""
    before = getattr(_now, "definitions", None)
    _now.definitions = known
    try:
        yield
    finally:
        _now.definitions = before


class Definitions:
    """The classes that one capture asked, with their answers, and the functions that it interpreted."""

    def __init__(self) -> None:
        self.found: dict[tuple[type, str, type | None], tuple[Any, Any]] = {}
        self.asked: dict[tuple[Any, ...], Any] = {}
        self.classes: dict[type, None] = {}
        self.functions: dict[tuple[types.FunctionType, str], Any] = {}
        # Classes that the capture makes itself, with the places where capture can begin again and of the statement. No guard asks them.
        self.made: dict[int, Any] = {}

    def lookup(self, cls: type, name: str, after: type | None = None) -> tuple[Any, Any]:
        """The raw class attribute and its owner."""
        key = cls, name, after
        known = self.found.get(key)
        if known is None:
            if id(cls) in self.made:
                return self._lookup_made(cls, name, after)
            known = self.found[key] = _find(cls, name, after)
            self.classes[cls] = None
        return known

    def _lookup_made(self, cls: type, name: str, after: type | None) -> tuple[Any, Any]:
        """`lookup` in a class that the program may still change; of the caller's classes in its order each is asked."""
        order = cls.__mro__
        for owner in order if after is None else order[order.index(after) + 1 :]:
            if id(owner) not in self.made:
                self.lookup(owner, name)
            if name in owner.__dict__:
                return _original(owner.__dict__[name]), owner
        return MISSING, None

    def before(self, cls: type) -> Iterator[type]:
        """The class; of one that the capture makes those in its order that were there before."""
        return (c for c in (cls.__mro__ if id(cls) in self.made else (cls,)) if id(c) not in self.made)

    def note(self, cls: type) -> None:
        """Rely on the special methods of a class, and on its bases."""
        if id(cls) in self.made:
            self.classes.update(dict.fromkeys(self.before(cls)))
        else:
            self.classes[cls] = None

    def note_function(self, function: types.FunctionType, part: str = "__code__") -> None:
        """Rely on the code of a function, or on the object that holds its defaults."""
        self.functions.setdefault((function, part), getattr(function, part))

    def ask(self, question: Callable[..., Any], *operands: Any) -> Any:
        """`question(*operands)`, whose answer depends on classes alone, such as that of `issubclass`."""
        answer = question(*operands)
        if any(id(o) in self.made for o in operands):  # of those that were there before, each is asked
            for each in itertools.product(*(self.before(o) if isinstance(o, type) else (o,) for o in operands)):
                self.ask(question, *each)
            return answer
        for cls in operands:
            if isinstance(cls, type):
                self.note(cls)
        self.asked[question, *operands] = answer
        return answer


def _is_code(raw: Any) -> bool:
    """Whether what stands in a class runs or answers where it is read; else it is data, whose value is guarded where it is used."""
    return raw is None or callable(raw) or hasattr(type(raw), "__get__")


def _special(cls: type) -> dict[str, Any]:
    """The special methods that a class defines."""
    return {name: raw for name, raw in cls.__dict__.items() if name.startswith("__") and _is_code(raw)}


class DefinitionCheck:
    """Whether classes and functions are as a capture found them: one of the checks of a `GuardSet`."""

    first = False

    def __init__(self, known: Definitions, is_library: Callable[[str], bool]) -> None:
        self.is_library = is_library
        self.classes = [cls for cls in known.classes if any(map(can_change, cls.__mro__))]
        self.orders = [cls.__mro__ for cls in self.classes]
        asked = {key: found for key, found in known.found.items() if key[0] in {*self.classes}}
        self.found = [(*key, *self._token(key[1], found)) for key, found in asked.items()]
        programs = [c for c in dict.fromkeys(c for order in self.orders for c in order) if can_change(c)]
        self.special = [(cls, _special(cls)) for cls in programs if not is_library(cls.__module__)]
        self.asked = list(known.asked.items())
        self.registers = any(isinstance(operand, abc.ABCMeta) for question, _ in self.asked for operand in question[1:])
        self.functions = list(known.functions.items())
        self.count, self.due = 0, 1
        self.token: Any = None
        self.parts: list[memoryview] = []
        self.memory: bytes | None = None
        self.holds()  # false where another thread has changed something since capture asked: then it is asked one by one

    def __bool__(self) -> bool:
        return bool(self.classes or self.asked or self.functions)

    def _token(self, name: str, found: tuple[Any, Any]) -> tuple[Any, Any]:
        """What has to be the same: code itself, and of the program's data where it stands."""
        raw, owner = found
        if raw is MISSING or _is_code(raw) or name.startswith("__") or self.is_library(owner.__module__):
            return raw, None
        return MISSING, owner

    def holds(self) -> bool:
        """Ask one by one; rely on the memory from now on, if that is due."""
        self.count += 1
        if self.count < self.due:
            return self.test()
        self.due = 2 * self.count
        self._remember()  # before anything is asked: what another thread changes from here on is noticed by the next check
        holds = self.test()
        if not holds:
            self.memory = None
        return holds

    def _remember(self) -> None:
        self.memory = None
        self.token = abc.get_cache_token()
        if can_watch():
            tags = [*map(_tag, self.classes)]
            functions = dict.fromkeys(function for (function, _), _ in self.functions)
            self.parts = [*tags, *map(_words_of, functions)]
            if all(map(any, tags)):  # a class that has changed too often has no tag any more
                self.memory = b"".join(self.parts)

    def test(self) -> bool:
        """Whether all answers are the same."""
        return next(self._misses(), None) is None

    def _misses(self) -> Iterator[Miss]:
        for (function, part), known in self.functions:
            if getattr(function, part) is not known:
                yield Miss(f"{function.__qualname__}.{part}", show(known), show(getattr(function, part)))
        for cls, order in zip(self.classes, self.orders, strict=True):
            if cls.__mro__ != order:
                yield Miss(f"{cls.__qualname__}.__mro__", _names(order), _names(cls.__mro__))
        for cls, name, after, raw, owner in self.found:
            found = self._token(name, _find(cls, name, after))
            if found[0] is not raw or found[1] is not owner:
                yield Miss(f"{cls.__qualname__}.{name}", _shown(raw, owner), _shown(*found))
        for cls, methods in self.special:
            for name, raw in _special(cls).items():
                if methods.get(name, MISSING) is not raw:
                    yield Miss(
                        f"{cls.__qualname__}.{name}", _shown(methods.get(name, MISSING), None), _shown(raw, None)
                    )
            for name in methods.keys() - cls.__dict__.keys():
                yield Miss(f"{cls.__qualname__}.{name}", _shown(methods[name], None), _shown(MISSING, None))
        for (question, *operands), answer in self.asked:
            again = question(*operands)
            if again is not answer:
                text = ", ".join(getattr(o, "__qualname__", str(o)) for o in operands)
                yield Miss(f"{question.__name__}({text})", str(answer), str(again))

    def lines(self, emit: Emitter) -> None:
        """One comparison of memory, and the questions where it fails."""
        if not self.classes and not self.asked and len(self.functions) <= _FEW:
            for (function, part), known in self.functions:
                test = f"{emit.constant(function, function.__name__)}.{part} is not {emit.literal(known)}"
                emit.miss_if(test)
            return
        name = emit.constant(self, "definitions")
        test = f"{emit.constant(b''.join, 'join')}({name}.parts) == {name}.memory"
        if self.registers:
            test += f" and {emit.constant(abc.get_cache_token, 'registered')}() == {name}.token"
        emit.miss_if(f"not ({test} or {name}.holds())")

    def explain(self, args: Mapping[str, Any]) -> Miss | None:
        """The first answer that is another one."""
        return next(self._misses(), None)

    def __str__(self) -> str:
        found = [f"{cls.__qualname__}.{name}: {_shown(raw, owner)}" for cls, name, _, raw, owner in self.found]
        return "\n".join([*found, *(f"{function.__qualname__}.{part}" for (function, part), _ in self.functions)])


_FEW = 2  # to look at one function costs 16 ns, at all of the memory 40


def _names(classes: tuple[type, ...]) -> str:
    return ", ".join(cls.__qualname__ for cls in classes)


def _shown(raw: Any, owner: Any) -> str:
    if owner is not None:
        return f"a value in {owner.__qualname__}"
    return "nothing" if raw is MISSING else f"{type(raw).__name__} {getattr(raw, '__qualname__', '')}".strip()


# ---- memory of CPython's ----


def _tag(cls: type) -> memoryview:
    """The version tag of a class, as it is at any time."""
    _touch(cls)
    return memoryview((ctypes.c_char * 4).from_address(id(cls) + (_tag_offset() or 0))).cast("B")


def _touch(cls: type) -> None:
    """Look something up in a class, past its metaclass: it gets its tag then."""
    with suppress(AttributeError):
        type.__getattribute__(cls, "__intarsia__")


def _tagged(cls: type) -> list[int]:
    _touch(cls)
    return _words(cls)


def _size_of(cls: Any) -> int:
    return int(cls.__basicsize__)


def _words(cls: type) -> list[int]:
    return list((ctypes.c_uint32 * (_size_of(type) // 4)).from_address(id(cls)))


@cache
def _tag_offset() -> int | None:
    """Where in a class its version tag is: the one word that changes with the class, its base and its order; None where none does."""
    base, other = types.new_class("Base"), types.new_class("Other")
    cls: Any = types.new_class("Derived", (base,))
    places = set(range(_size_of(type) // 4))
    changes: list[Callable[[], Any]] = [
        lambda: setattr(cls, "one", 1),
        lambda: setattr(base, "one", 1),
        lambda: setattr(base, "one", 2),
        lambda: delattr(cls, "one"),
        lambda: setattr(cls, "__len__", len),
        lambda: setattr(cls, "__bases__", (other,)),
        lambda: setattr(other, "two", 2),
    ]
    for change in changes:
        before, unchanged = _tagged(cls), _tagged(cls)
        change()
        after = _words(cls)
        places = {p for p in places if before[p] == unchanged[p] != 0 and after[p] != before[p]}
        later = _tagged(cls)
        places = {p for p in places if later[p] not in (0, before[p])}
    return 4 * places.pop() if len(places) == 1 else None


def _words_of(function: types.FunctionType) -> memoryview:
    """The addresses of a function's code and defaults, as they are at any time."""
    return memoryview((ctypes.c_char * 24).from_address(id(function) + (_function_offset() or 0))).cast("B")


@cache
def _function_offset() -> int | None:
    """Where in a function its code, its defaults and its defaults by keyword are; None where they do not lie beside each other."""
    code, namespace, defaults, by_name = _function_offset.__wrapped__.__code__, {"a": 1}, (1,), {"b": 2}
    made = types.FunctionType(code, namespace, None, defaults)
    made.__kwdefaults__ = by_name
    size = _size_of(types.FunctionType) // 8
    words = list((ctypes.c_uint64 * size).from_address(id(made)))
    found = [p for p in range(size - 2) if words[p : p + 3] == [id(code), id(defaults), id(by_name)]]
    return 8 * found[0] if len(found) == 1 else None


@cache
def can_watch() -> bool:
    """Whether this Python has memory that tells every change."""
    return ctypes.sizeof(ctypes.c_void_p) == 8 and _tag_offset() is not None and _function_offset() is not None
