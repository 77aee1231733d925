"""Both halves of a training step recorded in the same memory: backward's gradients lie where what forward saved was."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from intarsia.targets.recordings import graphs
from intarsia.targets.recordings import recording_memory as playback
from intarsia.targets.recordings.graphs import WARM
from intarsia.targets.recordings.recording import Halves
from tests.targets.test_recorded import Program


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "POOLS", playback.Pools())


def forward(x: Tensor, w: Tensor) -> list[Any]:
    hidden = (x @ w).tanh()
    return [hidden.sum(), hidden, hidden.t(), x * 2, hidden + 1, w]


def backward(hidden: Tensor, turned: Tensor, doubled: Tensor, unread: Tensor, w: Tensor, arriving: Tensor) -> list[Any]:
    slope = (1 - hidden * hidden) * arriving
    return [doubled.t() @ slope / 2, slope @ w.t(), turned.sum() * arriving]


def taking(args: list[Any]) -> list[Any]:
    values = list(args)
    args.clear()
    return backward(*values)


class Step:
    """Two programs as AOTAutograd calls them."""

    def __init__(self, takes: bool = True, sizes: bool = True) -> None:
        self.halves = Halves(saved=1000)
        self.first = Program(forward, ["tensor", "static"], ["a0.shape[0]"] if sizes else [])
        self.second = Program(backward, ["tensor"] * 3 + ["unused", "tensor", "tensor"], ["a0.shape[0]"])
        for program in (self.first, self.second):
            program.gpu.memory = lambda: []  # type: ignore[method-assign]
        self.first.recorded.hand_out(range(1, 99), half=True, halves=self.halves)
        self.second.recorded.hand_out(range(99), half=True, after_others=True, halves=self.halves)
        if takes:
            self.second.recorded.make_taking = lambda: taking
        self.took = 0

    def forward(self, x: Tensor, w: Tensor) -> tuple[Tensor, list[Tensor]]:
        loss, *saved = self.first(x, w)
        return loss, saved

    def backward(self, saved: list[Tensor], arriving: Tensor) -> Sequence[Any]:
        """Empties `saved`; what others hold of it is theirs."""
        args = [*saved, arriving]
        saved.clear()
        found = self.second.recorded.take(args)
        self.took += found is not None
        return self.second(*args) if found is None else found

    @property
    def replays(self) -> int:
        return self.first.recorded.replays + self.second.recorded.replays


def wanted(x: Tensor, w: Tensor, arriving: Tensor) -> list[Tensor]:
    return backward(*forward(x, w)[1:], arriving)


def check(found: Sequence[Any], *given: Tensor) -> None:
    for a, b in zip(found, wanted(*given), strict=True):
        assert torch.equal(a, b) and a.stride() == b.stride()


def test_a_loop() -> None:
    """Every step plays both back, once backward was called as often as it waits."""
    step, w, arriving = Step(), torch.randn(4, 4), torch.randn(())
    for k in range(16):
        x = torch.randn(3, 4)
        loss, saved = step.forward(x, w)
        assert torch.equal(loss, forward(x, w)[0])
        found = step.backward(saved, arriving)
        check(found, x, w, arriving)
        del found
        assert step.took == max(0, k - WARM - 2) and step.second.calls <= WARM + 3 + 2  # a recording is two calls
    first, second = step.first.recorded.made.values(), step.second.recorded.made.values()
    (one,), (other,) = first, second
    assert one.place is other.place and one.was_taken and len(other.taken) == 4 and step.halves.version == 0
    assert step.first.recorded.replays == 16 - WARM


def test_a_gradient_that_begins_to_move() -> None:
    """It is small, so it is copied from the first recording on; where it is kept in mind, steps wait for another recording."""
    for moving in ([5], []):
        step, w, arriving = Step(), torch.randn(4, 4), torch.randn(())
        step.second.recorded.moving = moving
        kept = []
        for k in range(20):
            if k >= 10:
                arriving = torch.randn(())
                kept.append(arriving)  # no two at one place
            x = torch.randn(3, 4)
            check(step.backward(step.forward(x, w)[1], arriving), x, w, arriving)
        assert step.took == (20 - WARM - 3 if moving else 10 - WARM - 3) and step.halves.version == 0


def test_constants_that_follow_the_arguments() -> None:
    """A recording that takes its arguments is given what the program computes once; the list is as it was where there is none."""

    def divided(*args: Any) -> list[Any]:
        *given, factor = args
        return [x / factor for x in backward(*given)]

    def taking_all(args: list[Any]) -> list[Any]:
        values = list(args)
        args.clear()
        return divided(*values)

    step, w, arriving, factor = Step(), torch.randn(4, 4), torch.randn(()), torch.tensor(4.0)
    step.second = Program(divided, ["tensor"] * 3 + ["unused", "tensor", "tensor", "tensor"], ["a0.shape[0]"])
    second = step.second.recorded
    second.gpu.memory = lambda: []  # type: ignore[method-assign]
    second.hand_out(range(99), half=True, after_others=True, halves=step.halves)
    second.make_taking, second.further = lambda: taking_all, lambda given: [factor]
    took = 0
    for _ in range(12):
        x = torch.randn(3, 4)
        args = [*step.forward(x, w)[1], arriving]
        found = second.take(args)
        took += found is not None
        assert found is not None or len(args) == 6
        found = step.second(*args, factor) if found is None else found
        assert all(torch.equal(a, b / 4) for a, b in zip(found, wanted(x, w, arriving), strict=True))
        del found, args
    assert took == 12 - WARM - 3


def test_what_was_saved_is_memory_of_backward() -> None:
    """Nobody owns it any more once backward is recorded; a program that does not give up its arguments leaves it as it is."""
    for takes in (True, False):
        step, w, arriving = Step(takes), torch.randn(4, 4), torch.randn(())
        for _ in range(10):
            check(step.backward(step.forward(torch.ones(3, 4), w)[1], arriving), torch.ones(3, 4), w, arriving)
        (made,) = step.first.recorded.made.values()
        assert made.was_taken == takes and (step.took > 0) == takes
        _, owners = made.place.pool.memory[0]
        assert [one() is None for one in owners[1:]] == [takes] * 3


@pytest.mark.parametrize("sizes", [False, True])
def test_one_block_for_what_is_saved(sizes: bool) -> None:
    """Forward's first recording in a memory takes it, where sizes are known; backward finds it there, a further one of forward does not."""
    step, weights, arriving = Step(sizes=sizes), [torch.randn(4, 4) for _ in range(2)], torch.randn(())
    for k in range(20):
        step.backward(step.forward(torch.randn(3, 4), weights[k // 10])[1], arriving)
    assert step.first.gpu.reserved == ([] if sizes else [1000]) and not step.second.gpu.reserved
    assert step.first.recorded.recorded == 2 and step.took and step.halves.version == 0


def test_backward_twice() -> None:
    """What is still in use is not written to; where that happens again, each half has memory of its own."""
    step, w, arriving = Step(), torch.randn(4, 4), torch.randn(())
    for k in range(30):
        x = torch.randn(3, 4)
        saved = step.forward(x, w)[1]
        if k >= 10:
            check(step.backward([*saved], arriving), x, w, arriving)
        check(step.backward(saved, arriving), x, w, arriving)
    assert not step.halves.takes
    before = step.replays
    saved = step.forward(x, w)[1]
    check(step.backward([*saved], arriving), x, w, arriving)
    check(step.backward(saved, arriving), x, w, arriving)
    assert step.replays == before + 3  # all are played back as before


def test_gradients_that_are_added_up() -> None:
    """Forward is called while one is in use: each half has memory of its own, and all calls are played back."""
    step, w, arriving = Step(), torch.randn(4, 4), torch.randn(())
    for k in range(20):
        total: list[Tensor] = []
        sums = [torch.zeros(()) for _ in range(3)]
        before = step.replays
        for _ in range(4):
            x = torch.randn(3, 4)
            found = step.backward(step.forward(x, w)[1], arriving)
            sums = [a + b for a, b in zip(sums, wanted(x, w, arriving), strict=True)]
            if total:
                torch._foreach_add_(total, list(found))
            else:
                total = list(found)
            del found
        if k:
            torch.testing.assert_close([t.sum() for t in total], [s.sum() for s in sums], rtol=1e-4, atol=1e-4)
        del total
        assert k < 8 or step.replays == before + 8
    assert not step.halves.takes


def test_gradients_that_are_dropped_behind_forward() -> None:
    step, w, arriving = Step(), torch.randn(4, 4), torch.randn(())
    found: Sequence[Any] = []
    for k in range(30):
        x = torch.randn(3, 4)
        before = step.replays
        saved = step.forward(x, w)[1]
        found = []
        found = step.backward(saved, arriving)
        check(found, x, w, arriving)
        assert k < 20 or step.replays == before + 2
    assert not step.halves.takes and found


def test_memory_that_both_had_goes_at_once() -> None:
    """It is not left to the collector: until then it would be there beside the new memory."""
    step, w, arriving = Step(), torch.randn(4, 4), torch.randn(())
    found: Sequence[Any] = []
    old: list[weakref.ref[Any]] = []
    gc.collect()
    gc.disable()
    try:
        for k in range(16):
            saved = step.forward(torch.randn(3, 4), w)[1]
            found = [] if k > 7 else found
            found = step.backward(saved, arriving)
            if k == 6:
                made = [*step.first.recorded.made.values(), *step.second.recorded.made.values()]
                old = [weakref.ref(made[0]), weakref.ref(made[1]), weakref.ref(made[0].place)]
                del made
    finally:
        gc.enable()
    assert not step.halves.takes and found and [one() for one in old] == [None] * 3


def test_what_cannot_be_recorded_so() -> None:
    """A program that gives an argument back, or cannot be captured in the other's memory, is recorded in its own."""
    for kind in ("returned", "fails"):
        step, w, arriving = Step(), torch.randn(4, 4), torch.randn(())

        def bad(args: list[Any], kind: str = kind) -> list[Any]:
            if kind == "fails":
                raise RuntimeError("misaligned")
            values = list(args)
            args.clear()
            return [*backward(*values)[:2], values[0]]

        step.second.recorded.make_taking = lambda bad=bad: bad  # type: ignore[misc]
        for _ in range(20):
            x = torch.randn(3, 4)
            check(step.backward(step.forward(x, w)[1], arriving), x, w, arriving)
        assert not step.halves.takes and not step.took and not step.second.recorded.reason
        assert step.second.recorded.replays and step.first.recorded.replays


def test_two_forward_calls_before_backward() -> None:
    step, w, arriving = Step(), torch.randn(4, 4), torch.randn(())
    for k in range(30):
        a, b = torch.randn(3, 4), torch.randn(3, 4)
        before = step.replays
        one, other = step.forward(a, w)[1], step.forward(b, w)[1]
        check(step.backward(other, arriving), b, w, arriving)
        check(step.backward(one, arriving), a, w, arriving)
        assert k < 20 or step.replays == before + 4


def test_two_forward_calls_that_come_late() -> None:
    """A spare of forward would write to what backward has taken: each half has memory of its own from then on."""
    step, w, arriving = Step(), torch.randn(4, 4), torch.randn(())
    for k in range(44):
        before, waiting = step.replays, []
        for _ in range(1 if k < 12 else 2):
            x = torch.randn(3, 4)
            waiting.append((step.forward(x, w)[1], x))
        count = len(waiting)
        while waiting:
            saved, x = waiting.pop()
            check(step.backward(saved, arriving), x, w, arriving)
        assert 8 < k < 12 or k < 40 or step.replays == before + 2 * count
    assert not step.halves.takes


def test_arguments_that_move() -> None:
    """A batch that backward reads is another one each time: what is recorded anew copies it in."""
    step, w, places = Step(), torch.randn(4, 4), [torch.randn(()) for _ in range(2)]
    for k in range(80):
        arriving, x = places[k // 20 % 2], torch.randn(3, 4)
        check(step.backward(step.forward(x, w)[1], arriving), x, w, arriving)
    assert step.halves.takes and 1 <= step.halves.version <= 2 and step.took > 30
    assert 5 not in (step.second.recorded.placed or ())


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_held(seed: int) -> None:
    """Sizes, weights and places change, saved tensors and gradients are held or used again in any order: nothing that is in use is written to."""
    rng = random.Random(seed)
    step, weights = Step(), [torch.randn(4, 4) for _ in range(2)]
    places = [torch.randn(()) for _ in range(2)]
    waiting: list[tuple[list[Tensor], Tensor, Tensor]] = []
    held: list[tuple[Tensor, Tensor]] = []
    wild = rng.choice((0.0, 0.02, 0.3))
    for number in range(400):
        odd = rng.random() < wild
        x, w = torch.randn(rng.choice((2, 2, 2, 2, 3)) if odd else 2, 4), weights[odd and rng.random() < 0.3]
        saved = step.forward(x, w)[1]
        waiting.append((saved, x, w))
        while waiting and not (odd and rng.random() < 0.4):
            saved, x, w = waiting.pop(rng.randrange(len(waiting)))
            arriving = places[odd and rng.random() < 0.3]
            if odd and rng.random() < 0.3:  # retain_graph
                check(step.backward([*saved], arriving), x, w, arriving)
            if odd and rng.random() < 0.2:
                held.append((saved[0], forward(x, w)[1]))
            found = step.backward(saved, arriving)
            check(found, x, w, arriving)
            if odd or number % 8:
                held += zip(found, wanted(x, w, arriving), strict=True)
            del found
        del saved
        assert all(torch.equal(a, b) for a, b in held)
        for each, x, w in waiting:
            assert all(torch.equal(a, b) for a, b in zip(each, forward(x, w)[1:], strict=True))
        held = rng.sample(held, k=min(len(held), rng.choice((0, 0, 2, 4)))) if rng.random() < 0.5 else held
    assert step.replays > 100
