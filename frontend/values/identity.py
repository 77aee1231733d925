"""Where objects lie, which is elsewhere in each call: `id(obj)`, and text that shows it (`<A object at 0x7f...>`).

`id(obj)` is a stand-in for a number: it is compared with others of its kind, and is a key where capture made the object.

Capture makes and compares text as it is. Where it is given out, the entry writes the address of the object that the call has made, or
was given, in its place. What looks at text with the address of one of the caller's objects guards which object that is.
"""

from __future__ import annotations

import gc
import re
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..calls.visibility import is_same
from ..errors import GraphBreak
from ..state import Interpreter
from .constant import is_constant, is_static
from .container import GlobalsDict, InstanceDict
from .kinds import isinstance
from .text import Text

__all__ = ["PLAIN_KINDS", "Addresses", "Identity"]


class Identity:
    """The address of an object, or the hash that CPython makes of it. Nobody outside has that of one that capture made; with any other one, a plain number may be equal."""

    __slots__ = ("made", "number", "value", "vm")

    def __init__(self, vm: Interpreter, value: Any, number: Callable[[Any], int] = id) -> None:
        self.vm, self.value, self.number = vm, value, number
        first = self._parts()[0]
        self.made = vm.user.source_of(first) is None and not is_constant(first)

    def __eq__(self, other: object) -> bool:
        if type(other) is Identity:
            if self.number is not other.number:
                raise _refusal()
            return len(mine := self._parts()) == len(theirs := other._parts()) and all(
                is_same(self.vm, x, y) for x, y in zip(mine, theirs, strict=True)
            )
        if not self.made and isinstance(other, int):
            raise _refusal()
        return self.made and other == self.number(self.value)

    def _parts(self) -> tuple[Any, ...]:
        """What the number is made of: each time that a method is read it is another object, with the hash of the last one."""
        value = self.value
        if self.number is hash and isinstance(value, types.MethodType):
            return value.__self__, value.__func__
        if self.number is hash and type(value) in _METHODS_IN_C:
            return value.__self__, sys.intern(value.__qualname__)
        return (value,)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        if not self.made:
            raise _refusal()
        return hash(self.number(self.value))

    def __bool__(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        raise _refusal()


_METHODS_IN_C = (types.BuiltinMethodType, types.MethodWrapperType)


def _refusal() -> GraphBreak:
    return GraphBreak("id() of an object is read")


def _refuse(*_: Any) -> Any:
    raise _refusal()


_OPERATORS = """
add sub mul truediv floordiv mod divmod pow lshift rshift and or xor
""".split()  # noqa: SIM905
for _name in (
    *_OPERATORS,
    *(f"r{name}" for name in _OPERATORS),
    *"lt le gt ge neg pos abs invert int float index round trunc floor ceil complex repr str format reduce_ex".split(),  # noqa: SIM905
):
    setattr(Identity, f"__{_name}__", _refuse)

# What the program takes stand-ins for.
PLAIN_KINDS: dict[type, type] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
PLAIN_KINDS |= {InstanceDict: dict, GlobalsDict: dict, Identity: int, Text: str}


# ---- text ----

_MARK = " at 0x"
_ADDRESS = re.compile(r"(?<= at )0x[0-9a-fA-F]+")
_MOST = 2_000  # objects that are looked at


class Addresses:
    """The objects whose addresses stand in text, by address."""

    def __init__(self, vm: Interpreter) -> None:
        self.vm = vm
        self.shown: dict[int, Any] = {}
        self.callers: dict[int, Any] = {}  # of these what the caller has made

    def note(self, result: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """C code has run: whose addresses the text shows that it has made, or which one it has looked at."""
        if type(result) is not str:
            self.looked_at(args)
        elif _MARK in result:
            given = (getattr(function, "__self__", None), args, kwargs)
            for found in _ADDRESS.findall(result):
                address = int(found, 16)
                if address not in self.shown and not _stands_in(found, given):
                    self._written(address, given)

    def note_error(self, error: BaseException, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """C code has raised an exception of its own, whose message may show where objects lie."""
        for text in error.args:
            if type(text) is str and _MARK in text:
                self.note(text, function, args, kwargs)

    def _written(self, address: int, given: Any) -> None:
        value = next((v for v in self._reached(given) if id(v) == address), self)
        if value is self:
            raise GraphBreak("text shows the address of an object that is not known")
        if is_static(value) or is_constant(value):
            return
        known = self.vm.user.by_value.get(address)
        if known is not None and known.real is not value:  # that of a stand-in
            raise GraphBreak("text shows the address of an object that the caller may change")
        self.shown[address] = value
        if known is not None:
            self.callers[address] = value

    def _reached(self, value: Any) -> Iterator[Any]:
        """What C code may have seen."""
        waiting, seen = [value], set[int]()
        while waiting and len(seen) < _MOST:
            value = waiting.pop()
            if id(value) in seen or isinstance(value, type):
                continue
            seen.add(id(value))
            yield value
            if not self.vm.is_frontend_class(type(value)):
                waiting += gc.get_referents(value)

    def looked_at(self, given: Any) -> None:
        """Text that shows where the caller's objects lie is compared or searched: a guard says of each which it is."""
        for value in given:
            if type(value) is str and _MARK in value:
                for found in _ADDRESS.findall(value):
                    if (known := self.callers.pop(int(found, 16), None)) is not None:
                        self.vm.guards.add("is", self.vm.user.by_value[id(known)].source, known)

    def parts(self, text: str) -> list[Any]:
        """The pieces of a text; in place of an address the object that lies there. Nothing where it shows none."""
        parts: list[Any] = []
        end = 0
        for found in _ADDRESS.finditer(text) if _MARK in text else ():
            address = int(found[0], 16)
            value = self.shown.get(address, self.vm.created.get(address))
            if value is not None:
                parts += [text[end : found.start()], (value,)]
                end = found.end()
        return [*parts, text[end:]] if parts else []


def _stands_in(text: str, given: Any) -> bool:
    """Whether an address is part of text that was there before."""
    if type(given) is str:
        return text in given
    if type(given) in (tuple, list):
        return any(_stands_in(text, value) for value in given)
    if isinstance(given, BaseException):
        return _stands_in(text, given.args)
    return type(given) is dict and any(_stands_in(text, value) for value in given.values())
