"""Arguments, and lists about to be appended to, that the program has not looked at yet: moved about without a guard, read at first use."""

from __future__ import annotations

from typing import Any

from ..errors import GraphBreak
from ..guards.source import Source
from ..state import Interpreter

__all__ = ["Append", "Unread"]

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

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unread.read().append, name)

    def __repr__(self) -> str:
        return repr(self.unread.read().append)
