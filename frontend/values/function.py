"""Python functions: binding arguments to a frame, generators, functions made during capture."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..errors import CaptureError, UserRaise
from ..source import Attr, Const, Item, Source

if TYPE_CHECKING:
    from ..interpreter import Frame, Interpreter

__all__ = ["CallBack", "InterpretedGenerator", "bind", "function_source", "trampoline"]


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
    fast: dict[str, Any] = dict(zip(names[:n_pos], args, strict=False))
    n_given = len(args)
    if flags & inspect.CO_VARARGS:
        fast[names[n_pos + n_kwonly]] = tuple(args[n_pos:])
    elif n_given > n_pos:
        raise UserRaise(
            TypeError(f"{function.__qualname__}() takes {n_pos} positional arguments but {n_given} were given")
        )
    allowed = names[code.co_posonlyargcount : n_pos + n_kwonly]
    if kwargs or flags & inspect.CO_VARKEYWORDS:
        rest: dict[str, Any] = {}
        for name, value in kwargs.items():
            if name in allowed:
                if name in fast and names.index(name) < n_given:
                    raise UserRaise(TypeError(f"{function.__qualname__}() got multiple values for argument '{name}'"))
                fast[name] = value
            else:
                rest[name] = value
        if flags & inspect.CO_VARKEYWORDS:
            fast[names[n_pos + n_kwonly + bool(flags & inspect.CO_VARARGS)]] = rest
        elif rest:
            raise UserRaise(
                TypeError(f"{function.__qualname__}() got an unexpected keyword argument '{next(iter(rest))}'")
            )
    _defaults(vm, function, fast)
    return fast


def _defaults(vm: Interpreter, function: types.FunctionType, fast: dict[str, Any]) -> None:
    code = function.__code__
    n_pos, n_kwonly, names = code.co_argcount, code.co_kwonlyargcount, code.co_varnames
    missing = [i for i in range(n_pos) if names[i] not in fast]
    defaults = function.__defaults__ or ()
    first = n_pos - len(defaults)
    for i in missing:
        if i < first:
            raise UserRaise(TypeError(f"{function.__qualname__}() missing a required argument: '{names[i]}'"))
        fast[names[i]] = _default(vm, function, "__defaults__", i - first, defaults[i - first])
    for name in names[n_pos : n_pos + n_kwonly]:
        if name in fast:
            continue
        values = function.__kwdefaults__ or {}
        if name not in values:
            raise UserRaise(TypeError(f"{function.__qualname__}() missing a required keyword-only argument: '{name}'"))
        fast[name] = _default(vm, function, "__kwdefaults__", name, values[name])


def _default(vm: Interpreter, function: types.FunctionType, where: str, key: Any, value: Any) -> Any:
    if value is None or vm.is_created(function):
        return value
    source = Attr(function_source(vm, function), where)
    if type(value) in (bool, int, float, str) and vm.is_library_function(function):
        return value
    return vm.user.wrap(value, Item(source, key))


class InterpretedGenerator:
    """A generator of the interpreted program; a real iterator, so that C code can consume it."""

    def __init__(self, vm: Interpreter, frame: Frame) -> None:
        self.vm, self.frame = vm, frame
        self.started = self.finished = self.running = False
        self.__name__ = frame.code.co_name

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        """Resume with a value, as `generator.send`."""
        return self._resume(value, None)

    def throw(self, kind: Any, value: Any = None, trace: Any = None) -> Any:
        """Resume with an exception, as `generator.throw`."""
        error = kind if isinstance(kind, BaseException) else (value if isinstance(value, BaseException) else kind())
        return self._resume(None, error)

    def close(self) -> None:
        """Finish the generator, as `generator.close`."""
        if self.finished or not self.started:
            self.finished = True
            return
        try:
            self._resume(None, GeneratorExit())
        except (GeneratorExit, StopIteration):
            return
        raise RuntimeError("generator ignored GeneratorExit")

    def __del__(self) -> None:
        """Dropping a suspended generator runs its `finally` blocks, at the same point as in CPython."""
        if not self.started or self.finished or not self.vm.frames:
            return
        try:
            self.close()
        except CaptureError as error:
            self.vm.pending = self.vm.pending or error

    def _resume(self, value: Any, error: BaseException | None) -> Any:
        if self.running:
            raise ValueError("generator already executing")
        if self.finished:
            if error is not None:
                raise error
            raise StopIteration
        if not self.started and error is not None:
            self.finished = True
            raise error
        if self.started:
            self.frame.push(value)
        self.started = self.running = True
        try:
            done, result = self.vm.resume(self.frame, error)
        except UserRaise as raised:
            self.finished = True
            if isinstance(raised.value, StopIteration):
                raise RuntimeError("generator raised StopIteration") from raised.value
            raise raised.value from None
        except CaptureError:
            self.finished = True
            raise
        finally:
            self.running = False
        if done:
            self.finished = True
            raise StopIteration(result)
        return result


class CallBack:
    """A callable for C code that interprets `function` when it is called back."""

    __slots__ = ("function", "vm")

    def __init__(self, vm: Interpreter, function: Any) -> None:
        self.vm, self.function = vm, function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self.vm.call(self.function, args, kwargs)
        except UserRaise as raised:
            raise raised.value from None


trampoline = CallBack
