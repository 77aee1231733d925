"""`isinstance` and `issubclass`, where no metaclass of the program's answers: what they rely on."""

from __future__ import annotations

import abc
import builtins
import functools
import types
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from ..errors import GraphBreak, UserRaise
from ..guards.definitions import lookup
from ..guards.source import Fetch
from ..state import Interpreter
from ..values.kinds import is_honest, isinstance

__all__ = ["is_instance", "is_subclass"]


def is_instance(vm: Interpreter, obj: Any, kinds: Any) -> bool:
    """`isinstance(obj, kinds)`, where no metaclass of the program's answers."""
    if not is_honest(type(obj)):
        return _is_shown_instance(vm, obj, kinds)
    for cls in _alternatives(kinds):
        kind, check = vm.type_of(obj), lookup(type(cls), "__instancecheck__")[0]
        if check is _CHECKED_BY_ABC:
            vm.definitions.ask(issubclass, kind, cls)
        elif not isinstance(obj, Tensor):
            vm.definitions.note(kind)
            source = vm.user.source_of(obj)
            if check is not _CHECKED_BY_TYPE and source is not None:
                question = functools.partial(_is_instance, kinds=cls)
                vm.guards.add("equals", Fetch(question, source), isinstance(obj, cls))
    return bool(vm.native(builtins.isinstance, obj, kinds))


def _is_shown_instance(vm: Interpreter, obj: Any, kinds: Any) -> bool:
    """`isinstance` of an object that says itself what its `__class__` is: asked as CPython asks, by an abstract class always and first."""
    kind = vm.type_of(obj)
    for cls in _alternatives(kinds, strict=True):
        check = lookup(type(cls), "__instancecheck__")[0]
        if check not in (_CHECKED_BY_ABC, _CHECKED_BY_TYPE):
            raise GraphBreak(
                f"a class with its own isinstance asks a {kind.__name__}, which says what its __class__ is"
            )
        vm.definitions.note(kind)
        if kind is cls or check is _CHECKED_BY_TYPE and cls in kind.__mro__:
            return True
        try:
            shown = vm.load_attr(obj, "__class__")
        except UserRaise as raised:
            if check is _CHECKED_BY_ABC or not isinstance(raised.value, AttributeError):
                raise
            continue
        if check is _CHECKED_BY_ABC:
            if is_subclass(vm, shown, cls) or is_subclass(vm, kind, cls):
                return True
        elif isinstance(shown, type):
            vm.definitions.note(shown)
            if cls in shown.__mro__:
                return True
    return False


def is_subclass(vm: Interpreter, cls: Any, kinds: Any) -> bool:
    """`issubclass(cls, kinds)`, where no metaclass of the program's answers."""
    for kind in _alternatives(kinds):
        if isinstance(cls, type):
            vm.definitions.note(cls)
            if lookup(type(kind), "__subclasscheck__")[0] is not type.__dict__["__subclasscheck__"]:
                vm.definitions.ask(issubclass, cls, kind)
    return bool(vm.native(issubclass, cls, kinds))


def _alternatives(kinds: Any, strict: bool = False) -> Iterator[type]:
    if isinstance(kinds, tuple):
        for kind in kinds:
            yield from _alternatives(kind, strict)
    elif isinstance(kinds, types.UnionType):
        yield from _alternatives(kinds.__args__, strict)
    elif isinstance(kinds, type):
        yield kinds
    elif strict:
        raise GraphBreak(
            "an object that says what its __class__ is, is asked whether it is an instance of what is no class"
        )


def _is_instance(obj: Any, kinds: Any) -> bool:
    return builtins.isinstance(obj, kinds)


_CHECKED_BY_TYPE = type.__dict__["__instancecheck__"]
_CHECKED_BY_ABC = abc.ABCMeta.__dict__["__instancecheck__"]
