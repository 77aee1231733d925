"""Coroutines of the interpreted program, and what `await`, `async with` and `async for` ask of objects.

A coroutine is driven by the program itself (`coroutine.send(None)`, another one's `await`); event loops, async generators and coroutines
that outlive the graph are not captured. One that is dropped before it was awaited lets CPython run the frame, which warns of it.
"""

from __future__ import annotations

import types
from typing import Any

from ..errors import GraphBreak, UserRaise
from ..state import Interpreter
from ..values import object as objects
from ..values.identity import PLAIN_KINDS
from ..values.kinds import isinstance
from ..values.protocol import checked_iterator
from . import closing
from .frame import Frame
from .generator import InterpretedGenerator

__all__ = ["InterpretedCoroutine", "awaited", "special"]

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


PLAIN_KINDS |= {InterpretedCoroutine: types.CoroutineType, InterpretedGenerator: types.GeneratorType}


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
