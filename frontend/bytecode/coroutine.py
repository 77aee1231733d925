"""Coroutines and asynchronous generators of the interpreted program, and what `await`, `async with` and `async for` ask of objects.

A coroutine is driven by the program itself (`coroutine.send(None)`, another one's `await`); event loops, and what outlives the graph
suspended, are not captured. A coroutine that is dropped before it was awaited lets CPython run the frame, which warns of it.
"""

from __future__ import annotations

import builtins
import sys
import types
from typing import Any

from ..calls.registry import Rows
from ..errors import GraphBreak, UserRaise
from ..guards import process_state
from ..state import Interpreter
from ..values import object as objects
from ..values.identity import PLAIN_KINDS
from ..values.kinds import isinstance
from ..values.protocol import checked_iterator
from . import closing
from .exceptions import note
from .frame import Frame
from .generator import InterpretedGenerator

__all__ = ["ROWS", "InterpretedAsyncGenerator", "InterpretedCoroutine", "awaited", "special", "suspended_kind"]

ROWS = Rows()
_ITERABLE = 0x100  # the flag of what `types.coroutine` decorates


class InterpretedCoroutine(InterpretedGenerator):
    """A coroutine of the interpreted program."""

    kind, plain = "coroutine", types.CoroutineType
    __iter__ = __next__ = None  # type: ignore[assignment]
    cr_origin = None

    def __await__(self) -> _Awaited:
        return _Awaited(self)

    @property
    def cr_running(self) -> bool:
        """Whether it is being run."""
        return self.running

    @property
    def cr_suspended(self) -> bool:
        """Whether it waits for something."""
        return self.gi_suspended

    @property
    def cr_frame(self) -> types.FrameType | None:
        """What stands for its frame, until it is finished."""
        return self.gi_frame

    @property
    def cr_code(self) -> types.CodeType:
        """The function's code."""
        return self.frame.code

    @property
    def cr_await(self) -> Any:
        """What it waits for."""
        return self.gi_yieldfrom

    def step(self, value: Any, error: BaseException | None) -> tuple[bool, Any]:
        """As of a generator, but a second time is an error."""
        if self.finished and not self.running:
            raise UserRaise(RuntimeError("cannot reuse already awaited coroutine"))
        return super().step(value, error)

    def __del__(self) -> None:
        vm = self.vm
        if not self.started and not self.finished and hasattr(vm, "frames"):
            reason = "a coroutine is dropped that was never awaited"
            vm.delayed_break = vm.delayed_break or closing.must_run(self, reason)  # type: ignore[attr-defined]
            return
        super().__del__()


def _absent(_: Any) -> None:
    raise AttributeError("'async_generator' object has no attribute of generators")


class InterpretedAsyncGenerator(InterpretedGenerator):
    """An asynchronous generator of the interpreted program. What it yields, in contrast to what it awaits, comes as `_Yielded`."""

    kind, plain = "async generator", types.AsyncGeneratorType
    ends = (StopIteration, StopAsyncIteration)
    __iter__ = __next__ = None  # type: ignore[assignment]
    send = throw = close = property(_absent)  # type: ignore[assignment]

    def __init__(self, vm: Interpreter, frame: Frame) -> None:
        super().__init__(vm, frame)
        self.busy = self.closed = self.hooked = False

    def __aiter__(self) -> InterpretedAsyncGenerator:
        return self

    def __anext__(self) -> _Asked:
        return self.asend(None)

    def asend(self, value: Any) -> _Asked:
        """What resumes it with a value, when it is awaited."""
        self._check_hooks()
        return _Asked(self, "asend", value)

    def athrow(self, *args: Any) -> _Asked:
        """What resumes it with an exception, when it is awaited."""
        self._check_hooks()
        return _Asked(self, "athrow", args)

    def aclose(self) -> _Asked:
        """What finishes it, when it is awaited."""
        self._check_hooks()
        return _Asked(self, "aclose", (GeneratorExit,))

    def _check_hooks(self) -> None:
        """Event loops are told of each asynchronous generator that begins."""
        if not self.hooked and process_state.ask(self.vm, sys.get_asyncgen_hooks, (), {}) != (None, None):
            raise GraphBreak("an asynchronous generator begins that an event loop is told of")
        self.hooked = True

    def thrown(self, args: tuple[Any, ...]) -> BaseException:
        """The exception that `athrow(*args)` means."""
        return self._thrown_by(*args)

    @property
    def ag_running(self) -> bool:
        """Whether somebody waits for it."""
        return self.busy

    @property
    def ag_frame(self) -> types.FrameType | None:
        """What stands for its frame, until it is finished."""
        return self.gi_frame

    @property
    def ag_code(self) -> types.CodeType:
        """The function's code."""
        return self.frame.code

    @property
    def ag_await(self) -> Any:
        """What it waits for."""
        return self.gi_yieldfrom


def _refused(text: str) -> RuntimeError:
    """CPython's own error of an asynchronous generator."""
    return RuntimeError(text)


class _Yielded:
    """A value that an asynchronous generator yields."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class _Asked:
    """What `asend`, `athrow` and `aclose` give: an iterator of what the generator awaits, whose result is what it yields next."""

    def __init__(self, generator: InterpretedAsyncGenerator, way: str, value: Any) -> None:
        self.generator, self.way, self.value = generator, way, value
        self.state = "new"

    def __await__(self) -> _Asked:
        return self

    __iter__ = __await__

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        """Resume with a value."""
        generator, error = self.generator, None
        if self.state == "done":
            raise _refused(f"cannot reuse already awaited {_NAMES[self.way]}")
        if self.way != "asend" and generator.finished and not generator.running:
            self.state = "done"
            raise StopIteration
        if self.state == "new":
            self._check_free()
            if self.way == "asend":
                value = self.value if value is None else value
            elif generator.closed:
                self.state = "done"
                raise StopAsyncIteration
            elif value is not None:
                raise _refused("can't send non-None value to a just-started coroutine")
            else:
                error = generator.thrown(self.value)
                generator.closed = self.way == "aclose"
            self.state = "begun"
        return self._resume(value, error)

    def throw(self, *args: Any) -> Any:
        """Resume with an exception."""
        if self.state == "done":
            raise _refused(f"cannot reuse already awaited {_NAMES[self.way]}")
        if self.state == "new":
            raise GraphBreak(f"throw() of an {self.way}() that has not begun is called")
        return self._resume(None, self.generator.thrown(args))

    def close(self) -> None:
        """Do not go on."""
        if self.state == "begun":
            raise GraphBreak(f"an {self.way}() of an asynchronous generator is closed half-way")
        self.state = "done"

    def _check_free(self) -> None:
        if self.generator.busy:
            self.state = self.state if self.way == "asend" else "done"
            name = "anext" if self.way == "asend" else self.way
            raise _refused(f"{name}(): asynchronous generator is already running")

    def _resume(self, value: Any, error: BaseException | None) -> Any:
        generator = self.generator
        vm = generator.vm
        vm.called_back, vm.under_way = vm.called_back + 1, vm.step
        generator.busy = True
        try:
            more, result = generator.step(value, error)
        except UserRaise as raised:
            self._ended(raised.value)
            vm.carried = note(raised.value)
            raise raised.value from None
        if not more:
            self._ended(StopAsyncIteration())
            raise StopAsyncIteration
        if type(result) is not _Yielded:
            return vm.methods.handed(result)
        generator.busy, self.state = False, "done"
        if self.way == "aclose":
            raise _refused("async generator ignored GeneratorExit")
        raise StopIteration(result.value)

    def _ended(self, error: BaseException) -> None:
        """The generator has come to its end; to `aclose` that is no error."""
        generator, self.state = self.generator, "done"
        generator.busy = False
        if isinstance(error, StopAsyncIteration | GeneratorExit):
            generator.closed = True
            if self.way == "aclose":
                raise StopIteration


_NAMES = {"asend": "__anext__()/asend()", "athrow": "aclose()/athrow()", "aclose": "aclose()/athrow()"}
PLAIN_KINDS |= {
    InterpretedCoroutine: types.CoroutineType,
    InterpretedGenerator: types.GeneratorType,
    InterpretedAsyncGenerator: types.AsyncGeneratorType,
}
_SUSPENDED: dict[int, type[InterpretedGenerator]] = {
    0x20: InterpretedGenerator,
    0x80: InterpretedCoroutine,
    0x200: InterpretedAsyncGenerator,
}


def suspended_kind(code: types.CodeType) -> type[InterpretedGenerator] | None:
    """What a call of a function with this code makes, where it does not run at once."""
    return _SUSPENDED.get(code.co_flags & 0x2A0)


@ROWS.rule(builtins.aiter)
def _aiter(vm: Interpreter, value: Any) -> Any:
    made = vm.call(special(vm, value, "__aiter__", "'{}' object is not an async iterable"), (), {})
    special(vm, made, "__anext__", "aiter() returned not an async iterator of type '{}'")
    return made


@ROWS.rule(builtins.anext)
def _anext(vm: Interpreter, value: Any, *default: Any) -> Any:
    if default:
        raise GraphBreak("anext() is called with a default")
    return vm.call(special(vm, value, "__anext__", "'{}' object is not an async iterator"), (), {})


class _Awaited:
    """What `coroutine.__await__()` gives."""

    def __init__(self, coroutine: InterpretedCoroutine) -> None:
        self.coroutine = coroutine

    def __iter__(self) -> _Awaited:
        return self

    def __next__(self) -> Any:
        return self.coroutine.send(None)

    def send(self, value: Any) -> Any:
        """Resume with a value."""
        return self.coroutine.send(value)

    def throw(self, *args: Any) -> Any:
        """Resume with an exception."""
        return self.coroutine.throw(*args)

    def close(self) -> Any:
        """Finish it."""
        return self.coroutine.close()


def special(vm: Interpreter, value: Any, name: str, missing: str) -> Any:
    """A special method of the program's, with its object bound; TypeError(missing) where its class has none."""
    kind = vm.type_of(value)
    if isinstance(value, InterpretedAsyncGenerator) and name in ("__aiter__", "__anext__"):
        return getattr(value, name)
    raw, owner = objects.lookup(kind, name)
    if owner is None or raw is None:
        raise UserRaise(TypeError(missing.format(kind.__name__)))
    if not isinstance(raw, types.FunctionType):
        raise GraphBreak(f"{name} of a {kind.__qualname__} is no function of Python's")
    return types.MethodType(raw, value)


_NO_AWAIT = (
    "object {} can't be used in 'await' expression",
    "'async with' received an object from __aenter__ that does not implement __await__: {}",
    "'async with' received an object from __aexit__ that does not implement __await__: {}",
)


def awaited(vm: Interpreter, value: Any, place: int) -> Any:
    """The iterator that `await value` runs; `place` is 1 or 2 for what `async with` awaits."""
    if isinstance(value, InterpretedCoroutine):
        if value.cr_await is not None:
            raise UserRaise(RuntimeError("coroutine is being awaited already"))
        return value
    if type(value) is _Asked:
        return value
    if isinstance(value, InterpretedGenerator) and value.frame.code.co_flags & _ITERABLE:
        return value
    made = vm.call(special(vm, value, "__await__", _NO_AWAIT[place]), (), {})
    if isinstance(made, InterpretedCoroutine):
        raise UserRaise(TypeError("__await__() returned a coroutine"))
    try:
        return checked_iterator(vm, made)
    except UserRaise:
        name = vm.type_of(made).__name__
        raise UserRaise(TypeError(f"__await__() returned non-iterator of type '{name}'")) from None


# ---- opcodes, each under its name ----


def GET_AWAITABLE(vm: Interpreter, frame: Frame, place: int | None) -> None:
    frame.push(awaited(vm, frame.pop(), place or 0))


def ASYNC_GEN_WRAP(vm: Interpreter, frame: Frame, _: Any) -> None:
    frame.push(_Yielded(frame.pop()))


def BEFORE_ASYNC_WITH(vm: Interpreter, frame: Frame, _: Any) -> None:
    manager = frame.pop()
    missing = "'{}' object does not support the asynchronous context manager protocol"
    enter = special(vm, manager, "__aenter__", missing)
    leave = special(vm, manager, "__aexit__", f"{missing} (missed __aexit__ method)")
    frame.push(leave)
    frame.push(vm.call(enter, (), {}))


def GET_AITER(vm: Interpreter, frame: Frame, _: Any) -> None:
    missing = "'async for' requires an object with __aiter__ method, got {}"
    made = vm.call(special(vm, frame.pop(), "__aiter__", missing), (), {})
    special(
        vm, made, "__anext__", "'async for' received an object from __aiter__ that does not implement __anext__: {}"
    )
    frame.push(made)


def GET_ANEXT(vm: Interpreter, frame: Frame, _: Any) -> None:
    missing = "'async for' requires an iterator with __anext__ method, got {}"
    made = vm.call(special(vm, frame.stack[-1], "__anext__", missing), (), {})
    try:
        frame.push(awaited(vm, made, 0))
    except UserRaise as raised:
        name = vm.type_of(made).__name__
        error = TypeError(f"'async for' received an invalid object from __anext__: {name}")
        error.__cause__ = error.__context__ = raised.value
        raise UserRaise(error) from None


def END_ASYNC_FOR(vm: Interpreter, frame: Frame, _: Any) -> None:
    error = frame.pop()
    if not isinstance(error, StopAsyncIteration):
        raise UserRaise(error, again=True)
    frame.pop()
