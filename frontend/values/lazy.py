"""Arguments, and lists about to be appended to, that the program has not looked at yet: moved about without a guard, read at first use."""

from __future__ import annotations

import types
from typing import Any

from ..calls.registry import called_row
from ..calls.tables import REFUSED_BUILTINS
from ..errors import GraphBreak
from ..guards.source import Source
from ..state import Interpreter

__all__ = ["Append", "Unread", "breaks_at_once", "read_methods"]

_NOTHING = object()


class Unread:
    """An argument of the capture, or a list of the program's, by its source.

    `appended` are values that the program has appended to a list without looking at it, as loops do that collect their
    results: the list's contents need no guard then.
    """

    __slots__ = ("_read", "appended", "source", "value", "varies", "vm")

    def __init__(self, vm: Interpreter, value: Any, source: Source) -> None:
        self.vm, self.value, self.source = vm, value, source
        self.varies = source in vm.dynamic.marks.varying
        self.appended: list[Any] = []
        self._read: Any = _NOTHING

    def read(self) -> Any:
        """What stands for the argument on the stack, with the guards that pin it down."""
        if self._read is _NOTHING:
            if self.varies:
                name = self.source.name()
                what = "an intermediate value" if name.startswith("stack_") else name
                raise GraphBreak(
                    f"{what}, a {type(self.value).__name__}, is another one in every call",
                    "leave it: only what looks at it runs outside of graphs; or keep it out of the compiled function",
                )
            if self.appended:
                self.vm.user.forget_unread(self)
            self._read = self.vm.argument(self.value, self.source)
            if self.appended:
                self._read.extend(self.appended)
                self.appended = []
        return self._read

    def can_append(self) -> bool:
        """Whether a value can be appended without looking at the list."""
        known = id(self.value) in self.vm.user.by_real
        return type(self.value) is list and self._read is _NOTHING and (not known or bool(self.appended))

    def append(self, item: Any) -> None:
        """`list.append`."""
        if not self.appended:
            if not self.can_append():
                self.read().append(item)
                return
            self.vm.user.note_unread(self)
        self.appended.append(item)


class Append:
    """The bound method `append` of an unread list."""

    __slots__ = ("unread",)
    __name__ = "append"  # asked of all that is called: no reason to read the list

    def __init__(self, unread: Unread) -> None:
        self.unread = unread

    def __call__(self, item: Any) -> None:
        self.unread.append(item)

    @staticmethod
    def can_append() -> bool:
        """A method has no `append`."""
        return False

    def read(self) -> Any:
        """The method of what stands for the list: the program looks at it."""
        return self.unread.read().append

    def __getattr__(self, name: str) -> Any:
        return getattr(self.read(), name)

    def __repr__(self) -> str:
        return repr(self.read())


def read_methods(function: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a call, with methods of lists that nobody has looked at, unless it does no more than call them."""
    row = called_row(function)
    if type(function) in (types.FunctionType, types.MethodType) or row is not None and row.calls != ():
        return args
    return tuple(a.read() if type(a) is Append else a for a in args)


def breaks_at_once(head: list[Any]) -> bool:
    """Whether a call is of a builtin that always breaks the graph, such as `print`: its arguments stay unread."""
    return any(
        type(f) is types.BuiltinFunctionType and f.__module__ == "builtins" and f.__name__ in REFUSED_BUILTINS
        for f in (value.value if type(value) is Unread else value for value in head)
    )
