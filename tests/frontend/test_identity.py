"""Which values are one object: what a program makes in each call is new in each call, and what was there is what was there."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import torch
from harness import compiled
from torch import Tensor

X = torch.ones(2, 3)
PAIR, NESTED, FROZEN = (7, 8), ((1, 2), "a"), frozenset([3, 11])


class Holder:
    shape, keys = (4, 5), {(1, 2): 3}


HOLDER = Holder()
ROUNDS: list[tuple[Callable[..., Any], list[Any]]] = [
    (lambda x, k: (k, 2), [1]),
    (lambda x, k: (k,) + PAIR, [1]),
    (lambda x, k: (k, 1, 2)[1:], [1]),
    (lambda x, k: tuple([k, 1]), [1]),
    (lambda x, k: frozenset([k, 9, 17]), [1]),
    (lambda x, k: FROZEN | {k}, [1]),
    (lambda x, k: (range(k), slice(k), pathlib.Path("a") / "b"), [3]),
    (lambda x, k: (x.shape, x.shape, x.stride(), torch.Size([k])), [3]),
    (lambda x, k: list(zip((1, k), (3, 4), strict=True)) + list(enumerate("ab")), [3]),
    (lambda x, k: {(k, 1): divmod(7, k)}, [3]),
    (lambda x, *more: more, [3]),
    (lambda x, k: (1, 2), [3]),
    (lambda x, k: (PAIR, NESTED[0], FROZEN, Holder.shape, HOLDER.shape, list(HOLDER.keys)), [3]),
    (lambda x, k: (k, [k]), [tuple([1, 2]), tuple([1, 2])]),
    (lambda x, k: (k[0], frozenset(k[1])), [(tuple([1, 2]), frozenset([4])), (tuple([1, 2]), frozenset([4]))]),
    (lambda x, k: tuple(k), [tuple([1, 2]), tuple([1, 2])]),
    (lambda x, k: k.items(), [{(1, 2): 3}, {tuple([1, 2]): 3}]),
    (lambda x, k: (print(end=""), k, (k, 1)), [tuple([1, 2]), tuple([1, 2])]),
]


def parts(value: Any) -> list[Any]:
    """A value and what it holds, where programs tell equal ones apart."""
    if isinstance(value, Tensor) or not isinstance(
        value, tuple | list | dict | frozenset | range | slice | pathlib.Path
    ):
        return []
    return [value] + [
        p for v in (value if isinstance(value, tuple | list | dict | frozenset) else ()) for p in parts(v)
    ]


def which(function: Callable[..., Any], arguments: list[Any]) -> list[tuple[int, int]]:
    """Which parts of the results of several calls are one object, or one with what was there before."""
    held = [PAIR, NESTED, FROZEN, Holder.shape, Holder.keys, arguments]
    results = [function(X, a) for a in arguments * 2]
    results = [list(r) if type(r) is type({}.items()) else r for r in results]
    made = [p for r in results for p in parts(r) if p not in ((), frozenset())]
    others = made + [p for h in held for p in parts(h)]
    return [(i, j) for i, a in enumerate(made) for j, b in enumerate(others) if i < j and a is b]


def test_constants_are_as_new_as_in_eager() -> None:
    for function, arguments in ROUNDS:
        assert which(compiled(function)[0], arguments) == which(function, arguments), function.__code__.co_firstlineno


def test_which_item_a_set_of_the_caller_s_gives() -> None:
    def takes(x: Tensor, free: set[int]) -> tuple[Tensor, int]:
        return x + 1, free.pop()

    found = []
    for function in (takes, compiled(takes)[0]):
        free, seen = {0, 1, 2, 3}, []
        for _ in range(6):
            item = function(X, free)[1]
            seen.append(item)
            free.add(item)
        found.append(seen)
    assert found[0] == found[1]


def test_the_order_of_a_set_that_items_were_removed_from() -> None:
    def adds(x: Tensor, s: set[int], k: int) -> Any:
        s.add(k)
        return x + 1, list(s), list(s | {k + 1}), s.copy()

    def clears(x: Tensor, s: set[int], k: int) -> Any:
        s &= {k, *range(3)}
        return x + 1, list(s), str(s)

    found = []
    for compile in (lambda f: f, lambda f: compiled(f)[0]):
        seen, add, clear = [], compile(adds), compile(clears)
        for gone in ({0}, {1, 2}, set(range(4, 18)), set()):
            s = set(range(20)) - set()
            s -= gone
            for k in (0, 64, 33, 16, 5):
                seen += [[list(r) for r in add(X, s, k)[1:]], [*clear(X, s, k)[1:]] if k == 33 else None]
        found.append(seen)
    assert found[0] == found[1]
