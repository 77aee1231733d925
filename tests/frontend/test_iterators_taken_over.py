"""Iterators that were made before a graph: those of loops that a break has cut, and those that a caller gives."""

from __future__ import annotations

import linecache
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import intarsia

GRAPH_BREAK = "torch._dynamo.graph_break()"


class Graphs:
    """A backend that counts graphs and runs them as they are."""

    takes_floats = takes_gradients = True

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, gm: Any, example_inputs: list[Any]) -> Any:
        self.count += 1
        return gm.forward


def compiled(function: Callable[..., Any]) -> tuple[Callable[..., Any], Graphs]:
    intarsia.reset()
    backend = Graphs()
    return intarsia.compile(function, backend=backend), backend


def breaks_once(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    for i, layer in enumerate(module):
        if i == 0:
            torch._dynamo.graph_break()
        x = layer(x)
    return x


class Broken(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x + 1


def through_a_module(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return module(x)


def through_a_dict(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    for name, buffer in {"a": x, "b": x * 2, "c": x * 3}.items():
        if name == "a":
            torch._dynamo.graph_break()
        x = x + buffer
    return x


@pytest.mark.parametrize("function", [breaks_once, through_a_module, through_a_dict])
def test_one_break_in_a_loop_is_one(function: Any) -> None:
    module = nn.Sequential(Broken() if function is through_a_module else nn.Linear(4, 4), *[nn.Linear(4, 4)] * 5)
    x = torch.randn(2, 4)
    made, graphs = compiled(function)
    for _ in range(2):
        torch.testing.assert_close(made(module, x), function(module, x))
    assert intarsia.counters()["breaks"] == 1 and graphs.count <= 2


def test_a_break_in_each_of_many_rounds_makes_few_graphs() -> None:
    def rounds(x: torch.Tensor) -> torch.Tensor:
        for i in range(60):
            x = x + i
            torch._dynamo.graph_break()
        return x

    made, graphs = compiled(rounds)
    x = torch.randn(3)
    torch.testing.assert_close(made(x), rounds(x))
    assert graphs.count <= 8


def test_a_callers_iterator_is_left_where_eager_leaves_it() -> None:
    def two(x: torch.Tensor, it: Any) -> torch.Tensor:
        return x * next(it) + next(it)

    made, graphs = compiled(two)
    x = torch.ones(2)
    for _ in range(2):
        it = iter([1, 2, 3, 4])
        assert made(x, it).tolist() == [3.0, 3.0] and list(it) == [3, 4]
    assert graphs.count == 1


def test_a_dict_that_changed_meanwhile_is_refused_by_its_iterator() -> None:
    def grows(x: torch.Tensor, held: dict[str, int]) -> torch.Tensor:
        for key in held:
            torch._dynamo.graph_break()
            held[key + "x"] = 1
            x = x + 1
        return x

    made, _ = compiled(grows)
    with pytest.raises(RuntimeError, match="changed size"):
        made(torch.ones(2), {"a": 1, "b": 2})


def takes_and_changes(make: str, taken: str, change: str, back: str) -> str:
    """A program that takes items behind a break, then changes what they are taken from, breaks, changes it back and goes on."""
    return f"""
def f(x, items, d):
    it = {make}
    next(it)
    {GRAPH_BREAK}
    out = {taken}
    {change}
    x = x + 1
    {GRAPH_BREAK}
    {back}
    return x, out, list(it)
"""


@pytest.mark.parametrize(
    ("make", "change", "back"),
    [
        ("iter(items)", "items.append(x)", "pass"),
        ("iter(items)", "del items[1:]", "items.extend([x] * 6)"),
        ("enumerate(items)", "items.append(x)", "pass"),
        ("enumerate(items)", "del items[1:]", "items.extend([x] * 6)"),
        ("enumerate(zip(items, range(9)))", "del items[1:]", "items.extend([x] * 6)"),
        ("reversed(items)", "items.append(x)", "pass"),
        ("reversed(items)", "items.clear()", "items.extend([x] * 6)"),
        ("enumerate(reversed(items))", "items.pop()", "items.append(x)"),
        ("iter(d.items())", "d['a'] = x", "pass"),
        ("iter(d.items())", "d.pop('a')", "d['a'] = x"),
        ("iter(d)", "d['new'] = x", "pass"),
        ("enumerate(d)", "d['new'] = x", "del d['new']"),
        ("iter(range(6))", "items.clear()", "pass"),
    ],
)
@pytest.mark.parametrize("taken", ["[next(it), next(it)]", "list(it)"])
def test_containers_that_change_behind_the_items(taken: str, make: str, change: str, back: str) -> None:
    made: dict[str, Any] = {"torch": torch}
    exec(takes_and_changes(make, taken, change, back), made)

    def outcome(function: Callable[..., Any]) -> Any:
        items, held = [torch.full((2,), float(i)) for i in range(5)], {n: torch.ones(2) for n in "abcde"}
        try:
            return plain((function(torch.ones(2), items, held), items, held))
        except Exception as error:
            return type(error), str(error), plain(items), plain(held)

    assert outcome(compiled(made["f"])[0]) == outcome(made["f"])
    assert intarsia.counters()["fallbacks"] == 0


# ---- random loops ----

ITERATORS = """iter(items)|iter(tuple(items))|reversed(items)|iter(range(n))|enumerate(items)|enumerate(range(n), 2)|zip(items, range(n))|
zip(own, own)|iter(d)|iter(d.values())|iter(d.items())|enumerate(zip(d.items(), items))|zip(enumerate(items), d.values())""".replace(
    "\n", ""
)
STEPS = f"""{GRAPH_BREAK}|if k == 1: {GRAPH_BREAK}|if k == 3: {GRAPH_BREAK}|if k % 2 == 0: {GRAPH_BREAK}|x = x + 1|items[0] = items[0] + 1|
if len(items) < 7: items.append(x)|if len(items) > 2: items.pop()|d['a'] = x|d['new'] = x|d.pop('b', None)|if k == 2: break|
if k == 1: continue|out.append(next(it, None))|out.append(next(own, None))""".replace("\n", "")


def program(draw: random.Random) -> str:
    """A loop over an iterator in which the graph breaks, containers change and other items are taken."""

    def steps(most: int) -> list[str]:
        return [f"        {draw.choice(STEPS.split('|'))}" for _ in range(draw.randrange(most))]

    lines = ["def f(x, items, d, n):", "    own = iter(items)", f"    it = {draw.choice(ITERATORS.split('|'))}"]
    lines += ["    k, out = 0, []", "    for e in it:", "        k += 1", "        if k > 12: break", *steps(5)]
    lines += ["        out.append(e)", "        x = x * 2 + k", *steps(3)]
    lines += ["    return x, out, list(it)[:20], list(own)[:20], items, d"]
    return "\n".join(lines)


def plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return "tensor", value.tolist()
    if isinstance(value, dict):
        return [(key, plain(item)) for key, item in value.items()]
    return [type(value), *map(plain, value)] if isinstance(value, list | tuple) else value


def outcomes(function: Callable[..., Any]) -> list[Any]:
    """Results of three calls, the last with a longer list, and what they leave in the caller's containers."""
    found = []
    for length in (3, 3, 4):
        items = [torch.full((2,), float(i)) for i in range(length)]
        held = {name: torch.ones(2) * i for i, name in enumerate("abc")}
        try:
            result = function(torch.ones(2), items, held, 3)
        except Exception as error:
            result = type(error), str(error)
        found.append(plain((result, items, held)))
    return found


@pytest.mark.parametrize("seed", range(6))
def test_random_loops(seed: int) -> None:
    draw = random.Random(seed)
    for number in range(15):
        text, name = program(draw), f"<loop {seed}.{number}>"
        linecache.cache[name] = len(text), None, text.splitlines(True), name
        made: dict[str, Any] = {"torch": torch}
        exec(compile(text, name, "exec"), made)
        assert outcomes(compiled(made["f"])[0]) == outcomes(made["f"]), text
