"""Taking the program's values apart: unpacking, `**`, and the patterns of `match`."""

from __future__ import annotations

import builtins
from collections import OrderedDict
from typing import Any

from ..errors import UserRaise
from ..state import Interpreter
from ..values import object as objects
from ..values import operators
from ..values.container import InstanceDict, LazyDict
from ..values.kinds import c_name, isinstance

__all__ = ["as_dict", "as_mapping", "match_class", "match_keys", "taken"]


def taken(vm: Interpreter, value: Any, n: int) -> tuple[list[Any], Any]:
    """At most the first `n` items, and the iterator of the others."""
    try:
        iterator = vm.iterate(value)
    except UserRaise as raised:
        kind = vm.type_of(value)
        if type(raised.value) is TypeError and not hasattr(kind, "__iter__") and not hasattr(kind, "__getitem__"):
            raise UserRaise(TypeError(f"cannot unpack non-iterable {kind.__name__} object")) from None
        raise
    out: list[Any] = []
    while len(out) < n:
        more, item = vm.advance(iterator)
        if not more:
            break
        out.append(item)
    return out, iterator


def as_mapping(vm: Interpreter, value: Any, function: Any) -> Any:
    """What `function`, which is to read a mapping, is given in its place: a dict where `keys`, `__iter__` or `__getitem__` are the program's."""
    kind = type(value)
    if isinstance(value, dict):
        by_keys = OrderedDict in (function, getattr(function, "__objclass__", None))
        return value if _is_merged_as_it_is(kind, by_keys) else as_dict(vm, value, by_keys)
    return value if isinstance(value, type) or objects.find_method(kind, "keys") is None else as_dict(vm, value)


def _is_merged_as_it_is(kind: type, by_keys: bool = False) -> bool:
    """Whether C code takes the items of a dict of this class past methods of the class: as `dict` does, or, with `by_keys`, as `OrderedDict`."""
    if not by_keys and objects.lookup(kind, "__iter__")[1] is dict:
        return True
    return all(objects.find_method(kind, name) is None for name in ("keys", "__iter__", "__getitem__"))


def as_dict(vm: Interpreter, value: Any, by_keys: bool = False) -> dict[Any, Any]:
    """What `{**value}` takes from a mapping."""
    if isinstance(value, LazyDict | InstanceDict):
        return value.force()
    kind, is_dict = type(value), isinstance(value, dict)
    if is_dict and _is_merged_as_it_is(kind, by_keys):
        mapping = vm.tracked_mapping(value)
        return dict(value) if mapping is None else mapping.force()
    if not hasattr(vm.type_of(value), "keys"):
        raise UserRaise(TypeError(f"'{c_name(vm.type_of(value))}' object is not a mapping"))
    if not is_dict and objects.find_method(kind, "keys") is None:
        mapping = vm.tracked_mapping(value)
        return dict(vm.native(dict, value)) if mapping is None else mapping.force()
    keys = vm.listed(vm.call(objects.load_attr(vm, value, "keys"), (), {}))
    return {key: operators.get_item(vm, value, key) for key in keys}


def match_keys(vm: Interpreter, subject: Any, keys: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The values of a mapping by its own `get`, which makes no entry in a defaultdict; None where one is missing."""
    if len({*keys}) != len(keys):
        repeated = next(k for i, k in enumerate(keys) if k in keys[:i])
        raise UserRaise(ValueError(f"mapping pattern checks duplicate key ({repeated!r})"))
    if not keys:
        return ()
    get, missing, out = objects.load_attr(vm, subject, "get"), object(), []
    for key in keys:
        value = vm.call(get, (key, missing), {})
        if value is missing:
            return None
        out.append(value)
    return tuple(out)


def match_class(vm: Interpreter, subject: Any, cls: Any, n: int, names: tuple[str, ...]) -> tuple[Any, ...] | None:
    """What a class pattern with `n` positional patterns and the keywords `names` looks at; None where it does not match."""
    if not isinstance(cls, type):
        raise UserRaise(TypeError("called match pattern must be a class"))
    if not vm.truth(vm.call(builtins.isinstance, (subject, cls), {})):
        return None
    out: list[Any] = []
    seen: list[str] = []
    try:
        if n:
            fields = _match_fields(vm, cls, n)
            out = [subject] if fields is None else [_field(vm, subject, cls, name, seen) for name in fields]
        return (*out, *[_field(vm, subject, cls, name, seen) for name in names])
    except UserRaise as raised:
        if not isinstance(raised.value, AttributeError):
            raise
        return None


def _match_fields(vm: Interpreter, cls: type, n: int) -> Any:
    """The attributes that `n` positional patterns look at; None for a builtin type that matches as a whole."""
    try:
        fields = objects.load_attr(vm, cls, "__match_args__")
    except UserRaise as raised:
        if not isinstance(raised.value, AttributeError):
            raise
        itself = any(c in _MATCH_SELF for c in cls.__mro__)
        fields = None if itself and n == 1 else ()
        allowed = 1 if itself else 0
    else:
        if not isinstance(fields, tuple):
            text = f"{cls.__name__}.__match_args__ must be a tuple (got {vm.type_of(fields).__name__})"
            raise UserRaise(TypeError(text)) from None
        allowed = len(fields)
    if n > allowed:
        plural = "" if allowed == 1 else "s"
        raise UserRaise(
            TypeError(f"{cls.__name__}() accepts {allowed} positional sub-pattern{plural} ({n} given)")
        ) from None
    return None if fields is None else fields[:n]


def _field(vm: Interpreter, subject: Any, cls: type, name: Any, seen: list[str]) -> Any:
    if not isinstance(name, str):
        raise UserRaise(TypeError(f"__match_args__ elements must be strings (got {type(name).__name__})"))
    if name in seen:
        raise UserRaise(TypeError(f"{cls.__name__}() got multiple sub-patterns for attribute {name!r}"))
    seen.append(name)
    return objects.load_attr(vm, subject, name)


_MATCH_SELF = frozenset([bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple])
