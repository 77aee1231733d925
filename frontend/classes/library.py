"""What functions of Python's library make of classes: dataclasses, names, enumerations, modules that they name."""

from __future__ import annotations

import dataclasses
import enum
import sys
import types
import typing
from typing import Any

from torch import Tensor, nn

from ..calls.registry import Rows
from ..errors import GraphBreak, Unsupported
from ..state import Interpreter
from ..values import object as objects
from ..values.kinds import HEAP_TYPE, isinstance
from .bare import finder
from .making import note_class, note_functions, note_made

__all__ = ["ROWS"]

ROWS = Rows()


def _own(vm: Interpreter, value: Any, *names: str) -> str | None:
    """The first of these methods that is the program's own code."""
    for name in names:
        method = objects.find_method(value, name)
        if method is not None and not vm.is_library(method.__module__):
            return name
    return None


# ---- dataclasses ----


@ROWS.rule(dataclasses._process_class)  # type: ignore[attr-defined]
def _dataclass(vm: Interpreter, cls: Any, *args: Any, **kwargs: Any) -> Any:
    """Methods are made of the fields by text, from nothing but the class; those of the program's own are only looked at."""
    if not isinstance(cls, type) or not vm.is_created(cls):
        raise GraphBreak("a class of the caller's is made a dataclass")
    for base in cls.__mro__:
        for value in vars(base).values():
            if _own(vm, type(value), "__get__", "__getattr__", "__getattribute__", "__eq__", "__set_name__"):
                raise GraphBreak(
                    f"a dataclass has a value of {type(value).__qualname__}, which is asked while it is made"
                )
    found = finder(cls, "__init_subclass__")
    if found is not object and not vm.is_library(found.__module__):
        raise GraphBreak("a dataclass is made of a class with an __init_subclass__ of its own")
    if _own(vm, type(cls), "__new__", "__init__", "__call__", "__setattr__", "__getattribute__"):
        raise GraphBreak("a dataclass is made of a class with a metaclass of its own")
    function, before = dataclasses._process_class, dict(vars(cls))  # type: ignore[attr-defined]
    made = vm.native(function, cls, *args, **kwargs)
    return note_made(vm, made, function, args, kwargs, cls, before)


# ---- names ----


@ROWS.rule(dir)
def _dir(vm: Interpreter, *args: Any) -> Any:
    """Names of a module of a library's, or of an object and its classes, each of which is guarded."""
    if not args:
        return sorted(vm.listed(vm.call(locals, (), {})))
    if len(args) > 1:
        vm.native(dir, *args)  # which refuses them
    value, kind = args[0], vm.type_of(args[0])
    if kind is types.ModuleType and vm.is_library(value.__name__):
        return vm.native(dir, value)
    method = objects.find_method(kind, "__dir__")
    if method is not None:
        return sorted(vm.listed(vm.call(method, (value,), {})))
    owner = objects.lookup(kind, "__dir__")[1]
    if owner is not (type if isinstance(value, type) else object):
        raise Unsupported("dir() is called")
    return sorted(_names(vm, value))


@ROWS.rule(object.__dir__)
def _object_dir(vm: Interpreter, value: Any, /) -> list[str]:
    """The same of an object whose class has a way of its own, in no order: the object's names, then those of its classes."""
    if isinstance(value, type):
        raise Unsupported("dir() is called")
    return _names(vm, value)


def _names(vm: Interpreter, value: Any) -> list[str]:
    kind = vm.type_of(value)
    if isinstance(value, Tensor | nn.Module) or objects.lookup(kind, "__class__")[1] is not object:
        raise Unsupported("dir() is called")
    own = not isinstance(value, type) and hasattr(value, "__dict__")
    names = dict.fromkeys(vm.listed(objects.load_attr(vm, value, "__dict__")) if own else ())
    waiting = [value if isinstance(value, type) else kind]
    while waiting:  # depth first, as CPython puts them together
        cls = waiting.pop()
        changes = bool(cls.__flags__ & HEAP_TYPE) and not vm.is_created(cls)
        names |= dict.fromkeys(vm.listed(objects.load_attr(vm, cls, "__dict__")) if changes else vars(cls))
        waiting += reversed(cls.__bases__)
    return [*names]


# ---- enumerations ----

_ASKED = "__new__ __init__ __init_subclass__ _missing_ _generate_next_value_ __set_name__ __hash__ __eq__".split()  # noqa: SIM905


def _is_programs(vm: Interpreter, value: Any) -> bool:
    value = getattr(value, "__func__", value)
    return value is not None and not vm.is_library(getattr(value, "__module__", None))


@ROWS.rule(enum.EnumMeta.__new__)
def _enumeration(vm: Interpreter, meta: Any, name: Any, bases: Any, namespace: Any, /, **kwargs: Any) -> Any:
    """An enumeration: made as it is where its members are plain data, and no code of the program's is asked."""
    if type.__getattribute__(meta, "__module__") != "enum":
        raise GraphBreak("an enumeration with a metaclass of its own is defined inside the captured code")
    values = dict(dict.items(namespace)) if isinstance(namespace, dict) else {}
    owners = [c for base in bases if isinstance(base, type) for c in base.__mro__]
    if any(_is_programs(vm, values.get(asked)) for asked in _ASKED) or _asks_program(vm, owners):
        new: Any = enum.EnumMeta.__new__
        made = vm.inline(new, (meta, name, bases, namespace), kwargs)
        for member in list(made._member_map_.values()):
            vm.create(member)
        return made
    for value in values.values():
        for item in value if isinstance(value, tuple) else (value,):
            if _own(vm, type(item), "__eq__", "__hash__", "__get__", "__set_name__", "__getattribute__", "__getattr__"):
                raise GraphBreak(f"an enumeration has a member of {type(item).__qualname__}")
    made = vm.native(enum.EnumMeta.__new__, meta, name, bases, namespace, **kwargs)
    note_class(vm, made)
    note_functions(vm, made)
    for member in list(made._member_map_.values()):
        vm.create(member)
    return made


def _asks_program(vm: Interpreter, classes: Any) -> bool:
    """Whether making and finding members runs code of the program's; Python's own is interpreted then."""
    return any(
        _is_programs(vm, vars(c).get(asked)) for c in classes if not vm.is_library(c.__module__) for asked in _ASKED
    )


def call_enumeration(vm: Interpreter, cls: Any, call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`cls(value)`, or of one without members `cls(name, members)`, which makes another."""
    if not cls.__members__ and (len(args) > 1 or "names" in kwargs):
        kwargs = {"module": vm.frames[-1].globals.get("__name__"), **kwargs}
    elif not _asks_program(vm, cls.__mro__):
        return vm.native(cls, *args, **kwargs)
    return vm.inline(call, (cls, *args), kwargs)


# ---- who asks ----


def _module_of_caller(vm: Interpreter, depth: Any = 1, default: Any = "__main__") -> Any:
    """The name of the module whose function is so many calls below that which asks."""
    if not isinstance(depth, int) or depth >= len(vm.frames):
        raise GraphBreak("the module of a caller of the compiled function is asked for")
    return vm.frames[-1 - depth].globals.get("__name__", default)


if hasattr(sys, "_getframemodulename"):
    ROWS.rule(sys._getframemodulename)(_module_of_caller)
ROWS.rule(typing._caller)(_module_of_caller)  # type: ignore[attr-defined]
