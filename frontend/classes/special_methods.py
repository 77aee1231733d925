"""Special methods of the program's that C code runs: searching, sorting and hashing stay CPython's own, the methods come back to capture.

While C code runs that may be given instances of a class of the program's, each special method that the class defines in Python is replaced
by a stand-in, which calls the interpreter with it. So the order of calls, what is compared by identity first, hashes that are kept, and
errors of containers that change meanwhile are CPython's. Whenever the interpreter runs code of the program's, the methods are in their places.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from ..breaks.breaks import restart_point
from ..calls.visibility import look_into
from ..errors import CaptureError, GraphBreak, Unsupported
from ..graph.sym_nodes import concrete
from ..guards.definitions import STANDS_FOR, lookup
from ..state import Interpreter
from ..values import object as objects
from ..values.function import trampoline
from ..values.identity import Identity
from ..values.kinds import HEAP_TYPE, IMMUTABLE_TYPE
from ..values.text import Text, looked_at
from .inert_calls import is_inert
from .reached import OF_C, SPECIAL, is_covered, is_leaf, reached

__all__ = ["SPECIAL", "SpecialMethods"]


class SpecialMethods:
    """Those of one capture.

    `owners` are the classes whose methods are replaced while C code runs, `near` those of them that the call of C code can come to (None: any),
    `standing` the methods that are replaced now, `depth` in how many calls of C code the interpreter is since it last began to run a frame,
    `keys` where in the program instances of a class with its own hash were first looked up, `iterators` where those were made that cannot be
    made again without running methods.
    """

    def __init__(self, vm: Interpreter) -> None:
        self.vm = vm
        self.owners: dict[type, None] = {}
        self.near: dict[type, None] | None = None
        self.standing: list[tuple[type, str, Any, Any]] = []
        self.depth = 0
        self.keys: dict[type, tuple[Any, tuple[Any, ...]]] = {}
        self.iterators: dict[int, tuple[Any, Any, tuple[Any, ...]]] = {}
        # By class: its names among SPECIAL, its own methods.
        self._made: dict[type, tuple[set[str], list[tuple[str, Any, Any]]]] = {}
        self._given: tuple[Any, ...] = ()
        self._error: CaptureError | None = None
        self._thread = threading.get_ident()

    def of(self, kind: type) -> bool:
        """Whether C code that is given an instance may run Python methods of the program's own."""
        vm = self.vm
        if kind.__flags__ & HEAP_TYPE == 0 or vm.is_library(kind.__module__) or vm.is_frontend_class(kind):
            return False
        return any(self._is_own(lookup(kind, name)[0]) for name in SPECIAL)

    def _is_own(self, raw: Any) -> bool:
        if isinstance(raw, staticmethod | classmethod):
            raw = raw.__func__
        if raw is None or isinstance(raw, OF_C) or not callable(raw) and not hasattr(type(raw), "__get__"):
            return False
        module = getattr(raw, "__module__", None)
        return not isinstance(module, str) or not (self.vm.is_library(module) or module.startswith(_FRONTEND))

    def handed(self, value: Any) -> Any:
        """A value that the interpreter hands over to C code."""
        if not is_covered(value, self.owners if self.near is None else self.near):
            look_into(self.vm, (value,))
            self._widen(value)
        if self.depth and self.owners and not self.standing:
            self.put()
        return value

    def _widen(self, value: Any) -> None:
        """C code has been given something that may lead to any class."""
        if self.near is not None and not is_covered(value, self.near):
            self.near = None
            if self.standing:
                self.leave()

    def take(self, kind: type, who: str) -> None:
        """From here on C code may be given instances of this class."""
        for owner in kind.__mro__:
            if owner in self.owners:
                self._come_to(owner)
                continue
            if not owner.__flags__ & HEAP_TYPE or owner.__flags__ & IMMUTABLE_TYPE:
                continue
            own = [n for n in owner.__dict__.keys() & SPECIAL if self._is_own(owner.__dict__[n])]
            if not own:
                continue
            try:
                type.__setattr__(owner, own[0], owner.__dict__[own[0]])
            except TypeError:  # a metaclass of C's keeps the attributes of its classes itself
                raise GraphBreak(f"{who} may run methods of {kind.__qualname__} that capture would not see") from None
            self.owners[owner] = None
            self._come_to(owner)

    def _come_to(self, owner: type) -> None:
        """The C code that runs, if any does, comes to this class."""
        new = self.near is None or owner not in self.near
        if self.near is not None:
            self.near[owner] = None
        if new and self.standing and all(known is not owner for known, *_ in self.standing):
            self._put(owner)

    def take_key(self, kind: type) -> None:
        """`take` for the class of a key with its own equality or hash."""
        self.take(kind, "a look-up")
        if kind not in self.keys:
            self.keys[kind] = restart_point(self.vm), tuple(self.vm.places())

    def check_key(self, key: Any) -> None:
        """Refuse to have an entry build a container with this key: that would run its methods once more."""
        if isinstance(key, tuple | frozenset):
            for item in key:
                self.check_key(item)
        elif (place := self.keys.get(type(key))) is not None:
            error = Unsupported(
                f"a {type(key).__qualname__}, which has its own __eq__ or __hash__, is a key of what outlives the graph"
            )
            error.split, error.frames = place
            raise error

    # ---- while C code runs ----

    def repeats(self) -> Callable[[BaseException], bool]:
        """Whether a call that is made now, and fails, can be made once more: not where it calls the program back, which it would do again."""
        vm, called = self.vm, self.vm.called_back

        def may_repeat(error: BaseException) -> bool:
            if vm.called_back == called:
                return True
            if vm.carried is None or vm.carried.error is not error:
                raise GraphBreak("C code that calls the program back fails where numbers are symbols")
            return False

        return may_repeat

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function of C's; what it calls of the program is interpreted."""
        if self.standing or not self.owners or is_inert(function, args, kwargs):
            return self._call(function, args, kwargs)
        before = self._given, self.near
        given = (*args, *kwargs.values(), getattr(function, "__self__", None))
        self._given = tuple(value for value in given if not is_leaf(value))
        self.near = reached(function, self._given, self.owners, self._is_own)
        self.put()
        try:
            result = self._call(function, args, kwargs)
            if self._error is not None:  # C code has swallowed it
                raise self._error
            return result
        except CaptureError:
            self._error = None
            raise
        finally:
            self.leave()
            self._given, self.near = before

    def _call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return (
            self.vm.dynamic.call(function, args, kwargs) if self.vm.shape_env is not None else function(*args, **kwargs)
        )

    def aside(self) -> int:
        """A frame begins to run: the methods are in their places. Returns what `back` is to be given when it has run."""
        depth, self.depth = self.depth, 0
        if self.standing:
            self.leave()
        return depth

    def back(self, depth: int) -> None:
        """C code goes on."""
        self.depth = depth
        if depth and not self.standing:
            self.put()

    def put(self) -> None:
        """Have the stand-ins in the places of the methods."""
        for owner in self.owners if self.near is None else self.near:
            self._put(owner)

    def _put(self, owner: type) -> None:
        for name, raw, stand_in in self._methods(owner):
            type.__setattr__(owner, name, stand_in)
            self.standing.append((owner, name, raw, stand_in))

    def _methods(self, owner: type) -> list[tuple[str, Any, Any]]:
        """The methods that a class defines now, by name, with their stand-ins."""
        held = owner.__dict__
        names, (seen, known) = held.keys() & SPECIAL, self._made.get(owner, (set(), []))
        if seen == names and names:
            for name, raw, _ in known:
                if held[name] is not raw:
                    break
            else:
                return known
        before = {id(raw): (name, raw, stand_in) for name, raw, stand_in in known}
        found: list[tuple[str, Any, Any]] = []
        for name in names:
            raw = held[name]
            if self._is_own(raw):
                same = before.get(id(raw))
                found.append(same if same and same[0] == name else (name, raw, _stand_in(self, owner, name, raw)))
        self._made[owner] = names, found
        return found

    def leave(self) -> None:
        """Have the methods in their places."""
        while self.standing:
            owner, name, raw, stand_in = self.standing.pop()
            if owner.__dict__.get(name) is stand_in:  # else the program has put another method there, or none
                type.__setattr__(owner, name, raw)

    def called(self, owner: type, name: str, raw: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What C code has called, interpreted; in another thread, and of no concern to the capture, as it is."""
        if threading.get_ident() != self._thread:
            method = raw.__get__(args[0], type(args[0])) if hasattr(type(raw), "__get__") else raw
            return method(*args[1:], **kwargs)
        self.leave()
        try:
            method = objects.bind(self.vm, raw, owner, args[0], type(args[0]), name)
            result = trampoline(self.vm, method)(*args[1:], **kwargs)
            for value in (result, *self._given):  # containers among these may have got other items
                self.handed(value)
            return _plain(name, result)
        except CaptureError as error:
            self._error = error
            raise
        finally:
            if not self.standing:
                self.put()


def _plain(name: str, result: Any) -> Any:
    """A result that C code takes for a number, as the number that it is; text that is made later is none for it."""
    if type(result) is Text:
        raise looked_at(result.vm)
    if name == "__hash__" and type(result) is Identity:
        return hash(result)
    if name in _NUMBERS and isinstance(result, torch.SymInt | torch.SymFloat | torch.SymBool):
        return concrete(result)
    return result


_NUMBERS = frozenset("__hash__ __len__ __length_hint__ __index__ __int__ __float__ __bool__".split())  # noqa: SIM905
_FRONTEND = __name__.rsplit(".", 2)[0]


def _stand_in(methods: SpecialMethods, owner: type, name: str, raw: Any) -> Any:
    def method(*args: Any, **kwargs: Any) -> Any:
        return methods.called(owner, name, raw, args, kwargs)

    method.__name__ = STANDS_FOR
    setattr(method, STANDS_FOR, raw)
    return method
