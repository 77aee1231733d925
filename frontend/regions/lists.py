"""Lists that the rounds of a loop append to: which can be rows of a tensor, and how many rows there may be.

A list is one of those (`Grown`, rows.py) where

- capture has made it, and nothing but variables and the stack of the loop's own frame holds it;
- rounds append to it, and do nothing else with it but what `Grown` gives;
- the loop is no part of another one, nor of a side of a branch.

The rounds of a `for` over a range are as many as it has items; where nothing bounds them, `_PRESUMED` rows are taken, with a check.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..branches.memory import Atom
from ..branches.places import Place
from ..branches.sides import Prevented
from ..errors import Refused
from ..state import Interpreter
from ..torch_private.symbols import hint_of
from ..values.kinds import isinstance
from .rows import Grown, Rows, among, answer, numbers_of, rows_of, unfit

if TYPE_CHECKING:
    from ..branches.loop_state import Surroundings
    from ..bytecode.frame import Frame

__all__ = ["Growing", "Lists"]

_PRESUMED = 1024
_MOST_BYTES = 1 << 22  # of the rows of a list whose loop nothing bounds


class Lists:
    """Those of one capture. `refused` says why there may be none."""

    def __init__(self) -> None:
        self.refused: str | None = None
        self.known: list[Rows] = []
        self.given: list[Tensor] = []  # what stands for those that are given out
        # Lists that a side of a branch in a round was prevented to append to.
        self.wanted: list[tuple[Any, list[Any]]] = []
        self.full: list[Tensor] = []  # the checks whether there is memory for one more row
        self.growing = False  # whether the rounds of a loop are looked at

    def call(self, vm: Interpreter, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """What a call gives that is given such a list; NotImplemented where it is made as any other."""
        return answer(vm, function, args, kwargs) if among((*args, *kwargs.values())) else NotImplemented

    def want(self, value: Any, items: Sequence[Any]) -> None:
        """Note what a side of a branch would append to a list."""
        if self.growing and type(value) is list:
            self.wanted.append((value, list(items)))

    def watch(self, vm: Interpreter) -> None:
        """From here on, what the sides of a branch would append is noted."""
        if vm.side is None:
            self.wanted, self.growing = [], self.refused is None and not vm.exporting

    def wanting(self, rows: Rows) -> Prevented:
        """A round appends to what is no list of its loop's yet, or more often than was seen."""
        if self.growing:
            self.wanted.append((rows, []))
        return Prevented("a list grows in a part of the loop that was not seen to append to it")

    def kept(self) -> list[tuple[Any, ...]]:
        """What is known, for `put_back`."""
        return [(r, r.count, r.each, list(r.waiting), list(r.sources), r.buffer) for r in self.known]

    def put_back(self, kept: list[tuple[Any, ...]]) -> None:
        """As it was."""
        for rows, *state in kept:
            rows.count, rows.each, rows.waiting, rows.sources, rows.buffer = state

    def waiting(self, kept: list[tuple[Any, ...]]) -> dict[int, list[Tensor]]:
        """The rows that a side has appended since then, by the number of the list."""
        new = [
            (k, rows.waiting[len(before[3]) :]) for k, (rows, before) in enumerate(zip(self.known, kept, strict=True))
        ]
        return {k: rows for k, rows in new if rows}

    def join(self, vm: Interpreter, k: int, new: Sequence[Tensor], number: Any) -> None:
        """Append what was chosen of the sides of a branch, behind it: rows, of which so many count."""
        rows = self.known[k]
        if vm.side is not None and not vm.side.is_round:
            if type(number) is not int:
                raise Prevented("a branch in a side of another one appends to a list")
            rows.waiting += new
            return
        if vm.side is None:
            rows.behind(new)
        rows.put(new, number)

    def give(self, value: Grown) -> tuple[Any, ...]:
        """The function that makes the list of its rows behind the graph, and what that is given."""
        rows = value._rows
        if rows.like is not None and not rows.like.is_contiguous():
            raise Refused("a list of tensors with strides of their own grows in a loop and is given out", "lists")
        if rows.repeats:
            raise Refused("a list that grows in a loop may hold one tensor twice, and is given out", "lists")
        self.given.append(rows.stands)
        return (rows_of if rows.kind is Tensor else numbers_of), rows.first, rows.buffer, rows.count

    def iterated(self, vm: Interpreter, value: Any) -> Tensor | None:
        """The items of such a list of tensors, one a row; None of anything else."""
        if type(value) is not Grown or value._rows.kind is not Tensor:
            return None
        made = value._rows.all()
        value._rows.note(made)
        return made


class Growing:
    """The lists of one loop."""

    def __init__(
        self, vm: Interpreter, frame: Frame, surroundings: Surroundings, device: torch.device, rounds: Any
    ) -> None:
        self.vm, self.frame, self.surroundings, self.device = vm, frame, surroundings, device
        self.lists: Lists = vm.branches.lists
        self.rounds: int | None = rounds + 1 if type(rounds) is int else None
        self.rows: list[Rows] = []
        self.before: list[tuple[str | int, Any]] = []  # what variables and places on the stack held
        self.kept = self.lists.kept()
        self.left: list[Tensor] = []  # memory of rows that was too small
        self.shown: dict[int, list[frozenset[Atom]]] = {}

    def takes(self) -> bool:
        """Whether there may be any."""
        return self.lists.refused is None and self.vm.side is None and not self.vm.exporting

    def begin(self) -> None:
        """From here on, rounds are looked at."""
        self.lists.wanted, self.lists.growing = [], self.takes()

    def take(self, grown: Sequence[tuple[list[Any], list[Any]]]) -> list[Place]:
        """Let these lists be rows, to which a round has appended these items: new places that are carried.

        Raises Prevented where one cannot.
        """
        self.lists.growing = False
        found = dict[int, tuple[Any, list[Any]]]()
        for value, items in (*grown, *self.lists.wanted):
            found.setdefault(id(value), (value, []))[1].extend(items)
        return [place for value, items in found.values() for place in self._taken(value, items)]

    def _taken(self, value: Any, items: list[Any]) -> list[Place]:
        if not self.takes():
            raise Prevented(self.lists.refused or "a list grows in the loop")
        rows = value if type(value) is Rows else self._rows(value, items)
        new = rows not in self.rows
        rows.most_each = max(len(items), 1) if new else rows.most_each + 1  # type: ignore[operator]
        if new:
            self.rows.append(rows)
        device = rows.device or self.device
        rounds = self._presumed(rows) if self.rounds is None else self.rounds
        rows.presumed = None if self.rounds is not None else rows.most + rounds * rows.most_each
        before = rows.buffer
        rows.reserve((rounds + 2) * rows.most_each, device)
        self.left += [before] if before is not None and before is not rows.buffer else []
        return [_Count(rows)] if new else []

    def _rows(self, value: list[Any], items: list[Any]) -> Rows:
        """A list of the frame's as rows."""
        vm, frame = self.vm, self.frame
        mine = any(held is value for held in (*frame.fast.values(), *frame.stack)) and id(value) not in vm.user.by_value
        callers = any(shadow.copy is value for shadow in vm.user.shadows)
        if not mine or callers or self.surroundings.held_elsewhere(value):
            raise Prevented("a list grows in the loop that something else than variables of its function holds")
        kind = vm.type_of(items[0])
        if kind not in (bool, int, float) and (reason := unfit(vm, items[0])):
            raise Prevented(f"{reason} is appended to a list in a loop")
        rows = Rows(vm, value, items[0])
        grown = Grown(rows)
        for name in [name for name, held in frame.fast.items() if held is value]:
            self.before.append((name, value))
            frame.fast[name] = grown
        for place in [k for k, held in enumerate(frame.stack) if held is value]:
            self.before.append((place, value))
            frame.stack[place] = grown
        self.lists.known.append(rows)
        return rows

    def _presumed(self, rows: Rows) -> int:
        """How many rounds are taken for the most."""
        sizes = [] if rows.like is None else [n if type(n) is int else hint_of(n) or 1 for n in rows.like.shape]
        each = math.prod(sizes) * (8 if rows.like is None else rows.like.element_size())
        return max(64, min(_PRESUMED, _MOST_BYTES // max(each, 1)))

    def give_back(self) -> None:
        """There is no loop."""
        for where, value in reversed(self.before):
            if isinstance(where, str):
                self.frame.fast[where] = value
            else:
                self.frame.stack[where] = value
        self.lists.put_back(self.kept)
        known = [rows for rows, *_ in self.kept]
        self.lists.known[:] = [rows for rows in self.lists.known if any(rows is one for one in known)]
        self.end()

    def end(self) -> None:
        """Nothing is in a round any more."""
        self.lists.growing = False
        for rows in self.rows:
            rows.most_each, rows.presumed, rows.each, rows.sources = None, None, 0, []

    def sizes(self) -> list[int]:
        """How many rows there is memory for."""
        return [rows.buffer.shape[0] for rows in self.rows]

    def is_exact(self, flags: Sequence[Tensor]) -> bool:
        """Whether these checks of a round are only whether there is memory for one more row."""
        return all(any(flag is full for full in self.lists.full) for flag in flags)

    def has_left(self, tensor: Tensor) -> bool:
        """Whether it is the memory of rows that was too small."""
        return any(tensor is left for left in self.left)

    def look(self) -> None:
        """Note at the end of a round what it has appended. Raises GraphBreak where it writes to that."""
        for k, rows in enumerate(self.rows):
            rows.check()
            self.shown[k] = [self.vm.branches.choices.memory_of(row) for _, row in rows.sources]

    def items(self) -> list[tuple[Rows, list[frozenset[Atom]]]]:
        """The lists of tensors, and the memory that each item of the last round is in eager."""
        return [(self.rows[k], atoms) for k, atoms in self.shown.items() if self.rows[k].kind is Tensor]

    def ended(self) -> None:
        """The loop is a node: there may be so many rows more."""
        for rows in self.rows:
            rounds = self._presumed(rows) if self.rounds is None else self.rounds
            rows.most += (rounds + 1) * (rows.most_each or 0)
        self.end()


class _Count(Place):
    """How many rows of a list are in use."""

    def __init__(self, rows: Rows) -> None:
        super().__init__("the length of a list", rows)

    def get(self) -> Any:
        """How many there are."""
        return self.holder.count

    def put(self, value: Any) -> None:
        """Set it."""
        self.holder.count = value
