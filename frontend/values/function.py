"""Python functions: binding arguments to a frame, callbacks for C code."""

from __future__ import annotations

import inspect
import types
from typing import Any

from ..bytecode.exceptions import binding_error, note
from ..errors import UserRaise
from ..guards.source import Attr, Const, Item, Source
from ..state import Interpreter
from .constant import is_constant
from .kinds import isinstance
from .namespaces import is_library_function, rely_on_definition

__all__ = ["CallBack", "bind", "function_source", "trampoline"]


def function_source(vm: Interpreter, function: types.FunctionType) -> Source:
    """Where the function came from; functions that guards hold by identity are their own root."""
    return vm.user.source_of(function) or Const(function, function.__name__)


def bind(
    vm: Interpreter, function: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """The frame's locals for a call, by CPython's own rules."""
    code = function.__code__
    n_pos, n_kwonly, flags = code.co_argcount, code.co_kwonlyargcount, code.co_flags
    names = code.co_varnames
    if len(args) == n_pos and not kwargs and not n_kwonly and not flags & _TAKES_MORE:
        return dict(zip(names, args, strict=False))
    fast: dict[str, Any] = dict(zip(names[:n_pos], args, strict=False))
    n_given = len(args)
    if flags & inspect.CO_VARARGS:
        fast[names[n_pos + n_kwonly]] = tuple(args[n_pos:])
    elif n_given > n_pos:
        raise UserRaise(binding_error(function, args, kwargs))
    allowed = names[code.co_posonlyargcount : n_pos + n_kwonly]
    if kwargs or flags & inspect.CO_VARKEYWORDS:
        rest: dict[str, Any] = {}
        for name, value in kwargs.items():
            if name in allowed:
                if name in fast and names.index(name) < n_given:
                    raise UserRaise(binding_error(function, args, kwargs))
                fast[name] = value
            else:
                rest[name] = value
        if flags & inspect.CO_VARKEYWORDS:
            fast[names[n_pos + n_kwonly + bool(flags & inspect.CO_VARARGS)]] = rest
        elif rest:
            raise UserRaise(binding_error(function, args, kwargs))
    _defaults(vm, function, fast, args, kwargs)
    return fast


_TAKES_MORE = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS


def _defaults(
    vm: Interpreter, function: types.FunctionType, fast: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    code = function.__code__
    n_pos, n_kwonly, names = code.co_argcount, code.co_kwonlyargcount, code.co_varnames
    missing = [i for i in range(n_pos) if names[i] not in fast]
    if missing and function.__defaults__ is not None:
        _rely_on_number(vm, function, "__defaults__")
    defaults = function.__defaults__ or ()
    first = n_pos - len(defaults)
    for i in missing:
        if i < first:
            rely_on_definition(vm, function, "__defaults__")
            raise UserRaise(binding_error(function, args, kwargs))
        fast[names[i]] = _default(vm, function, "__defaults__", i - first, defaults[i - first])
    for name in names[n_pos : n_pos + n_kwonly]:
        if name in fast:
            continue
        values = function.__kwdefaults__ or {}
        if name not in values:
            if function.__kwdefaults__ is None:
                rely_on_definition(vm, function, "__kwdefaults__")
            elif not vm.is_created(function):
                vm.guards.add("missing", Attr(function_source(vm, function), "__kwdefaults__"), name)
            raise UserRaise(binding_error(function, args, kwargs))
        fast[name] = _default(vm, function, "__kwdefaults__", name, values[name])


def _rely_on_number(vm: Interpreter, function: types.FunctionType, where: str) -> None:
    """A function that guards do not hold by identity may be another one in the next call, with as many defaults."""
    source = vm.user.source_of(function)
    if source is not None and not isinstance(source, Const):
        vm.guards.add("length", Attr(source, where), len(getattr(function, where)))


def _default(vm: Interpreter, function: types.FunctionType, where: str, key: Any, value: Any) -> Any:
    if vm.is_created(function):
        return value
    source = function_source(vm, function)
    # Which tuple holds the defaults of such a function is part of its definition, and a tuple never changes.
    known = isinstance(source, Const) and where == "__defaults__" and is_constant(value)
    library = is_library_function(vm, function)
    if isinstance(source, Const) and not library:
        vm.definitions.note_function(function, where)
    if known or is_constant(value) and library:
        return vm.user.held(value)
    return vm.user.wrap(value, Item(Attr(source, where), key))


class CallBack:
    """A callable for C code that interprets `function` when it is called back."""

    __slots__ = ("function", "vm")

    def __init__(self, vm: Interpreter, function: Any) -> None:
        self.vm, self.function = vm, function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        vm = self.vm
        vm.called_back, vm.under_way = vm.called_back + 1, vm.step
        recording, vm.recording = vm.recording, False  # what the rules call is recorded by them
        try:
            return vm.methods.handed(vm.call(self.function, args, kwargs))
        except UserRaise as raised:
            vm.carried = note(raised.value)
            raise raised.value from None
        finally:
            vm.recording = recording


trampoline = CallBack
