"""Sets of the caller's: what an item that is added does to their order depends on items that were removed before, and on which was popped.

A stand-in has the items in the same order. Where its table is the same too, and nothing was removed from the caller's, it does
what that does; else CPython changes and copies the set.
"""

from __future__ import annotations

import types
from typing import Any

from ..calls.registry import Rows
from ..errors import GraphBreak, Unsupported
from ..guards.definitions import lookup
from ..guards.sameness import same_keys
from ..guards.set_tables import layout, made_set, recipe, removed, table
from ..guards.source import Fetch, Item, Source
from ..state import Interpreter
from .constant import is_constant
from .kinds import HEAP_TYPE, isinstance, namespace_of

__all__ = [
    "are_keys",
    "check_history",
    "compares_itself",
    "is_plain_set",
    "key_source",
    "rely_on_table",
    "shadow_of_set",
    "shadow_of_subclass",
]

ROWS = Rows()

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
    if not isinstance(value, set):
        return
    entry = vm.user.by_value.get(id(value))
    if entry is None or not isinstance(entry.real, set) or entry.real is value:
        return
    if id(value) not in vm.user.same_tables:
        raise GraphBreak(
            "a set of the caller's is added to or copied, whose order depends on items that were removed from it"
        )
    vm.guards.add("equals", Fetch(layout, entry.source), layout(value))


@ROWS.rule(set.pop)
def _pop(vm: Interpreter, items: Any) -> Any:
    if vm.user.source_of(items) is not None:
        raise GraphBreak("an item is popped from a set of the caller's: which one, its history decides")
    return vm.native(set.pop, items)


# ---- stand-ins of sets ----


def are_keys(vm: Interpreter, keys: list[Any], source: Source) -> bool:
    """Whether capture works with the keys themselves: constants, classes, functions, modules."""
    return all(
        is_constant(k) or isinstance(k, type) or _is_of_classes(k) or vm.user.wrap(k, key_source(source, i)) is k
        for i, k in enumerate(keys)
    )


def _is_of_classes(key: Any) -> bool:
    """Whether a key is a tuple of constants and classes, as registries of pairs of classes have: equal ones are the same to programs."""
    plain = (type(k) is type or is_constant(k) for k in key) if type(key) is tuple else (False,)
    return all(plain)


def compares_itself(value: Any) -> bool:
    """Whether a look-up may run code of the program's."""
    kind = type(value)
    own = (lookup(kind, name)[0] is not vars(object)[name] for name in ("__eq__", "__hash__"))
    return bool(kind.__flags__ & HEAP_TYPE) and not is_constant(value) and not isinstance(value, type) and any(own)


def key_source(source: Source, index: int) -> Source:
    """Where a key of a dict or an item of a set stands."""
    return Item(Fetch(list, source), index)


def is_plain_set(vm: Interpreter, value: Any, source: Source) -> bool:
    """Whether a set of a class that derives from Python's is taken as a plain set is; where it is not, C code that looks into it breaks the graph.

    It holds no more than its items, which are few, and reads as a set; another one of its order can be made.
    """
    kind, base = type(value), set if isinstance(value, set) else frozenset
    if any(
        lookup(kind, name)[0] is not vars(base)[name] for name in ("__iter__", "__len__", "__contains__", "__sizeof__")
    ):
        return False
    slots = any(type(v) is types.MemberDescriptorType for cls in kind.__mro__ for v in vars(cls).values())
    if slots or namespace_of(value) or len(value) > _MANY or removed(value) or vm.user.of_library(source):
        return False
    if any(map(compares_itself, value)) or isinstance(value, set) and not _is_like(_made_again(value), value):
        return False
    return are_keys(vm, list(value), source)


_MANY = 48  # items that a guard looks at in each call


def _made_again(value: set[Any]) -> set[Any]:
    """A set of the class, past its methods, with the same items: a copy, or as most sets come to be, item by item, or as a recipe says."""
    made = set.__new__(type(value))
    set.update(made, value)
    if _is_like(made, value) and table(made) == table(value):
        return made
    set.clear(made)
    recipe_ = recipe(value)
    for item in value if recipe_ is None else (*recipe_[0], *recipe_[2]):
        set.add(made, item)
    if recipe_ is not None and not _is_like(made, value):
        items, fillers, late = recipe_
        made_set(items, fillers, late, made)
    return made


def _is_like(made: Any, value: Any) -> bool:
    return same_keys(made, list(value)) and made.__sizeof__() == value.__sizeof__()


def shadow_of_subclass(vm: Interpreter, value: Any, source: Source) -> Any:
    """The stand-in for a set that `is_plain_set`; a frozenset itself."""
    _pin_items(vm, value, source)
    made = _made_again(value) if isinstance(value, set) else value
    vm.user.track(value, made, source)
    size = set.__sizeof__ if isinstance(value, set) else frozenset.__sizeof__
    vm.guards.add("equals", Fetch(size, source), size(value))
    if made is not value and removed(made) == 0 and table(value) == table(made):
        vm.user.same_tables.add(id(made))
    return made


def shadow_of_set(vm: Interpreter, value: Any, source: Source) -> Any:
    """The stand-in for a set, a frozenset itself."""
    if any(map(compares_itself, value)) or not are_keys(vm, list(value), source):
        raise Unsupported(f"the set {source.name()} holds tensors, containers or what has its own __eq__ or __hash__")
    _pin_items(vm, value, source)
    if type(value) is frozenset:
        return value
    made = recipe(value)
    if made is None and (removed(value) or not _is_copied(value)):
        raise Unsupported(f"the set {source.name()} has an order that another set with its items does not get")
    vm.guards.add("equals", Fetch(set.__sizeof__, source), set.__sizeof__(value))  # the order in which it grows
    copy = set.copy(value) if made is None else made_set(*made)
    vm.user.track(value, copy, source)
    if removed(value) == removed(copy) == 0 and table(value) == table(copy):
        vm.user.same_tables.add(id(copy))
    return copy


def _pin_items(vm: Interpreter, value: Any, source: Source) -> None:
    vm.guards.add("keys", source, list(value))
    for i, key in enumerate(value):
        vm.user.held(key, key_source(source, i))
        vm.user.tell_apart(key, pinned=True)


def _is_copied(value: set[Any]) -> bool:
    """Whether a copy of a set has the items at the same places."""
    copy = set.copy(value)
    return _is_like(copy, value) and table(copy) == table(value)
