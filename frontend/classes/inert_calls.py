"""Calls of C functions that run no special method of the program's: no stand-ins are put into classes for them (`special_methods`).

Stand-ins are dear: for each, CPython walks all classes that derive from the changed one, and forgets what it knows of their attributes.
"""

from __future__ import annotations

import builtins
import operator
import random
import types
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from ..torch_private.fake import FakeTensor
from ..values.container import InstanceDict
from ..values.kinds import HEAP_TYPE, SYMBOLIC, namespace_of
from ..values.tensor import TensorMethod

__all__ = ["LEAVES", "is_inert"]


def is_inert(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the call runs no special method of a class of the program's. It runs none where one of these holds:

    - All that it is given are *leaves*, or small built-in containers of leaves, and the function keeps nothing of its own (as a
      `methodcaller`, a `zip` or a closure does).
    - It looks up a leaf in a small built-in dict or set whose keys are all leaves: no key is asked whether it is equal.
    - It iterates a built-in container, or takes or puts an item by its place: the items are handed on.
    - It reads an attribute, by a name, of what has none of the program's, or a slot; or sets one of an object's own, past its classes.
    - It asks whether something is an instance of a class that has no metaclass.
    - It makes an instance of a class that neither makes nor fills its instances itself.
    - It draws a number from one of Python's generators, which is given leaves.

    A frame that runs meanwhile has the stand-ins put behind it in any case (`SpecialMethods.back`).
    """
    rule = _BY_KIND.get(type(function))
    return rule is not None and not kwargs and rule(function, args)


def _are_leaves(values: tuple[Any, ...]) -> bool:
    return LEAVES.issuperset(map(type, values)) or all(_holds_leaves(value, 1) for value in values)


def _holds_leaves(value: Any, depth: int) -> bool:
    """Whether the value is a leaf, or a built-in container that holds only leaves."""
    kind = type(value)
    if kind in LEAVES:
        return True
    if kind is slice:
        return LEAVES.issuperset((type(value.start), type(value.stop), type(value.step)))
    if kind not in _CONTAINERS or len(value) > _MOST or kind is dict and not _has_leaf_keys(value):
        return False
    items = value.values() if kind is dict else value
    return LEAVES.issuperset(map(type, items)) or depth > 0 and all(_holds_leaves(item, depth - 1) for item in items)


def _has_leaf_keys(table: Any) -> bool:
    return len(table) <= _MOST and LEAVES.issuperset(map(type, table))


# ---- by the kind of function ----


def _builtin(function: Any, args: tuple[Any, ...]) -> bool:
    owner = function.__self__
    if type(owner) is not types.ModuleType:
        return _method(function, args)
    rule = _FUNCTIONS.get(function)
    return rule is not None and args != () and rule(*args) or _are_leaves(args)


def _method(function: Any, args: tuple[Any, ...]) -> bool:
    owner = function.__self__
    rules = _METHODS.get(type(owner))
    rule = rules.get(function.__name__) if rules is not None else None
    return rule is not None and rule(owner, *args) or _are_leaves((owner, *args))


def _wrapper(function: Any, args: tuple[Any, ...]) -> bool:
    if type(function.__self__) is types.MemberDescriptorType:
        return bool(function.__name__ == "__get__")
    return _method(function, args)


def _class(function: Any, args: tuple[Any, ...]) -> bool:
    if function in _OF_ITEMS and all(type(value) in _CONTAINERS for value in args):
        return True
    if function.__flags__ & HEAP_TYPE:
        return not args and function.__new__ is object.__new__ and function.__init__ is object.__init__
    return _are_leaves(args)


def _python(function: Any, args: tuple[Any, ...]) -> bool:
    if function.__module__ == "random" and args and type(args[0]) is random.Random:
        args = args[1:] if _OF_RANDOM.issuperset(vars(args[0])) else args
    return function.__closure__ is None and _are_leaves(args)


_OF_RANDOM = frozenset(["gauss_next"])  # what a generator has of its own


def _unbound(function: Any, args: tuple[Any, ...]) -> bool:
    if function is object.__setattr__ and len(args) == 3 and type(args[1]) is str and _is_own(args[0], args[1]):
        return True
    return _are_leaves(args)


def _is_own(obj: Any, name: str) -> bool:
    """Whether an attribute stands in the namespace of the object, and no class has another idea of it: names are strings there."""
    for base in type.__getattribute__(type(obj), "__mro__"):
        if name in base.__dict__:
            return False
    names = namespace_of(obj)
    return names is not None and _NAMES.issuperset(map(type, names))


def _of_tensor(function: Any, args: tuple[Any, ...]) -> bool:
    return type(function.__self__) is FakeTensor and _are_leaves(args)


def _of_namespace(function: Any, args: tuple[Any, ...]) -> bool:
    """`vars(obj).get(name)`: names of instances are strings, others are refused."""
    return type(function.__self__) is InstanceDict and function.__name__ == "get" and LEAVES.issuperset(map(type, args))


_BY_KIND: dict[type, Callable[[Any, tuple[Any, ...]], bool]] = {
    types.BuiltinFunctionType: _builtin,
    types.MethodWrapperType: _wrapper,
    types.WrapperDescriptorType: _unbound,
    types.MethodDescriptorType: _unbound,
    types.FunctionType: _python,
    types.MethodType: _of_namespace,
    type: _class,
    TensorMethod: _of_tensor,
}


# ---- by what it does, of the object first ----


def _looks_up(table: Any, key: Any = None, *_: Any) -> bool:
    return type(table) in _TABLES and type(key) in LEAVES and _has_leaf_keys(table)


def _at_place(items: Any, place: Any = 0, *_: Any) -> bool:
    """An item by its place; of a dict by its key."""
    if type(items) not in _ORDERED:
        return _looks_up(items, place)
    return type(place) is int or type(place) is slice and _holds_leaves(place, 0)


def _of_items(items: Any, *_: Any) -> bool:
    return type(items) in _CONTAINERS


def _next(iterator: Any, *_: Any) -> bool:
    if type(iterator) is zip:  # which holds no more than its iterators
        return _ITERATORS.issuperset(map(type, iterator.__reduce__()[1]))
    return type(iterator) in _ITERATORS


def _adds_items(items: Any, more: Any = (), *_: Any) -> bool:
    return type(more) in _CONTAINERS


def _reads(obj: Any, name: Any = None, *_: Any) -> bool:
    return type(name) is str and (type(obj) in _CONTAINERS or type(obj) in LEAVES or type(obj) is InstanceDict)


def _is_of(value: Any, kinds: Any = None, *_: Any) -> bool:
    return type(kinds) is type


_FUNCTIONS: dict[Any, Callable[..., bool]] = {
    builtins.getattr: _reads,
    builtins.isinstance: _is_of,
    builtins.iter: _of_items,
    builtins.len: _of_items,
    builtins.next: _next,
    operator.contains: _looks_up,
    operator.getitem: _at_place,
    operator.setitem: _at_place,
}


def _named(rule: Callable[..., bool], names: str) -> dict[str, Callable[..., bool]]:
    return dict.fromkeys(names.split(), rule)


_OF_ALL = _named(_of_items, "__len__ __iter__ copy clear")
_OF_PLACES = _named(_at_place, "__getitem__ __setitem__")
_METHODS: dict[type, dict[str, Callable[..., bool]]] = {
    dict: _OF_ALL
    | _named(_looks_up, "get pop setdefault __contains__ __getitem__ __setitem__ __delitem__")
    | _named(_of_items, "keys values items popitem"),
    set: _OF_ALL | _named(_looks_up, "add discard remove __contains__"),
    frozenset: _OF_ALL | _named(_looks_up, "__contains__"),
    tuple: _OF_ALL | _OF_PLACES,
    list: _OF_ALL
    | _OF_PLACES
    | _named(_of_items, "append reverse")
    | _named(_at_place, "insert pop")
    | _named(_adds_items, "extend"),
    deque: _OF_ALL | _named(_of_items, "append appendleft pop popleft"),
}
_MOST = 256  # items that are looked at: more would cost more than stand-ins
LEAVES = frozenset(
    [type(None), bool, int, float, complex, str, bytes, range, types.ModuleType, type(Ellipsis), type(NotImplemented)]
    + [torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, FakeTensor, *SYMBOLIC]
)
_NAMES = frozenset([str])
_TABLES = (dict, set, frozenset)
_ORDERED = (list, tuple, torch.Size)
_CONTAINERS = frozenset(
    [list, tuple, dict, set, frozenset, deque, type({}.keys()), type({}.values()), type({}.items())]
)
_ITERABLE: Any = ((), [], "", {}, {}.values(), {}.items(), set(), range(0))
_ITERATORS = frozenset(type(iter(items)) for items in _ITERABLE)
_OF_ITEMS: frozenset[type] = frozenset(
    [list, tuple, bool, enumerate, zip]
)  # classes that only iterate what they are called with
