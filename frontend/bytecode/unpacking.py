"""Taking the program's values apart: unpacking, `**`, and the patterns of `match`."""

from __future__ import annotations

import builtins
from typing import Any

from ..errors import UserRaise
from ..state import Interpreter
from ..values import object as objects
from ..values import operators
from ..values.container import InstanceDict, LazyDict
from ..values.kinds import isinstance

__all__ = ["as_dict", "match_class", "match_keys", "taken"]


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


def as_dict(vm: Interpreter, value: Any) -> dict[Any, Any]:
    """What `{**value}` takes from a mapping."""
    if isinstance(value, LazyDict | InstanceDict):
        return value.force()
    mapping = vm.tracked_mapping(value)
    if mapping is not None and objects.find_method(type(value), "keys") is None:
        return mapping.force()
    if isinstance(value, dict) and objects.find_method(type(value), "keys") is None:
        return dict(value)
    if not hasattr(vm.type_of(value), "keys"):
        raise UserRaise(TypeError(f"'{vm.type_of(value).__name__}' object is not a mapping"))
    if objects.find_method(type(value), "keys") is None:
        return dict(vm.native(dict, value))
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
