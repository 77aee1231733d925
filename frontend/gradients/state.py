"""What the program has changed so far, as far as it can see it itself."""

from __future__ import annotations

import types
from typing import Any

from torch import Tensor

from ..breaks.iterators import place
from ..errors import GraphBreak
from ..modes.locks import times_taken
from ..state import Interpreter
from ..values.constant import is_constant
from ..values.held import held_in_c
from ..values.kinds import isinstance

__all__ = ["Reach", "VisibleState"]


class Reach:
    """What capture made, and the program can reach, in front of `what`: containers and objects, generators, caches, by what they hold."""

    def __init__(self, vm: Interpreter, what: str) -> None:
        self.vm, self.what = vm, what
        self.roots = [*(v for f in vm.frames for v in (*f.fast.values(), *f.stack)), *vm.created.values()]  # type: ignore[attr-defined]
        self.before = self._now()

    def values(self) -> list[Any]:
        """The objects."""
        return [value for value, _ in self.before.values()]

    def is_changed(self) -> bool:
        """Whether anything is not as it was."""
        now = self._now()
        return any(now.get(key, (None, None))[1] != held for key, (_, held) in self.before.items())

    def _now(self) -> dict[int, Any]:
        found: dict[int, tuple[Any, list[Any]]] = {}
        ahead = list(self.roots)
        while ahead:
            value = ahead.pop()
            if id(value) in found:
                continue
            inner = self._inside(value)
            if inner is not None:
                found[id(value)] = value, [id(v) for v in inner]
                ahead += inner
        for generator in self.vm.generators:
            frame: Any = generator.frame
            at = [frame.ip, generator.started, generator.finished]
            found[id(generator)] = generator, at + [id(v) for v in (*frame.fast.values(), *frame.stack)]
        found[0] = None, [self.vm.random.python.moves]
        found.update((id(lock), (lock, [times_taken(lock)])) for lock in self.vm.locks)
        for key, cache in self.vm.caches.items():
            if key in found:
                found[key][1].append((cache.hits, cache.misses))
        return found

    def _inside(self, value: Any) -> list[Any] | None:
        kind, vm = type(value), self.vm
        if kind in (list, tuple, set):
            return list(value)
        if kind is dict:
            return [*value, *value.values()]
        if kind is types.CellType and vm.is_created(value):
            return _contents_of(value)
        if is_constant(value) or isinstance(value, Tensor) or vm.is_frontend_class(kind):
            return None
        held = held_in_c(value)
        if held is None:
            raise GraphBreak(f"a {kind.__name__} is kept in a variable around {self.what}")
        if not vm.is_created(value):
            return held
        names = dict(vars(value)) if isinstance(value, type) else getattr(value, "__dict__", None)
        return [*held, *names, *names.values()] if type(names) is dict else held


def _contents_of(cell: types.CellType) -> list[Any]:
    try:
        return [cell.cell_contents]
    except ValueError:
        return []


class VisibleState:
    """What a piece of a program could change: attributes, variables, containers, tensors of the caller's, calls that are replayed.

    Asked before and after a piece that eager runs at another time, or twice. With the name of the piece as `around`, what capture made
    in front of it counts, too.
    """

    def __init__(self, vm: Interpreter, made: Any = None, around: str = "") -> None:
        self.vm, self.made = vm, made
        self.reach = Reach(vm, around) if around else None
        self.shadows, self.iterators = list(vm.user.shadows), list(vm.user.iterators.values())
        self.locks = list(vm.locks)
        self.before = self._now()

    def _now(self) -> Any:
        journal, vm = self.vm.effects, self.vm
        overlays = journal.attrs, journal.globals, journal.cells
        written = [{key: id(entry[1]) for key, entry in overlay.items()} for overlay in overlays]
        containers = [_contents(shadow.copy) for shadow in self.shadows]
        return (
            written,
            len(journal.calls) + vm.random.python.moves,
            containers,
            [len(unread.appended) for unread in vm.user.appended],
            [place(each.copy) for each in self.iterators],
            [times_taken(lock) for lock in self.locks],
            self._tensors(),
            _contents(getattr(self.made, "__dict__", None)),
        )

    def _tensors(self) -> list[tuple[int, bool]]:
        """The caller's tensors that were written to."""
        out = self.vm.out
        return [(out.version(info), True) for info in out.inputs.values() if out.is_written(info)]

    def is_changed(self) -> bool:
        """Whether anything is not as it was."""
        new = self.vm.user.shadows[len(self.shadows) :]
        moved = list(self.vm.user.iterators.values())[len(self.iterators) :]
        changed = self._now() != self.before or any(shadow.changed() for shadow in new)
        changed = changed or any(each.is_moved() for each in moved)
        return changed or self.reach is not None and self.reach.is_changed()


def _contents(value: Any, depth: int = 4) -> Any:
    """A value by identity, containers by what they hold."""
    if depth and type(value) in (list, tuple, dict, set):
        items = [*value, *value.values()] if type(value) is dict else list(value)
        return id(value), [_contents(item, depth - 1) for item in items]
    if depth and not isinstance(value, Tensor) and not is_constant(value):
        return id(value), [_contents(item, depth - 1) for item in held_in_c(value) or ()]
    return id(value)
