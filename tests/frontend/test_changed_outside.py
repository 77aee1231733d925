"""Functions that operators are given, and that change what captured code made outside of them: the graph ends in front of the operator."""

from __future__ import annotations

import collections
import functools
from typing import Any

import pytest
import torch
from harness import compiled, same
from torch import Tensor
from torch._higher_order_ops import map as mapped
from torch._higher_order_ops import scan, while_loop
from torch.utils.checkpoint import checkpoint


def a_list() -> Any:
    found: list[int] = []
    return lambda: found.append(1), lambda: found


def a_method() -> Any:
    found: list[int] = []
    add = functools.partial(found.append, 1)
    return lambda: add(), lambda: add.func.__self__  # type: ignore[attr-defined]


def a_deque() -> Any:
    found = collections.deque([1, 2, 3])
    return lambda: found.rotate(1), lambda: found


def a_dict() -> Any:
    found = {"a": [1]}
    return lambda: found.update(a=[2]), lambda: found


def a_generator() -> Any:
    found = (i for i in range(20))
    return lambda: next(found), lambda: next(found)


def an_iterator() -> Any:
    found = iter(range(20))
    return lambda: next(found), lambda: next(found)


def an_object() -> Any:
    class Slotted:
        __slots__ = ("n",)

    made = Slotted()
    made.n = 0
    return lambda: setattr(made, "n", made.n + 1), lambda: made.n


def a_class() -> Any:
    class Counted:
        n = 0

    return lambda: setattr(Counted, "n", Counted.n + 1), lambda: Counted.n


def a_variable() -> Any:
    n = 0

    def change() -> None:
        nonlocal n
        n += 1

    return change, lambda: n


def a_cache() -> Any:
    asked: list[int] = []
    kept = functools.lru_cache(lambda k: len(asked))
    return lambda: kept(1), lambda: kept.cache_info().misses


KINDS = [a_list, a_method, a_deque, a_dict, a_generator, an_iterator, an_object, a_class, a_variable, a_cache]


def ways(x: Tensor, change: Any) -> dict[str, Any]:
    def first(y: Tensor) -> Tensor:
        change()
        return y + 1

    return {
        "cond": lambda: torch.cond(x.sum() > 2, first, lambda y: y - 1, (x,)),
        "while_loop": lambda: while_loop(lambda y: y.sum() < 9, lambda y: (first(y),), (x,)),
        "map": lambda: mapped(first, x),
        "scan": lambda: scan(lambda c, y: (c + y, first(y)), torch.zeros(()), x),
    }


def outcome(function: Any, x: Tensor) -> Any:
    """What a call gives, or the kind of its error: of such functions eager's own operators take few."""
    try:
        return function(x)
    except Exception as error:
        return type(error).__name__


SOME = [(kind, way) for kind in (a_list, a_generator) for way in ("while_loop", "map", "scan")]


@pytest.mark.parametrize(("kind", "way"), [*((kind, "cond") for kind in KINDS), *SOME])
def test_the_graph_breaks(kind: Any, way: str) -> None:
    def program(x: Tensor) -> Any:
        change, seen = kind()
        return ways(x * 1, change)[way](), seen()

    fast, log = compiled(program)
    for k in (1.0, 0.1):
        x = torch.full((3,), k)
        got, want = outcome(fast, x), outcome(program, x)
        assert kind is a_cache or same(got, want), (got, want)  # eager's operators follow what a cache holds
    assert log.breaks and (kind is a_cache or "changes something that the program sees" in str(log.breaks))


def test_what_a_function_makes_itself_is_its_own() -> None:
    def program(x: Tensor) -> Any:
        outside = [1, 2]

        def first(y: Tensor) -> Tensor:
            found = list(outside)
            found.append(3)
            taken = iter(found)
            return y * next(taken) + sum(taken)

        return torch.cond(x.sum() > 2, first, lambda y: y - outside[0], (x,)), mapped(first, x), outside

    fast, log = compiled(program)
    for k in (1.0, 0.1):
        x = torch.full((3,), k)
        assert same(fast(x), program(x))
    assert not log.breaks and len(log.captures) == 1


@pytest.mark.parametrize("kind", [a_list, a_generator, a_variable])
def test_checkpoints_and_hooks(kind: Any) -> None:
    def repeated(x: Tensor) -> Any:
        change, seen = kind()

        def part(y: Tensor) -> Tensor:
            change()
            return y.sin()

        return checkpoint(part, x, use_reentrant=False), seen

    def hooked(x: Tensor) -> Any:
        change, seen = kind()
        y = x * 2
        y.register_hook(lambda g: (change(), g * 2)[1])
        return y.sin(), seen

    for program in (repeated, hooked):
        fast, log = compiled(program)
        results = []
        for function in (fast, fast, program):
            x = torch.ones(3, requires_grad=True)
            y, seen = function(x)
            y.sum().backward()
            results.append((seen(), x.grad.tolist()))  # type: ignore[union-attr]
        assert results[0] == results[1] == results[2]
        assert log.breaks
