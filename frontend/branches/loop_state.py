"""What a round of a loop begins and ends with: the frame, what of it changes, and what else must not."""

from __future__ import annotations

import operator
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..bytecode.frame import Frame
from ..gradients.state import Reach, VisibleState
from ..guards.sameness import indistinguishable
from ..regions.capture import is_tracked, result_like
from ..regions.rounds import tracked_like
from ..state import Interpreter
from ..values.constant import has_identity, is_constant
from ..values.kinds import isinstance
from ..values.lazy import Unread
from .places import Contents, Place
from .sides import Path, Prevented, named, shown
from .truths import as_tensor, number_in

__all__ = ["Counter", "Kinds", "State", "Surroundings"]

_CONTAINERS = (list, dict, types.CellType)
_RANGE = type(iter(range(0)))


@dataclass(frozen=True)
class Counter:
    """The iterator of a range: how many items there are, and how many have been taken."""

    start: Any
    step: int
    length: Any  # below zero there are none
    position: Any = 0

    @staticmethod
    def of(value: Any) -> Counter | None:
        """What an iterator of a range is at; None of anything else."""
        if type(value) is not _RANGE:
            return None
        items: Any = value.__reduce__()[1][0]
        return Counter(items.start, items.step, len(items), len(items) - operator.length_hint(value))

    @staticmethod
    def over(args: Sequence[Any]) -> Counter | None:
        """That of `range(*args)`, whose bounds only the running program may know; None where there is no rule for its length."""
        numbers = all(type(n) in (int, torch.SymInt) for n in args)
        start, stop, step = args if len(args) == 3 else (*args, 1) if len(args) == 2 else (0, *args, 1)
        if not numbers or type(step) is not int or abs(step) != 1:
            return None
        return Counter(start, step, (stop - start) * step)

    def item(self) -> Any:
        """The next item."""
        return self.start + self.position * self.step

    def at(self, position: Any) -> Counter:
        """The iterator behind so many items."""
        return replace(self, position=position)


@dataclass
class State:
    """A frame's variables and stack, and what is at other places; `names` are the variables that are read from here on."""

    fast: dict[str, Any]
    stack: list[Any]
    names: frozenset[str]
    others: list[tuple[Place, Any]]

    @staticmethod
    def of(frame: Frame, names: frozenset[str], places: Sequence[Place]) -> State:
        """As it stands."""
        return State(dict(frame.fast), list(frame.stack), names, [(place, place.get()) for place in places])

    def put(self, frame: Frame) -> None:
        """Set the frame, and the other places, to it."""
        frame.fast, frame.stack = dict(self.fast), list(self.stack)
        for place, value in self.others:
            place.put(value)

    def values(self) -> Iterator[tuple[Path, Any]]:
        """What is read from here on."""
        yield from ((("variable", name), self.fast[name]) for name in sorted(self.names & self.fast.keys()))
        yield from ((("stack", k), value) for k, value in enumerate(self.stack))
        yield from ((("place", place), value) for place, value in self.others)

    def is_same(self, other: State) -> bool:
        """Whether all values are the same objects."""
        mine, others = dict(self.values()), dict(other.values())
        return mine.keys() == others.keys() and all(value is others[path] for path, value in mine.items())


class Kinds:
    """What is carried from round to round, by where it is: a tensor, or a number of a type."""

    def __init__(self, vm: Interpreter, device: torch.device) -> None:
        self.vm, self.device = vm, device
        self.found: dict[Path, type] = {}
        self.tracked: set[Path] = set()  # those that gradients are wanted of

    def size(self) -> int:
        """How much is known."""
        return len(self.found) + len(self.tracked)

    def names(self) -> list[str]:
        """What they are called."""
        return list(map(named, self.found))

    def find(self, before: State, behind: State) -> None:
        """Note what a round has changed. Raises Prevented where that cannot be carried."""
        if len(before.stack) != len(behind.stack):
            raise Prevented("a round of the loop leaves values on the stack")
        first, second = dict(before.values()), dict(behind.values())
        odd = next((path for path in first.keys() ^ second.keys()), None)
        if odd is not None:
            raise Prevented(f"{named(odd)} is bound on one side of a round of the loop only")
        for path, value in first.items():
            self._compare(path, value, second[path])
        for state in (before, behind):
            self.tracked |= {p for p, v in zip(self.found, self._carried(state), strict=True) if is_tracked([v])}

    def _compare(self, path: Path, a: Any, b: Any) -> None:
        a, b = (v.read() if type(v) is Unread else v for v in (a, b))
        if path in self.found:
            if self._kind(b) is not self.found[path]:
                raise Prevented(f"{named(path)} is {shown(a)} before a round of the loop and {shown(b)} behind it")
            return
        if a is b or is_constant(a) and is_constant(b) and indistinguishable(a, b) and not has_identity(a):
            return
        parts, others = _parts(a), _parts(b)
        kind = self._kind(a)
        if kind is not None and self._kind(b) is kind:
            self.found[path] = kind
        elif parts is None or others is None or type(a) is not type(b) or len(parts) != len(others):
            raise Prevented(f"{named(path)} is {shown(a)} before a round of the loop and {shown(b)} behind it")
        else:
            for k, (x, y) in enumerate(zip(parts, others, strict=True)):
                self._compare((*path, k), x, y)

    def _kind(self, value: Any) -> type | None:
        if isinstance(value, Tensor):
            return Tensor
        kind = self.vm.type_of(value)
        return kind if kind in (bool, int, float) else None

    def tensors(self, state: State) -> list[Tensor]:
        """The tensors that are carried."""
        return [value for value in self._carried(state) if isinstance(value, Tensor)]

    def likes(self, state: State) -> list[Tensor]:
        """New tensors like those that are carried."""
        return [
            torch.empty((), dtype=_DTYPES[kind], device=self.device)
            if kind is not Tensor
            else (tracked_like if path in self.tracked else result_like)(value)
            for (path, kind), value in zip(self.found.items(), self._carried(state), strict=True)
        ]

    def leaves(self, state: State) -> list[Tensor]:
        """What is carried, as tensors."""
        found = []
        for (path, kind), value in zip(self.found.items(), self._carried(state), strict=True):
            made = value if kind is Tensor else as_tensor(self.vm, value, kind, self.device)
            if made is None:
                raise Prevented(f"{named(path)} is a number that changes between calls")
            found.append(made)
        return found

    def _carried(self, state: State) -> list[Any]:
        values, found = dict(state.values()), []
        for path in self.found:
            value = values[path[:2]]
            for place in path[2:]:
                value = value.read() if type(value) is Unread else value
                value = (_parts(value) or ())[place]
            found.append(value.read() if type(value) is Unread else value)
        return found

    def filled(self, state: State, tensors: Sequence[Tensor]) -> State:
        """The state with these for what is carried."""
        made: dict[Path, Any] = {}
        for (path, kind), tensor in zip(self.found.items(), tensors, strict=True):
            value = tensor if kind is Tensor else number_in(self.vm, tensor, kind)
            if value is None:
                raise Prevented(f"{named(path)}, a number, changes in the loop")
            made[path] = value
        fast = {name: self._rebuilt(("variable", name), value, made) for name, value in state.fast.items()}
        stack = [self._rebuilt(("stack", k), value, made) for k, value in enumerate(state.stack)]
        others = [(place, self._rebuilt(("place", place), value, made)) for place, value in state.others]
        return State(fast, stack, state.names, others)

    def _rebuilt(self, path: Path, value: Any, made: dict[Path, Any]) -> Any:
        if path in made:
            return made[path]
        if not any(found[: len(path)] == path for found in made):
            return value
        value = value.read() if type(value) is Unread else value
        parts = [self._rebuilt((*path, k), part, made) for k, part in enumerate(_parts(value) or ())]
        return value.at(parts[0]) if type(value) is Counter else type(value)(parts)


_DTYPES = {bool: torch.bool, int: torch.int64, float: torch.float64}


def _parts(value: Any) -> Sequence[Any] | None:
    """What a value is made of, of kinds that are made again with other parts."""
    if type(value) is Counter:
        return (value.position,)
    return value if type(value) in (tuple, list) else None


class Surroundings:
    """What a round must leave as it is: all that the program can see but the frame's own variables and tensors' values."""

    def __init__(self, vm: Interpreter, frame: Frame) -> None:
        self.vm, self.frame = vm, frame
        self.state = _Visible(vm)
        self.reach = Reach(vm, "the loop")
        values = self.reach.values()
        found = [value if type(value) in _CONTAINERS else getattr(value, "__dict__", None) for value in values]
        self.contents = Contents(vm, [value for value in found if type(value) in _CONTAINERS])

    def begin(self) -> None:
        """From here on, what was written to carry it on is no change."""
        self.state = _Visible(self.vm)

    def changed(self) -> bool:
        """Whether anything is not as it was."""
        return self.state.is_changed() or self.reach.is_changed()


class _Visible(VisibleState):
    """Without the tensors that are written to: the loop gives these new values."""

    def _tensors(self) -> list[tuple[int, bool]]:
        return []
