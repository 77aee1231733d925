"""Sources are paths: equal ones are one key, whichever was asked for its hash first."""

from __future__ import annotations

import pytest

from intarsia.frontend.guards.source import Arg, Attr, Const, Item


def _paths():
    held = {}
    yield lambda: Attr(Arg("x"), "shape")
    yield lambda: Item(Attr(Arg("x"), "__dict__"), "shape")
    yield lambda: Attr(Item(Attr(Arg("x"), "parts"), 3), "shape")
    yield lambda: Item(Const(held, "held"), (1, "a"))


@pytest.mark.parametrize("make", _paths())
def test_equal_paths_are_one_key(make):
    asked, fresh = make(), make()
    assert (
        hash(asked)
        == hash(asked)
        == hash(fresh)
        == hash((asked.base, asked.attr if type(asked) is Attr else asked.key))
    )
    assert {asked: 1}[fresh] == {make(): 1}[asked] == 1
    assert "_hash" not in repr(asked)


def test_other_paths_are_other_keys():
    made = [make() for make in _paths()]
    assert len(set(made)) == len(made)
    assert Attr(Arg("x"), "shape") not in {Attr(Arg("y"), "shape"), Item(Arg("x"), "shape")}


def test_a_key_without_a_hash_has_none():
    with pytest.raises(TypeError, match="unhashable"):
        hash(Item(Arg("x"), [1]))
