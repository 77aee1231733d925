"""Generators of the interpreted program: real iterators, so that C code can consume them."""

from __future__ import annotations

import types
import warnings
from collections.abc import Iterator
from typing import Any, cast

from ..errors import CaptureError, UserRaise
from ..state import Interpreter
from ..values.kinds import isinstance
from . import closing
from .exceptions import add_entry, note, shown_frame
from .frame import Frame
from .version import CLOSE_RETURNS, THROW_WARNS

__all__ = ["KINDS", "InterpretedGenerator", "stopped_inside"]

KINDS = {0x80: "coroutine", 0x200: "async generator"}  # what is suspended, by a flag of its code; else a generator


def stopped_inside(error: BaseException, kind: str = "generator") -> BaseException:
    """What a StopIteration that a generator's own code raises turns into."""
    name = "StopIteration" if isinstance(error, StopIteration) else "StopAsyncIteration"
    made = RuntimeError(f"{kind} raised {name}")
    made.__cause__ = made.__context__ = error
    return made


_OLD_THROW = "the (type, exc, tb) signature of throw() is deprecated, use the single-arg signature instead."


class InterpretedGenerator:
    """A generator of the interpreted program; a real iterator, so that C code can consume it."""

    kind, plain = "generator", cast(type, types.GeneratorType)  # what it is called, and is for `isinstance`
    ends: tuple[type[BaseException], ...] = (StopIteration,)  # what its code cannot raise
    __class__ = property(lambda self: self.plain)  # type: ignore[assignment]

    def __init__(self, vm: Interpreter, frame: Frame) -> None:
        self.vm, self.frame = vm, frame
        self.started = self.finished = self.running = False
        self.places, self.managed = closing.places_of(vm), closing.is_managed(vm)
        vm.generators.add(self)
        self.__name__ = frame.function.__name__
        self.__qualname__ = frame.function.__qualname__

    # ---- what the program sees; C code calls these too ----

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        """Resume with a value, as `generator.send`."""
        return self._for_python(value, None)

    def throw(self, kind: Any, *rest: Any) -> Any:
        """Resume with an exception, as `generator.throw`, which from 3.12 on warns of more than one argument."""
        if rest and THROW_WARNS:
            self.vm.call(warnings.warn, (_OLD_THROW, DeprecationWarning), {})
        return self._for_python(None, self._thrown_by(kind, *rest))

    def _thrown_by(self, kind: Any, value: Any = None, trace: Any = None) -> BaseException:
        """The exception that `throw(kind, value, trace)` means."""
        if trace is not None and not isinstance(trace, types.TracebackType):
            raise TypeError("throw() third argument must be a traceback object")
        if isinstance(kind, type) and issubclass(kind, BaseException):
            made = value if isinstance(value, kind) else self._made(kind, value)
            if trace is not None:
                made.__traceback__ = trace
            return made
        if not isinstance(kind, BaseException):
            name = type(kind).__name__
            raise TypeError(f"exceptions must be classes or instances deriving from BaseException, not {name}")
        if value is not None:
            raise TypeError("instance exception may not have a separate value")
        return kind

    def _made(self, kind: Any, value: Any) -> BaseException:
        """The exception that is thrown, or the one that making it raises."""
        args = value if type(value) is tuple else () if value is None else (value,)
        try:
            made = self.vm.call(kind, args, {})
        except UserRaise as raised:
            return raised.value
        if isinstance(made, BaseException):
            return made
        text = f"calling {kind} should have returned an instance of BaseException, not {type(made)}"
        return TypeError(text)

    def close(self) -> Any:
        """Finish the generator, as `generator.close`."""
        if self.finished or not self.started:
            self._finish()
            return None
        leaving = GeneratorExit()
        try:
            more, result = self.step(None, leaving)
        except UserRaise as raised:
            if isinstance(raised.value, GeneratorExit):
                return None
            self.vm.carried = note(raised.value)
            error = raised.value
        else:
            if not more:
                return result if CLOSE_RETURNS else None
            error = RuntimeError(f"{self.kind} ignored GeneratorExit")
        raise error

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"'generator' object has no attribute '{name}'", name=name, obj=self)

    def __repr__(self) -> str:
        return f"<{self.kind} object {self.__qualname__} at {id(self):#x}>"

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("cannot pickle 'generator' object")

    @property
    def gi_running(self) -> bool:
        """Whether it is being run."""
        return self.running

    @property
    def gi_suspended(self) -> bool:
        """Whether it waits at a yield."""
        return self.started and not self.running and not self.finished

    @property
    def gi_frame(self) -> types.FrameType | None:
        """What stands for its frame, until it is finished."""
        return None if self.finished else shown_frame(self.frame)

    @property
    def gi_code(self) -> types.CodeType:
        """The generator function's code."""
        return self.frame.code

    @property
    def gi_yieldfrom(self) -> Any:
        """The iterator that it delegates to."""
        return self._delegate() if self.gi_suspended else None

    def rename(self, slot: str, value: Any) -> None:
        """Set `__name__` or `__qualname__`, the attributes of generators that can be set."""
        if not hasattr(types.GeneratorType, slot):
            raise AttributeError(f"'generator' object has no attribute '{slot}'")
        if slot not in ("__name__", "__qualname__"):
            raise AttributeError(f"attribute '{slot}' of 'generator' objects is not writable")
        if not isinstance(value, str):
            raise TypeError(f"{slot} must be set to a string object")
        self.__dict__[slot] = value

    def __del__(self) -> None:
        """Dropping a suspended generator runs its `finally` blocks, at the same point as in CPython."""
        vm = self.vm
        if not self.started or self.finished or not hasattr(vm, "frames"):  # the capture may be done
            return
        try:
            InterpretedGenerator.close(self)
        except CaptureError:
            vm.delayed_break = vm.delayed_break or closing.must_run(self)
        except Exception as error:
            reason = f"a generator that is dropped raises {type(error).__name__}"
            vm.delayed_break = vm.delayed_break or closing.must_run(self, reason)

    # ---- running ----

    def step(self, value: Any, error: BaseException | None) -> tuple[bool, Any]:
        """(True, what it yields next) or (False, what it returns); `error` is raised where it stands.

        Raises UserRaise with what leaves the generator.
        """
        if self.running:
            raise UserRaise(ValueError(f"{self.kind} already executing"))
        if self.finished:
            if error is not None:
                raise UserRaise(error)
            return False, None
        if not self.started:
            if error is not None:
                add_entry(self.vm, error, self.frame)
                self._finish()
                raise UserRaise(error)
            if value is not None:
                raise UserRaise(TypeError(f"can't send non-None value to a just-started {self.kind}"))
        elif error is not None:
            delegate = self._delegate()
            if delegate is not None:
                done = self._throw_into(delegate, error)
                if done is not None:
                    return done
                error = self._thrown
        return self._resume(value, error)

    def _resume(self, value: Any, error: BaseException | None, at: int | None = None) -> tuple[bool, Any]:
        vm, frame = self.vm, self.frame
        if at is not None:
            frame.stack[-1] = value
            frame.ip = at
        elif self.started:
            frame.push(value)
        outer = vm.current_error
        self._handle_again(outer)
        self.started = self.running = True
        try:
            done, result = vm.resume(frame, error)
        except UserRaise as raised:
            self._finish()
            if isinstance(raised.value, self.ends):
                raise UserRaise(stopped_inside(raised.value, self.kind)) from None
            raise
        except CaptureError:
            self.finished = True
            raise
        finally:
            self.running = False
            vm.current_error = outer
        if done:
            self._finish()
        return not done, result

    def _handle_again(self, outer: BaseException | None) -> None:
        """The exceptions that the generator was handling are handled again, on top of what its caller handles now."""
        handled = [v for v in self.frame.stack if hasattr(v, "before")]
        if handled:
            handled[0].before = outer
            self.vm.current_error = handled[-1].now

    def _delegate(self) -> Any:
        """The iterator of a `yield from` that the generator is suspended in."""
        frame, instructions = self.frame, self.frame.program.instructions
        after = instructions[frame.ip] if frame.ip < len(instructions) else None
        if after is None or after.op != "JUMP" or not frame.stack:
            return None
        return frame.stack[-1] if instructions[after.arg].op == "SEND" else None

    def _throw_into(self, delegate: Any, error: BaseException) -> tuple[bool, Any] | None:
        """Raise in the delegate; None when the generator itself has to see an exception, in `_thrown`."""
        vm = self.vm
        self._thrown = error
        send = self.frame.program.instructions[self.frame.program.instructions[self.frame.ip].arg]
        outer = vm.current_error
        self._handle_again(outer)
        self.running = True
        try:
            if isinstance(error, GeneratorExit):
                if isinstance(delegate, InterpretedGenerator):
                    vm.native(delegate.close)
                elif hasattr(vm.type_of(delegate), "close"):
                    vm.call(vm.load_attr(delegate, "close"), (), {})
                return None
            if isinstance(delegate, InterpretedGenerator):
                more, result = delegate.step(None, error)
            elif hasattr(vm.type_of(delegate), "throw"):
                more, result = True, vm.call(vm.load_attr(delegate, "throw"), (error,), {})
            else:
                return None
        except UserRaise as raised:
            if not isinstance(raised.value, StopIteration):
                self._thrown = raised.value
                return None
            more, result = False, raised.value.value
        finally:
            self.running = False
            vm.current_error = outer
        return (True, result) if more else self._resume(result, None, send.arg)

    def _for_python(self, value: Any, error: BaseException | None) -> Any:
        self.vm.called_back, self.vm.under_way = self.vm.called_back + 1, self.vm.step
        try:
            more, result = self.step(value, error)
        except UserRaise as raised:
            self.vm.carried = note(raised.value)
            raise raised.value from None
        if more:
            return self.vm.methods.handed(result)
        raise StopIteration if result is None else StopIteration(result)

    def _finish(self) -> None:
        self.finished = True
        self.frame.stack.clear()
        self.frame.before = []
        for name in (*self.frame.code.co_varnames, *self.frame.code.co_cellvars):
            self.frame.fast.pop(name, None)
