"""What wrapper tensors hold beside their parts: plain data, which is copied and compared, and objects that are equal to themselves alone.

A layout object of a class without `__eq__` is one of the latter: a copy would be another. It is held as it is, and beside it what it held.
"""

from __future__ import annotations

import copy
import dataclasses
import types
from typing import Any

from torch import Tensor

from ...guards.sameness import indistinguishable
from ...values.constant import is_constant, is_static

__all__ = [
    "Fixed",
    "alone_in",
    "copied",
    "is_alone",
    "is_fixed",
    "is_held_by_identity",
    "is_plain_data",
    "is_same",
    "states_of",
]

_HEAP_TYPE = 1 << 9
_ACTS = frozenset(
    """
    __deepcopy__ __copy__ __reduce__ __reduce_ex__ __getstate__ __setstate__ __getnewargs__ __getnewargs_ex__ __new__ __del__
    __getattribute__ __getattr__ __setattr__ __delattr__
    """.split()  # noqa: SIM905
)


def _is_plain_object(value: Any) -> bool:
    """Whether a value is an object of a plain class in Python, which neither finds, keeps nor copies its attributes by code of its own."""
    kind = type(value)
    if type(kind) is not type or kind.__module__.partition(".")[0] == "torch":
        return False
    return all(base.__flags__ & _HEAP_TYPE and _ACTS.isdisjoint(vars(base)) for base in kind.__mro__[:-1])


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type | Tensor)


def is_alone(value: Any) -> bool:
    """Whether a value is an object of a plain class that does not say what is equal: it is equal to itself alone."""
    return (
        type(value).__eq__ is object.__eq__
        and type(value).__hash__ is object.__hash__
        and _is_plain_object(value)
        and not _slots(type(value))
    )


def is_plain_data(value: Any, within: tuple[Any, ...] = ()) -> bool:
    """Whether a value is plain data: constants, functions, lists, dicts, dataclasses and plain objects of such."""
    if any(value is each for each in within):
        return is_alone(value)  # one that holds itself
    within = *within, value
    if type(value) in (list, tuple):
        return all(is_plain_data(each, within) for each in value)
    if type(value) is dict:
        return all(is_plain_data(each, within) for each in (*value, *value.values()))
    if _is_dataclass(value) or _is_plain_object(value):
        return is_plain_data(getattr(value, "__dict__", None), within) and not _slots(type(value))
    return is_constant(value) or is_static(value) or type(value) is types.FunctionType


def is_held_by_identity(value: Any) -> bool:
    """Whether a value that is no plain data does not change: code, or a tensor (which no operator on fake tensors takes)."""
    return isinstance(value, types.FunctionType | types.MethodType | Tensor)


def _slots(kind: type) -> bool:
    return any("__slots__" in vars(base) and vars(base)["__slots__"] for base in kind.__mro__)


def alone_in(value: Any) -> list[Any]:
    """The objects in plain data that are equal to themselves alone, each once."""
    found: dict[int, Any] = {}
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if type(each) in (list, tuple):
            waiting += each[::-1]
        elif type(each) is dict:
            waiting += [*each.values(), *each]
        elif is_alone(each):
            if id(each) not in found:
                found[id(each)] = each
                waiting.append(vars(each))
        elif _is_dataclass(each) or _is_plain_object(each):
            waiting.append(getattr(each, "__dict__", None))
    return list(found.values())


def copied(value: Any) -> Any:
    """A copy of plain data, with the same objects where these are equal to themselves alone."""
    return copy.deepcopy(value, {id(each): each for each in alone_in(value)})


def states_of(value: Any) -> list[dict[str, Any]]:
    """What the objects in plain data hold now that are equal to themselves alone."""
    return [copied(vars(each)) for each in alone_in(value)]


def is_same(one: Any, other: Any) -> bool:
    """Whether no program can tell two values of plain data apart; of others, whether they are one."""
    if type(one) is not type(other):
        return False
    if type(one) in (list, tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    if type(one) is dict:
        return list(one) == list(other) and all(is_same(v, other[k]) for k, v in one.items())
    if is_alone(one):
        return one is other
    if (_is_dataclass(one) or _is_plain_object(one)) and is_plain_data(one):
        return is_same(vars(one), vars(other))
    return one is other if type(one) is types.FunctionType else indistinguishable(one, other)


def is_fixed(value: Any) -> bool:
    """Whether a value is an object of plain data, or a function: no graph takes it, but it may be a constant of one."""
    if isinstance(value, types.FunctionType):
        return True
    return (_is_dataclass(value) or _is_plain_object(value)) and is_plain_data(value)


class Fixed:
    """The guard that a value is as one was: the object itself, where it is equal to itself alone."""

    def __init__(self, value: Any) -> None:
        self.value, self.states = copied(value), states_of(value)
        self.__name__ = f"as {type(value).__name__} was"

    def __call__(self, value: Any) -> bool:
        return is_same(self.value, value) and is_same(self.states, states_of(value))
