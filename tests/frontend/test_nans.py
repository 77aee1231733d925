"""NaNs that are one object, or several: containers and searches find one by identity, whatever it equals."""

from __future__ import annotations

import collections
import decimal
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from harness import compiled, number_backend

N, M = float("nan"), float("nan")
PAIRS = [(N, N), (N, M), (M, M), (N, N), (math.nan, math.nan), (math.nan, M)]
QUESTIONS: list[Callable[[Any, Any], Any]] = [
    lambda a, b: a in [b],
    lambda a, b: [a] == [b],
    lambda a, b: (a, 1) < (b, 2),
    lambda a, b: {1: a} == {1: b},
    lambda a, b: len({a, b}),
    lambda a, b: {a: 3}.get(b, 5),
    lambda a, b: [b].count(a),
    lambda a, b: len([*itertools.groupby([a, b])]),
    lambda a, b: len(collections.Counter([a, b])),
    lambda a, b: [(a,)] == [(b,)],
    lambda a, b: slice(a) == slice(b),
    lambda a, b: a in [math.nan],
    lambda a, b: a is b,
]


def agree(question: Callable[..., Any], calls: list[tuple[Any, ...]], symbols: bool = False) -> list[Any]:
    """The answers, which are eager's in each call; between them the calls that are made twice."""

    def f(x: torch.Tensor, *args: Any) -> torch.Tensor:
        return x + question(*args)

    x, found = torch.arange(3.0), list[Any]()
    compiled_f, log = compiled(f, number_backend)
    for args in [(1.5, 2.5), (2.5, 3.5), *calls] if symbols else calls:
        found.append(float(f(x, *args)[0]))
        assert float(compiled_f(x, *args)[0]) == found[-1], args
    assert not log.breaks
    assert not log.fallbacks
    return found


@pytest.mark.parametrize("symbols", [False, True])
@pytest.mark.parametrize("question", QUESTIONS)
def test_which_nans_are_one_object_is_guarded(question: Any, symbols: bool) -> None:
    assert len(set(agree(question, PAIRS, symbols))) > 1


@pytest.mark.parametrize("kind", [complex, decimal.Decimal, numpy.float64, numpy.float32])
def test_nans_of_other_types(kind: Any) -> None:
    one, other = kind("nan"), kind("nan")
    assert agree(lambda a, b: [a] == [b], [(one, one), (one, other), (other, other)]) == [1, 0, 1]


@pytest.mark.parametrize("make", [lambda v: {v: 1}, lambda v: {v}, lambda v: frozenset({v}), lambda v: (v, 1)])
def test_nans_in_containers_of_the_callers(make: Any) -> None:
    held = {id(v): make(v) for v in (N, M)}
    calls = [(a, held[id(b)]) for a, b in [(N, N), (M, N), (N, M), (M, M), (N, N)]]
    assert agree(lambda a, b: a in b, calls) == [1, 0, 0, 1, 1]
    assert agree(lambda b, a: a in b, [call[::-1] for call in calls]) == [1, 0, 0, 1, 1]


def test_a_nan_alone_needs_no_second_graph() -> None:
    f, log = compiled(lambda x, a: x * a)
    for _ in range(3):
        assert f(torch.ones(2), float("nan")).isnan().all()
    assert len(log.captures) == 1
