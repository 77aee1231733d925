"""`isinstance` and `issubclass`, where no metaclass of the program's answers: what they rely on."""

from __future__ import annotations

import abc
import builtins
import functools
import types
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from ..errors import GraphBreak
from ..guards.definitions import lookup
from ..guards.source import Fetch
from ..state import Interpreter
from ..values.kinds import is_honest, isinstance

__all__ = ["is_instance", "is_subclass"]


def is_instance(vm: Interpreter, obj: Any, kinds: Any) -> bool:
    """`isinstance(obj, kinds)`, where no metaclass of the program's answers."""
    if not is_honest(type(obj)) and not issubclass(type(obj), kinds):
        raise GraphBreak(f"isinstance asks a {type(obj).__name__} for its __class__, which runs the program's own code")
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


def is_subclass(vm: Interpreter, cls: Any, kinds: Any) -> bool:
    """`issubclass(cls, kinds)`, where no metaclass of the program's answers."""
    for kind in _alternatives(kinds):
        if isinstance(cls, type):
            vm.definitions.note(cls)
            if lookup(type(kind), "__subclasscheck__")[0] is not type.__dict__["__subclasscheck__"]:
                vm.definitions.ask(issubclass, cls, kind)
    return bool(vm.native(issubclass, cls, kinds))


def _alternatives(kinds: Any) -> Iterator[type]:
    if isinstance(kinds, tuple):
        for kind in kinds:
            yield from _alternatives(kind)
    elif isinstance(kinds, types.UnionType):
        yield from _alternatives(kinds.__args__)
    elif isinstance(kinds, type):
        yield kinds


def _is_instance(obj: Any, kinds: Any) -> bool:
    return builtins.isinstance(obj, kinds)


_CHECKED_BY_TYPE = type.__dict__["__instancecheck__"]
_CHECKED_BY_ABC = abc.ABCMeta.__dict__["__instancecheck__"]
