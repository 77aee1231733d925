"""Sameness of values: what is the same answers every question alike, and a call with anything else is captured anew."""

from __future__ import annotations

import collections
import datetime
import decimal
import fractions
import functools
import itertools
import math
import random
import re
import uuid
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from harness import compiled, same
from torch import nn

from intarsia.frontend.guards.definitions import can_watch
from intarsia.frontend.guards.recompile_reason import show
from intarsia.frontend.guards.sameness import indistinguishable
from intarsia.frontend.guards.set_tables import layout, made_set, recipe, removed, table

_ZONE = datetime.timezone(datetime.timedelta(hours=1))
_NOON = datetime.datetime(2020, 1, 1, 12, tzinfo=datetime.UTC)
PLAIN: list[Callable[[], Any]] = [
    *(
        lambda v=v: v
        for v in (0, 1, True, False, 1.0, 0.0, -0.0, math.nan, -math.nan, math.inf, None, ..., "a", b"a", 1j, -1j)
    ),  # type: ignore[misc]
    lambda: "".join(["long", " text"]),
    lambda: complex(0.0, -0.0),
    *(lambda t=t: decimal.Decimal(t) for t in ("1", "1.0", "0", "-0", "0E2", "NaN", "sNaN", "Infinity")),  # type: ignore[misc]
    lambda: fractions.Fraction(1, 2),
    lambda: fractions.Fraction(1),
    *(lambda r=r: range(*r) for r in ((0, 3, 2), (0, 4, 2), (0,), (2, 1), (3,))),  # type: ignore[misc]
    lambda: slice(1, 2),
    lambda: slice(1.0, 2),
    lambda: _NOON.replace(),
    lambda: _NOON.astimezone(_ZONE),
    lambda: _NOON.replace(fold=1),
    lambda: _NOON.replace(tzinfo=None),
    lambda: _NOON.timetz(),
    lambda: _NOON.time(),
    lambda: _NOON.date(),
    lambda: datetime.timedelta(0),
    lambda: re.compile("a"),
    lambda: re.compile(b"a"),
    lambda: re.compile("a", re.IGNORECASE),
    lambda: uuid.UUID(int=1),
    *(lambda t=t: t(0) for t in (numpy.float64, numpy.float32, numpy.int64, numpy.bool_)),  # type: ignore[misc]
    lambda: numpy.float64(-0.0),
    lambda: torch.Size([1, 2]),
    lambda: torch.float32,
    lambda: torch.device("cpu"),
]
WRAPPED: list[Callable[[Any], Any]] = [
    lambda v: v,
    lambda v: (v, 2),
    lambda v: [v],
    lambda v: {v: 1},
    lambda v: {1: v},
    lambda v: {v, "z"},
    lambda v: frozenset([v]),
    lambda v: collections.deque([v], 3),
    lambda v: collections.OrderedDict(a=v),
    lambda v: ((v,), [v]),
]


def told(value: Any) -> Any:
    """What a program can read of a value."""
    if isinstance(value, float):
        return type(value), repr(value), math.copysign(1, value)
    if isinstance(value, list | tuple | set | frozenset | collections.deque):
        return type(value), [told(v) for v in value], getattr(value, "maxlen", 0)
    if isinstance(value, dict):
        return type(value), [(told(k), told(v)) for k, v in value.items()]
    return type(value), repr(value), value.tzname() if hasattr(value, "tzname") else 0, getattr(value, "fold", 0)


def wrapped(wrap: Callable[[Any], Any], make: Callable[[], Any]) -> Any:
    """A value in a container, or None where it has no hash."""
    try:
        return wrap(make())
    except TypeError:
        return None


@pytest.mark.parametrize("wrap", WRAPPED)
def test_values_are_the_same_where_programs_read_the_same_of_them(wrap: Callable[[Any], Any]) -> None:
    """All pairs, in each container; each value is made anew."""
    for make, other in itertools.product(PLAIN, repeat=2):
        a, b = wrapped(wrap, make), wrapped(wrap, other)
        assert indistinguishable(a, b) == (told(a) == told(b)), (a, b)


def test_a_call_is_answered_from_its_own_values() -> None:
    """A function that returns what it is given, and what it reads of it, sees the values of each call in random order."""

    def f(x: torch.Tensor, value: Any) -> Any:
        parts = list(value) if isinstance(value, list | tuple | set | frozenset | dict) else [value]
        return x + 1, parts, type(parts[0]).__name__ if parts else ""

    fast, log = compiled(f, recompile_limit=10_000)
    rng = random.Random(1)
    values = [v for v in (wrapped(rng.choice(WRAPPED), make) for make in PLAIN for _ in range(3)) if v is not None]
    x = torch.ones(2)
    for value in [*values, *values]:
        got, want = fast(x, value), f(x, value)
        assert told(got[1:]) == told(want[1:]), value
    assert len(log.captures) <= len(values)


def test_a_set_is_made_again_in_its_order() -> None:
    """Sets with a history of their own; where no way is found, nothing is claimed."""
    rng, found = random.Random(0), 0
    for _ in range(300):
        made: set[Any] = set()
        pool = [rng.choice([rng.randrange(100), f"k{rng.randrange(50)}", rng.random(), None]) for _ in range(20)]
        for item in rng.choices(pool, k=rng.randrange(1, 40)):
            (made.add if rng.random() < 0.8 else made.discard)(item)
        known = recipe(made)
        if known is not None:
            found += 1
            again = made_set(*known)
            assert [*again] == [*made] and again.__sizeof__() == made.__sizeof__()
    assert found > 240


def test_what_is_shown_of_a_value_runs_nothing_of_the_program() -> None:
    class Loud:
        def __repr__(self) -> str:
            raise AssertionError("a guard's explanation calls the program's own method")

    held = Loud()
    for value in (held, [held], {"a": (held,)}, {held}, held.__repr__, functools.partial(int, held), type(held)):
        assert "Loud" in show(value) or "partial" in show(value)
    assert (
        show([1, "a", (2.0,), {3: None}, frozenset({4}), set()]) == "[1, 'a', (2.0,), {3: None}, frozenset({4}), set()]"
    )


def test_this_python_tells_changes_of_classes_and_functions() -> None:
    """Every supported version does; otherwise each question is asked in each call."""
    assert can_watch()


def test_sets_of_functions_and_modules():
    """Capture works with what is in them; what is added or comes in their place is seen."""
    layers = {nn.ReLU(), nn.Tanh()}
    known, fixed, (layer, _) = {torch.sin, len}, frozenset([torch.cos, abs]), layers

    def program(x, function, module):
        factor = 2 if function in known else 3
        result = function(x) * factor * (5 if module in layers else 7)
        return result, len(known), function in fixed, known & fixed

    fast, log = compiled(program)
    x = torch.ones(3)
    for function, module in ((torch.sin, layer), (torch.cos, layer), (torch.cos, nn.Tanh())):
        assert same(fast(x, function, module), program(x, function, module))
    known.add(torch.cos)
    assert same(fast(x, torch.cos, layer), program(x, torch.cos, layer))
    layers.remove(layer)
    assert same(fast(x, torch.cos, layer), program(x, torch.cos, layer))
    # Whether such a set's order tells of items that are gone, depends on where its items happen to lie.
    assert all("order depends on items that were removed" in b.reason for b in log.breaks) and not log.fallbacks


def test_what_is_in_a_set_is_not_asked_during_capture():
    asked = []

    class Loud:
        def __eq__(self, other):
            asked.append(other)
            return other == 1

        def __hash__(self):
            return 1

    items = {Loud()}

    def program(x):
        return x + 1, 1 in items

    fast, log = compiled(program)
    for _ in range(2):
        assert fast(torch.ones(1))[1] is True
    assert asked == [1, 1] and log.breaks


def test_a_set_is_made_again_at_its_places() -> None:
    """Nothing was removed from these: another one has its items at the same places, so that both do the same with any other item."""
    rng, found = random.Random(3), 0
    for count in (3, 4, 6, 10, 20, 60, 150, 400) * 6:
        items = [rng.getrandbits(60) for _ in range(count)]
        made = set(items) if rng.random() < 0.5 else set()
        for item in items:
            made.add(item)
        known = recipe(made)
        again = None if known is None else made_set(*known)
        if again is not None and removed(again) == 0:
            found += 1
            assert [*again] == [*made] and layout(again) == layout(made) and table(again) == table(made)
    assert found >= 44


def test_a_set_of_hashes_that_collide_is_added_to() -> None:
    """Three items of which two collide, in each order; then sets of the same order whose items lie elsewhere."""

    class Holder:
        items: set[int]

    def f(x: torch.Tensor, more: int) -> Any:
        holder.items.add(more)
        return x + 1, list(holder.items), holder.items | {more + 8}

    holder = Holder()
    for first in itertools.permutations((8, 16, 5)):
        fast, log = compiled(f)
        for second in (first, *itertools.permutations((8, 16, 5))):
            want = []
            for run in (f, fast):
                holder.items = set()
                for item in second:
                    holder.items.add(item)
                result = run(torch.ones(2), 24)
                want.append([result[1], list(result[2]), list(holder.items)])
            assert want[0] == want[1], (first, second)
        assert not log.breaks
