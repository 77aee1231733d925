"""`id()` of objects inside compiled functions: compared, kept as a key, given out; what else is done with the number breaks the graph."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from harness import check, compiled
from torch import Tensor

X = torch.arange(4.0)


class Node:
    def __init__(self, *children: Any) -> None:
        self.children = children

    def __deepcopy__(self, memo: dict[int, Any]) -> Node:
        made = memo[id(self)] = Node()
        made.children = copy.deepcopy(self.children, memo)
        return made


def visit(node: Node, seen: set[int]) -> int:
    if id(node) in seen:
        return 0
    seen.add(id(node))
    return 1 + sum(visit(child, seen) for child in node.children)


def test_made_objects() -> None:
    def program(x: Tensor) -> Any:
        leaf = Node()
        root = Node(leaf, leaf, Node(leaf))
        items = [1]
        before = id(items)
        items *= 3
        names = {id(leaf): "leaf", id(root): "root"}
        twin = copy.deepcopy(root)
        same = twin.children[0] is twin.children[1]
        facts = isinstance(before, int), type(before) is int, bool(before), id(items) != before, 5 in names
        return (
            x * visit(root, set()),
            id(items) == before,
            names[id(leaf)],
            names.get(id(items)),
            same,
            facts,
            id(x) == id(x),
        )

    check(program, X)


def test_objects_of_the_caller_s() -> None:
    def program(x: Tensor, a: Any, b: Any) -> Any:
        return x + 1 if id(a) == id(b) else x - 1

    fast, log = compiled(program)
    one, two = [1], [1]
    for a, b in ((one, one), (one, two), (two, two), (two, one), (X, X), (X, X + 1)):
        assert torch.equal(fast(X, a, b), program(X, a, b))
    assert not log.breaks


def test_numbers_that_leave() -> None:
    def program(x: Tensor, a: Any) -> Any:
        made = [x + 1]
        return made, id(made), id(a), {id(made): 1}

    fast, _ = compiled(program)
    for a in ([1], [2]):
        made, number, other, names = fast(X, a)
        assert (number, other, names) == (id(made), id(a), {id(made): 1})


def test_what_the_number_is_breaks_the_graph() -> None:
    def program(x: Tensor, a: Any, known: Any) -> Any:
        x = x + 1
        return (
            x * 2,
            id(a) in known,
            f"{id(a)}",
            id(a) % 16,
            id(a) + 0 == id(a),
            str(id(a)),
            [id(a), 1] == [1, 2],
            sorted([id(a)]),
        )

    fast, _ = compiled(program)
    a = [1]
    for known in ({id(a): 1}, {}, [id(a)], {id(a)}):
        assert fast(X, a, known)[1:] == program(X, a, known)[1:]


class Method:
    def first(self) -> None: ...

    def second(self) -> None: ...

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        raise TypeError("a method is hashed by where its object lies")


def test_hashes_that_are_given_out() -> None:
    def function(x: Tensor, holder: Any) -> Any:
        made, node = Method(), Node()
        return x + 1, (node, made, holder), (hash(node), hash(made.first), hash(holder.first), id(node))

    fast, log = compiled(function)
    for holder in (Method(), Method()):
        _, (node, made, _), numbers = fast(X, holder)
        assert numbers == (hash(node), hash(made.first), hash(holder.first), id(node))
    assert log.breaks == []


def test_hashes_of_methods_are_compared() -> None:
    def function(x: Tensor) -> Any:
        a, b = Method(), Method()
        mine = hash(a.first)
        return x, mine == hash(a.first), mine == hash(b.first), mine == hash(a.second), mine == hash(a)

    def allowed(x: Tensor) -> Any:
        a, b = Method(), Method()
        mine = hash(a.first)
        return x, mine == hash(a.first), mine == hash(b.first), mine == hash(a.second)

    assert check(allowed, X).breaks == []
    with pytest.raises(TypeError, match="where its object lies"):
        compiled(function)[0](X)
