"""`tensor.data = ...` and `detach_`: the memory and the history of tensors, changed in place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

import intarsia


class State:
    """A layer and its averages."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.layer = nn.Linear(8, 8)
        self.average = [torch.randn_like(p) for p in self.layer.parameters()]


def swapped(s, x):
    kept = [p.data for p in s.layer.parameters()]
    for p, average in zip(s.layer.parameters(), s.average, strict=True):
        p.data = average
    return kept


def old_memory_is_written_to(s, x):
    old = s.layer.weight.data
    s.layer.weight.data = s.layer.weight.data * 0.5
    old.add_(1)
    return old, s.layer.weight.data


def after_a_step(s, x):
    s.layer(x).square().sum().backward()
    for p in s.layer.parameters():
        p.data.mul_(0.9)
        p.data = p.data - 0.1 * p.grad
        p.grad = None


def twice(s, x):
    s.layer.bias.data = x[0]
    s.layer.bias.data = s.layer.bias.data * 2
    return s.layer.bias.data


def exchanged(s, x):
    a, b = s.layer.bias, s.average[1]
    a.data, b.data = b.data, a.data


def of_a_value_with_gradients(s, x):
    s.layer.bias.data = s.layer.bias - 1


def returned_too(s, x):
    made = x[0] * 2
    s.layer.bias.data = made
    return made


def used_behind(s, x):
    s.layer.bias.data = x[0] * 2
    return s.layer(x).detach()


def of_other_sizes(s, x):
    s.average[1].data = x[:, 0]


def facts(s: State, result: Any) -> Any:
    """Values, and what shares memory with what."""
    tensors = [*s.layer.parameters(), *s.average, *tree_leaves(result)]
    shares = [a is not None and b is not None and a.data_ptr() == b.data_ptr() for a in tensors for b in tensors]
    return tree_map(lambda t: None if t is None else t.detach().clone(), tensors), shares


@pytest.mark.parametrize(
    ("function", "breaks"),
    [
        *((f, 0) for f in (swapped, old_memory_is_written_to, after_a_step, twice, exchanged)),
        *((of_a_value_with_gradients, 0), (returned_too, 0), (used_behind, 1), (of_other_sizes, 1)),
    ],
)
def test_data_is_assigned(function, breaks):
    intarsia.reset()
    with torch.enable_grad():
        mine, its, x = State(), State(), torch.randn(4, 8)
        compiled = intarsia.compile(function)
        for _ in range(3):
            found, wanted = facts(mine, compiled(mine, x)), facts(its, function(its, x))
            torch.testing.assert_close(found[0], wanted[0])
            assert found[1] == wanted[1]
            torch.testing.assert_close(mine.layer(x), its.layer(x))
    assert intarsia.counters()["breaks"] == breaks and intarsia.counters()["fallbacks"] == 0


@pytest.mark.parametrize("inside", [False, True])
def test_detached_in_place(inside):
    def program(layer, x):
        early = layer(x) * 2
        loss = early.sum()
        late = early + 1
        late.detach_()
        loss = loss + (late * layer(x)).sum()
        if inside:
            loss.backward()
        return loss.detach() if inside else loss

    found = []
    intarsia.reset()
    with torch.enable_grad():
        for run in (program, intarsia.compile(program, fullgraph=True)):
            s = State()
            loss = run(s.layer, torch.ones(4, 8))
            if not inside:
                loss.backward()
            found.append([loss.detach(), *(p.grad for p in s.layer.parameters())])
    torch.testing.assert_close(found[1], found[0])
