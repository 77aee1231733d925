"""`gc.collect()`, and which objects it looks after.

What lies in unreachable cycles before the call is the caller's: while the collector is on, CPython may collect it at any instruction. So
an entry collects in front of its graph and checks its guards once more behind that: where a finalizer has changed what they look at, the
entry misses, as if the collector had run by itself when the call began. This is right where the collector finds the same there as in its place, and finalizers the same state: the program has changed nothing of the
caller's before, and let go of no argument (`_check_first`).

What the call itself makes and has dropped by then is gone: weak references to it are dead (`_let_die`). An object counts as dropped if
nothing that the program may still look at leads to it; where that cannot be told, the graph breaks. Finalizers of such objects, and
callbacks of weak references to them, break the graph where they are made.
"""

from __future__ import annotations

import collections
import gc
import sys
import types
import weakref
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from ...ir.snapshots import members
from ..bytecode.frame import Frame
from ..calls.registry import Rows
from ..errors import GraphBreak
from ..guards import process_state
from ..guards.source import Arg
from ..runtime.collector import is_on
from ..state import Interpreter
from ..values.constant import is_constant
from ..values.function import CallBack
from ..values.held import PROXIES, held_now
from ..values.kinds import HEAP_TYPE, isinstance
from ..values.lazy import Unread
from ..values.object import find_method
from ..values.protocol import Stepping

__all__ = ["ROWS"]

ROWS = Rows()
_MOST = 100_000  # objects that are looked at
_HAVE_GC = 1 << 14  # a flag of types: the collector looks after their objects


@ROWS.rule(gc.collect)
def _collect(vm: Interpreter, *args: Any, **kwargs: Any) -> None:
    frame = vm.frames[-1]
    if args not in ((), (2,)) or kwargs or frame.program.instructions[frame.ip].op != "POP_TOP":
        raise GraphBreak("gc.collect() is asked how much it finds, or for younger objects alone")
    if vm.side is not None or vm.out.inside or vm.exporting:
        raise GraphBreak("gc.collect() is called in a part of a graph")
    if not _may_come_early():
        raise GraphBreak(
            "gc.collect() is called while the collector is off, or others are told (gc.callbacks, gc.set_debug)"
        )
    process_state.rely_on(vm, _may_come_early)
    _check_first(vm)
    _let_die(vm)
    vm.effects.collections += 1


def _may_come_early() -> bool:
    """Whether a collection may come by itself at any time, and nobody is told of one."""
    return is_on() and not gc.callbacks and not gc.get_debug()


def _check_first(vm: Interpreter) -> None:
    """Break where the collector may find in its place what it does not find in front of the call, or finalizers may see another state."""
    effects = vm.effects
    changed = bool(effects.cells or effects.globals or effects.calls or vm.user.appended)
    changed = changed or any(not vm.is_created(owner) for owner, _ in effects.attrs.values())
    if changed or any(shadow.changed() for shadow in vm.user.shadows):
        raise GraphBreak("gc.collect() is called behind a change to an object of the caller's")
    held = {id(vm.user.real(value)) for value in held_now(vm)}
    given = [known.real for known in vm.user.by_real.values() if isinstance(known.source, Arg)]
    given += [value.value for value in vm.user.given if type(value) is Unread]
    ends = [v for v in given if not is_constant(v) and not isinstance(v, (Tensor, type, types.ModuleType))]
    if any(id(value) not in held for value in ends):
        raise GraphBreak("gc.collect() is called where the program has let go of an argument")


def _let_die(vm: Interpreter) -> None:
    """Mark as dead the weak references to what the program has made and dropped."""
    dead = vm.effects.dead
    referred = [
        (ref, value)
        for value in list(vm.created.values())
        if not isinstance(value, (weakref.ReferenceType, *PROXIES))
        for ref in (weakref.getweakrefs(value) if weakref.getweakrefcount(value) else ())
        if vm.is_created(ref) and id(ref) not in dead
    ]
    classes = [(value, value) for value in vm.created.values() if isinstance(value, type) and id(value) not in dead]
    halfway = [(None, g) for g in members(vm.generators) if g.started and not g.finished and not g.running]
    if not referred and not classes and not halfway:
        return
    found = {id(value) for value in _reached(vm)}
    for ref, value in (*referred, *classes, *halfway):
        if id(value) in found:
            continue
        if ref is None:
            raise GraphBreak("gc.collect() may end a generator that is half-way")
        plain = type(ref) is weakref.ReferenceType or type(ref) in PROXIES
        if ref is not value and (not plain or find_method(type(value), "__del__")):
            raise GraphBreak("gc.collect() ends an object that a weak reference of another kind leads to")
        dead[id(ref)] = ref
        if ref is not value:
            vm.user.opaque[id(ref)] = "a weak reference to what is collected"
            if type(ref) in PROXIES:
                vm.recipes.pop(id(ref), None)


def _reached(vm: Interpreter) -> Iterator[Any]:
    """Everything that the program may still come to of what it has made, and more.

    Raises:
        GraphBreak: this cannot be told: C code is under way that may hold objects, an exception holds frames, or it is too much.
    """
    waiting: list[Any] = [vm, *_of_python_frames(vm)]
    seen: set[int] = set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if len(seen) > _MOST:
            raise GraphBreak("gc.collect() is called while too much is held to look at")
        if isinstance(value, BaseException) and value.__traceback__ is not None:
            raise GraphBreak("gc.collect() is called while an exception is held, which holds what its frames do")
        yield value
        waiting += _held_by(vm, value)


def _of_python_frames(vm: Interpreter) -> Iterator[Any]:
    """What the rules that are under way hold in variables of their own."""
    frame = sys._getframe(1)
    while frame is not None:
        held = frame.f_locals
        if isinstance(held.get("self"), (CallBack, Stepping)):
            raise GraphBreak("gc.collect() is called by what C code calls, which may hold objects")
        if frame.f_globals is not globals():
            yield from held.values()
        if held.get("frame") is vm.frames[0] and held.get("self") is vm:
            return
        frame = frame.f_back  # type: ignore[assignment]


def _held_by(vm: Interpreter, value: Any) -> list[Any]:
    if value is vm:
        effects, journals = vm.effects, list[Any]()
        for journal in (effects.attrs, effects.cells, effects.globals):
            journals += [new for owner, new in journal.values() if not vm.is_created(owner)]
        contents = [shadow.copy for shadow in vm.user.shadows]
        return [*vm.frames, *journals, *contents, effects.calls, vm.current_error, vm.user.appended]
    if type(value) is Unread or isinstance(value, (types.ModuleType, Tensor, weakref.ReferenceType, *PROXIES)):
        return []
    if type(value) is Frame:
        return [value.function, value.fast, value.stack, value.names, value.stored, value.result, value.error]
    if isinstance(value, type):
        return [*vars(value).values(), *value.__bases__] if vm.is_created(value) else []
    if type(value) is types.FunctionType:
        named = value.__globals__
        own = sys.modules.get(named.get("__name__", ""))
        around = [] if own is not None and vars(own) is named else [named]
        return [*(value.__closure__ or ()), value.__defaults__, value.__kwdefaults__, vars(value), *around]
    known = vm.user.by_value.get(id(value))
    if known is not None and known.value is known.real:
        return []  # of the caller's: what the program has put into it stands in the journals
    return gc.get_referents(value) + ([type(value)] if vm.is_created(type(value)) else [])


@ROWS.rule(gc.is_tracked)
def _is_tracked(vm: Interpreter, value: Any, /) -> bool:
    """Whether the collector looks after an object, where that does not depend on when it ran last."""
    if (answer := _tracked(vm, value)) is None:
        raise GraphBreak("gc.is_tracked() is asked about an object of which the collector decides when it runs")
    return answer


def _tracked(vm: Interpreter, value: Any) -> bool | None:
    kind = type(value)
    if kind in (int, float, complex, str, bytes, bool, type(None)):
        return False
    if kind in (list, set, collections.deque, types.FunctionType):
        return True
    if kind in (tuple, dict) and vm.user.source_of(value) is None:
        held = value if kind is tuple else [*value, *value.values()]
        return True if any(_tracked(vm, item) is True for item in held) else None
    if vm.is_created(value) and kind.__flags__ & HEAP_TYPE and not isinstance(value, (tuple, dict)):
        return bool(kind.__flags__ & _HAVE_GC)
    return None
