"""Classes as `type.__new__` makes them, without the calls of the program's code that it makes: capture interprets these, entries leave them out."""

from __future__ import annotations

import types
from typing import Any

__all__ = ["bare_class", "finder", "written_slots"]

_BASES: Any = type.__dict__["__bases__"]
_PLACE = object()  # where a value stands whose class has `__set_name__`


class _Quiet:
    """Stands in front of bases whose `__init_subclass__` is not to be called."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        pass


class _QuietSlots:
    __slots__ = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        pass


def finder(kind: type, name: str) -> Any:
    """The first class in the order of `kind` that defines `name`."""
    return next((c for c in type.__getattribute__(kind, "__mro__") if name in vars(c)), None)


def bare_class(meta: type, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> Any:
    """`type.__new__(meta, name, bases, namespace)` that calls no `__set_name__` and no `__init_subclass__`.

    A base of ours stands in front while the class is made; that is possible as it has the layout of the bases.
    """
    own = vars(type)  # `__name__` and its like: setting them sets what the class says of itself
    named = {
        k: v
        for k, v in namespace.items()
        if finder(type(v), "__set_name__") not in (None, property if k in own else None)
    }
    plain = {k: _PLACE if k in named else v for k, v in namespace.items()} if named else dict(namespace)
    told = any(finder(base, "__init_subclass__") is not object for base in bases)
    front: tuple[type, ...] = ()
    if told:
        front = (_Quiet if any(base.__dictoffset__ for base in bases) else _QuietSlots,)
    made: Any = type.__new__(meta, name, (*front, *bases), plain)
    for key, value in named.items():
        type.__setattr__(made, key, value)
    if told:
        _BASES.__set__(made, bases)
    return made


def written_slots(cls: type) -> set[str]:
    """What `type.__new__` adds to a namespace by itself: the slots, and the ways to an instance's dict and weak references."""
    kinds = (types.MemberDescriptorType, types.GetSetDescriptorType)
    return {n for n, v in vars(cls).items() if isinstance(v, kinds) and v.__objclass__ is cls}
