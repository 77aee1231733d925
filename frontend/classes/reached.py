"""Which classes of the program's a call of C code can come to: only their special methods need stand-ins while it runs.

A program that makes many classes (one in each round of a loop) would pay for all of them in each call otherwise.
"""

from __future__ import annotations

import builtins
import operator
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..calls.visibility import CHECKED
from ..values.kinds import HEAP_TYPE, IMMUTABLE_TYPE
from .inert_calls import LEAVES

__all__ = ["OF_C", "SPECIAL", "is_covered", "is_leaf", "reached"]

# What C code asks of objects that it is given; what it asks of classes and descriptors has rules of its own.
SPECIAL = frozenset(
    f"__{name}__"
    for name in """
    eq ne lt le gt ge hash bool len iter next getitem setitem delitem contains missing reversed length_hint int float complex index
    round trunc floor ceil abs neg pos invert str repr format bytes fspath sizeof reduce_ex reduce getstate divmod rdivmod
    add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow matmul rmatmul and rand or ror
    xor rxor lshift rlshift rshift rrshift
    iadd isub imul itruediv ifloordiv imod ipow imatmul iand ior ixor ilshift irshift
    """.split()  # noqa: SIM905
)
OF_C = (
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.BuiltinFunctionType,
    types.ClassMethodDescriptorType,
)
_CONTAINERS: Any = (list, tuple, set, frozenset, OrderedDict, dict, deque)
_MOST = 4096  # items that are looked at
_PLAIN = frozenset((object, int, float, str, bytes, *_CONTAINERS))  # classes of C's that hold nothing else
_KNOWN = LEAVES | {type}
_FRONTEND = __name__.rsplit(".", 2)[0]
_FUNCTIONS = frozenset(
    [builtins.len, builtins.iter, builtins.hash, builtins.any, builtins.all, builtins.sum, builtins.min, builtins.max]
    + [f for f in vars(operator).values() if isinstance(f, types.BuiltinFunctionType)]
)


def reached(function: Any, given: tuple[Any, ...], owners: dict[type, None], is_own: Callable[[Any], bool]) -> Any:
    """Those of `owners` that the call can come to by what it is given; None where it may come to any.

    It comes to these alone where all of this holds:

    - The function is one of a built-in container's (or makes one, or an instance of a class that derives from one), or of a few that ask an object for one of its special methods.
    - What it is given are leaves, built-in containers (or instances of classes that derive from them), classes without a metaclass, and
      instances of Python classes; and so is all that the containers hold, up to some number of items.
    - No such class has a special method in Python that is a library's: that runs as it is, and comes to what the object's attributes hold.
    """
    if not _is_of_containers(function):
        return None
    near: dict[type, None] = {}
    for kind in (*_kinds(given, _KNOWN), *([function] if type(function) is type else ())):
        if kind is None or not _is_plain(kind, owners, is_own):
            return None
        near.update(dict.fromkeys(base for base in kind.__mro__ if base in owners))
    return near


def is_covered(value: Any, near: dict[type, None]) -> bool:
    """Whether what C code is given while it runs leads only to classes without special methods, or whose methods have stand-ins."""
    return type(value) in _FIXED or all(
        kind is not None and _is_plain(kind, near, None) for kind in _kinds((value,), _FIXED)
    )


def is_leaf(value: Any) -> bool:
    """Whether a value holds nothing that could become something else."""
    return type(value) in _KNOWN


_FIXED = _KNOWN - {torch.SymFloat}  # which may be a NaN: `look_into` asks


def _is_of_containers(function: Any) -> bool:
    kind = type(function)
    if kind is type:  # what it makes may be of the program's class
        base = next((base for base in _CONTAINERS if issubclass(function, base)), None)
        return base is not None and function.__new__ is base.__new__ and function.__init__ is base.__init__
    if kind is types.BuiltinFunctionType:
        return (
            function in _FUNCTIONS
            if type(function.__self__) is types.ModuleType
            else _base(function.__self__) is not None
        )
    if kind is types.MethodWrapperType:
        return _base(function.__self__) is not None
    return kind in (types.WrapperDescriptorType, types.MethodDescriptorType) and function.__objclass__ in _CONTAINERS


def _base(value: Any) -> Any:
    """The built-in container that a value is."""
    kind = type(value)
    if kind in _CONTAINERS:
        return kind
    return next((base for base in _CONTAINERS if issubclass(kind, base)), None)


def _kinds(values: Any, known: frozenset[type]) -> Iterator[type | None]:
    """The types of values and of what containers among them hold, without those that are known; None where there is too much."""
    waiting, seen, kinds, left = [*values], set[int](), set[type](), _MOST
    while waiting:
        value = waiting.pop()
        kind = type(value)
        if kind in known or kind is types.GeneratorType and value.gi_code is CHECKED:
            continue
        base = _base(value)
        if base is not None and id(value) not in seen:
            seen.add(id(value))
            left -= base.__len__(value)
            if left < 0:
                yield None
                return
            for items in (dict.keys(value), dict.values(value)) if issubclass(base, dict) else (base.__iter__(value),):
                items = [*items]
                inside = {*map(type, items)} - known - kinds
                if any(issubclass(k, _CONTAINERS) or k is types.GeneratorType for k in inside):
                    waiting += [item for item in items if type(item) in inside]
                else:
                    kinds |= inside
                    yield from inside
        if kind is not base and kind not in kinds:
            kinds.add(kind)
            yield kind


def _is_plain(kind: type, owners: dict[type, None], is_own: Callable[[Any], bool] | None) -> bool:
    """Whether all special methods in Python that instances have are those that `owners` define; of all others where nobody is asked."""
    for base in kind.__mro__:
        if not base.__flags__ & HEAP_TYPE or base.__flags__ & IMMUTABLE_TYPE:
            if base not in _PLAIN:
                return False
            continue
        held = base.__dict__
        if str(held.get("__module__")).startswith(_FRONTEND):
            return False
        names = held.keys() & SPECIAL
        if is_own is None:
            if names and base not in owners:
                return False
        elif not all(_is_known(held[name], base in owners, is_own) for name in names):
            return False
    return True


def _is_known(raw: Any, owned: bool, is_own: Callable[[Any], bool]) -> bool:
    return raw is None or isinstance(raw, OF_C) or owned and is_own(raw)
