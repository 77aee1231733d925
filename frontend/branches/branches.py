"""Branches: an `if` on a tensor of which both sides compute, and nothing else, stays in the graph.

Both sides are run. Where they are short and cannot fail, they are computed both, and results are chosen by `torch.where`. Else they are
the sides of one `torch.cond`, where no gradients are wanted and nothing draws random numbers.
"""

from __future__ import annotations

import types
from collections import Counter as Counts
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor

from ..bytecode.closing import may_be_dropped
from ..bytecode.frame import Frame
from ..bytecode.instruction import disassemble
from ..entry.nature import may_draw
from ..errors import GraphBreak, Refused
from ..gradients.state import VisibleState
from ..regions.branches import Conditional, branch
from ..regions.hits import Hits, Places
from ..regions.lists import Growing, Lists
from ..state import Interpreter
from ..torch_private.dtensor import is_composite
from ..torch_private.fake import data_dependent_errors
from ..values.kinds import isinstance
from ..values.lazy import Unread
from .asked import number_asked
from .checks import CHECK
from .conditions import combined
from .flow import alike, always_raises, join_of
from .loop_shape import Shape
from .loop_state import Counter, Leaving, Surroundings
from .loops import Loops
from .selects import Choices, gate, pieces_of, taken, unequal, why_not, with_nodes
from .sides import LEAVES, STAYS, SUSPENDS, Plan, Prevented, Way, number_kind, run_side
from .truths import as_tensor, number_in, presumed, tensor_of_truth

__all__ = ["Branches"]

_DEEPEST = 3  # branches in sides of branches
_MOST_PRESUMED = 16  # times that one statement's truth is presumed


class Branches:
    """Those of one capture. `refused` says why there may be none; None: nothing is against them."""

    def __init__(self) -> None:
        self.refused: str | None = None
        self.choices = Choices()
        self.loops = Loops()
        self.hits = Hits()
        self.lists = Lists()
        self.presumptions: Counts[tuple[types.CodeType, int]] = Counts()
        self.passed_over = False  # whether a side that warns or raises is left out, with a check
        self.depth = 0

    def run(self, vm: Interpreter, frame: Frame, true: int, false: int) -> str | None:
        """Go on behind a conditional jump on a tensor, whose two ways begin at these instructions: the signal of the instruction.

        Raises GraphBreak where the graph ends there.
        """
        asked = frame.before[-1]
        asked = asked.read() if type(asked) is Unread else asked
        predicate = tensor_of_truth(vm, asked)
        try:
            if self.refused is not None:
                raise Prevented(self.refused)
            return self._run(vm, frame, predicate, true, false)
        except Prevented as prevented:
            known = number_asked(vm, predicate)
            if known is None and (known := vm.checks.presumed(vm, predicate, true, false)) is not None:
                frame.ip = true if known else false
                return None
            if known is None and self.loops.shape(vm, frame) is None:
                known = self.presumed(vm, asked)
                if known is None and prevented.unlikely and self._passes_over(vm, predicate):
                    known = prevented.truth is False
                if known is not None:
                    vm.checks.expect(vm, predicate, known)
            if known is not None:
                frame.ip = true if known else false
                return None
            raise GraphBreak(f"{CHECK}, and {prevented.reason}" if prevented.reason else CHECK) from None
        except data_dependent_errors():
            raise GraphBreak(
                f"{CHECK}, and a size that depends on a tensor's values differs between its sides"
            ) from None

    def count(self, vm: Interpreter, frame: Frame) -> str | None:
        """Go on at the head of a `for` over as many numbers as only the running program knows, as `Loops.counted` has found."""
        counter = frame.stack[-1]
        try:
            shape = self.loops.shape(vm, frame)
            more = None if shape is None else tensor_of_truth(vm, counter.position < counter.length)
            if shape is not None and vm.side is None and not isinstance(more, Tensor):  # a list that had items already
                if bool(more):
                    frame.stack[-1:] = counter.at(counter.position + 1), counter.item(vm)
                else:
                    frame.ip = frame.program.instructions[frame.ip - 1].arg
                    frame.pop()
                return None
            if not isinstance(more, Tensor) or shape is None:
                raise Prevented("")
            return self._loop(vm, frame, shape, more)
        except (Prevented, GraphBreak) as error:
            raise Refused(error.reason, "loops") from None

    def places(self, vm: Interpreter, frame: Frame, value: Any) -> Any:
        """What stands for an iterator over the places that `nonzero` found, or a list whose length values decide; None of anything else."""
        rows = self.lists.iterated(vm, value) if frame.program.instructions[frame.ip].op == "FOR_ITER" else None
        if rows is not None:
            return Counter(0, 1, rows.shape[0], 0, rows)
        return self.hits.over(vm, frame, value) if self.refused is None and isinstance(value, Tensor) else None

    def each(self, vm: Interpreter, frame: Frame) -> bool:
        """Whether the head of a `for` was that of a loop over such places: the frame stands behind it."""
        if type(frame.stack[-1]) is not Places:
            return False
        self.hits.run(vm, frame, lambda: known_of(vm, frame))
        return True

    def presumed(self, vm: Interpreter, value: Any) -> bool | None:
        """What a symbolic number's truth is for all sizes but 0 and 1, to be checked; None: nothing is to be presumed of it here.

        A statement that asks again and again may be what ends a loop or a recursion.
        """
        if vm.exporting or vm.side is not None:
            return None
        known = presumed(vm, value)
        if known is None:
            return None
        place = vm.frames[-1].code, vm.frames[-1].ip
        self.presumptions[place] += 1
        return known if self.presumptions[place] <= _MOST_PRESUMED else None

    def _passes_over(self, vm: Interpreter, predicate: Any) -> bool:
        """Whether the side of a branch that warns or raises may be left out, with a check that the call does not go there."""
        if vm.exporting or not vm.dynamic.marks.passes_over or not vm.checks.takes(vm, predicate):
            return False
        self.passed_over = True
        return True

    def either(self, vm: Interpreter, predicate: Tensor, first: Any, second: Any) -> Any:
        """`first if predicate else second`, of values that are there already. Raises GraphBreak where where cannot choose."""
        reason: str | None = self.refused
        if reason is None and (kind := number_kind(first)) is not None and kind is number_kind(second):
            chosen = self._number(vm, predicate, kind, first, second)
            if chosen is not None:
                return chosen
        if reason is None and isinstance(first, Tensor) and isinstance(second, Tensor) and not vm.out.inside:
            try:
                unequal(vm, ("result", None), first, second)
                reason = why_not(vm, predicate, [(first, second)])
                if reason is None:
                    return self.choices.choose(vm, taken(vm, predicate), [(first, second)])[0]
            except Prevented as prevented:
                reason = prevented.reason
        known = number_asked(vm, predicate)
        if known is not None:
            return first if known else second
        raise GraphBreak(f"{CHECK}, and {reason}" if reason else CHECK)

    def _number(self, vm: Interpreter, predicate: Tensor, kind: type, first: Any, second: Any) -> Any:
        """One of two numbers of a kind; None where that cannot be a number of the graph."""
        if vm.out.inside or not vm.out.is_known(predicate) or not vm.dynamic.may_be_late():
            return None
        both = [as_tensor(vm, number, kind, predicate.device) for number in (first, second)]
        if any(one is None for one in both):
            return None
        return number_in(vm, self.choices.choose(vm, taken(vm, predicate), [tuple(both)])[0], kind)  # type: ignore[arg-type]

    def joins(self, frame: Frame, index: int, cut: frozenset[tuple[int, int]]) -> frozenset[int] | None:
        """Where the two ways of a jump meet: one instruction, or, in a round of a loop, where the condition is asked for again."""
        heads = next((shape.heads for f, shape in reversed(self.loops.running) if f is frame), frozenset())
        join = join_of(frame.code, index, cut, heads)
        if join is None:
            return None
        if join == len(disassemble(frame.code).instructions):
            return heads or frozenset([join])
        return alike(frame.code, join)

    def finish(self, vm: Interpreter, results: list[Tensor]) -> None:
        """Raises Refused where what was chosen can be told from what eager gives."""
        reason = self.choices.refusal(vm, [*results, *self.lists.given])
        if reason is not None and self.lists.known:
            raise Refused(reason, "lists")
        if reason is not None:
            raise Refused(reason, "branches")

    def _run(self, vm: Interpreter, frame: Frame, predicate: Tensor, true: int, false: int) -> str | None:
        leaving = self.loops.leaving
        if leaving is not None and leaving.frame is frame and frame.ip - 1 in leaving.shape.tests:
            return self._branch(vm, frame, predicate, (true, false), leaving.cut)
        shape = self.loops.shape(vm, frame)
        if shape is not None:
            return self._loop(vm, frame, shape, predicate)
        if combined(vm, frame, predicate, true, false):
            return None
        return self._branch(vm, frame, predicate, (true, false), frozenset())

    def _loop(self, vm: Interpreter, frame: Frame, shape: Shape, predicate: Tensor) -> str | None:
        """The loop whose condition the jump asks for, then the way out of it."""
        index = frame.ip - 1
        if is_composite(predicate) or not vm.out.is_known(predicate) or frame.code.co_flags & SUSPENDS:
            raise Prevented("")
        ended, way = self.loops.run(vm, frame, shape, predicate)
        ended.put(frame)
        test = shape.tests[index]
        if way is None:
            if test.truth is None:
                frame.pop()
            frame.ip = test.leave
            return None
        # Which way out it was, the condition says: where that holds, the last one of the others was taken.
        stays, last = way
        frame.ip = index + 1
        raises = {
            truth: always_raises(frame.code, shape.tests[at].leave) for truth, at in ((True, last), (False, index))
        }
        with self.loops.left(vm, frame, shape, index, last) as leaving:
            try:
                if raises[True] is not raises[False]:
                    return self._expected(vm, frame, leaving, stays, raises[False])
                return self._branch(vm, frame, stays, (STAYS, LEAVES), leaving.cut)
            except Prevented as prevented:
                if prevented.unlikely and self._passes_over(vm, stays):
                    return self._expected(vm, frame, leaving, stays, prevented.truth is False)
                try:
                    joins = self.joins(frame, frame.ip - 1, leaving.cut)
                    if joins is None or self.depth or vm.side is not None:
                        raise prevented
                    takes = taken(vm, stays)
                    return Conditional(vm, frame, takes, joins, known_of(vm, frame), (STAYS, LEAVES)).record()
                except (Prevented, GraphBreak) as second:
                    reason = second.reason if _writes(prevented.reason) else prevented.reason
                    raise Refused(reason, "loops") from None
            except GraphBreak as error:
                raise Refused(error.reason, "loops") from None

    def _expected(self, vm: Interpreter, frame: Frame, leaving: Leaving, stays: Tensor, truth: bool) -> str | None:
        """Leave a loop where the truth of its condition leads, with a check: the other way raises."""
        vm.checks.expect(vm, stays, truth)
        leaving.begin(truth)
        return leaving.passed() if truth else None

    def _branch(
        self, vm: Interpreter, frame: Frame, predicate: Tensor, ways: tuple[int, int], cut: frozenset[tuple[int, int]]
    ) -> str | None:
        joins = self.joins(frame, frame.ip - 1, cut)
        if (
            joins is None
            or vm.out.inside
            or may_be_dropped(vm)
            or frame.code.co_flags & SUSPENDS
            or is_composite(predicate)
        ):
            raise Prevented("")
        if self.depth >= _DEEPEST or not vm.out.is_known(predicate):
            raise Prevented("")
        self.depth += 1
        self.lists.watch(vm)
        try:
            return self._both(vm, frame, predicate, ways, joins)
        except Prevented as prevented:
            if vm.side is not None or not self.lists.wanted:
                raise
            try:
                surroundings = Surroundings(vm, frame)
            except GraphBreak:
                raise prevented from None
            growing = Growing(vm, frame, surroundings, predicate.device, 1)
            try:
                growing.take(())
            except Prevented:
                growing.give_back()
                raise prevented from None
            try:
                return self._both(vm, frame, predicate, ways, joins)
            except Prevented:
                growing.give_back()
                raise
            finally:
                growing.end()
        finally:
            self.depth -= 1

    def _both(
        self, vm: Interpreter, frame: Frame, predicate: Tensor, ways: tuple[int, int], joins: frozenset[int]
    ) -> str | None:
        plan = Plan(vm, frame.code, joins, known_of(vm, frame), predicate.device)
        state = VisibleState(vm)
        tried = Prevented("")
        with vm.out.beside([]) as first:
            try:
                with _named_by(True):
                    one = run_side(vm, frame, ways[0], joins)
                with vm.out.beside([]) as second:
                    with _named_by(False):
                        other = run_side(vm, frame, ways[1], joins)
                    build = plan.ended(one, other)
                    pairs = plan.both_of(one, other)
                    for (path, kind), (a, b) in zip(plan.paths, pairs, strict=False):
                        if kind is Tensor:
                            unequal(vm, path, a, b)
                    reason = why_not(vm, predicate, pairs, pieces_of(first, second), pieces_of(second))
                    written = first.writes() or second.writes()
                    random = any(map(may_draw, (*pieces_of(first), *pieces_of(second))))
            except Prevented as prevented:
                tried, reason, written = prevented, prevented.reason, first.writes()
        if written or state.is_changed():
            raise Refused(f"a side of a branch writes to what was there before: {reason or frame.line}", "branches")
        if reason is None:
            takes = taken(vm, predicate)
            runs = [with_nodes(vm, partial(run_side, vm, frame, way, joins)) for way in ways]
            ends, sides = zip(*runs, strict=True)
            self.choices.gated += [(len(vm.out.writes), tensor) for tensor in gate(vm, takes, sides)]
            chosen = self.choices.choose(vm, takes, list(zip(*map(plan.tensors_of, ends), strict=True)))
        elif reason is tried.reason or random or not pairs or self.depth > 2 or any(a.requires_grad for a, _ in pairs):
            raise tried if reason is tried.reason else Prevented(reason)
        else:
            first_way, second_way = (Way(vm, frame, way, joins, plan) for way in ways)
            takes = taken(vm, predicate)
            chosen = list(branch(vm, "the branch", takes, first_way, second_way, (), free=True))
            choice = self.choices.new()
            for made, (a, b) in zip(chosen, pairs, strict=True):
                self.choices.note_either(made, takes, a, b, choice)
        return plan.put(frame, build, chosen, one.ip)


def _writes(reason: str) -> bool:
    """Whether it is for a write that a side was prevented."""
    return "STORE_SUBSCR" in reason or "_ is called" in reason or "writes to" in reason


@contextmanager
def _named_by(truth: bool) -> Iterator[None]:
    """Which side it is, by the truth that leads to it, for what prevents it."""
    try:
        yield
    except Prevented as prevented:
        prevented.truth = truth
        raise


def known_of(vm: Interpreter, frame: Frame) -> set[int]:
    """The containers that are there already, as far as a side can reach them through variables and the stack."""
    found: set[int] = set()
    ahead: list[Any] = [*frame.fast.values(), *frame.stack, *(shadow.copy for shadow in vm.user.shadows)]
    while ahead:
        value = ahead.pop()
        if type(value) in (list, tuple, dict) and id(value) not in found:
            found.add(id(value))
            ahead += value.values() if type(value) is dict else value
    return found | set(vm.user.by_value) | set(vm.user.by_real)
