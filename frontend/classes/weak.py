"""Weak references to what capture made: CPython drops an object with its last reference, capture keeps it as long as it runs.

So one is only read while a variable, or what hangs on one, is seen to hold the object; anything else breaks the graph.
"""

from __future__ import annotations

import operator
import types
import weakref
from functools import partial
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from ..calls.registry import Rows, Then
from ..errors import GraphBreak
from ..guards.source import Fetch
from ..state import Interpreter
from ..values.constant import is_constant
from ..values.held import check_alive, check_let_go, in_eager, is_dropped
from ..values.kinds import isinstance

__all__ = ["ROWS", "check_callback", "made", "read"]

ROWS = Rows()


def check_callback(vm: Interpreter, args: tuple[Any, ...]) -> None:
    """Break before a reference is made to what the call itself made, with a callback: it would run when that is dropped."""
    if len(args) > 1 and args[1] is not None and is_dropped(vm, args[0]):
        raise in_eager("a weak reference has a callback, which runs when CPython drops the object")


def made(vm: Interpreter, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`weakref.ref(value, callback)`; None of a class that derives from it. What capture itself makes calls nobody."""
    check_callback(vm, args)
    if cls is not weakref.ref or kwargs or len(args) not in (1, 2) or is_constant(args[0]):
        return None
    if len(args) == 1 or args[1] is None:
        return vm.create(vm.native(weakref.ref, args[0]))
    reference = vm.create(vm.native(weakref.ref, args[0], _ignored))
    vm.recipes[id(reference)] = (weakref.ref, args, {})
    return reference


def _ignored(reference: Any) -> None:
    """The callback of a reference that only capture sees."""


@ROWS.rule(weakref.proxy)
def _proxy(vm: Interpreter, obj: Any, callback: Any = None, /) -> Any:
    """`weakref.proxy(obj)`: attributes are those of the object, anything else breaks the graph."""
    if not vm.is_created(obj) or isinstance(obj, Tensor):
        raise GraphBreak("a weak proxy is made of an object that the call has not made")
    check_callback(vm, (obj, callback))
    made = vm.create(vm.native(weakref.proxy, obj))
    vm.recipes[id(made)], vm.user.opaque[id(made)] = (weakref.proxy, (obj,), {}), "a weak proxy"
    return made


def read(vm: Interpreter, reference: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`reference()`."""
    if args or kwargs:
        vm.native(reference, *args, **kwargs)  # which refuses them
    if id(reference) in vm.effects.dead:
        return None
    value, source = reference(), vm.user.source_of(reference)
    if source is not None:
        if value is not None:
            check_let_go(vm, "a weak reference is read", value)
        return vm.user.wrap(value, Fetch(operator.call, source))
    check_alive(vm, value)
    return value


def _in_container(method: types.FunctionType, vm: Interpreter, *args: Any, **kwargs: Any) -> Any:
    """A method of a container that holds its items weakly: interpreted, unless items may be gone by then."""
    if args and not vm.is_created(args[0]):
        check_let_go(vm, f"{method.__qualname__} is called")
    return Then(method, args, kwargs, body=True)


_CONTAINERS = (weakref.WeakSet, weakref.WeakKeyDictionary, weakref.WeakValueDictionary, WeakIdKeyDictionary)
for _method in (m for c in _CONTAINERS for m in vars(c).values() if isinstance(m, types.FunctionType)):
    ROWS.describe(_method, apply=partial(_in_container, _method))
