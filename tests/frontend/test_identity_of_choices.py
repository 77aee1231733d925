"""`is` between tensors of which values chose one: a truth of the graph that is eager's, and a break where loops chose."""

import random

import pytest
import torch
from harness import compiled, number_backend
from torch.utils import _pytree as pytree

XS = [
    torch.tensor(x)
    for x in ([1.0, 2.0, 3.0], [-1.0, 2.0, -3.0], [1.0, -2.0, -3.0], [-1.0, -2.0, 3.0], [-1.0, -2.0, -3.0])
]


def one_side(x, z):
    y = x
    if x.sum() > 0:
        y = x * 2
    return x + 1 if y is x else x - 1


def steps(x, z):
    y = x
    for k in range(3):
        if x[k] > 0:
            y = y * 2 + k
    return (y.clone() if y is x else y) * 2


def given_out(x, z):
    y = x
    for k in range(3):
        if x[k] > 0:
            y = y * 2 + k
    return y.clone() if y is x else y


def two_choices(x, z):
    a, b = x * 2, x * 3
    y = a if x.sum() > 0 else b
    w = b if x[0] > 0 else a
    if y is not w:
        return y - w
    return y + 1


def an_answer(x, z):
    a, b = x * 2, x * 3
    y = a if x.sum() > 0 else b
    return a * 1, y is a, y is not b


def of_the_caller(x, z):
    y = z if x.sum() > 0 else x
    return x + (2 if y is z else 3)


def a_view(x, z):
    a = x * 2
    y = a if x.sum() > 0 else x * 3
    return x * 2 if y is a.view(3) else x * 5


def large_sides(x, z):
    y = x
    if x.sum() > 0:
        y = torch.linalg.inv(torch.diag(x.exp())) @ x
    return x + 1 if y is x else x - 1


def of_a_loop(x, z):
    y = x
    while y.sum().abs() < 10:
        y = y * 2
    return x + 1 if y is x else x - 1


def outcome(function, x, z):
    given = [x.clone(), z.clone()]
    leaves, spec = pytree.tree_flatten(function(*given))
    return [[v is g for g in given] for v in leaves], leaves, spec, given


def same(a, b):
    (left, spec), (right, other) = pytree.tree_flatten(a), pytree.tree_flatten(b)
    equal = (torch.equal(p, q) if isinstance(p, torch.Tensor) else p == q for p, q in zip(left, right))
    return spec == other and all(equal)


def agree(function, fast):
    return all(same(outcome(fast, x, XS[0] + 1), outcome(function, x, XS[0] + 1)) for x in XS)


@pytest.mark.parametrize(
    "function",
    [one_side, steps, given_out, two_choices, an_answer, of_the_caller, a_view, large_sides],
    ids=lambda f: f.__name__,
)
def test_one_graph(function):
    fast, log = compiled(function, number_backend)
    assert agree(function, fast)
    assert log.breaks == [] and log.fallbacks == [] and len(log.captures) == 1


def test_loops_break():
    fast, log = compiled(of_a_loop, number_backend)
    assert agree(of_a_loop, fast)
    assert "compared by identity" in log.breaks[0].reason and log.fallbacks == []


def test_gradients():
    fast, log = compiled(steps, number_backend)
    with torch.enable_grad():
        for x in XS:
            found = []
            for function in (steps, fast):
                leaf = x.clone().requires_grad_()
                function(leaf * 1, None).sum().backward()
                found.append(leaf.grad)
            assert torch.equal(*found)
    assert log.breaks == []


def drawn(seed):
    """A program of choices between four tensors, and of what `is` says of them."""
    chance = random.Random(seed)
    names, lines = ["x", "z", "a", "b"], ["def f(x, z):", " a, b, out = x * 2, x * 3, z * 1"]
    for k in range(chance.randint(2, 5)):
        first, second = chance.sample(names, 2)
        condition = f"x[{chance.randrange(3)}] {chance.choice('<>')} 0"
        lines += chance.choice(
            (
                [f" v{k} = {first} if {condition} else {second}"],
                [f" v{k} = {first}", f" if {condition}:", f"  v{k} = {second} * {k + 2}"],
                [f" v{k} = {first}.view(3) if {condition} else {second}"],
            )
        )
        names.append(f"v{k}")
        first, second = chance.sample(names, 2)
        asked = f"{first} {chance.choice(('is', 'is not'))} {second}"
        lines += chance.choice(
            (
                [f" if {asked}:", f"  out = out * {k + 3}"],
                [f" out = out + ({k + 1} if {asked} else {first})"],
                [f" if {asked} and {condition}:", f"  out = out - {second}"],
                [f" out = out * 2 if any({first} is t for t in ({second}, x)) else out"],
            )
        )
    lines.append(f" return out, {chance.choice(['1', *names])}")
    return "\n".join(lines)


@pytest.mark.parametrize("seed", range(30))
def test_random_programs(seed):
    space = {}
    exec(drawn(seed), space)
    fast, log = compiled(space["f"], number_backend)
    assert agree(space["f"], fast), drawn(seed)
    assert log.fallbacks == []
