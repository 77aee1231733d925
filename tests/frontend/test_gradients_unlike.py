"""Gradients from outside that look otherwise than the wrapper tensors they arrive at: attributes, classes, plain tensors. Eager takes all."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from harness import compiled, number_backend
from test_shells_with_gradients import Two, facts, trained
from test_wrapper_gradients import Pair
from test_wrapper_shells import Held, check, t
from torch import Tensor
from torch.utils import _pytree as pytree

import intarsia


class Marked(Pair):
    """Says what it is made of, and holds a name beside it, which its gradients need not have."""

    def __init__(self, a, b, name="none"):
        super().__init__(a, b)
        self.label = name

    @staticmethod
    def __new__(cls, a, b, name="none"):
        return Pair.__new__(cls, a, b)

    def __tensor_flatten__(self):
        return ["a", "b"], self.label

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Marked(inner["a"], inner["b"], context)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        names = [v.label for v in pytree.tree_leaves((args, kwargs)) if isinstance(v, cls)]
        a, b = (
            func(*pytree.tree_map(lambda v: getattr(v, k) if isinstance(v, cls) else v, args), **(kwargs or {}))
            for k in "ab"
        )
        return cls(a, b, names[0]) if isinstance(a, Tensor) else a


def held(seed: int, scale: float = 2.0) -> Tensor:
    return Held(t(3, 4, seed=seed), scale)


KINDS: dict[str, Any] = {
    "attributes": (held, lambda s: held(s, 3.0)),
    "names": (
        lambda s: Marked(t(3, 4, seed=s), t(3, 4, seed=s + 1), "w"),
        lambda s: Marked(t(3, 4, seed=s), t(3, 4), "g"),
    ),
    "plain": (held, lambda s: t(3, 4, seed=s)),
    "nested": (
        lambda s: Two(held(s), held(s + 1)),
        lambda s: Two(held(s, 5.0), held(s + 1, 6.0)),
    ),
    "nested in part": (lambda s: Two(held(s), held(s + 1)), lambda s: Two(held(s, 5.0), held(s + 1))),
    "of another class": (held, lambda s: Two(t(3, 4, seed=s), t(3, 4, seed=s + 1))),
    "as it is": (held, held),
}


def losses(made: Any, given: Any, weight: Any, make: Any, k: int, draw: random.Random) -> None:
    """Backward from what a function gave, in one of several ways."""
    how = draw.randrange(5)
    if how == 0:
        for at, value in enumerate(made):
            value.backward(make(k + at), retain_graph=True)
    elif how == 1:
        torch.autograd.backward(made, [make(k + at) for at in range(len(made))])
    elif how == 2:
        torch.autograd.backward(made[:1], [make(k)], retain_graph=True)
        sum((make(k + 5) * value).sum() for value in made).backward()
    elif how == 3:
        (make(k) * made[0] + made[-1]).sum().backward()
    else:  # one that is wanted for some alone, then all: nothing is kept of the first
        torch.autograd.grad(made[:1], given[draw.randrange(2)], make(k), retain_graph=True, allow_unused=True)
        torch.autograd.backward(made, [weight(k + at) for at in range(len(made))])


STEPS = [
    "p = p * {n}",
    "p = p.sin()",
    "q = p + q",
    "q = (q * p).exp() * 0.1",
    "p = p.t().t() + p",
    "p = p * x",
    "q = q.detach() + p",
]


def agrees(seed: int, compile: Any, calls: int = 3) -> None:
    draw = random.Random(seed)
    name = draw.choice(list(KINDS))
    weight, gradient = KINDS[name]
    steps = [s.replace("{n}", str(draw.randint(2, 4))) for s in draw.choices(STEPS, k=draw.randint(1, 4))]
    text = (
        "def program(p, q, x):\n"
        + "".join(f"    {s}\n" for s in steps)
        + f"    return {draw.choice(['p, q + p', 'p * 2,'])}\n"
    )
    namespace: dict[str, Any] = {}
    exec(compile_text(text, seed), namespace)
    fast = compile(namespace["program"])

    def outcome(function: Any, k: int) -> Any:
        given = trained(weight(k)), trained(weight(k + 3)), trained(t(3, 4, seed=k + 7))
        try:
            made = function(*given)
            if k % 2:  # two calls of one graph, and one backward
                made = (*made, *function(*given))
            losses(made, given, weight, gradient, k, random.Random(seed + k))
        except Exception as error:
            return type(error), str(error).splitlines()[0]
        return [facts(v.grad) for v in given], facts(list(made))

    for k in range(calls):
        check(outcome(fast, k), outcome(namespace["program"], k))


def compile_text(text: str, seed: int) -> Any:
    return compile(text, f"<program {seed}>", "exec")


@pytest.mark.parametrize("seed", range(6))
def test_random_programs(seed: int) -> None:
    agrees(seed, lambda f: compiled(f, number_backend)[0])


@pytest.mark.parametrize("kind", ["attributes", "nested", "of another class"])
def test_compiled(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """A compiled backward is for gradients as the tensor is; for others the graph runs once more, and says so once."""
    weight, gradient = KINDS[kind]

    def program(p, x):
        return (p * 2).sin(), p * x

    def outcome(function: Any, k: int) -> Any:
        given = trained(weight(k)), t(3, 4, seed=k)
        made = function(*given)
        torch.autograd.backward(made, [gradient(k), gradient(k + 1)], retain_graph=True)
        torch.autograd.backward(made, [weight(k), gradient(k + 1)])
        if kind == "of another class":  # an error where its backward is differentiated
            return [facts(v.grad) for v in given], facts(list(made))
        (slope,) = torch.autograd.grad(function(*given)[0], given[0], gradient(k), create_graph=True)
        slope.sum().backward(torch.ones_like(slope.sum().detach()))
        return [facts(v.grad) for v in given], facts(list(made)), facts(slope)

    fast = intarsia.compile(program, fullgraph=True)
    for k in range(3):
        check(outcome(fast, k), outcome(program, k))
    assert caplog.text.count("a gradient arrives that is not made as its tensor") == 1


def test_inputs_are_held() -> None:
    """Eager's backward needs no input that it has not saved; that of a graph that runs once more needs all, and holds them."""

    def outcome(function: Any) -> Any:
        p = trained(held(0))
        made = function(p, t(3, 4, seed=1), t(3, 4, seed=2))
        made.backward(held(4, 7.0))
        return facts(p.grad)

    def program(p, x, y):
        return (p * x).sin() + y

    check(outcome(intarsia.compile(program, fullgraph=True)), outcome(program))
