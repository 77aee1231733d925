"""Iterators that were made before a graph, such as those of loops that a graph break has cut: capture goes on where they stand.

An iterator of Python's own over a list, tuple, dict or range, or a `zip` or `enumerate` of such, says what it goes through and how far
it is. Both are guarded. What capture takes, it takes from a stand-in over the stand-ins of the items, and the entry then moves the
caller's iterator to the same place. In a loop with a break in every round no two rounds find the same place: after a few captures
for such an iterator, taking an item is a break, and the pieces of a round serve all of them.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..errors import GraphBreak, Unsupported
from ..guards.source import Attr, Fetch, Item, Place, Source
from ..state import Interpreter, Tracked
from ..values.held import reduced
from ..values.object import find_method
from .breaks import restart_point

__all__ = ["TakenApart", "method_taken_over", "moves", "place", "refuse_iterator", "taken_over"]


@dataclass
class TakenApart:
    """A caller's iterator with its stand-in.

    Attributes:
        whole: what it goes through, where that is a container: the stand-in.
        inner: the iterators that it takes from.
        keys: where that is a dict, its keys, which have to stay.
        origin: where capture can begin again in front of the first item that was taken; the frames there.
    """

    real: Any
    copy: Any
    source: Source
    whole: Any = None
    inner: tuple[TakenApart, ...] = ()
    keys: list[int] = field(default_factory=list)
    origin: tuple[Any, tuple[Any, ...]] = (None, ())

    @property
    def depth(self) -> int:
        """How many iterators are inside of each other."""
        return 1 + max((each.depth for each in self.inner), default=0)

    def is_moved(self) -> bool:
        """Whether capture has taken an item that the caller's iterator still has."""
        return bool(place(self.copy) != place(self.real))

    def target(self) -> Any:
        """The place that `_settle` is to bring the caller's iterator to.

        Raises:
            Unsupported: what it goes through has changed since, so that the same steps would lead elsewhere.
        """
        target = place(self.copy)
        if type(self.copy) is enumerate:
            reached = self._gives(target - place(self.real))
        elif type(self.copy) is _REVERSED:
            reached = target is None or target < len(self.whole)
        elif isinstance(self.whole, dict):
            reached = self._gives(0)
        else:
            reached = target is None or self.whole is None or target <= len(self.whole)
        if not reached:
            error = Unsupported("a container changes while an iterator goes through it that was made before this graph")
            error.split, error.frames = self.origin
            raise error
        return target

    def _gives(self, count: int) -> bool:
        """Whether so many items can be taken of the caller's iterator when its container is as capture has left it."""
        if self.inner:
            return all(each._gives(count) for each in self.inner)
        if isinstance(self.whole, dict):
            return _keys(self.whole) == self.keys
        at = place(self.real)
        if at is None or self.whole is None:
            return count <= len(at or ())
        return bool(count <= (at + 1 if type(self.copy) is _REVERSED else len(self.whole) - at))


def taken_over(vm: Interpreter, value: Any) -> Any:
    """`value`, or the stand-in of an iterator that existed before the capture, for C code that may take items from it.

    Raises:
        GraphBreak: nothing can stand in for it.
    """
    if not _is_foreign(vm, value):
        return value
    made = _stand_in(vm, value)
    if made is None:
        refuse_iterator(vm, value)
    return made


def method_taken_over(vm: Interpreter, method: Any) -> Any:
    """A method of C's, or that of the stand-in where it is bound to an iterator that existed before the capture."""
    owner = method.__self__
    if not hasattr(type(owner), "__next__"):
        return method
    source = vm.user.source_of(method)
    taken = taken_over(vm, owner if source is None else vm.user.wrap(owner, Attr(source, "__self__")))
    return method if taken is owner else getattr(taken, method.__name__)


def refuse_iterator(vm: Interpreter, value: Any) -> None:
    """Break the graph where C code looks into an iterator that existed before the capture."""
    if _is_foreign(vm, value):
        raise GraphBreak(
            "an item is taken from an iterator that was made before this graph",
            "make the iterator in the compiled function, with no graph break before it is used up",
        )


def _is_foreign(vm: Interpreter, value: Any) -> bool:
    return vm.user.is_iterator(value) and find_method(type(value), "__next__") is None


def moves(vm: Interpreter, emit: Any) -> list[str]:
    """Statements that bring iterators of the caller's to where capture has left them, outer ones first: these move those inside of them.

    They stand behind those that change containers: a list has the length then that it had when items were taken.
    """
    moved = [each for each in vm.user.iterators.values() if each.is_moved()]
    moved.sort(key=lambda each: -each.depth)
    return [
        f"{emit.constant(_settle, 'settle')}({emit.fetch(each.source)}, {emit.literal(each.target())})"
        for each in moved
    ]


def _stand_in(vm: Interpreter, iterator: Any) -> Any:
    """What capture takes items from in place of this iterator of the caller's; None where it is of another kind, or has too many places."""
    known = vm.user.iterators.get(id(iterator))
    if known is not None:
        return known.copy
    source = vm.user.source_of(iterator)
    rule = _RULES.get(type(iterator))
    if source is None or rule is None:
        return None
    where = Place(place, source)
    if where in vm.dynamic.marks.varying:
        return None
    origin = restart_point(vm), tuple(vm.places())
    made = rule(vm, iterator, source)
    if made is None:
        return None
    if type(iterator) is not zip:
        vm.guards.add("equals", where, place(iterator))
    made.origin = origin
    vm.user.iterators[id(iterator)] = made
    vm.user.by_value[id(made.copy)] = Tracked(iterator, made.copy, source)
    return made.copy


def place(iterator: Any) -> Any:
    """How far an iterator is: a number of items, or the numbers that a range still has; None at the end, and for a `zip`, which only
    passes on what its iterators give."""
    kind = type(iterator)
    if kind is zip:
        return None
    if kind in _OF_DICTS:
        whole = _whole(iterator)
        if whole is None:
            return None
        try:
            left = list(reduced(iterator, kind)[1][0])
        except RuntimeError:  # the dict has changed its size
            return -1
        taken = len(whole) - len(left)
        rest = list(_OF_DICTS[kind](whole))[taken:] if taken >= 0 else []
        return taken if len(rest) == len(left) and all(map(_is_same, rest, left)) else -1
    _, parts, *more = reduced(iterator, kind)
    if kind is enumerate:
        return parts[1]
    if kind is _OF_RANGE:
        return parts[0][more[0] or 0 :] if more else parts[0]
    return more[0] if more else None


def _settle(iterator: Any, target: Any) -> None:
    """Move an iterator to a place that lies ahead: what an entry does with what capture has taken."""
    kind = type(iterator)
    if target is None:
        for _ in iterator:
            pass
    elif kind is _OF_RANGE:
        while len(place(iterator)) > len(target):
            next(iterator)
    elif kind is enumerate or kind in _OF_DICTS:
        while place(iterator) < target:
            next(iterator)
    else:
        iterator.__setstate__(target)


# ---- by kind ----


def _of_sequence(vm: Interpreter, iterator: Any, source: Source) -> TakenApart | None:
    whole = reduced(iterator, type(iterator))[1][0]
    copy = vm.user.wrap(whole, Fetch(_through, source))
    if type(whole) not in (list, tuple) or type(copy) is not type(whole):
        return None
    at = place(iterator)
    made = iter(copy) if type(iterator) is not _REVERSED else reversed(copy)
    if at is None:
        made = iter(type(copy)())
    else:
        made.__setstate__(at)
    return TakenApart(iterator, made, source, copy)


def _of_range(vm: Interpreter, iterator: Any, source: Source) -> TakenApart:
    return TakenApart(iterator, iter(place(iterator)), source)


def _of_dict(vm: Interpreter, iterator: Any, source: Source) -> TakenApart | None:
    whole, at = _whole(iterator), place(iterator)
    if type(whole) is not dict or at is None or at < 0:
        return None
    copy = vm.user.wrap(whole, Fetch(_whole, source))
    if type(copy) is not dict or _keys(copy) != _keys(whole):
        return None  # CPython's own iterator says that its dict has changed
    made = iter(_OF_DICTS[type(iterator)](copy))
    for _ in range(at):
        next(made)
    return TakenApart(iterator, made, source, copy, keys=_keys(copy))


def _of_enumerate(vm: Interpreter, iterator: Any, source: Source) -> TakenApart | None:
    inner = _inside(vm, reduced(iterator, enumerate)[1][0], Item(Fetch(_parts, source), 0))
    return inner and TakenApart(iterator, enumerate(inner.copy, place(iterator)), source, inner=(inner,))


def _of_zip(vm: Interpreter, iterator: Any, source: Source) -> TakenApart | None:
    _, parts, *more = reduced(iterator, zip)
    vm.guards.add("length", Fetch(_parts, source), len(parts))
    vm.guards.add("equals", Fetch(_is_strict, source), bool(more))
    found = [_inside(vm, part, Item(Fetch(_parts, source), i)) for i, part in enumerate(parts)]
    inner = tuple(each for each in found if each is not None)
    if not inner or len(inner) < len(parts):
        return None
    return TakenApart(iterator, zip(*(each.copy for each in inner), strict=bool(more)), source, inner=inner)


def _inside(vm: Interpreter, iterator: Any, source: Source) -> TakenApart | None:
    iterator = vm.user.wrap(iterator, source)
    return None if _stand_in(vm, iterator) is None else vm.user.iterators[id(iterator)]


def _through(iterator: Any) -> Any:
    return reduced(iterator, type(iterator))[1][0]


def _parts(iterator: Any) -> Any:
    return reduced(iterator, type(iterator))[1]


def _is_strict(iterator: Any) -> bool:
    return len(reduced(iterator, zip)) > 2


def _whole(iterator: Any) -> Any:
    """The dict that an iterator goes through; None at its end."""
    return next((held for held in gc.get_referents(iterator) if isinstance(held, dict)), None)


def _keys(container: Any) -> list[int]:
    """The keys of a dict by identity."""
    return list(map(id, container))


def _is_same(one: Any, other: Any) -> bool:
    if type(one) is tuple and type(other) is tuple and len(one) == len(other) == 2:
        return one[0] is other[0] and one[1] is other[1]  # a pair of a key and an item is made as it is taken
    return one is other


_REVERSED: type = type(reversed([]))
_OF_RANGE = type(iter(range(0)))
_OF_DICTS: dict[type, Any] = {type(iter(view({}))): view for view in (dict.keys, dict.values, dict.items)}
_RULES: dict[type, Callable[[Interpreter, Any, Source], TakenApart | None]] = {
    type(iter([])): _of_sequence,
    type(iter(())): _of_sequence,
    _REVERSED: _of_sequence,
    _OF_RANGE: _of_range,
    enumerate: _of_enumerate,
    zip: _of_zip,
    **dict.fromkeys(_OF_DICTS, _of_dict),
}
