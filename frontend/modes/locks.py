"""Locks that a call makes: nobody else has one, so that taking it waits for nobody; what lies on them (conditions, semaphores, events) is interpreted.

A lock that is free where it leaves the call is made anew by the entry. One that is held then, by another way than a `with` block, is not.
"""

from __future__ import annotations

import _thread
import threading
from typing import Any

from ..calls.registry import Rows
from ..errors import GraphBreak
from ..state import Interpreter
from ..values.kinds import isinstance

__all__ = ["LOCKS", "is_callers", "is_taken", "times_taken"]

ROWS = Rows()

LOCKS = (type(_thread.allocate_lock()), _thread.RLock)


def is_callers(vm: Interpreter, lock: Any) -> bool:
    """Whether others may have a lock, too."""
    return vm.user.source_of(lock) is not None


@ROWS.rule(*{id(maker): maker for maker in (_thread.allocate_lock, threading.Lock)}.values())
def _lock(vm: Interpreter, *args: Any, **kwargs: Any) -> Any:
    return _made(vm, _thread.allocate_lock, args, kwargs)


@ROWS.rule(_thread.RLock)
def _reentrant(vm: Interpreter, *args: Any, **kwargs: Any) -> Any:
    return _made(vm, _thread.RLock, args, kwargs)


def _made(vm: Interpreter, maker: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    vm.locks.append(lock := vm.native(maker, *args, **kwargs))
    return _is_free(vm, lock)


def _is_free(vm: Interpreter, lock: Any) -> Any:
    """An entry makes one like it."""
    vm.recipes[id(lock)] = (LOCKS[1] if isinstance(lock, LOCKS[1]) else _thread.allocate_lock, (), {})
    return vm.create(lock)


def is_taken(lock: Any) -> bool:
    """Whether who takes a lock now waits; who holds one of the other kind takes it again."""
    return isinstance(lock, LOCKS[0]) and lock.locked()


def times_taken(lock: Any) -> int:
    """How often a lock is held now: one of this call's, by this thread."""
    return int(lock.locked()) if isinstance(lock, LOCKS[0]) else int(repr(lock).partition("count=")[2].split()[0])


def _follow(vm: Interpreter, lock: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
    """A method of a lock that takes or frees it."""
    if is_callers(vm, lock):
        raise GraphBreak("a lock is taken")
    result = vm.native(function, lock, *args, **kwargs)
    if times_taken(lock) or any(scope.rebuild is not None and scope.rebuild[1][:1] == (lock,) for scope in vm.scopes):
        vm.recipes.pop(id(lock), None)
        vm.created.pop(id(lock), None)  # an entry makes none
    else:
        _is_free(vm, lock)
    return result


def _take(function: Any) -> Any:
    def take(vm: Interpreter, lock: Any, *args: Any, **kwargs: Any) -> Any:
        at_once = args[:1] == (False,) or kwargs.get("blocking") is False
        if not at_once and not is_callers(vm, lock) and is_taken(lock):
            raise GraphBreak("a lock is waited for that is held")
        return _follow(vm, lock, function, *args, **kwargs)

    return take


def _free(function: Any) -> Any:
    return lambda vm, lock, *args, **kwargs: _follow(vm, lock, function, *args, **kwargs)


for _kind in LOCKS:
    for _name in ("acquire", "__enter__"):
        ROWS.rule(getattr(_kind, _name))(_take(getattr(_kind, _name)))
    for _name in ("release", "__exit__", *(("locked",) if _kind is LOCKS[0] else ("_is_owned",))):
        ROWS.rule(getattr(_kind, _name))(_free(getattr(_kind, _name)))
