"""What a round of a loop begins and ends with: the frame, what of it changes, and what else must not."""

from __future__ import annotations

import operator
import types
from collections import Counter as Counts
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx

from ..bytecode.frame import Frame
from ..bytecode.opcodes import steps_of
from ..gradients.state import Reach, VisibleState
from ..graph.aside import storage_of
from ..graph.output import MUTATES
from ..guards.sameness import indistinguishable
from ..regions.capture import is_tracked, result_like, same
from ..regions.rounds import tracked_like
from ..state import Interpreter
from ..values.constant import has_identity, is_constant
from ..values.kinds import isinstance
from ..values.lazy import Unread
from .loop_shape import Shape
from .places import Contents, Place
from .selects import name_of
from .sides import Path, Prevented, Side, named, shown, step
from .truths import as_tensor, number_in

__all__ = [
    "Arrived",
    "Counter",
    "Found",
    "Kinds",
    "Leaving",
    "Round",
    "State",
    "Surroundings",
    "check_alike",
    "counter_of",
    "inner_of",
    "nodes_behind",
    "put_again",
    "views_of",
]

_CONTAINERS = (list, dict, types.CellType)
_RANGE, _TUPLE = type(iter(range(0))), type(iter(()))


@dataclass(frozen=True)
class Counter:
    """The iterator of a range: how many items there are, and how many have been taken.

    Items are numbers, the `rows` of a tensor, or tuples of the items of `parts` (`enumerate`, `zip`), which all stand where this began.
    """

    start: Any
    step: int
    length: Any  # below zero there are none
    position: Any = 0
    rows: Tensor | None = None
    parts: tuple[Counter, ...] = ()

    @staticmethod
    def over(args: Sequence[Any]) -> Counter | None:
        """That of `range(*args)`, whose bounds only the running program may know; None where there is no rule for its length."""
        numbers = all(type(n) in (int, torch.SymInt) for n in args)
        start, stop, step = args if len(args) == 3 else (*args, 1) if len(args) == 2 else (0, *args, 1)
        if not numbers or type(step) is not int or abs(step) != 1:
            return None
        return Counter(start, step, (stop - start) * step)

    def item(self, vm: Interpreter) -> Any:
        """The next item."""
        if self.parts:
            return tuple(part.at(part.position + self.position).item(vm) for part in self.parts)
        if self.rows is not None:
            return vm.call(torch.select, (self.rows, 0, self.position), {})
        return self.start + self.position * self.step

    def left(self) -> int | None:
        """How many items are left, where that is known."""
        left = self.length - self.position if type(self.length) is type(self.position) is int else None
        return left if left is None else max(left, 0)

    def at(self, position: Any) -> Counter:
        """The iterator behind so many items."""
        return replace(self, position=position)


def counter_of(vm: Interpreter, value: Any) -> Counter | None:
    """What an iterator of a range, of a tensor's rows, or of these by `enumerate` or `zip` is at; None of anything else."""
    kind = type(value)
    if kind is _RANGE:
        items: Any = value.__reduce__()[1][0]
        return Counter(items.start, items.step, len(items), len(items) - operator.length_hint(value))
    if kind is _TUPLE:
        rows = _rows_of(vm, value.__reduce__()[1][0])
        return None if rows is None else Counter(0, 1, rows.shape[0], value.__reduce__()[2], rows)
    if kind is enumerate:
        inner, count = value.__reduce__()[1]
        found = counter_of(vm, inner)
        return None if found is None else _together([Counter(count, 1, _left(found)), found])
    if kind is zip:
        _, inner, *strict = value.__reduce__()
        made = [one for one in (counter_of(vm, each) for each in inner) if one is not None]
        if not made or len(made) < len(inner) or strict and len({*map(_left, made)}) > 1:
            return None
        return _together(made)
    return None


def inner_of(value: Any) -> list[Any]:
    """An iterator, and those that it takes its items of."""
    if type(value) is enumerate:
        return [value, *inner_of(value.__reduce__()[1][0])]
    return [value, *(i for one in value.__reduce__()[1] for i in inner_of(one))] if type(value) is zip else [value]


def _left(counter: Counter) -> int:
    return int(counter.length - counter.position)


def _together(parts: list[Counter]) -> Counter:
    """One whose items are tuples; items of the longer ones, which `zip` takes at its end, nobody sees."""
    return Counter(0, 1, min(map(_left, parts)), 0, None, tuple(parts))


def _rows_of(vm: Interpreter, items: tuple[Any, ...]) -> Tensor | None:
    """The tensor whose rows these are, as iterating and `unbind` give them; None of anything else."""
    nodes = [vm.out.node(t) if isinstance(t, Tensor) and vm.out.is_known(t) else None for t in items]
    first = nodes[0] if nodes else None
    made: Any = first.args[0] if first is not None and first.target is operator.getitem else None
    if not isinstance(made, fx.Node) or name_of(made) not in ("unbind", "iter") or not made.args:
        return None
    if any(n is None or n.target is not operator.getitem or n.args != (made, k) for k, n in enumerate(nodes)):
        return None
    if any(made.args[1:]) or any(made.kwargs.values()) or not isinstance(made.args[0], fx.Node):
        return None
    base = made.args[0].meta.get("example_value")
    if not isinstance(base, Tensor) or not vm.out.is_known(base) or vm.overrides.concern((base,)):
        return None
    plain = vm.out.node(base) is made.args[0] and storage_of(base) == storage_of(items[0])
    return base if plain and base.shape[0] == len(items) and not base.requires_grad else None


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


class Round(Side):
    """A round of a loop while it runs: anything may be called, what that changes is seen afterwards."""

    takes_checks = in_round = is_round = True

    def call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], call: Callable[[], Any]) -> Any:
        """Nothing is known before."""
        return call()


@dataclass
class Arrived:
    """The frame where the condition is asked for again, and what the ways out on the way were: instruction, truth that stays, operators before, those of them that it needs."""

    state: State
    stays: Tensor | None
    tests: list[tuple[int, Tensor, list[fx.Node], list[fx.Node], State]]


@dataclass(frozen=True)
class Leaving:
    """A loop that has ended; `cut` is the way out that was taken where its condition still holds: instruction, where to."""

    vm: Interpreter
    frame: Frame
    shape: Shape
    cut: frozenset[tuple[int, int]]
    head: int

    def begin(self, stays: bool) -> None:
        """Set the frame, which stands at the loop's condition, to where it goes on."""
        frame, test = self.frame, self.shape.tests[self.head]
        if test.truth is None:
            top = frame.stack.pop()
            frame.stack += [top.at(top.position + 1), top.item(self.vm)] if stays else []
        frame.ip = test.stay if stays else test.leave

    def passed(self) -> str | None:
        """Go on from the beginning of the last round to behind the loop: the signal of the instruction that leaves it earlier, if any."""
        known, steps = dict(self.cut), steps_of(self.frame.code)
        while self.frame.ip not in known:
            if (signal := step(self.vm, self.frame, steps)) is not None:
                return signal
        self.frame.pop()
        self.frame.ip = known[self.frame.ip]
        return None


def check_alike(names: Sequence[str], before: Sequence[Tensor], behind: Sequence[Tensor]) -> None:
    """Raises Prevented where a round gives something else than it takes."""
    for name, a, b in zip(names, before, behind, strict=True):
        for what, x, y in (
            ("dtype", a.dtype, b.dtype),
            ("sizes", list(a.shape), list(b.shape)),
            ("device", a.device, b.device),
            ("strides", list(a.stride()), list(b.stride())),
        ):
            if not same(x, y):
                raise Prevented(f"{name} has the {what} {x} before a round of the loop and {y} behind it")


def nodes_behind(node: fx.Node) -> list[fx.Node]:
    """The operators that are recorded behind a node."""
    found, node = list[fx.Node](), node.next
    while node.op != "root":
        if node.op.startswith(("call", "get_attr")):
            found.append(node)
        node = node.next
    return found


class Found(Prevented):
    """Where a round changes what it must not."""


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
        values = [*self.reach.values(), *_written(vm), *(unread.appended for unread in vm.user.appended)]
        found = [value if type(value) in _CONTAINERS else getattr(value, "__dict__", None) for value in values]
        self.contents = Contents(vm, [value for value in found if type(value) in _CONTAINERS])

    def begin(self) -> None:
        """From here on, what was written to carry it on is no change."""
        self.state = _Visible(self.vm)

    def changed(self) -> bool:
        """Whether anything is not as it was."""
        return self.state.is_changed() or self.reach.is_changed()

    def differs(self) -> bool:
        """Whether anything is not as it was, items of containers included."""
        try:
            self.contents.changed()
        except Prevented:
            return True
        return self.changed()

    def holds(self, iterator: Any) -> bool:
        """Whether anything but the top of the frame's stack holds an iterator, or one that it takes items of: that would move, too."""
        vm, inside = self.vm, inner_of(iterator)
        copies = {id(known.copy) for known in vm.user.iterators.values()}
        if any(map(vm.user.is_iterator, inside)) or not copies.isdisjoint(map(id, inside)):
            return True  # an iterator of the caller's
        counts = Counts(map(id, inside))
        seen = [value for frame in vm.frames for value in (*frame.fast.values(), *frame.stack)]
        return sum(counts[i] for i in self._held(seen, counts)) > 1

    def held_elsewhere(self, value: list[Any]) -> bool:
        """Whether anything but variables and the stack of the frame holds a list."""
        frames = [frame for frame in self.vm.frames if frame is not self.frame]
        seen = [held for frame in frames for held in (*frame.fast.values(), *frame.stack)]
        seen += [getattr(held, "__self__", None) for held in (*self.frame.fast.values(), *self.frame.stack)]
        return id(value) in self._held(seen, ())

    def _held(self, seen: list[Any], but: Collection[int]) -> list[int]:
        """What these are, and all that holds something else than the objects `but`."""
        vm, journal = self.vm, self.vm.effects
        seen += [entry[1] for written in (journal.attrs, journal.globals, journal.cells) for entry in written.values()]
        seen += [value for shadow in vm.user.shadows for value in _items(shadow.copy)]
        ids = [id(v) for value in seen for v in (value, getattr(value, "__self__", None))]
        return ids + [
            h for key, (_, held) in self.reach.before.items() if key not in but for h in held if type(h) is int
        ]


def views_of(vm: Interpreter, base: Tensor) -> list[tuple[Tensor, list[fx.Node]]]:
    """The views of a tensor that the graph has made by plain operators, with the nodes that lead to each."""
    origin, found = vm.out.node(base), list[tuple[Tensor, list[fx.Node]]]()
    for node in vm.out.graph.nodes:
        value, steps, last = node.meta.get("example_value"), list[fx.Node](), node
        while isinstance(value, Tensor) and last is not origin and storage_of(value) == storage_of(base):
            inputs = last.all_input_nodes
            if not last.op.startswith("call") or len(inputs) != 1 or last.meta.get(MUTATES):
                break
            steps.append(last)
            last, value = inputs[0], inputs[0].meta.get("example_value")
        view = node.meta.get("example_value")
        if last is origin and steps and vm.out.is_known(view) and vm.out.node(view) is node:
            found.append((view, steps[::-1]))
    return found


def put_again(vm: Interpreter, view: Tensor, steps: Sequence[fx.Node], base: Tensor) -> None:
    """Let the graph know a view by the same operators on another tensor that lies as its base does."""
    made: Any = base
    for node in steps:
        (before,) = node.all_input_nodes
        args, kwargs = fx.map_arg((node.args, node.kwargs), {before: made}.__getitem__)
        made = (
            vm.out.call_method(node.target, args, kwargs)
            if isinstance(node.target, str)
            else vm.out.call_function(node.target, args, kwargs)
        )
    if isinstance(made, Tensor) and made.stride() == view.stride() and made.shape == view.shape:
        vm.out._node_of[id(view)] = vm.out.node(made)


def _written(vm: Interpreter) -> list[Any]:
    """The containers that attributes and variables of the caller's hold which were written, and those in them."""
    journal, found = vm.effects, list[Any]()
    ahead = [entry[1] for written in (journal.attrs, journal.globals, journal.cells) for entry in written.values()]
    while ahead:
        value = ahead.pop()
        if type(value) in (list, dict, tuple) and not any(value is one for one in found):
            found.append(value)
            ahead += _items(value)
    return found


def _items(container: Any) -> list[Any]:
    return [*container.values()] if isinstance(container, dict) else [*container]


class _Visible(VisibleState):
    """Without the tensors that are written to: the loop gives these new values."""

    def _tensors(self) -> list[tuple[int, bool]]:
        return []
