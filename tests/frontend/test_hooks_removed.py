"""Hooks of leaves that the program removes between backward calls; and numbers that are an int or a float, as values are."""

import itertools

import pytest
import torch

import intarsia

CALLS = [
    lambda w, x: torch.autograd.grad((w * x).sum(), w)[0],
    lambda w, x: [(w * x).sum().backward(), w.grad.clone()][1],
]


@pytest.mark.parametrize(("first", "second"), [*itertools.product(CALLS, CALLS)])
@pytest.mark.parametrize("others", [0, 1])
def test_hooks_of_leaves(first, second, others):
    def program(w, x, handle):
        a = first(w, x)
        handle.remove()
        return a, second(w, x)

    found = []
    for run in (program, intarsia.compile(program, backend="eager")):
        w = torch.ones(2, requires_grad=True)
        for _ in range(others):
            w.register_hook(lambda g: g + 1)
        for _ in range(2):
            found.append(
                (*run(w, torch.full((2,), 3.0), w.register_hook(lambda g: g * 2)), w.grad, len(w._backward_hooks))
            )
            found[-1] = [t.tolist() if isinstance(t, torch.Tensor) else t for t in found[-1]]
    assert found[:2] == found[2:]


def returned(x, n):
    return min(2, n), max(n, 0), max(1, n) + 1


def of_integers(x, n):
    return x.int() * min(2, n), x.int() * max(n, 1), x.int() * min(2.0, n)


def as_text(x, n):
    return f"{min(n, 3)} {max(0, n)}"


@pytest.mark.parametrize("function", [returned, of_integers, as_text])
def test_the_larger_of_an_int_and_a_float(function):
    def program(x, k):
        return function(x, (k * 2).sum().item())

    compiled = intarsia.compile(program, backend="eager")
    for value in (2.5, 0.5, float("nan"), -1.0, 1.0):
        wanted, found = (run(torch.ones(2), torch.tensor(value)) for run in (program, compiled))
        assert str(found) == str(wanted)
