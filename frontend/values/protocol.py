"""Python's data model for operators: which methods are asked, in which order, and what is said when none answers.

An operator whose operands have methods written in Python is resolved here, so that each method runs once, interpreted.
C methods of the operands are asked through their own slots, which never call back to the other operand's methods.
"""

from __future__ import annotations

import collections
import operator
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch

from ..calls.visibility import check_operands, refuse_opaque
from ..errors import GraphBreak, UserRaise
from ..graph.sym_nodes import concrete
from ..guards.sameness import is_value_type
from ..state import Interpreter
from . import object as objects
from .identity import Identity
from .kinds import c_name, isinstance
from .text import Text

__all__ = [
    "ItemsByIndex",
    "Stepping",
    "answered",
    "binary_by_methods",
    "checked_iterator",
    "compare_by_methods",
    "is_written_in_python",
]

_NUMBERS = (int, float, complex)
_SEQUENCES = (list, tuple, str, bytes, bytearray)
_CONVERSIONS = ("__index__", "__iter__", "__str__", "__repr__", "__float__", "__int__")
_SLOTS = (types.WrapperDescriptorType, types.MethodDescriptorType)
_KNOW_THEIR_OWN: Any = ((set, frozenset), (dict, collections.OrderedDict, collections.defaultdict))


def is_written_in_python(value: Any, *names: str) -> bool:
    """Whether one of these special methods of `value` is Python code."""
    kind = type(value)
    return not is_value_type(value) and any(objects.find_method(kind, name) is not None for name in names)


def answered(vm: Interpreter, function: Any, value: Any, special: str, result: Any, *args: Any) -> Any:
    """What the built-in `function` makes of what a special method of `value` has returned: refused, or made plain, as in CPython."""
    kind = type(result)
    counts = function in (len, operator.length_hint)
    if kind in _ANSWERS.get(function, ()) and (not counts or _is_count(vm, result)):
        return result
    if function is float and kind is torch.SymInt:
        return torch.sym_float(result)
    if function is hash and kind is Identity:
        return result
    if function not in _ANSWERS and function is not hash:
        return result  # of any type
    warned = function in (int, float, complex, operator.index) and isinstance(result, _ANSWERS[function][0])
    if isinstance(result, torch.Tensor) or warned and vm.effects.warned is None:
        raise GraphBreak(f"{special} of a {type(value).__qualname__} gives a {vm.type_of(result).__qualname__}")
    result = concrete(result)
    stands_for = type(vm.type_of(value).__name__, (), {special: lambda *_: result})()
    return vm.native(function, stands_for, *args)


def _is_count(vm: Interpreter, result: Any) -> bool:
    """Whether an int, or a symbol for one, is a number of items."""
    return vm.truth(result >= 0) and (type(result) is torch.SymInt or result <= sys.maxsize)


# The types of results that built-ins return as they are.
_ANSWERS: dict[Any, tuple[type, ...]] = {
    **dict.fromkeys((int, operator.index, len, operator.length_hint), (int, torch.SymInt)),
    **dict.fromkeys((str, repr, format), (str, Text)),
    float: (float, torch.SymFloat),
    complex: (complex,),
    bool: (bool, torch.SymBool),
}


def ask_length(vm: Interpreter, value: Any) -> None:
    """What C code asks of what it makes a list of, to have room for the items: an error in the answer comes through."""
    kind = type(value)
    asked = [objects.lookup(kind, name)[0] for name in ("__len__", "__length_hint__")]
    if not vm.is_frontend_class(kind) and any(isinstance(m, types.FunctionType) or _is_descriptor(m) for m in asked):
        vm.call(operator.length_hint, (value,), {})


def _is_descriptor(raw: Any) -> bool:
    """Whether a special method is an object of the program's that gives one when it is asked."""
    return raw is not None and objects.find_method(type(raw), "__get__") is not None


def checked_iterator(vm: Interpreter, made: Any) -> Any:
    """What an `__iter__` has returned, which must be an iterator."""
    kind = type(made)
    if hasattr(kind, "__next__") if vm.is_frontend_class(kind) else objects.lookup(kind, "__next__")[1]:
        return made
    raise UserRaise(TypeError(f"iter() returned non-iterator of type '{c_name(vm.type_of(made))}'"))


def binary_by_methods(vm: Interpreter, symbol: str, name: str, left: Any, right: Any) -> Any:
    """`left symbol right`, where an operand has Python methods for it."""
    if symbol.endswith("="):
        method, owner = objects.lookup(type(left), f"__i{name}__")
        if method is None and owner is not None:
            vm.native(method)  # which is the error
        if isinstance(method, types.FunctionType):
            result = vm.call(method, (left, right), {})
            if result is not NotImplemented:
                return result
        elif isinstance(method, _SLOTS):
            return _in_place(vm, symbol, method, left, right)
    kind, other = type(left), type(right)
    forward, _ = objects.lookup(kind, f"__{name}__")
    reflected, _ = objects.lookup(other, f"__r{name}__")
    first, second = (forward, left, right), (reflected, right, left)
    order = [first] if kind is other else [first, second]
    overrides = other is not kind and kind in other.__mro__ and objects.lookup(kind, f"__r{name}__")[0] is not reflected
    if overrides or _only_as_sequence(kind, symbol):
        order.reverse()
    return _answer(vm, order, lambda: _unsupported(vm, symbol, left, right), symbol)


def _in_place(vm: Interpreter, symbol: str, slot: Any, left: Any, right: Any) -> Any:
    if isinstance(left, list) and symbol == "+=":
        refuse_opaque(vm, left, "`+=`")
        list.extend(left, vm.listed(right))
        return left
    check_operands(vm, (left, right), f"`{symbol}`")
    if is_written_in_python(right, "__iter__", "__index__", "__getitem__", "keys"):
        raise GraphBreak(f"`{symbol}` runs methods of {type(right).__qualname__}")
    return vm.native(slot, left, right)


def _only_as_sequence(kind: type, symbol: str) -> bool:
    """Whether a type has `+` and `*` as a sequence only: those are asked after the methods of numbers."""
    return issubclass(kind, _SEQUENCES) and symbol[0] in "+*" and symbol.rstrip("=") in "+*"


def _answer(vm: Interpreter, order: list[tuple[Any, Any, Any]], otherwise: Any, symbol: str) -> Any:
    for method, owner, other in order:
        if isinstance(method, types.FunctionType):
            result = vm.call(method, (owner, other), {})
        elif isinstance(method, _SLOTS):
            if any(method.__objclass__ in kinds and not isinstance(other, kinds) for kinds in _KNOW_THEIR_OWN):
                continue  # sets know sets only, dicts dicts, and they ask nothing else
            if not isinstance(owner, _NUMBERS) and method.__objclass__ is not object:
                check_operands(vm, (owner, other), f"`{symbol}`")
                joins = isinstance(owner, _SEQUENCES) and symbol.rstrip("=") == "+"
                if not joins and is_written_in_python(other, *_CONVERSIONS):
                    raise GraphBreak(f"`{symbol}` may run methods of {type(other).__qualname__}")
            result = vm.native(method, owner, other)
        elif method is objects.MISSING:
            continue
        else:
            result = _call_unusual(vm, method, owner, other)
        if result is not NotImplemented:
            return result
    return otherwise()


def _unsupported(vm: Interpreter, symbol: str, left: Any, right: Any) -> Any:
    sign = "** or pow()" if symbol == "**" else symbol
    names = f"'{c_name(vm.type_of(left))}' and '{c_name(vm.type_of(right))}'"
    raise UserRaise(TypeError(f"unsupported operand type(s) for {sign}: {names}"))


def compare_by_methods(vm: Interpreter, symbol: str, name: str, mirror: str, left: Any, right: Any) -> Any:
    """`left symbol right` for a comparison, where an operand has Python methods for it."""
    kind, other = type(left), type(right)
    first, second = (left, right, name), (right, left, mirror)
    order = [first, second]
    if other is not kind and kind in other.__mro__:
        order.reverse()
    for owner, operand, asked in order:
        result = _compare_once(vm, symbol, owner, operand, asked)
        if result is not NotImplemented:
            return result
    if symbol == "==":
        return left is right
    if symbol == "!=":
        return left is not right
    names = f"'{c_name(vm.type_of(left))}' and '{c_name(vm.type_of(right))}'"
    raise UserRaise(TypeError(f"'{symbol}' not supported between instances of {names}"))


def _compare_once(vm: Interpreter, symbol: str, owner: Any, operand: Any, name: str) -> Any:
    method, where = objects.lookup(type(owner), name)
    if where is object:
        if name == "__ne__":
            result = _compare_once(vm, "==", owner, operand, "__eq__")
            return result if result is NotImplemented else not vm.truth(result)
        return True if name == "__eq__" and owner is operand else NotImplemented
    if isinstance(method, types.FunctionType):
        return vm.call(method, (owner, operand), {})
    if isinstance(method, _SLOTS):
        if not isinstance(owner, _NUMBERS):
            check_operands(vm, (owner, operand), f"`{symbol}`")
        return vm.native(method, owner, operand)
    return _call_unusual(vm, method, owner, operand)


def _call_unusual(vm: Interpreter, method: Any, owner: Any, operand: Any) -> Any:
    """Call a special method that is no function: what reading it through an instance gives (None, which cannot be called, is itself)."""
    kind = type(owner)
    bound = method if method is None else objects.bind(vm, method, kind, owner, kind, "")
    return vm.call(bound, (operand,), {})


class Stepping:
    """An iterator whose items the interpreter takes, for C code. No generator: `__next__` may come to it again, or go on behind an error."""

    def __init__(self, vm: Interpreter, iterator: Any) -> None:
        self.vm, self.iterator = vm, iterator
        vm.steppings.append(self)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        more, item = self.vm.advance(self.iterator)
        if not more:
            raise StopIteration
        return self.vm.methods.handed(item)


class ItemsByIndex:
    """What `__getitem__` gives of 0, 1, 2 and so on, up to IndexError or StopIteration: how old sequences are iterated."""

    def __init__(self, vm: Interpreter, getter: Any, value: Any) -> None:
        self.vm, self.getter, self.value, self.index = vm, getter, value, 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.getter is None:
            raise StopIteration
        if self.index == sys.maxsize:
            next(_at(sys.maxsize))  # which refuses
        try:
            item = self.vm.call(self.getter, (self.value, self.index), {})
        except UserRaise as raised:
            if not isinstance(raised.value, IndexError | StopIteration):
                raise
            self.getter = self.value = None
            raise StopIteration from None
        self.index += 1
        return item

    def __setstate__(self, state: Any) -> None:
        """Go on at another index, as CPython's own iterator does."""
        asked = _at(concrete(state))
        if self.getter is not None:
            self.index = asked.__reduce__()[2]


class _Nothing:
    """A sequence by index without items."""

    def __getitem__(self, index: int) -> Any:
        raise IndexError


def _at(index: Any) -> Any:
    """CPython's own iterator of nothing at an index; it refuses what is none."""
    made: Any = iter(_Nothing())
    made.__setstate__(index)
    return made
