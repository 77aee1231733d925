"""Constants: immutable values that capture folds, guarded by type and equality."""

from __future__ import annotations

import enum
import pathlib
import types
from typing import Any

import torch

from ..torch_private.functions import OpOverload, OpOverloadPacket
from .kinds import isinstance

__all__ = ["has_identity", "is_bound", "is_constant", "is_single", "is_static", "plain_value"]

_CONSTANT_TYPES = frozenset(
    [
        *(type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented), range),
        *(
            torch.dtype,
            torch.device,
            torch.layout,
            torch.memory_format,
            torch.qscheme,
            pathlib.PosixPath,
            pathlib.PurePosixPath,
        ),
    ]
)
_BUILT = frozenset([tuple, frozenset, torch.Size, range, slice, pathlib.PosixPath, pathlib.PurePosixPath])
_SINGLE = frozenset(
    [
        type(None),
        bool,
        type(Ellipsis),
        type(NotImplemented),
        torch.dtype,
        torch.layout,
        torch.memory_format,
        torch.qscheme,
    ]
)
_STATIC_TYPES = (
    *(type, types.ModuleType, types.BuiltinFunctionType, types.CodeType, types.GenericAlias, types.UnionType),
    *(
        types.MethodDescriptorType,
        types.WrapperDescriptorType,
        types.MethodWrapperType,
        types.ClassMethodDescriptorType,
    ),
    *(types.GetSetDescriptorType, types.MemberDescriptorType, staticmethod, classmethod, property),
    *(OpOverload, OpOverloadPacket, torch.jit.ScriptFunction),
)


def is_constant(value: Any) -> bool:
    """Whether `value` is immutable all the way down and compares by value."""
    kind = type(value)
    if kind in _CONSTANT_TYPES or isinstance(value, enum.Enum):
        return True
    if kind in (tuple, frozenset, torch.Size):  # a size may hold symbols
        return all(map(is_constant, value))
    if kind is slice:
        return is_constant(value.start) and is_constant(value.stop) and is_constant(value.step)
    return False


def has_identity(value: Any) -> bool:
    """Whether programs tell a constant from an equal one made anew: it is built of others. There is one empty tuple."""
    return type(value) in _BUILT and (type(value) is not tuple or len(value) > 0)


def is_single(value: Any) -> bool:
    """Whether an equal constant is always this object."""
    kind = type(value)
    if kind is int:
        return -5 <= value <= 256
    return kind in _SINGLE or isinstance(value, enum.Enum) or kind in (str, bytes, tuple) and len(value) == 0


def plain_value(value: Any) -> Any:
    """The number or text in an instance of a subclass, read without the subclass's own methods."""
    number: Any
    for number in (int, float, complex):
        if isinstance(value, number):
            return number.__pos__(value)
    text: Any = str if isinstance(value, str) else bytes
    return text.__getitem__(value, slice(None))


def is_static(value: Any) -> bool:
    """Whether `value` is code rather than data: a class, module, C function; guarded by identity."""
    return isinstance(value, _STATIC_TYPES) or type(value).__module__ in ("typing", "functools") and callable(value)


def is_bound(value: Any) -> bool:
    """Whether `value` is a C method of an object: of a stand-in, perhaps, in whose place the real one has to come."""
    if not isinstance(value, types.BuiltinFunctionType | types.MethodWrapperType):
        return False
    owner = value.__self__
    if owner is None or isinstance(owner, types.ModuleType | type):
        return False
    return hasattr(type(owner), value.__name__)  # not so what pybind11 keeps there of a function
