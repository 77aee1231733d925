"""Guards on modules, answered in one step while none of the modules has changed.

Most guards of a large model read what modules hold: submodules, parameters, settings, hooks. All of that lies in dicts, and CPython
numbers every change of a dict. A guard is *decided* by some dicts where it cannot come out otherwise as long as they are unchanged:
it reads a path of keys through them and compares what it finds by identity or with an immutable value. The generated function asks for
all these dicts at once, in C++. Where one has changed, the decided guards run one by one; what holds is remembered anew, at intervals
that double, since a program that changes its modules in every call should not pay for it.

Only dicts of modules are watched, since their number grows with the model, and the namespaces of torch and of builtins, which a program
may patch; the globals of a script change all the time. Those of installed packages stand in a watch of their own: where one counts in a
global, the other watch is as good as before.
"""

from __future__ import annotations

import enum
import os
import sys
import sysconfig
import types
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from torch import nn

from ..torch_private.guards import dict_watch
from ..values.kinds import HEAP_TYPE
from .source import Attr, Const, Item, Source

__all__ = ["DictGuards", "Watch"]

_FEWEST = 64  # decided guards that are worth a watch: a guard takes about 20 ns, the watch 10 ns a dict
_FEWEST_NAMES = 12  # of those on names of packages, beside one a namespace
_FIRST = 16  # to watch a dict takes 9 us once: a program should call as often before it pays for that
_PLAIN = (int, float, complex, str, bytes, bool, type(None))
_ABSENT: Any = object()


def _never() -> bool:
    return False


class DictGuards:
    """Sorts out the guards that dicts of modules materialize, and collects these dicts.

    Args:
        names: take instead the guards on names in namespaces of installed packages.
    """

    def __init__(self, names: bool = False) -> None:
        self.names = names
        self.roots: list[dict[str, Any]] = []
        self.steps: list[tuple[int, str]] = []  # a dict inside a dict: the place of the outer one, and the key
        self._places: dict[Source, int] = {}  # of those that are watched; steps come after the roots
        self._values: dict[Source, Any] = {}

    def add(self, kind: str, source: Source, expected: Any) -> bool:
        """Whether the guard is decided; its dicts are watched then."""
        inside = source if kind in _CONTAINERS else None
        if self.names:
            space = source if inside is not None else getattr(source, "base", None)
            if type(space) is not Const or type(space.value) is not dict:
                return False  # what a package keeps in a dict of its own may change all the time
        if not (kind in _RULES and self._reads(source, inside) and _RULES[kind](self, self._values[source], expected)):
            return False
        if kind == "alias":
            self._watch(expected)
        self._watch(source, kind in _CONTAINERS)
        return True

    def _reads(self, source: Source, inside: Source | None = None) -> bool:
        """Whether the source leads through dicts of modules alone, and so that the same dicts give the same object."""
        if source not in self._values:
            self._values[source] = self._value(source)
        return self._values[source] is not _ABSENT and (inside is None or isinstance(self._values[inside], dict))

    def _value(self, source: Source) -> Any:
        if self.names:
            if isinstance(source, Const):
                return source.value if _is_of_package(source.value) else _ABSENT
            if not isinstance(source, Item) or not isinstance(source.base, Const):
                return _ABSENT
        if isinstance(source, Attr) and isinstance(source.base, Const):
            owner = source.base.value
            if type(owner) is types.ModuleType and source.attr != "__dict__" and _is_quiet(owner.__name__):
                return owner.__dict__.get(source.attr, _ABSENT)
            return owner.__dict__ if source.attr == "__dict__" and isinstance(owner, nn.Module) else _ABSENT
        if not isinstance(source, Item) or type(source.key) is not str or not self._reads(source.base):
            return _ABSENT
        owner = self._values[source.base]
        return owner.get(source.key, _ABSENT) if type(owner) is dict else _ABSENT

    def _watch(self, source: Source, itself: bool = False) -> None:
        """The dicts on the way to the source, and the source itself where it is a dict that was looked into."""
        if itself and source not in self._places:
            self._watch(source)
            if isinstance(source, Item):
                self.steps.append((self._places[source.base], source.key))
                self._places[source] = -len(self.steps)
            else:
                self.roots.append(self._values[source])
                self._places[source] = len(self.roots) - 1
        elif not itself and isinstance(source, Item):
            self._watch(source.base, itself=True)
        elif not itself and isinstance(source, Attr) and source.attr != "__dict__" and source.base not in self._places:
            assert isinstance(source.base, Const)  # a name in a Python module
            self._places[source.base] = len(self.roots)
            self.roots.append(source.base.value.__dict__)

    def pays(self, count: int) -> bool:
        """Whether so many decided guards are worth a watch, and dicts can be watched."""
        return count >= (_FEWEST_NAMES + len(self.roots) if self.names else _FEWEST) and can_watch()


def _is_quiet(name: str) -> bool:
    """Whether the namespace of a Python module of this name hardly ever changes."""
    return name in ("builtins", "math", "torch") or name.startswith("torch.")


def _is_of_package(value: Any) -> bool:
    """Whether this is the namespace of a module that was installed, or is Python's."""
    if type(value) is not dict:
        return False
    name, file = value.get("__name__"), value.get("__file__")
    if type(name) is not str or type(file) is not str:
        return False
    if not (_PACKAGES in file or _DISTRIBUTION in file or file.startswith(_STDLIB)):
        return False
    return getattr(sys.modules.get(name), "__dict__", None) is value


_PACKAGES, _DISTRIBUTION = (f"{os.sep}{folder}{os.sep}" for folder in ("site-packages", "dist-packages"))
_STDLIB = sysconfig.get_paths()["stdlib"] + os.sep


def _is_immutable(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_is_immutable, value))
    return type(value) in _PLAIN or isinstance(value, enum.Enum)


_CONTAINERS = ("missing", "contains", "length", "keys", "empty")

# For each kind of guard whether it cannot come out otherwise for the same object (and, for containers, unchanged contents).
_RULES: dict[str, Callable[[DictGuards, Any, Any], bool]] = {
    "is": lambda decided, value, expected: True,
    "equals": lambda decided, value, expected: _is_immutable(expected) and _is_immutable(value),
    "type": lambda decided, value, kind: not kind.__flags__ & HEAP_TYPE,
    "missing": lambda decided, value, key: type(value) is dict and type(key) is str,
    "contains": lambda decided, value, key: type(value) is dict and type(key) is str,
    "length": lambda decided, value, n: type(value) is dict,
    "keys": lambda decided, value, keys: type(value) is dict and all(type(k) is str for k in keys),
    "empty": lambda decided, value, _: type(value) in (dict, OrderedDict),
    "alias": lambda decided, value, other: decided._reads(other),
}


class Watch:
    """Whether the decided guards of one entry hold. Generated code calls `check`, and `holds` where that says no.

    Args:
        decided: says where the dicts are.
        first: asks the decided guards one by one.
        make: gives a function that does so at once; to make it takes as long as the first call, so that the second one does.
    """

    __slots__ = ("check", "count", "due", "kinds", "make", "roots", "steps", "test")

    def __init__(self, decided: DictGuards, first: Callable[[], bool], make: Callable[[], Callable[[], bool]]) -> None:
        self.roots, self.steps, self.test = decided.roots, decided.steps, first
        self.make: Callable[[], Callable[[], bool]] | None = make
        self.count, self.due = 0, _FIRST
        self.kinds = [type(d) for d in self.dicts()]
        self.check: Callable[[], bool] = _never

    def dicts(self) -> tuple[dict[str, Any], ...]:
        """The watched dicts as they are found now. Raises KeyError where one is gone."""
        inner: list[Any] = []
        for place, key in self.steps:
            owner = self.roots[place] if place >= 0 else inner[-place - 1]
            inner.append(owner[key])
        return (*self.roots, *inner)

    def holds(self) -> bool:
        """Run the guards; watch the dicts from now on, if that is due."""
        self.count += 1
        make = self.make
        if self.count > 1 and make is not None:
            self.test, self.make = make(), None
        if self.count < self.due:
            return self.test()
        self.due = 2 * self.count
        dicts = self.dicts()
        check = dict_watch(dicts)
        # Versions are known before anything is read again: what another thread changes from here on is noticed by the next check.
        same = _identical(self.dicts(), dicts) and _identical(map(type, dicts), self.kinds)
        holds = self.test()
        if holds and same:
            self.check = check
        return holds


def _identical(found: Iterable[Any], known: Iterable[Any]) -> bool:
    return all(a is b for a, b in zip(found, known, strict=True))


@cache
def can_watch() -> bool:
    """Whether a watch notices every way in which attributes of an object and items of a dict change, in this Python and torch."""

    def notices(change: Callable[[], Any]) -> bool:
        check = dict_watch(watched)
        return check() and (change(), not check())[1]

    def store(value: int) -> None:
        for number in range(64):  # often enough for the interpreter to have a shortcut for it
            thing.member = number
        thing.member = value

    thing: Any = types.new_class("Thing")()
    thing.member = 0
    items = OrderedDict(a=1)
    watched = (thing.__dict__, {"a": 1}, items)
    store(1)
    changes = [
        lambda: store(2),
        lambda: setattr(thing, "other", 3),
        lambda: delattr(thing, "other"),
        lambda: watched[1].update(a=2),
        lambda: watched[1].pop("a"),
        lambda: watched[1].setdefault("b", 1),
        lambda: watched[1].clear(),
        lambda: items.update(b=1),
        lambda: items.popitem(),
    ]
    try:
        return all(map(notices, changes))
    except (ImportError, AttributeError, TypeError):  # another version of torch
        return False
