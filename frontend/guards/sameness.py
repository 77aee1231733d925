"""When two values are the same to every program: the one meaning of sameness, for guards and for capture.

`==` is not it: equal values may differ in type (1, 1.0, True), sign (0.0, -0.0), order (sets, dicts), precision (decimals), time zone
or bounds (ranges), and a program can see each of these.
"""

from __future__ import annotations

import datetime
import decimal
import fractions
import ipaddress
import math
import pathlib
import re
import types
import uuid
import zoneinfo
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["indistinguishable", "is_decided_by_equality", "is_value_type", "same_keys"]

_Same = Callable[[Any, Any], bool]


def indistinguishable(a: Any, b: Any) -> bool:
    """Whether no program can tell two values apart, but by identity. What is not a value is the same as itself alone."""
    if a is b:
        return True
    kind = type(a)
    if kind is not type(b):
        return False
    if kind in _EQUAL:
        return bool(a == b)
    compare = _COMPARE.get(kind)
    if compare is not None:
        return compare(a, b)
    parts = _PARTS.get(kind)
    if parts is not None:
        return indistinguishable(parts(a), parts(b))
    return is_numpy_number(a) and a.dtype == b.dtype and bool(a.tobytes() == b.tobytes())


def is_decided_by_equality(value: Any) -> bool:
    """Whether another value is indistinguishable from this one exactly when it is of the same type and equal."""
    return type(value) in _EQUAL or type(value) is float and value - value == 0.0 != value


def same_keys(mapping: Any, keys: list[Any]) -> bool:
    """Whether a mapping has these keys, in this order; one that does not equal itself is found by identity."""
    return len(mapping) == len(keys) and all(map(_is_same_key, mapping, keys))


def _is_same_key(a: Any, b: Any) -> bool:
    return a is b or bool(a == b) and indistinguishable(a, b)


def is_value_type(value: Any) -> bool:
    """Whether `value` is a date, a number of Python's library or NumPy's, a pattern: it never changes, and `indistinguishable` knows it."""
    kind = type(value)
    if kind in _ZONED:
        return value.tzinfo is None or type(value.tzinfo) in (datetime.timezone, zoneinfo.ZoneInfo)
    return kind in _VALUES or is_numpy_number(value)


def is_numpy_number(value: Any) -> bool:
    """Whether `value` is a number of NumPy's: an array scalar that holds no Python object."""
    kind = type(value)
    if kind.__module__ != "numpy" or getattr(value, "shape", None) != ():
        return False
    return any(c.__name__ == "generic" and c.__module__ == "numpy" for c in kind.__mro__) and not value.dtype.hasobject


def _floats(a: float, b: float) -> bool:
    """Equal bits, but for what a NaN carries besides its sign."""
    return (a == b or (a != a and b != b)) and math.copysign(1.0, a) == math.copysign(1.0, b)


def _complexes(a: complex, b: complex) -> bool:
    return _floats(a.real, b.real) and _floats(a.imag, b.imag)


def _items(a: Any, b: Any) -> bool:
    return len(a) == len(b) and all(map(indistinguishable, a, b))


def _pairs(a: Any, b: Any) -> bool:
    return _items(a, b) and all(map(indistinguishable, a.values(), b.values()))


# Types whose equal values are the same.
_EQUAL = frozenset(
    [
        *(int, bool, str, bytes, types.NoneType, torch.dtype, torch.device, torch.layout, torch.memory_format),
        *(datetime.timedelta, ipaddress.IPv4Address, types.CodeType),
    ]
)
_COMPARE: dict[type, _Same] = {
    float: _floats,
    complex: _complexes,
    **dict.fromkeys((tuple, list, set, frozenset, torch.Size), _items),
    **dict.fromkeys((dict, OrderedDict, Counter), _pairs),
}
# Types that are told by these parts of a value.
_PARTS: dict[type, Callable[[Any], Any]] = {
    range: lambda v: (v.start, v.stop, v.step),
    slice: lambda v: (v.start, v.stop, v.step),
    deque: lambda v: (list(v), v.maxlen),
    defaultdict: lambda v: (dict(v), v.default_factory),
    datetime.date: lambda v: v.isoformat(),
    datetime.datetime: lambda v: (v.replace(tzinfo=None).isoformat(), v.fold, v.tzinfo),
    datetime.time: lambda v: (v.replace(tzinfo=None).isoformat(), v.fold, v.tzinfo),
    datetime.timezone: lambda v: v.__getinitargs__(),
    decimal.Decimal: lambda v: tuple(v.as_tuple()),
    fractions.Fraction: lambda v: (v.numerator, v.denominator),
    ipaddress.IPv6Address: lambda v: (int(v), v.scope_id),
    uuid.UUID: lambda v: (v.int, v.is_safe),
    re.Pattern: lambda v: (v.pattern, v.flags),
    torch.finfo: lambda v: (v.dtype, v.bits, v.max),
    torch.iinfo: lambda v: (v.dtype, v.bits, v.max),
    pathlib.PosixPath: str,
    pathlib.PurePosixPath: str,
    pathlib.WindowsPath: str,
    pathlib.PureWindowsPath: str,
}
_ZONED = frozenset([datetime.datetime, datetime.time])
_VALUES = frozenset(
    [
        *(datetime.date, datetime.timedelta, datetime.timezone, decimal.Decimal, fractions.Fraction),
        *(ipaddress.IPv4Address, ipaddress.IPv6Address, re.Pattern, uuid.UUID, torch.finfo, torch.iinfo),
    ]
)
