"""Properties and slots whose `__get__`, `__set__` and `__delete__` the program calls itself: what CPython's attributes do with them."""

from __future__ import annotations

import types
from functools import partial
from typing import Any

from ..calls.registry import Rows
from ..errors import GraphBreak
from ..state import Interpreter
from ..values import object as objects
from ..values.kinds import HEAP_TYPE

__all__ = ["ROWS"]

ROWS = Rows()

_PARTS = {"__get__": "fget", "__set__": "fset", "__delete__": "fdel"}
_STEPS = {"__get__": object.__getattribute__, "__set__": object.__setattr__, "__delete__": object.__delattr__}


def _of_property(special: str, vm: Interpreter, descriptor: Any, obj: Any = None, *args: Any) -> Any:
    """Its function is the program's; a property without one refuses in CPython's words."""
    function = vm.load_attr(descriptor, _PARTS[special])
    if function is None or special == "__get__" and obj is None or len(args) > 1:
        return vm.native(getattr(property, special), descriptor, obj, *args)
    result = vm.call(function, (obj, *(() if special == "__get__" else args)), {})
    return result if special == "__get__" else None


def _of_slot(special: str, vm: Interpreter, descriptor: Any, obj: Any = None, *args: Any) -> Any:
    """A slot of an object is an attribute of it."""
    owner, kind = descriptor.__objclass__, type(obj)
    if obj is None or not owner.__flags__ & HEAP_TYPE or not issubclass(kind, owner):
        return vm.native(getattr(types.MemberDescriptorType, special), descriptor, obj, *args)
    if objects.lookup(kind, descriptor.__name__)[0] is not descriptor:
        raise GraphBreak(
            f"a slot is read or written by its descriptor, where {kind.__qualname__} has another {descriptor.__name__!r}"
        )
    given = () if special == "__get__" else args
    return vm.call(_STEPS[special], (obj, descriptor.__name__, *given), {})


for _special in _PARTS:
    ROWS.rule(getattr(property, _special))(partial(_of_property, _special))
    ROWS.rule(getattr(types.MemberDescriptorType, _special, None))(partial(_of_slot, _special))
