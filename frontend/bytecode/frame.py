"""One activation of a function during capture: its variables, its value stack, its place in the normal form."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from .instruction import disassemble, lines_of

__all__ = ["NULL", "Frame", "Lasti", "Saved", "Whence", "kinds_of"]


class _Null:
    def __repr__(self) -> str:
        return "NULL"


NULL = _Null()


class Saved:
    """The stack slot of an exception handler: what was being handled `before`, and what is handled `now`."""

    __slots__ = ("before", "now")

    def __init__(self, before: BaseException | None, now: BaseException) -> None:
        self.before, self.now = before, now


class Lasti:
    """The stack slot in which CPython keeps where a frame was when an exception was raised."""

    __slots__ = ("index",)

    def __init__(self, index: int | None = None) -> None:
        self.index = index


class Frame:
    """One activation: code, locals (cells included), value stack, position.

    `before` is the stack as the current instruction found it, `begun` the number of that instruction in the capture.
    `names` is the namespace of a class whose body this is. `direct` says that the result is the result of the caller's CALL instruction, with nothing left to do in between.
    """

    __slots__ = (
        *(
            "again",
            "before",
            "begun",
            "code",
            "direct",
            "error",
            "fast",
            "function",
            "globals",
            "ip",
            "module",
            "names",
            "program",
            "result",
            "shown",
            "stack",
            "stored",
        ),
    )

    def __init__(self, function: types.FunctionType, fast: dict[str, Any]) -> None:
        self.function = function
        self.code = function.__code__
        self.globals = function.__globals__
        self.fast = fast
        self.stack: list[Any] = []
        self.program = disassemble(self.code)
        self.ip = 0
        self.module: tuple[str, ...] | None = None  # what `module_stack` has found
        self.names: Any = None
        self.stored: dict[str, Any] | None = None  # what `locals()` gives, and `exec` stores in
        self.result: Any = None
        self.error: BaseException | None = None
        self.before: list[Any] = []
        self.begun = 0
        self.direct = False
        self.again: int | None = None  # where an exception that is raised again was raised, if that is known
        self.shown: Any = None  # what the program sees of the frame, once it has looked

    def left(self) -> None:
        """It is not run any more, or not for now."""
        if self.shown is not None and (at := self.seen_at) is not None:  # else it is at the line that has raised
            self.shown.line = lines_of(self.code)[at]

    def push(self, value: Any) -> None:
        """Push one value."""
        self.stack.append(value)

    def pop(self) -> Any:
        """Pop one value."""
        return self.stack.pop()

    def pops(self, n: int) -> list[Any]:
        """Pop `n` values, first pushed first."""
        if n == 0:
            return []
        values = self.stack[-n:]
        del self.stack[-n:]
        return values

    @property
    def index(self) -> int:
        """Which instruction is the current one."""
        return min(max(self.ip - 1, 0), len(self.program.instructions) - 1)

    @property
    def seen_at(self) -> int | None:
        """The instruction at which who looks at the frame sees it: where an exception was raised that is raised again, if that is known."""
        current = self.program.instructions[self.index]
        return self.again if current.op == "RERAISE" and current.arg else self.index

    @property
    def line(self) -> int:
        """The source line of the current instruction."""
        instructions, at = self.program.instructions, self.ip - 1
        return instructions[at if 0 <= at < len(instructions) else self.index].line


def module_stack(frames: Sequence[Frame], source_of: Callable[[Any], Any]) -> dict[str, tuple[str, ...]]:
    """The modules whose code runs, outermost first: how the program calls each ("self.blocks.0") and its class, as torch's graphs keep them.

    One without a name in the program is left out.
    """
    found = {}
    for frame in frames:
        if frame.module is None:
            frame.module = _module_of(frame, source_of)
        if frame.module:
            found[frame.module[0]] = frame.module
    return found


def _module_of(frame: Frame, source_of: Callable[[Any], Any]) -> tuple[str, ...]:
    """Name and class of the module that a frame's function is given first; nothing where it is given none that has a name."""
    own = frame.fast.get(frame.code.co_varnames[0]) if frame.code.co_argcount else None
    kind = type(own)
    if not issubclass(kind, nn.Module) or (source := source_of(own)) is None:  # asks nothing of the program's object
        return ()
    return str(source.name()), ".".join(type.__getattribute__(kind, word) for word in ("__module__", "__qualname__"))


class Whence:
    """Where a capture is."""

    def __init__(self, vm: Any) -> None:
        self.vm = vm

    def __call__(self) -> dict[str, Any]:
        """What FX nodes keep of where they are made."""
        return {"stack_trace": self.vm.trace(), "nn_module_stack": module_stack(self.vm.frames, self.vm.user.source_of)}

    def run(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a function of C as the line that capture is at: what it warns of names that line, and is remembered by its module."""
        if not self.vm.frames:  # what capture adds behind the program
            return function(*args, **kwargs)
        frame = self.vm.frames[-1]
        code = _call.__code__.replace(co_filename=frame.code.co_filename, co_firstlineno=frame.line)
        return types.FunctionType(code, frame.globals)(function, args, kwargs)


def _call(function: Any, args: Any, kwargs: Any) -> Any: return function(*args, **kwargs)  # fmt: skip  # noqa: E704


def kinds_of(values: list[Any]) -> list[str]:
    """The kind of each entry of a value stack, as pieces name them."""
    out: list[str] = []
    for value in values:
        if value is NULL:
            out.append("null")
        elif type(value) is Saved:
            out.append("saved")
        elif type(value) is Lasti:
            out.append("lasti")
        else:
            out.append("value")
    return out
