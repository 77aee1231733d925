"""`id(obj)` of what has another address in each call: a number that is compared with others of its kind, and is a key where capture made the object."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..calls.visibility import is_same
from ..errors import GraphBreak
from ..state import Interpreter
from .constant import is_constant
from .container import InstanceDict
from .text import Text

__all__ = ["PLAIN_KINDS", "Identity"]


class Identity:
    """The address of an object, or the hash that CPython makes of it. Nobody outside has that of one that capture made; with any other one, a plain number may be equal."""

    __slots__ = ("made", "number", "value", "vm")

    def __init__(self, vm: Interpreter, value: Any, number: Callable[[Any], int] = id) -> None:
        self.vm, self.value, self.number = vm, value, number
        self.made = vm.user.source_of(value) is None and not is_constant(value)

    def __eq__(self, other: object) -> bool:
        if type(other) is Identity:
            if self.number is not other.number:
                raise _refusal()
            return is_same(self.vm, self.value, other.value)
        if not self.made and isinstance(other, int):
            raise _refusal()
        return self.made and other == self.number(self.value)

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
PLAIN_KINDS |= {InstanceDict: dict, Identity: int, Text: str}
