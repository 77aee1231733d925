"""Keys whose `__eq__` or `__hash__` does more than look: capture never asks them beside the program."""

import pytest
import torch
from harness import compiled


class Key:
    """All have one hash; the next comparison runs `act`."""

    act = None

    def __init__(self, name):
        self.name = name

    def __hash__(self):
        return 1

    def __eq__(self, other):
        act, Key.act = Key.act, None
        if act is not None:
            act()
        return isinstance(other, Key) and self.name == other.name

    def __repr__(self):
        return f"Key({self.name})"


class Counting(Key):
    asked = 0

    def __hash__(self):
        Counting.asked += 1
        return 1


class Plain:
    """One that looks and does nothing else."""

    def __init__(self, name):
        self.name = name

    def __hash__(self):
        return hash((1, self.name))

    def __eq__(self, other):
        return isinstance(other, Plain) and self.name == other.name


ACTS = {"clear": dict.clear, "pop": dict.popitem, "add": lambda d: d.update({Key(9): 9}), "raise": lambda d: 1 / 0}
USES = {
    "get": lambda d: d.get(Key(2)),
    "set": lambda d: d.__setitem__(Key(2), 3),
    "or": lambda d: d | {Key(2): 5},
    "equal": lambda d: d == {Key(1): 1, Key(2): 2},
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("act", ACTS)
def test_a_dict_of_the_callers(use, act):
    found = []
    for compile in (lambda f: f, lambda f: compiled(f)[0]):

        def run(x, d):
            x = x + 1
            try:
                result = repr(USES[use](d))
            except ZeroDivisionError as error:
                result = str(error)
            return x * 2, result

        d = {Key(1): 1, Key(2): 2}
        Key.act = lambda d=d: ACTS[act](d)
        out = compile(run)(torch.ones(2), d)
        Key.act = None
        found.append((out[0].tolist(), out[1], repr(d)))
    assert found[0] == found[1]


def test_what_counts_its_calls():
    counts = []
    for compile in (lambda f: f, lambda f: compiled(f)[0]):
        d = {Counting(1): 1, Counting(2): 2}
        run = compile(lambda x, d: x + len(d))
        before = Counting.asked
        for _ in range(3):
            run(torch.ones(2), d)
        counts.append(Counting.asked - before)
    assert counts == [0, 0]


def test_what_only_looks_is_no_break():
    a, b = Plain("a"), Plain("b")
    d = {a: 2.0, b: 3.0}
    fast, log = compiled(lambda x: x * d[a] + d[Plain("b")])
    assert torch.equal(fast(torch.ones(2)), torch.full((2,), 5.0))
    assert not log.fallbacks and not log.breaks
