"""Objects of C's that are alive where a graph ends: each call has its own, and goes on with what they hold."""

from __future__ import annotations

import collections
import functools
import itertools
import operator
from typing import Any

import pytest
import torch
from harness import compiled, same
from torch import Tensor


def ends() -> None:
    """The graph ends here."""
    print(end="")


def as_eager(program: Any, calls: int = 3, captured: bool = True) -> Any:
    """Compare some calls, arguments that change, with eager; gives the log."""
    fast, log = compiled(program)
    for i in range(calls):
        x = torch.arange(3.0) + i
        got, want = fast(x), program(x)
        assert same(got, want), f"call {i}: compiled {got!r}, eager {want!r}"
    assert bool(log.fallbacks) is not captured, log.fallbacks
    return log


# ---- caches ----


def test_a_cache_is_one_of_its_call() -> None:
    def program(x: Tensor) -> Any:
        asked = []

        @functools.lru_cache(maxsize=2)
        def twice(k: int) -> Tensor:
            asked.append(k)
            return x * k

        first = twice(1)
        ends()
        return first + twice(1) + twice(2), asked, twice.__name__, twice.cache_parameters()

    as_eager(program)


def test_a_cache_that_no_one_has_asked_is_made_again() -> None:
    def program(x: Tensor) -> Any:
        @functools.cache
        def kept(k: int) -> list[int]:
            return [k]

        kept.mine = [0]
        y = x * 2
        ends()
        kept.mine.append(1)
        return y, kept(1), kept(1) is kept(1), kept.mine

    as_eager(program)

    def given(x: Tensor) -> Any:
        return x + 1, functools.lru_cache(lambda k: [k])

    fast, _ = compiled(given)
    (_, one), (_, other) = fast(torch.ones(1)), fast(torch.ones(1))
    one(3).append(4)
    assert one(3) == [3, 4] and other(3) == [3] and other.cache_info().currsize == 1


@pytest.mark.parametrize("most", [None, 0, -1, 1, 2, 128])
def test_caches_that_stay_inside(most: int | None) -> None:
    """What is thrown out, typed keys, `cache_info`, `cache_clear`: one graph."""

    def program(x: Tensor) -> Any:
        asked: list[Any] = []

        @functools.lru_cache(most, typed=True)
        def of(k: Any, *more: Any) -> Any:
            asked.append((k, more))
            return (x * k, len(asked))

        found = [of(k)[1] for k in (1, 2, 1, 1.0, True, 3, 2, 1)] + [of(1, 2)[1], of(1, 2)[1]]
        told = of.cache_info()
        of.cache_clear()
        again = of(1)
        return again, found, asked, told, of.cache_info()

    log = as_eager(program)
    assert len(log.captures) == 1 and not log.breaks


def test_a_cache_that_calls_itself() -> None:
    def program(x: Tensor) -> Any:
        @functools.lru_cache(3)
        def fib(n: int) -> int:
            return n if n < 2 else fib(n - 1) + fib(n - 2)

        return x * fib(12), fib.cache_info()

    assert not as_eager(program).breaks


def test_equal_keys_of_other_types_are_one_where_types_are_not_told_apart() -> None:
    def program(x: Tensor) -> Any:
        of = functools.lru_cache(lambda k, **named: (type(k).__name__, [*named]))
        return x * 2, of(1), of(1.0), of(True), of(2, a=1, b=2), of(2, b=2, a=1), of.cache_info()

    assert not as_eager(program).breaks


# ---- iterators of what changes behind the break ----

WHOLES = {
    "keys": lambda: {1: 2, 3: 4, 5: 6},
    "items": lambda: {1: 2, 3: 4, 5: 6}.items(),
    "set": lambda: {1, 2, 3},
    "ordered": lambda: collections.OrderedDict(a=1, b=2, c=3),
    "ordered items": lambda: collections.OrderedDict(a=1, b=2, c=3).items(),
    "default": lambda: collections.defaultdict(int, a=1, b=2),
    "counter": lambda: collections.Counter("aab").values(),
}


@pytest.mark.parametrize("side", [iter, reversed])
@pytest.mark.parametrize("whole", WHOLES)
@pytest.mark.parametrize("taken", [0, 1, 9])
def test_iterators_of_dicts_and_sets(whole: str, side: Any, taken: int) -> None:
    if whole == "set" and side is reversed:
        pytest.skip("sets have no order")
    make = WHOLES[whole]

    def program(x: Tensor) -> Any:
        it = side(make())
        first = [next(it, "end") for _ in range(taken)]
        y = x * 2
        ends()
        return y, first, list(it), next(it, "end")

    as_eager(program)


def test_changes_behind_the_break_are_seen() -> None:
    def program(x: Tensor) -> Any:
        values, grown, some = {1: 2, 3: 4, 5: 6}, {1: 2, 3: 4}, {1, 2, 3}
        ordered = collections.OrderedDict(a=1, b=2, c=3)
        its = [iter(values.items()), reversed(ordered.items()), iter(grown), iter(some), enumerate(grown.values())]
        for it in its:
            next(it)
        y = x * 2
        ends()
        values[3], ordered["b"], grown[7] = 7, 8, 9
        some.add(10)
        found: list[Any] = []
        for it in its:
            try:
                found.append(list(it))
            except RuntimeError as error:
                found.append(str(error))
        return y, found

    as_eager(program)


def test_what_has_changed_before_the_break() -> None:
    def program(x: Tensor) -> Any:
        values = {1: 2, 3: 4, 5: 6}
        it = iter(values)
        next(it)
        values[9] = 1
        y = x * 2
        ends()
        try:
            return y, next(it)
        except RuntimeError as error:
            return y, str(error)

    as_eager(program, captured=False)

    def moved(x: Tensor) -> Any:
        values = {1: 2, 3: 4, 5: 6}
        it = iter(values)
        next(it)
        del values[1]
        values[9] = 1
        y = x * 2
        ends()
        return y, next(it)

    as_eager(moved, captured=False)


def test_changes_of_the_caller_s_dict_leave_its_iterators_where_they_are() -> None:
    def program(x: Tensor, values: Any) -> Any:
        del values["b"]
        values["c"], values["e"] = x, 5
        values["a"] = values.pop("a")
        return x + 1

    for kind in (dict, collections.OrderedDict, collections.Counter):
        fast, _ = compiled(program)
        for _ in range(2):
            mine, theirs = kind(a=1, b=2, c=3, d=4), kind(a=1, b=2, c=3, d=4)
            one, other = iter(mine), iter(theirs)
            x = torch.ones(1)
            fast(x, mine), program(x, theirs)
            assert [*mine.items()] == [*theirs.items()] and type(mine) is kind
            if kind is not collections.OrderedDict:
                assert next(one) == next(other) and [*one] == [*other]


def test_an_iterator_over_calls_of_another() -> None:
    def program(x: Tensor) -> Any:
        it = iter(iter([1, 2, 3, 4]).__next__, 4)
        first = next(it)
        y = x * 2
        ends()
        return y, first, next(it), list(it)

    as_eager(program)


def test_what_an_instruction_has_taken_before_it_breaks() -> None:
    """`set` has taken an item of the list by the time that `id` breaks the graph."""
    kept: list[Any] = []

    def program(x: Tensor) -> Any:
        kept.append(object())
        ends()
        return x * 2, len(set(map(id, kept))), len([*zip(map(id, kept), itertools.count(), strict=False)])

    fast, _ = compiled(program)
    assert [fast(torch.ones(1))[1:] for _ in range(3)] == [(1, 1), (2, 2), (3, 3)]


# ---- callables ----


def test_attributes_of_partial_objects() -> None:
    def program(x: Tensor) -> Any:
        added = functools.partial(torch.add, x)
        added.tags = [1]
        y = x * 2
        ends()
        added.tags.append(2)
        return added(y), added.tags

    as_eager(program)


def test_attributes_of_the_caller_s_partial_objects() -> None:
    added = functools.partial(torch.add, torch.ones(1))

    def program(x: Tensor) -> Any:
        found = getattr(added, "tag", None), hasattr(added, "more")
        added.seen = getattr(added, "seen", 0) + 1
        return added(x), found

    fast, _ = compiled(program)
    x = torch.ones(1)
    assert fast(x)[1] == (None, False) and added.seen == 1
    added.tag = 3
    assert fast(x)[1] == (3, False) and added.seen == 2
    added.more, added.tag = 1, 4
    assert fast(x)[1] == (4, True) and added.seen == 3


def test_getters_are_made_in_each_call() -> None:
    def program(x: Tensor) -> Any:
        return x + 1, operator.itemgetter(1, slice(2)), operator.attrgetter("a.b")

    fast, _ = compiled(program)
    one, other = fast(torch.ones(1)), fast(torch.ones(1))
    assert one[1] is not other[1] and one[2] is not other[2]
    assert one[1]([1, 2, 3]) == (2, [1, 2])
