"""Weak references to what capture made: CPython drops an object with its last reference, capture keeps it as long as it runs.

So one is only read while a variable, or what hangs on one, is seen to hold the object; anything else breaks the graph.
"""

from __future__ import annotations

import operator
from typing import Any

from ..guards.source import Fetch
from ..state import Interpreter
from ..values.held import check_alive, in_eager, is_dropped

__all__ = ["check_callback", "read"]


def check_callback(vm: Interpreter, args: tuple[Any, ...]) -> None:
    """Break before a reference is made to what the call itself made, with a callback: it would run when that is dropped."""
    if len(args) > 1 and args[1] is not None and is_dropped(vm, args[0]):
        raise in_eager("a weak reference has a callback, which runs when CPython drops the object")


def read(vm: Interpreter, reference: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`reference()`."""
    if args or kwargs:
        vm.native(reference, *args, **kwargs)  # which refuses them
    value, source = reference(), vm.user.source_of(reference)
    if source is not None:
        return vm.user.wrap(value, Fetch(operator.call, source))
    check_alive(vm, value)
    return value
