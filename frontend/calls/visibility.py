"""What C code may look at: running it on the caller's own objects would read them, and run their methods, unguarded.

Three kinds of values of the caller's are told apart here. Values that never change (dates, decimals, patterns, NumPy
numbers: `sameness.is_value_type`) are guarded by what they are, and anything may look at them. Other objects of C types
(arrays, byte arrays, generators of random numbers) are opaque: a C function that is given one breaks the graph. So does
one that is given an object whose class has Python methods that C would call (`__lt__`, `__hash__`, `__float__`), unless
a rule interprets these, or the function only moves its operands about.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import types
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import GraphBreak
from ..graph.dynamic import concrete
from ..guards.sameness import indistinguishable
from ..guards.source import Const
from ..state import Interpreter
from ..values.constant import is_constant, is_single
from ..values.kinds import HEAP_TYPE, IMMUTABLE_TYPE, isinstance
from ..values.object import find_method
from ..values.text import Text

__all__ = [
    "check_key",
    "check_keys",
    "check_operands",
    "check_visible",
    "check_text",
    "has_python_methods",
    "is_same",
    "is_opaque_type",
    "refuse_opaque",
]

_SPECIAL = tuple(
    f"__{name}__"
    for name in """
    eq ne lt le gt ge hash bool len iter next getitem contains reversed length_hint int float complex index round
    trunc floor ceil abs neg pos invert str repr format bytes fspath sizeof reduce_ex reduce getstate divmod rdivmod
    add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow matmul rmatmul and rand or ror
    xor rxor lshift rlshift rshift rrshift
    """.split()  # noqa: SIM905
)
# Classes of Python's own whose methods, written in Python, read attributes of the object.
_HOLDERS = (
    *(argparse.Namespace, collections.ChainMap, collections.UserDict, collections.UserList, collections.UserString),
)
_DEPTH = 4


def is_opaque_type(kind: type) -> bool:
    """Whether instances keep what they are in C, out of sight of attributes."""
    return kind is not object and not issubclass(kind, BaseException | type) and not _is_python_class(kind)


def _is_python_class(kind: type) -> bool:
    if kind is object:
        return True
    if not kind.__flags__ & HEAP_TYPE or kind.__flags__ & IMMUTABLE_TYPE:
        return kind.__module__ in ("abc", "typing", "_thread") and kind.__name__ in ("ABC", "Generic", "Protocol")
    return all(_is_python_class(base) for base in kind.__bases__)


def has_python_methods(vm: Interpreter, kind: type) -> bool:
    """Whether C code that is given an instance may run Python methods of the program's own."""
    if kind.__flags__ & HEAP_TYPE == 0 or vm.is_library(kind.__module__) or vm.is_frontend_class(kind):
        return False
    for name in _SPECIAL:
        method = find_method(kind, name)
        if method is not None and not vm.is_library(method.__module__):
            return True
    return False


def check_visible(vm: Interpreter, values: Any, who: str, depth: int = 0) -> None:
    """Refuse to let a C function look at values that it would read unguarded; containers are searched a little deep."""
    for value in values:
        kind = type(value)
        if kind in _SEEN or is_constant(value):
            continue
        if kind in (list, tuple, set, frozenset) or isinstance(value, list | tuple) and id(value) not in vm.user.opaque:
            if depth < _DEPTH:
                check_visible(
                    vm, list.__iter__(value) if isinstance(value, list) else iter(tuple(value)), who, depth + 1
                )
        elif kind is dict or isinstance(value, dict) and vm.user.source_of(value) is None:
            if depth < _DEPTH:
                check_visible(vm, list(dict.keys(value)) + list(dict.values(value)), who, depth + 1)
        elif id(value) in vm.user.opaque:
            raise GraphBreak(f"{who} looks into {vm.user.opaque[id(value)]}, a {kind.__name__} of the caller's")
        else:
            _refuse_holder(vm, value, who)
            if not has_python_methods(vm, kind):
                continue
            raise GraphBreak(f"{who} may run methods of {kind.__qualname__} that capture would not see")


def check_text(vm: Interpreter, value: Any, depth: int = 0) -> None:
    """Before C code writes a value as text: tensors have no values yet, and exceptions of the caller's are guarded."""
    if isinstance(value, Tensor) or type(value) is Text:
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
        raise GraphBreak("two tensors are compared by identity, one of which is one of two, by a tensor's value")
    for value, other in ((left, right), (right, left)):
        if type(value) is torch.SymFloat and isinstance(other, torch.Tensor | torch.SymFloat):
            vm.dynamic.check_type(value)
    a, b = vm.user.by_value.get(id(left)), vm.user.by_value.get(id(right))
    if a is None or b is None or type(a.real) is not type(b.real):
        return False
    if not (isinstance(a.source, Const) and isinstance(b.source, Const)):
        vm.guards.add("other", a.source, b.source)
    return False


def check_operands(vm: Interpreter, values: Any, who: str) -> None:
    """`check_visible` for an operator whose methods have been asked already: only what containers hold is new to C."""
    for value in values:
        if isinstance(value, list | tuple | dict | set | frozenset | str):
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
    """Refuse a key with its own idea of equality; the fields of a dataclass are guarded, and then it is known."""
    kind = type(key)
    if kind in _SEEN or is_constant(key):
        return
    if isinstance(key, tuple):
        for item in tuple.__iter__(key):
            check_key(vm, item)
        return
    if isinstance(key, nn.Module):
        known = vm.user.by_value.get(id(key))
        if known is not None:
            vm.guards.add("is", known.source, known.real)  # found by identity
        return
    if isinstance(key, type | types.FunctionType | nn.Module | Tensor) or not kind.__flags__ & HEAP_TYPE:
        return
    if getattr(kind, "__hash__", None) is None:
        return  # C code says that it has no hash, without calling anything
    own = [find_method(kind, name) for name in ("__hash__", "__eq__")]
    if not any(m is not None and not vm.is_library(m.__module__) for m in own):
        return
    if dataclasses.is_dataclass(kind) and all(m is None or m.__code__.co_filename == "<string>" for m in own):
        for field in dataclasses.fields(kind):
            value = vm.load_attr(key, field.name)
            if not is_constant(int(value) if isinstance(value, torch.SymInt) else value):
                raise GraphBreak(f"a {kind.__qualname__} is a key, and its field {field.name} is no constant")
        return
    raise GraphBreak(f"a {kind.__qualname__}, which has its own __eq__ or __hash__, is looked up")


def check_keys(vm: Interpreter, values: Any) -> None:
    """`check_key` for each value that is no container, and for the items of each that is one."""
    for value in values:
        if type(value) in (list, set, frozenset, dict, tuple):
            for item in value:
                check_key(vm, item)
        elif not isinstance(value, dict | list):
            check_key(vm, value)


_SEEN = frozenset({str, int, float, bool, type(None), types.FunctionType, types.ModuleType, type, range, slice, Tensor})
