"""What C code may look at: running it on the caller's own objects would read them, and run their methods, unguarded.

Three kinds of values of the caller's are told apart here. Values that never change (dates, decimals, patterns, NumPy
numbers: `sameness.is_value_type`) are guarded by what they are, and anything may look at them. Other objects of C types
(arrays, byte arrays, generators of random numbers) are opaque: a C function that is given one breaks the graph. Of one
that is given objects whose classes have Python methods that C would call (`__lt__`, `__hash__`, `__float__`), these methods
are interpreted (`classes.special_methods`).
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import math
import types
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..branches.truths import truth_of
from ..errors import GraphBreak
from ..graph.sym_nodes import concrete, has_symbol
from ..guards.nans import is_nan
from ..guards.sameness import indistinguishable
from ..guards.source import Computed, Const, Fetch
from ..state import Interpreter
from ..values.constant import is_constant, is_single
from ..values.container import compares_fields
from ..values.kinds import HEAP_TYPE, IMMUTABLE_TYPE, isinstance
from ..values.object import find_method
from ..values.text import Text, looked_at

__all__ = [
    "CHECKED",
    "check_key",
    "check_keys",
    "check_operands",
    "check_visible",
    "check_text",
    "identity",
    "is_opaque_type",
    "is_same",
    "keys_in",
    "refuse_opaque",
]

# Classes of Python's own whose methods, written in Python, read attributes of the object.
_HOLDERS = (
    *(argparse.Namespace, collections.ChainMap, collections.UserDict, collections.UserList, collections.UserString),
)
_DEPTH = 4
_CONTAINERS: Any = (list, set, frozenset, dict, tuple, collections.deque)


def is_opaque_type(kind: type) -> bool:
    """Whether instances keep what they are in C, out of sight of attributes."""
    return kind is not object and not issubclass(kind, BaseException | type) and not _is_python_class(kind)


def _is_python_class(kind: type) -> bool:
    if kind is object:
        return True
    if not kind.__flags__ & HEAP_TYPE or kind.__flags__ & IMMUTABLE_TYPE:
        return kind.__module__ in ("abc", "typing", "_thread") and kind.__name__ in ("ABC", "Generic", "Protocol")
    return all(_is_python_class(base) for base in kind.__bases__)


def check_visible(vm: Interpreter, values: Any, who: str) -> None:
    """Refuse to let a C function look at values that it would read unguarded; containers are searched a little deep.

    Methods of the program's that it may run will come back to the interpreter.
    """
    for kind in _kinds_in(vm, values, who, {}):
        if vm.methods.of(kind):
            vm.methods.take(kind, who)


def look_into(vm: Interpreter, values: Any) -> None:
    """`check_visible` of what C code is given while it runs, which was checked before, or is not looked at."""
    for kind in _kinds_in(vm, values, "", {}):
        if vm.methods.of(kind):
            vm.methods.take(kind, "C code")


def _kinds_in(vm: Interpreter, values: Any, who: str, kinds: dict[type, None], depth: int = 0) -> dict[type, None]:
    for value in values:
        kind = type(value)
        if kind in _SEEN or is_constant(value):
            continue
        if kind is torch.SymFloat and depth:
            _is_no_nan(vm, value)  # C code may look for it by identity
        items = _items_of(vm, value)
        if items is not None:
            if depth < _DEPTH:
                _kinds_in(vm, items, who, kinds, depth + 1)
        elif who:
            refuse_opaque(vm, value, who)
            _refuse_holder(vm, value, who)
        kinds[kind] = None
    return kinds


def _items_of(vm: Interpreter, value: Any) -> Any:
    """What a container holds, past methods of the program's; None of what is none, or keeps its items out of sight."""
    if isinstance(value, dict):
        if type(value) is dict or vm.user.source_of(value) is None:
            return [*dict.keys(value), *dict.values(value)]
    elif id(value) not in vm.user.opaque:
        for base in _CONTAINERS:
            if isinstance(value, base):
                return base.__iter__(value)  # type: ignore[arg-type]
    return None


def check_text(vm: Interpreter, value: Any, depth: int = 0) -> None:
    """Before C code writes a value as text: tensors have no values yet, and exceptions of the caller's are guarded."""
    if type(value) is Text:
        raise looked_at(vm)
    if isinstance(value, Tensor):
        raise GraphBreak("a tensor is printed or formatted")
    if isinstance(value, BaseException):
        more = isinstance(value, OSError | SyntaxError | UnicodeError | ImportError | BaseExceptionGroup)
        if more and vm.user.source_of(value) is not None:
            raise GraphBreak(f"a {type(value).__name__} of the caller's is written as text")
        args = concrete(vm.load_attr(value, "args"))
        if vm.is_created(value) or vm.user.source_of(value) is None:
            value.args = args
        for item in args:
            check_text(vm, item, depth)
    elif depth < _DEPTH and isinstance(value, list | tuple | set | frozenset | dict):
        items = [*dict.keys(value), *dict.values(value)] if isinstance(value, dict) else value
        for item in list.__iter__(value) if isinstance(value, list) else items:
            check_text(vm, item, depth + 1)


def identity(vm: Interpreter, left: Any, right: Any) -> Any:
    """`left is right`; a truth of the graph where values say which tensor of two one of them is."""
    if not vm.branches.choices.are_among(left, right):
        return is_same(vm, left, right)
    found = vm.branches.choices.identity(vm, left, right)
    if found is None:
        raise GraphBreak("two tensors are compared by identity, one of which is one of two, by a tensor's value")
    return found if found is True or found is False else truth_of(vm, found)


def is_same(vm: Interpreter, left: Any, right: Any) -> bool:
    """`left is right`; that two values of the caller's are different objects is guarded, and which of equal constants they are."""
    if left is right and not is_constant(left):
        return True
    one, other = vm.user.real(left), vm.user.real(right)
    if is_constant(one) and is_constant(other):
        if not is_single(one) and indistinguishable(one, other):
            for value in (left, right):
                for source in vm.user.sources(value):
                    vm.guards.add("is", source, vm.user.real(value))
        return one is other
    if torch.SymBool in (type(left), type(right)):  # there is one True, and one False
        both = all(type(value) in (bool, torch.SymBool) for value in (left, right))
        return both and vm.truth(left) is vm.truth(right)
    if vm.branches.choices.are_among(left, right):
        return vm.truth(identity(vm, left, right))
    for value, other in ((left, right), (right, left)):
        if type(value) is torch.SymFloat and isinstance(other, torch.Tensor | torch.SymFloat):
            vm.dynamic.check_type(value)
    if torch.SymFloat in (type(left), type(right)):
        return _is_same_float(vm, left, right)
    if torch.SymInt in (type(left), type(right)) and all(type(v) in (int, torch.SymInt) for v in (left, right)):
        return _is_same_int(vm, left, right)
    a, b = vm.user.by_value.get(id(left)), vm.user.by_value.get(id(right))
    if a is None or b is None or type(a.real) is not type(b.real):
        return False
    if not (isinstance(a.source, Const) and isinstance(b.source, Const)):
        vm.guards.add("other", a.source, b.source)
    return False


def _is_same_int(vm: Interpreter, left: Any, right: Any) -> bool:
    """Of two ints, one of which changes between calls: those that differ are two objects, CPython has one of each small one.

    Nothing is relied on where the graph breaks: two symbols that are known to be equal are one, behind the break, too.
    """
    one, other = (value if type(value) is int else value.node.hint for value in (left, right))
    if one is None or other is None or (one == other and not -5 <= one <= 256):
        raise GraphBreak("large ints that are equal, of which one changes between calls, are compared by identity")
    return bool(vm.truth(left == right) and vm.truth(left >= -5) and vm.truth(left <= 256))


def _is_same_float(vm: Interpreter, left: Any, right: Any) -> bool:
    """Of floats of the caller's, which may be one object, and of NaNs equality does not say it."""
    given = [vm.out.inputs.get(id(value)) for value in (left, right)]
    sources = [info.source for info in given if info is not None and not isinstance(info.source, Computed)]
    if len(sources) == 1 and (is_nan(left) or is_nan(right)):
        _is_no_nan(vm, left if given[0] else right)
    if len(sources) < 2:
        return False
    same = given[0].real is given[1].real  # type: ignore[union-attr]
    vm.guards.add("alias" if same else "other", *sources)
    return same


def _is_no_nan(vm: Interpreter, value: Any) -> None:
    info = vm.out.inputs.get(id(value))
    if info is not None and not isinstance(info.source, Computed):
        vm.guards.add("equals", Fetch(math.isnan, info.source), False)


def check_operands(vm: Interpreter, values: Any, who: str) -> None:
    """`check_visible` for an operator whose methods have been asked already: only what containers hold is new to C."""
    for value in values:
        if isinstance(value, (str, *_CONTAINERS)):
            check_visible(vm, (value,), who)
        else:
            refuse_opaque(vm, value, who)
            _refuse_holder(vm, value, who)


def refuse_opaque(vm: Interpreter, value: Any, who: str) -> None:
    """`check_visible` of one object, for functions that call no methods of its own but those that a rule interprets."""
    name = vm.user.opaque.get(id(value))
    if name is not None:
        raise GraphBreak(f"{who} looks into {name}, a {type(value).__name__} of the caller's")


def _refuse_holder(vm: Interpreter, value: Any, who: str) -> None:
    if isinstance(value, _HOLDERS) and vm.user.source_of(value) is not None:
        raise GraphBreak(f"{who} reads attributes of a {type(value).__qualname__} of the caller's")


def check_key(vm: Interpreter, key: Any) -> None:
    """A key with its own idea of equality is interpreted; the fields of a dataclass are guarded, and then it is known."""
    kind = type(key)
    if kind is types.FunctionType:
        vm.user.tell_apart(key)
    if kind in _SEEN or is_constant(key):
        return
    if isinstance(key, tuple | frozenset):
        for item in _items_of(vm, key) or ():
            check_key(vm, item)
        return
    if isinstance(key, nn.Module):
        known = vm.user.by_value.get(id(key))
        if known is not None:
            vm.guards.add("is", known.source, known.real)  # found by identity
        return
    if kind is weakref.ref:  # found by what it refers to
        known = vm.user.by_value.get(id(key()))
        if known is not None and not vm.is_created(known.real):
            vm.guards.add("is", known.source, known.real)
        return
    if isinstance(key, types.MethodType):
        check_key(vm, key.__self__)
    if not isinstance(key, type | Tensor):
        vm.user.tell_apart(key)
    if isinstance(key, type | types.FunctionType | Tensor) or not kind.__flags__ & HEAP_TYPE:
        return
    if getattr(kind, "__hash__", None) is None:
        return  # C code says that it has no hash, without calling anything
    own = [find_method(kind, name) for name in ("__hash__", "__eq__")]
    if not any(m is not None and not vm.is_library(m.__module__) for m in own):
        return
    if compares_fields(kind):
        for field in dataclasses.fields(kind):
            value = vm.load_attr(key, field.name)
            if not is_constant(int(value) if isinstance(value, torch.SymInt) else value):
                raise GraphBreak(f"a {kind.__qualname__} is a key, and its field {field.name} is no constant")
        return
    vm.methods.take_key(kind)


def check_keys(vm: Interpreter, values: Any) -> None:
    """`check_key` for each value that is no container, and for the items of each that is one."""
    for value in values:
        if isinstance(value, _CONTAINERS) and (items := _items_of(vm, value)) is not None or type(value) in _VIEWS:
            for item in value if type(value) in _VIEWS else items:
                _check_pair(vm, item)
        elif not isinstance(value, dict | list):
            check_key(vm, value)


def keys_in(vm: Interpreter, values: Any, pairs: bool) -> Any:
    """`values`; where C code takes them for keys, or for pairs with keys, one by one from an iterator, each is checked when it comes."""
    return _checked(vm, values, pairs) if hasattr(type(values), "__next__") else values


def _checked(vm: Interpreter, values: Iterator[Any], pairs: bool) -> Iterator[Any]:
    """What an iterator gives can be had once: symbols in keys become numbers before C code asks for their hashes."""
    for item in values:
        _check_pair(vm, item)
        if not pairs:
            yield concrete(item) if has_symbol(item) else item
        elif isinstance(item, tuple | list) and len(item) == 2 and has_symbol(item[0]):
            yield concrete(item[0]), item[1]
        else:
            yield item


CHECKED = _checked.__code__


def _check_pair(vm: Interpreter, item: Any) -> None:
    """Check a key, or a list of a key and a value."""
    for key in item if type(item) is list else (item,):
        check_key(vm, key)


_DICTS: Any = ({}, collections.OrderedDict())
_VIEWS = frozenset(type(v) for d in _DICTS for v in (d.keys(), d.values(), d.items()))
_SEEN = frozenset({str, int, float, bool, type(None), types.FunctionType, types.ModuleType, type, range, slice, Tensor})
