"""Comprehensions in class bodies read what is around the class; Python 3.12 runs them in the body's own frame."""

import pytest
import torch

import intarsia


def reads(x, scale):
    class Kind:
        scaled = [i * scale for i in range(3)]

    return x * Kind.scaled[2]


def hides(x, scale):
    class Kind:
        named = [scale for scale in range(3)]
        kept = scale

    return x * Kind.named[2] + Kind.kept + scale


def nested(x, scale):
    class Kind:
        pairs = {i: [scale + j for j in range(i)] for i in range(3)}
        both = [(i, scale) for i in range(2) for scale in (7,)]

    return x * Kind.pairs[2][1] + Kind.both[1][1]


def breaks_inside(x, scale):
    class Kind:
        scaled = [i * scale for i in range(2) if not torch._dynamo.graph_break()]

    return x * Kind.scaled[1] + scale


def raises(x, scale):
    try:

        class Kind:
            scaled = [scale // i for i in (1, 0)]
    except ZeroDivisionError:
        return x + scale


def of_a_function(x, scale):
    def inner():
        made = [scale for scale in range(3)]
        return made[2] * scale

    return x * inner() + scale


@pytest.mark.parametrize("f", [reads, hides, nested, breaks_inside, raises, of_a_function])
def test_as_eager(f) -> None:
    intarsia.reset()
    compiled = intarsia.compile(f)
    for scale in (3, 3, 5):
        torch.testing.assert_close(compiled(torch.ones(2), scale), f(torch.ones(2), scale))
    if f is not breaks_inside:
        assert intarsia.counters()["breaks"] == 0
    assert intarsia.counters()["fallbacks"] == 0


def breaks_in_a_comprehension(x, scale):
    def inner():
        made = [scale for scale in range(3) if not torch._dynamo.graph_break()]
        return made[2] * scale

    return x * inner() + scale


def breaks_behind(x, scale):
    def inner():
        made = [scale for scale in range(3)]
        torch._dynamo.graph_break()
        return [scale + m for m in made][2] * scale

    return x * inner() + scale


@pytest.mark.parametrize("f", [breaks_in_a_comprehension, breaks_behind])
def test_breaks_beside_such_names(f) -> None:
    compiled = intarsia.compile(f)
    for scale in (3, 3, 5):
        torch.testing.assert_close(compiled(torch.ones(2), scale), f(torch.ones(2), scale))
