"""Loops: a `while` or `for` that a tensor's value ends becomes one `while_loop` of the graph.

So does a `for` over `range` of a number that is read of a tensor: its condition is that there is one more item, which is asked for where
the loop takes it (`counted`). The round is run by the interpreter from one time that the condition is asked for to the next. What it
computes is carried: variables and values on the stack that change, as tensors (numbers as tensors without dimensions), attributes, items
of lists and dicts and variables of functions around that it writes to (`places.py`), and tensors that it writes to, whose memory the
loop's result is copied to. What a round may not do:

- change anything else that the program sees (let containers grow or shrink but by appending to a list, `regions/lists.py`; bind a new
  attribute, write to what C code holds, as a deque), draw random numbers, raise whatever the values are, wait;
- take items of anything but a range (where only a tensor says how many there are: one by one, upwards or downwards);
- give a variable another dtype, size, stride, device, nesting or kind than it had before;
- leave the loop in its middle, unless what decides there is computed by a few operators that cannot fail, of what the round begins
  with: the condition computes them, too. What lies before such a way out is done once more behind the loop, where it is taken.

What raises for some values is a check: whether one has failed is carried, and ends the loop. No round begins where a check in front
of the loop has failed: with values that eager does not come to, it might never end.

Where gradients are wanted through it, the rounds are counted first (`regions/rounds.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx

from ..bytecode.closing import may_be_dropped
from ..bytecode.frame import Frame
from ..bytecode.liveness import live_names
from ..bytecode.opcodes import steps_of
from ..entry.nature import may_draw
from ..errors import CaptureError, GraphBreak, Refused, UserRaise
from ..graph.aside import storage_of
from ..regions.capture import EXACT, Body, emit, is_tracked, over, owned, read_by, result_like, single
from ..regions.lists import Growing
from ..regions.rounds import differentiated, tracked_like
from ..state import Interpreter
from ..torch_private.regions import WHILE_LOOP
from ..values.kinds import isinstance
from ..values.lazy import Unread
from .flow import always_raises
from .loop_shape import Shape, leads_alike, shape_of
from .loop_state import (
    Arrived,
    Counter,
    Found,
    Kinds,
    Leaving,
    Round,
    State,
    Surroundings,
    check_alike,
    counter_of,
    nodes_behind,
    put_again,
    views_of,
)
from .memory import Sharing, may_repeat, sharing
from .places import Place
from .selects import is_cheap, name_of, needed_for, pieces_of, taken
from .sides import Prevented, Side, step
from .truths import as_tensor, tensor_of_truth

__all__ = ["Loops"]

_CHEAP = 12  # operators between the condition and another way out
_ATTEMPTS = 6


class Loops:
    """Those of one capture. `refused` says why there may be none."""

    def __init__(self) -> None:
        self.refused: str | None = None
        self.running: list[tuple[Frame, Shape]] = []
        self.leaving: Leaving | None = None  # the loop whose way out is being found

    def shape(self, vm: Interpreter, frame: Frame) -> Shape | None:
        """The loop whose condition the conditional jump that runs asks for."""
        found = shape_of(frame.code, frame.ip - 1)
        return found if found is not None and frame.ip - 1 in found.tests else None

    def counted(self, vm: Interpreter, args: Sequence[Any]) -> Counter | None:
        """The iterator of `range(*args)` in the head of a `for`, over as many items as only the running program knows; else None."""
        frame = vm.frames[-1]
        ahead = [ins.op for ins in frame.program.instructions[frame.ip : frame.ip + 2]]
        if self.refused is not None or ahead != ["GET_ITER", "FOR_ITER"] or type(vm.side) not in (type(None), Round):
            return None
        if vm.out.inside or may_be_dropped(vm) or frame.code.co_flags & 0x20 or not 1 <= len(args) <= 3:
            return None
        counter = Counter.over(args)
        if counter is not None:
            frame.ip += 1  # it is an iterator already
        return counter

    @staticmethod
    def is_counter(value: Any) -> bool:
        """Whether it is an iterator that `counted` gave."""
        return type(value) is Counter

    @contextmanager
    def left(self, vm: Interpreter, frame: Frame, shape: Shape, head: int, last: int) -> Iterator[Leaving]:
        """Inside, the way out at the instruction `last` is known to be taken."""
        before, self.leaving = (
            self.leaving,
            Leaving(vm, frame, shape, frozenset([(last, shape.tests[last].leave)]), head),
        )
        try:
            yield self.leaving
        finally:
            self.leaving = before

    def run(
        self, vm: Interpreter, frame: Frame, shape: Shape, predicate: Tensor
    ) -> tuple[State, tuple[Tensor, int] | None]:
        """The frame as it is when the loop ends, at its condition; the condition then and the last way out, where the ways out differ.

        Raises Prevented where there can be no loop in the graph.
        """
        if self.refused is not None:
            raise Prevented(self.refused)
        if any(f is frame and not shape.inside < s.inside for f, s in self.running):
            raise Prevented(f"the loop is left in the middle of a round by {Side(vm).place()}")
        if any(test.truth is None for test in shape.tests.values()):
            items = frame.stack[-1] if frame.stack else None
            if type(items) is not Counter and counter_of(vm, items) is None:  # before anything else holds a generator
                raise Prevented(f"the loop takes its items of a {vm.type_of(items).__name__}")
        index = frame.ip - 1
        surroundings = Surroundings(vm, frame)
        if any(test.truth is None for test in shape.tests.values()) and surroundings.holds(frame.stack[-1]):
            raise Prevented("the loop takes its items of an iterator that something else holds")
        loop = _Loop(vm, frame, shape, index, predicate, surroundings)
        self.running.append((frame, shape))
        try:
            ended = loop.record()
            if surroundings.changed():
                raise Refused(f"the loop changes something that the program sees{loop.culprit()}", "loops")
            return ended, None if loop.same_end else (loop.first, loop.last_test)
        except (Prevented, GraphBreak) as error:
            loop.give_back()
            if loop.growing.rows:
                raise Refused(str(error), "lists") from None
            if surroundings.changed() or loop.written:
                raise Refused(str(error), "loops") from None
            if isinstance(error, GraphBreak):
                raise Prevented(error.reason) from None
            raise
        finally:
            self.running.pop()


class _Loop:
    """One loop while it is recorded: what is carried, and what is known of its ways out."""

    def __init__(
        self, vm: Interpreter, frame: Frame, shape: Shape, index: int, predicate: Tensor, surroundings: Surroundings
    ) -> None:
        self.surroundings = surroundings
        self.places: list[Place] = []  # what is carried beside variables and the stack
        self.watched: Surroundings | None = None
        self.failed: Place | None = None  # whether a check in a round has failed
        self.changed: list[Place] = []  # what the last round has changed
        self.grown: list[tuple[list[Any], list[Any]]] = []  # lists that it has appended to, and what
        self.vm, self.frame, self.shape, self.index = vm, frame, shape, index
        self.device = predicate.device
        self.kinds = Kinds(vm, self.device)
        self.written: list[Tensor] = []  # tensors from before that a round writes to
        there = [n.meta.get("example_value") for n in vm.out.graph.find_nodes(op="placeholder")]
        self.fixed = {id(t) for t in there if isinstance(t, Tensor) and t.requires_grad}
        self.real_stack = list(frame.stack)
        test = shape.tests[index]
        truth = taken(vm, predicate)
        self.counts = test.truth is None  # the condition is that there is one more item
        self.first = vm.out.call_function(torch.logical_not, (truth,), {}) if test.truth is False else truth
        self.ends = self.gate()
        rounds: Any = None
        if self.counts:
            self.kinds.found["stack", len(frame.stack) - 1, 0] = int
            rounds = (counter_of(vm, frame.stack[-1]) or frame.stack[-1]).left()
        elif any(test.truth is None for test in shape.tests.values()):
            for place in reversed(range(len(frame.stack))):
                counter = counter_of(vm, frame.stack[place])
                if counter is not None:
                    frame.stack[place] = counter
                    self.kinds.found["stack", place, 0] = int
                    rounds = counter.left()
                    break
        self.growing = Growing(vm, frame, surroundings, self.device, rounds)
        self.names = live_names(frame.code, test.stay) | live_names(frame.code, test.leave)
        self.start = State.of(frame, self.names, self.places)
        self.last = 0  # how many ways out there are in a round
        self.same_end, self.last_test = True, -1

    def gate(self) -> bool:
        """Let no round begin where a check in front of the loop fails: it might never end there. Whether that could be done."""
        flags = self.vm.checks.gates(self.vm)
        for flag in dict.fromkeys(flag for flag in flags if flag.device == self.device):
            passed = self.vm.out.call_function(torch.logical_not, (flag,), {})
            self.first = self.vm.out.call_function(torch.logical_and, (self.first, passed), {})
        return all(flag.device == self.device for flag in flags)

    def give_back(self) -> None:
        """There is no loop: the frame, and all else, as it was."""
        self.growing.give_back()
        self.frame.stack[:] = self.real_stack
        self.surroundings.contents.give_back()

    # ---- what is carried ----

    def find(self) -> None:
        """Run a round until nothing more is found to be carried."""
        for _ in range(_ATTEMPTS):
            known = self.kinds.size(), len(self.written), len(self.places), self.growing.sizes()
            self.grown.clear()
            self.growing.begin()
            try:
                checked = self.look()
            except (Prevented, GraphBreak):
                if not self.growing.lists.wanted:
                    raise
                self.changed, checked = [], False
            self.note_places()
            if checked:
                self.note_checks()
            if known == (self.kinds.size(), len(self.written), len(self.places), self.growing.sizes()):
                return
        raise Prevented("what a round of the loop carries on does not settle")

    def look(self) -> bool:
        """Run a round, and note what is to be carried of it: whether it has the first checks."""
        vm, given = self.vm, self.given()
        with vm.out.beside(given) as aside:
            self.enter(given)
            arrived = self.run()
            nodes = pieces_of(aside)
            random = next(filter(may_draw, nodes), None)
            if random is not None:
                raise Prevented(f"{random.name} draws random numbers in the loop")
            self.kinds.find(self.start, arrived.state)
            self.note_written(aside, given)
            if self.vm.branches.choices.is_written(vm):
                raise Prevented("the loop writes to a tensor that is one of two, by a tensor's value")
            self.check_tests(arrived)
            return self.failed is None and bool(self.flags)

    def note_checks(self) -> None:
        """Carry on whether a check has failed: the loop ends there."""
        passed = as_tensor(self.vm, False, bool, self.device)
        self.failed = Place("whether a check has failed", [passed], 0)
        self.places.append(self.failed)
        self.start = State.of(self.frame, self.names, self.places)

    def note_places(self) -> None:
        """Which other places a round writes to: they are carried, too."""
        known = {(id(place.holder), place.key) for place in self.places}
        new = [place for place in self.changed if (id(place.holder), place.key) not in known]
        new += self.growing.take(self.grown)
        self.written = [t for t in self.written if not self.growing.has_left(t)]
        for place in new:
            self.surroundings.contents.begin(place)
        if new:
            self.places += new
            self.surroundings.begin()
            self.start = State.of(self.frame, self.names, self.places)

    def check_tests(self, arrived: Arrived) -> None:
        self.last = len(arrived.tests)
        self.same_end, self.last_test = True, arrived.tests[-1][0] if arrived.tests else -1
        leave = self.shape.tests[self.index].leave
        for at, _, _, needed, state in arrived.tests:
            odd = next((n for n in needed if not is_cheap(n)), None)
            if odd is not None or len(needed) > _CHEAP:
                line = self.frame.program.instructions[at].line
                what = name_of(odd) if odd else f"more than {_CHEAP} operators"
                raise Prevented(f"the loop is left in the middle of a round (line {line}), behind {what}")
            self.same_end &= self.leads(at, leave) and state.is_same(self.entered)

    def leads(self, at: int, leave: int) -> bool:
        """Whether a way out leads to where another one does."""
        return leads_alike(self.frame.code, self.shape.tests[at].leave, leave)

    def note_written(self, aside: Any, given: Sequence[Tensor]) -> None:
        """Which tensors from before a round writes to."""
        memory = {storage_of(t) for t in given}
        for storage in aside.written():
            if storage in memory:
                raise Prevented("the loop writes to a tensor that a variable is bound to anew in it")
            if any(storage_of(t) == storage for t in self.written):
                continue
            there = [t for t in aside.there() if storage_of(t) == storage]
            found = next((t for t in there if not t._is_view() or self.vm.out.node(t).op == "placeholder"), None)
            if found is not None:
                self.written.append(found)
                if id(found) in self.fixed or torch.empty_like(found).stride() != found.stride():
                    raise Prevented(
                        "the loop writes to a tensor of the caller's that requires gradients, or that has gaps"
                    )
            elif there:
                raise Prevented("the loop writes to a view of a tensor that is not known")

    # ---- running a round ----

    def given(self) -> list[Tensor]:
        """New tensors for all that is carried."""
        written = [(tracked_like if is_tracked([t]) else result_like)(t) for t in self.written]
        return [result_like(self.first), *self.kinds.likes(self.start), *written]

    def enter(self, given: Sequence[Tensor]) -> None:
        """Set the frame to the beginning of a round, where these tensors are carried."""
        out = self.vm.out
        count = len(given) - len(self.written)
        for tensor, taken_for in zip(self.written, given[count:], strict=True):
            made = out.call_method("clone", (taken_for,), {})
            views = views_of(self.vm, tensor)
            out._node_of[id(tensor)] = out.node(made)
            for view, steps in views:
                put_again(self.vm, view, steps, made)
        self.entered = self.kinds.filled(self.start, given[1:count])

    def run(self, tests: int | None = None) -> Arrived:
        """Run until the condition is asked for again, or this many ways out have been passed."""
        vm, frame = self.vm, self.frame
        kept = {name: getattr(frame, name) for name in ("fast", "stack", "ip", "begun", "before", "result")}
        before = vm.step, vm.stop_at, vm.out_size, vm.side, vm.steps_of, vm.current_error
        lists = vm.branches.lists.kept()
        modes = torch.is_grad_enabled(), len(vm.scopes), len(vm.open_scopes)
        self.entered.put(frame)
        if self.counts:
            self.take()
        frame.ip = self.shape.tests[self.index].stay
        vm.stop_at, vm.side, vm.steps_of = -1, Round(vm), steps_of
        self.noted = 0
        try:
            arrived = self._run(tests)
            if (torch.is_grad_enabled(), len(vm.scopes), len(vm.open_scopes)) != modes:
                raise Prevented("a round of the loop changes a mode")
            try:
                self.changed, self.flags = self.surroundings.contents.changed(self.grown), vm.side.flags
                self.growing.look()
            except Prevented as prevented:
                self.surroundings.contents.restore()
                raise Prevented(f"{prevented.reason}{self.culprit()}") from None
            return arrived
        except UserRaise as raised:
            raise Prevented(f"{type(raised.value).__name__} is raised in {Side(vm).place()}") from None
        except CaptureError as error:
            line = error.frames[-1] if error.frames else vm.places()[-1]
            raise Prevented(f"`{line.text}` (line {line.lineno}) cannot be captured: {error.reason}") from None
        finally:
            self.surroundings.contents.restore()
            vm.branches.lists.put_back(lists)
            for name, value in kept.items():
                setattr(frame, name, value)
            vm.step, vm.stop_at, vm.out_size, vm.side, vm.steps_of, vm.current_error = before

    def _run(self, wanted: int | None) -> Arrived:
        vm, frame, found = self.vm, self.frame, list[Any]()
        steps, begun = steps_of(frame.code), next(iter(reversed(vm.out.graph.nodes)))
        while True:
            index = frame.ip
            if wanted == len(found):
                return Arrived(self.state(), None, found)
            if index in self.shape.heads:
                stays = self.asked(index)
                if not self.counts:
                    frame.pop()
                state = self.state()
                passed = self.passed()
                stays = stays if passed is None else vm.out.call_function(torch.logical_and, (stays, passed), {})
                return self.joined(index, Arrived(state, stays, found), nodes_behind(begun))
            last = wanted == len(found) + 1
            if index in self.shape.tests and (more := self.undecided(index, last)) is not None:
                before = nodes_behind(begun)
                before = before[: before.index(vm.out.node(more)) + 1] if vm.out.node(more) in before else before
                needed = needed_for(vm.out.node(more), before)
                found.append((index, more, before, needed, self.state()))
                frame.ip = self.shape.tests[index].stay
                continue
            signal = step(vm, frame, steps)
            if self.watched is not None and self.watched.differs():
                raise Found(f": {Side(vm).place()}")
            if signal is not None:
                raise Prevented(f"the loop is left in the middle of a round by {Side(vm).place()}")

    def culprit(self) -> str:
        """Where a round changes what it must not, for a message: it is run once more, and looked at behind each instruction."""
        given = self.given()
        self.watched = Surroundings(self.vm, self.frame)
        try:
            with self.vm.out.beside(given):
                self.enter(given)
                self.run()
        except Found as found:
            return found.reason
        except (Prevented, GraphBreak):
            pass
        finally:
            self.watched = None
        return ""

    def state(self) -> State:
        """The frame as it stands, with whether a check has failed."""
        flags = self.vm.side.flags
        if any(flag.device != self.device for flag in flags):
            raise Prevented("a check in the loop is made on another device")
        while self.failed is not None and len(flags) > self.noted:
            either = self.failed.get(), flags[self.noted]
            self.failed.put(self.vm.out.call_function(torch.logical_or, either, {}))
            self.noted += 1
        return State.of(self.frame, self.names, self.places)

    def passed(self) -> Tensor | None:
        """Whether no check has failed yet; None where there are none."""
        return None if self.failed is None else self.vm.out.call_function(torch.logical_not, (self.failed.get(),), {})

    def joined(self, head: int, arrived: Arrived, nodes: list[fx.Node]) -> Arrived:
        """With the ways out right before the condition as parts of it, as in `while n < 9 and not done.all()`.

        What is computed between such a way out and the condition is computed for nothing where it is taken.
        """
        leave = self.shape.tests[head].leave
        while arrived.tests:
            at, more, before, _, state = arrived.tests[-1]
            behind = nodes[len(before) :]
            if not self.leads(at, leave) or not state.is_same(arrived.state):
                break
            if len(behind) > _CHEAP or not all(map(is_cheap, behind)):
                break
            stays = self.vm.out.call_function(torch.logical_and, (more, arrived.stays), {})
            arrived = Arrived(arrived.state, stays, arrived.tests[:-1])
        return arrived

    def undecided(self, index: int, last: bool) -> Tensor | None:
        """Whether the loop goes on at a way out, as a tensor, with what it asks for taken off the stack; None where that is known.

        `last`: nothing else is asked, so that no item is needed, which there may be none of.
        """
        vm, frame = self.vm, self.frame
        top = frame.stack[-1]
        if self.shape.tests[index].truth is None:
            if type(top) is not Counter:
                raise Prevented(f"the loop takes its items of a {vm.type_of(top).__name__}")
            return self.more() if last else self.take()
        value = top.read() if type(top) is Unread else top
        truth = tensor_of_truth(vm, value)
        if not isinstance(truth, Tensor) or getattr(truth, "constant", None) is not None:
            if vm.truth(value) is not self.shape.tests[index].truth:
                raise Prevented(f"the loop is left in the middle of a round by {Side(vm).place()}")
            return None
        test = self.shape.tests[index]
        if always_raises(frame.code, test.leave) and not always_raises(frame.code, test.stay):
            frame.stack[-1] = truth  # a check
            return None
        frame.pop()
        return self.stay(truth, index)

    def more(self) -> Tensor | None:
        """Whether the iterator on top of the stack has one more item."""
        top: Counter = self.frame.stack[-1]
        return as_tensor(self.vm, top.position < top.length, bool, self.device)

    def take(self) -> Tensor | None:
        """Put the next item on the stack; whether there is one."""
        more, top = self.more(), self.frame.stack[-1]
        self.frame.stack[-1] = top.at(top.position + 1)
        self.frame.push(top.item(self.vm))
        return more

    def stay(self, truth: Tensor, index: int) -> Tensor:
        if truth.numel() != 1:
            raise Prevented("the truth of a tensor of more than one number is asked for")
        made = taken(self.vm, truth)
        return made if self.shape.tests[index].truth else self.vm.out.call_function(torch.logical_not, (made,), {})

    def asked(self, index: int) -> Tensor:
        """The condition on top of the stack: whether there is another round."""
        value = self.frame.stack[-1]
        if self.counts:
            more = self.more()
            assert more is not None
            return more
        truth = tensor_of_truth(self.vm, value.read() if type(value) is Unread else value)
        if isinstance(truth, Tensor):
            if truth.device != self.device:
                raise Prevented("the condition of the loop moves to another device")
            return self.stay(truth, index)
        known = self.vm.truth(truth) is self.shape.tests[index].truth
        made = as_tensor(self.vm, known, bool, self.device)
        assert made is not None
        return made

    # ---- recording ----

    def record(self) -> State:
        """The node; the state behind it."""
        vm = self.vm
        if vm.out.inside or may_be_dropped(vm):
            raise Prevented("")
        self.find()
        given = self.given()
        with vm.out.beside(given) as aside:
            self.enter(given)
            arrived = self.run(self.last)
            stays = given[0]
            for _, one, *_ in arrived.tests:
                stays = vm.out.call_function(torch.logical_and, (stays, one), {})
            asked = self.body(aside, [stays], [], prune=True)
        with vm.out.beside(given) as aside:
            self.enter(given)
            arrived = self.run()
            assert arrived.stays is not None
            carried = self.kinds.leaves(arrived.state)
            shared = self.shared(aside, given, carried)
            again = self.body(aside, [arrived.stays, *carried], self.written)
        with torch.no_grad():
            leaves = [self.first, *self.kinds.leaves(self.start), *self.written]
        names = ["the condition", *self.kinds.names(), *("a tensor" for _ in self.written)]
        check_alike(names, leaves, again.results)
        read = read_by(asked, again)
        vm.out.modes += 1
        if is_tracked([*leaves, *read]):
            made = differentiated(vm, asked, again, leaves, read, self.ends)
        else:
            graphs = single(over(asked, read)), over(again, read)
            made = emit(vm, WHILE_LOOP, (*graphs, leaves, read), again.results, ends=self.ends)
            if self.growing.is_exact(self.flags):
                vm.out.node(made[0]).args[0].meta[EXACT] = True  # type: ignore[union-attr]
        count = len(made) - len(self.written)
        for tensor, result in zip(self.written, made[count:], strict=True):
            vm.out.call_method("copy_", (tensor, result), {})
        self.note_shared(made[1:count], leaves[1:count], shared)
        self.first = made[0]
        self.growing.ended()
        ended = self.kinds.filled(self.start, made[1:count])
        if self.failed is not None:
            vm.checks.expect(vm, dict(ended.others)[self.failed], False)
        return ended

    def body(self, aside: Any, results: list[Tensor], written: list[Tensor], prune: bool = False) -> Body:
        made = aside.tensors()
        memory = {storage_of(t) for t in written}
        if any(storage_of(t) in memory for t in results):
            raise Prevented("a variable of the loop is a part of a tensor that the loop writes to")
        results = [*owned(self.vm, "the loop", results, made), *written]
        needed = needed_for(self.vm.out.node(results[0]), pieces_of(aside)) if prune else None
        module, reads = aside.finish(results, needed)
        if not all(isinstance(r, Tensor) for r in reads):
            raise Prevented("the loop reads a number that changes between calls")
        if any(storage_of(r) == storage_of(t) for r in reads for t in self.written):
            raise Prevented("the loop writes to a tensor and reads another one of the same memory")
        return Body(module, reads, results, None)  # type: ignore[arg-type]

    def shared(
        self, aside: Any, given: Sequence[Tensor], carried: Sequence[Tensor]
    ) -> tuple[Sharing, dict[int, Tensor]]:
        """What in eager may share memory with what is carried, behind one round or more; and the tensors from before, by memory."""
        kinds = list(self.kinds.found.values())
        starts = self.kinds.tensors(self.start)
        mine = [t for t, kind in zip(given[1:], kinds, strict=False) if kind is Tensor]
        behind = [t for t, kind in zip(carried, kinds, strict=True) if kind is Tensor]
        ends = [self.vm.branches.choices.memory_of(t) for t in behind]
        there = {storage_of(t): t for t in (*aside.there(), *starts)}
        places = {storage_of(t): k for k, t in enumerate(mine)}
        for rows, items in self.growing.items():  # of a list: what any of its items is
            rows.repeats |= may_repeat(items, ends, places, there)
            memory = storage_of(rows.stands)
            starts, there[memory], places[memory] = [*starts, rows.stands], rows.stands, len(places)
            ends.append(frozenset({(memory, frozenset[tuple[int, int]]())}).union(*items))
        return sharing([*map(storage_of, starts)], ends, places, there), there

    def note_shared(
        self, made: Sequence[Tensor], before: Sequence[Tensor], shared: tuple[Sharing, dict[int, Tensor]]
    ) -> None:
        """Note of the results what they may be in eager."""
        loops, choices = self.vm.branches.loops, self.vm.branches.choices
        outermost = len(loops.running) == 1 and not self.vm.branches.depth
        kinds = self.kinds.found.values()
        pairs = [(a, b) for a, b, kind in zip(made, before, kinds, strict=True) if kind is Tensor]
        pairs += [(rows.stands, rows.stands) for rows, _ in self.growing.items()]
        found, there, loop = *shared, choices.new()
        for k, (result, start) in enumerate(pairs):
            if result is start:
                pass
            elif outermost:
                choices.note_first(result, start, self.first, loop)
            else:
                choices.note(result, start)
            for memory, number in found.outside[k]:
                if there[memory] is not result:  # behind a round or more
                    ways = [(-loop, 1)] if number is None else [(-loop, 1), (loop, number)]
                    choices.note(result, there[memory], *ways)
        for j, k in found.pairs:
            choices.note_shared(pairs[j][0], pairs[k][0])
