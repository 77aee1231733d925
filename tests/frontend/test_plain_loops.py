"""Long loops of plain Python: capture gives them to CPython, and says so; short ones, and those with operators, it follows to their end."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from intarsia.frontend.breaks.budget import Budget
from intarsia.frontend.runtime.callable import compile_callable

LIMIT = 300 * 4  # instructions


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Budget, "WINDOW", 300)
    monkeypatch.setattr(Budget, "WINDOWS", 4)


class Told:
    def __init__(self) -> None:
        self.reasons: list[str] = []

    def on_break(self, broken: Any) -> None:
        self.reasons.append(broken.reason)

    def on_fallback(self, file: str, line: int, text: str, reason: str) -> None:
        raise AssertionError(reason)


def as_it_is(gm: Any, _: Any) -> Any:
    return gm.forward


def runs(function: Callable[..., Any], *args: Any) -> list[str]:
    """The reasons of breaks; results, and those of a second call, are eager's."""
    told = Told()
    compiled = compile_callable(function, backend=as_it_is, observer=told)
    for factor in (1, 2):
        x = torch.arange(3.0) * factor
        want, got = function(x, *args), compiled(x, *args)
        assert torch.equal(got, want)
    return told.reasons


def mixed(total: int, n: int) -> int:
    for i in range(n):
        total = (total * 31 + i) % 1000003
        if total % 7 == 3:
            total += i
    return total


class Sums:
    def __init__(self) -> None:
        self.seen: list[int] = []

    def add(self, n: int) -> int:
        for i in range(n):
            with contextlib.suppress(ZeroDivisionError):
                self.seen.append(i // (i % 3))
        return sum(self.seen)


def counted(n: int) -> Iterator[int]:
    yield from range(n)


def in_the_function(x: Tensor, n: int) -> Tensor:
    y, total = x + 1, 3
    for i in range(n):
        total = (total * 31 + i) % 1000003
    z = y * total
    return z - 1


def in_a_call(x: Tensor, n: int) -> Tensor:
    y = x + 1
    return y * mixed(3, n) - 1


def in_calls_of_a_loop(x: Tensor, n: int) -> Tensor:
    y, total = x * 2, 1
    for i in range(n):
        total = mixed(total, 1 + i % 3)
    return y + total


def in_a_method(x: Tensor, n: int) -> Tensor:
    sums = Sums()
    y = x + sums.add(n)
    return y * len(sums.seen)


def in_a_generator(x: Tensor, n: int) -> Tensor:
    y = x - 1
    return y * sum(i % 5 for i in counted(n))


def in_a_while_with_try(x: Tensor, n: int) -> Tensor:
    y, total = x.sin(), 0
    try:
        while True:
            total += 1
            if total > n:
                raise StopIteration(total)
    except StopIteration as stop:
        y = y + stop.value
    return y.cos()


def by_a_key(x: Tensor, n: int) -> Tensor:
    y = x + 1
    order = sorted(range(n), key=lambda i: (i * 7919) % 104729)
    return y * order[n // 2]


PROGRAMS = (
    *(in_the_function, in_a_call, in_calls_of_a_loop, in_a_method, in_a_generator, in_a_while_with_try),
    by_a_key,
)


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda f: f.__name__)
def test_long_and_short_loops(function: Callable[..., Any]) -> None:
    draw = random.Random(function.__name__)
    for _ in range(3):
        assert runs(function, draw.randrange(1, 25)) == []
        reasons = runs(function, draw.randrange(LIMIT, 3 * LIMIT))
        assert {*reasons} == {f"plain Python runs for more than {LIMIT} instructions without an operator of the graph"}
        assert len(reasons) <= 2


def test_loops_whose_calls_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time counts from the second look on; a look finds no operator since the last one."""
    monkeypatch.setattr(Budget, "WINDOWS", 1000)
    for seconds, expected in ((-1.0, "-1 seconds of capture"), (1000.0, "")):
        monkeypatch.setattr(Budget, "SECONDS", seconds)
        reasons = runs(in_a_call, 3 * LIMIT)
        text = f"plain Python runs for more than {expected} without an operator of the graph"
        assert {*reasons} == ({text} if expected else set())
        assert runs(in_a_call, 3) == []


def test_what_the_loop_changes_is_changed_once() -> None:
    def grown(x: Tensor, n: int, kept: list[int]) -> Tensor:
        y = x + 1
        for i in range(n):
            kept.append(i * i % 11)
        return y * len(kept)

    for n in (20, LIMIT, 2 * LIMIT):
        ours: list[int] = [1]
        theirs: list[int] = [1]
        compiled = compile_callable(grown, backend=as_it_is, observer=Told())
        for _ in range(2):
            assert torch.equal(compiled(torch.ones(2), n, ours), grown(torch.ones(2), n, theirs))
        assert ours == theirs


def test_loops_with_operators_are_followed() -> None:
    def long(x: Tensor, n: int) -> Tensor:
        for i in range(n):
            total = 0
            for k in range(40):
                total += k
            x = x * 0.5 + (total + i)
        return x

    assert runs(long, 40) == []
