"""Wrapper tensors whose class does not say what they are made of, where gradients are wanted: eager's results and gradients in one graph."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import compiled, number_backend
from test_wrapper_shells import SEEN, Held, Logged, Tagged, check, masked, t
from torch import Tensor, nn
from torch.utils import _pytree as pytree

aten = torch.ops.aten


class Two(Tensor):
    """Two tensors, with nothing beside them."""

    @staticmethod
    def __new__(cls, a, b):
        return Tensor._make_wrapper_subclass(cls, a.shape, a.stride(), dtype=a.dtype, device=a.device)

    def __init__(self, a, b):
        self.a, self.b = a, b

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        one = func(*pytree.tree_map(lambda v: v.a if isinstance(v, Two) else v, args), **(kwargs or {}))
        other = func(*pytree.tree_map(lambda v: v.b if isinstance(v, Two) else v, args), **(kwargs or {}))
        if func._schema.is_mutable:
            return args[0]
        return Two(one, other) if isinstance(one, Tensor) else one


class Quantized(Tensor):
    """Integers and a scale; every operator is given the product, so results and gradients are plain tensors."""

    @staticmethod
    def __new__(cls, numbers, scale):
        return Tensor._make_wrapper_subclass(cls, numbers.shape, dtype=scale.dtype, device=numbers.device)

    def __init__(self, numbers, scale):
        self.numbers, self.scale = numbers, scale

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func in (aten.detach.default, aten.alias.default):
            return cls(args[0].numbers, args[0].scale)
        whole = pytree.tree_map(lambda v: v.whole() if isinstance(v, cls) else v, (args, kwargs or {}))
        return func(*whole[0], **whole[1])

    def whole(self):
        return self.numbers.to(self.scale.dtype) * self.scale


class Adapted(Quantized):
    """A weight and two small factors that are added to it."""

    @staticmethod
    def __new__(cls, *parts):
        return Tensor._make_wrapper_subclass(cls, parts[0].shape, dtype=parts[0].dtype, device=parts[0].device)

    def __init__(self, weight, down, up):
        self.weight, self.down, self.up = weight, down, up

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func in (aten.detach.default, aten.alias.default):
            return cls(args[0].weight, args[0].down, args[0].up)
        return super().__torch_dispatch__(func, types, args, kwargs)

    def whole(self):
        return self.weight + self.up @ self.down


class Counted(Held):
    """Counts what it went through: no gradient looks like the tensor that it is of."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        made = super().__torch_dispatch__(func, types, args, kwargs)
        if isinstance(made, cls):
            made.scale = max(v.scale for v in pytree.tree_leaves(args) if isinstance(v, cls)) + 1
        return made


class StraightThrough(torch.autograd.Function):
    """Rounds; its gradient does not."""

    @staticmethod
    def forward(ctx, w):
        scale = w.abs().amax() / 127
        return (w / scale).round() * scale

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def quantized(seed: int, rows: int = 5) -> Tensor:
    return Quantized((t(rows, 4, seed=seed) * 10).to(torch.int8), t(rows, 1, seed=seed + 1).abs())


def adapted(seed: int) -> Tensor:
    return Adapted(t(5, 4, seed=seed), t(2, 4, seed=seed + 1), t(5, 2, seed=seed + 2))


def facts(value: Any) -> Any:
    """What a program can see of a value, to be compared."""
    if isinstance(value, Tensor):
        own = {k: facts(v) for k, v in object.__getattribute__(value, "__dict__").items() if k != "_is_param"}
        plain = type(value) in (Tensor, nn.Parameter)
        seen = type(value), tuple(value.shape), value.dtype, value.requires_grad, value.is_leaf
        return (*seen, value.detach().clone() if plain else None, own)
    return [type(value), *map(facts, value)] if isinstance(value, list | tuple) else value


def outcome(function: Callable[..., Any], given: tuple[Any, ...], trains: bool = True) -> Any:
    """The results, the gradients of what is given, what else the call and its backward did; or the error."""
    SEEN.clear()
    try:
        result = function(*given)
        found = [facts(result), list(SEEN)]
        ends = [v for v in pytree.tree_leaves(result) if isinstance(v, Tensor) and v.requires_grad and not v.is_leaf]
        for end in ends if trains else []:
            (end.sum() if end.dim() else end).backward(retain_graph=True)
        return [
            *found,
            [facts(v.grad) if v.is_leaf else None for v in pytree.tree_leaves(given)],
            facts(given),
            list(SEEN),
        ]
    except Exception as error:
        return type(error), str(error).splitlines()[0]


def same(
    function: Callable[..., Any], make: Callable[[int], tuple[Any, ...]], breaks: int = 0, graphs: int = 1
) -> None:
    fast, log = compiled(function, number_backend)
    for seed in (0, 3, 6, 0):
        check(outcome(fast, make(seed)), outcome(function, make(seed)))
    assert not log.fallbacks and len(log.breaks) == breaks, ([b.reason for b in log.breaks], log.fallbacks)
    assert breaks or len(log.captures) == graphs, log.captures


def trained(value: Tensor) -> Tensor:
    return value.requires_grad_()


PROGRAMS: dict[str, Any] = {
    "scaled": (lambda p: (p * 2 + p).sin().sum(), lambda s: (trained(Held(t(3, 4, seed=s), 2.0)),)),
    "layers": (
        lambda p: torch.nn.functional.softmax(p @ torch.ones(4, 2) + 1, -1),
        lambda s: (trained(Held(t(3, 4, seed=s), 2.0)),),
    ),
    "frozen weight": (
        lambda w, x: nn.functional.linear(x, w).relu(),
        lambda s: (quantized(s), trained(t(3, 4, seed=s + 2))),
    ),
    "trained weight": (
        lambda w, x: nn.functional.linear(x, w).relu(),
        lambda s: (trained(quantized(s)), trained(t(3, 4, seed=s + 2))),
    ),
    "straight through": (
        lambda w, x: x @ StraightThrough.apply(w).t(),
        lambda s: (trained(Held(t(5, 4, seed=s), 2.0)), t(3, 4, seed=s + 1)),
    ),
    "two": (
        lambda p, x: ((p * p).exp().mean(), x * 2),
        lambda s: (trained(Two(t(3, 4, seed=s), t(3, 4, seed=s + 9))), trained(t(3, 4, seed=s + 2))),
    ),
    "adapted": (lambda w, x: torch.tanh(x @ w.t()), lambda s: (adapted(s), trained(t(3, 4, seed=s + 5)))),
    "made inside": (lambda x: Held((x * 2).detach(), 2.0) * x, lambda s: (trained(t(3, 4, seed=s)),)),
    "nested": (
        lambda p, x: (p * x).sum(),
        lambda s: (trained(Two(Held(t(3, seed=s)), Held(t(3, seed=s + 1)))), t(3, seed=s + 2)),
    ),
    "without gradients": (lambda p, x: p * x, lambda s: (Held(t(3, seed=s), 2.0), t(3, seed=s + 1))),
}


def test_sizes_that_change() -> None:
    """A result's sizes are numbers of its graph: no later call is given one that was made with other sizes."""
    function, log = compiled(lambda x, p: x @ p.t(), number_backend)
    for rows in (4, 6, 8, 4):
        given = [(trained(t(rows, 4)), Held(t(4, 4), 2.0)) for _ in range(2)]
        check(outcome(function, given[0]), outcome(lambda x, p: x @ p.t(), given[1]))
    assert not log.breaks and not log.fallbacks


def test_a_gradient_that_is_made_otherwise() -> None:
    """Its parts are wrapper tensors of another depth than those of what it is the gradient of."""
    make: Any = lambda s: (trained(Two(Held(t(3, seed=s)), Held(t(3)))), Held(Held(t(3, seed=s))))  # noqa: E731
    fast = compiled(lambda p, x: (p * x).sum(), number_backend)[0]
    for seed in (0, 3):
        check(outcome(fast, make(seed)), outcome(lambda p, x: (p * x).sum(), make(seed)))


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph(name: str) -> None:
    function, make = PROGRAMS[name]
    same(function, make)


def test_what_is_logged() -> None:
    """An operator whose method is seen to do more than compute is left to eager, in backward too."""

    def program(p):
        return nn.functional.gelu(p @ torch.ones(4, 2)).mean(), len(SEEN)

    same(program, lambda s: (trained(Logged(t(3, 4, seed=s), 2.0)),), breaks=3)


@pytest.mark.parametrize(
    "make",
    [
        lambda s: (trained(Counted(t(3, seed=s), 1.0)),),
        lambda s: (trained(Tagged([t(3, seed=s), t(3, seed=s + 1)], {"name": "a"})),),
        lambda s: (masked(3, 4, seed=s).requires_grad_(),),
    ],
)
def test_left_to_eager(make: Any) -> None:
    """Gradients that look otherwise than what they are of; tensors in containers; masks that decide."""
    fast, log = compiled(lambda p: (p * 2).exp(), number_backend)
    for seed in (0, 3, 0):
        check(outcome(fast, make(seed)), outcome(lambda p: (p * 2).exp(), make(seed)))
    assert log.breaks and not log.fallbacks


class Net(nn.Module):
    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(torch.zeros(3, 4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.weight * x) + self.bias


@pytest.mark.parametrize(
    "make", [lambda: Held(t(3, 4), 2.0), lambda: Two(t(3, 4), t(3, 4, seed=4)), lambda: quantized(0, rows=3)]
)
def test_parameters_are_trained(make: Any) -> None:
    def run(compile: Callable[[Any], Any]) -> Any:
        model, seen = Net(make()), []
        function, optimizer = compile(model), torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            loss = function(t(3, 4, seed=step)).sum()
            loss.backward()
            try:
                optimizer.step()
            except Exception as error:
                seen.append((type(error), str(error)))
            optimizer.zero_grad()
            seen.append(facts(loss))
        return seen, facts(list(model.parameters()))

    logs: list[Any] = []

    def fast(model: Any) -> Any:
        made, log = compiled(model, number_backend)
        logs.append(log)
        return made

    check(run(fast), run(lambda model: model))
    assert len(logs[0].captures) == 1 and not logs[0].breaks and not logs[0].fallbacks


# ---- random programs ----

STEPS = [
    "p = p * {n} + {n}",
    "p = torch.sin(p)",
    "q = p + {n}",
    "q = q.exp() * 0.1",
    "p = p * q",
    "r.append(p.shape[0] * {n})",
    "r.append(p.sum())",
    "r.append(isinstance(q, type(p)))",
    "r.append(x * {n} + 1)",
    "p = nn.functional.relu(p)",
    "p = p.detach() * {n}",
    "with torch.no_grad(): q = q * {n}",
    "p = p + x",
    "x = x * {n}",
    "r.append(x @ p.t())",
    "q = q.t().t() * 1",
    "q = q.reshape(-1, 2).sum(1)[:, None] + q[:2, :1]",
    "p = torch.where(x > 0, p, q)",
    "r.append(p[0] * {n})",
    "p = StraightThrough.apply(p)",
    "r.append((p.requires_grad, q.requires_grad, p.is_leaf))",
    "q = q.clone()",
    "r.append(type(p).__name__)",
    "p = p.view(-1)[: x.numel()].view(x.shape) - p",
    "q = torch.cat([q, q])[: p.shape[0]]",
]
OWN = {
    "Held": [
        "p.scale = p.scale * {n}",
        "r.append(p.scale)",
        "r.append(p.held * {n})",
        "p = Held(x.detach() * {n}, {n}.0) * p",
        "p.mul_({n})",
    ],
    "Two": ["r.append(p.a + p.b)", "p = Two(x.detach(), q.a) + p", "p.a.add_({n})", "p.note = {n}"],
    "Quantized": ["r.append(p.numbers.sum())", "r.append(q.whole())", "p.scale.mul_({n})"],
}


def drawn(seed: int) -> tuple[str, str, list[bool]]:
    """The text of a program over `p`, `q` (wrapper tensors), `x` (plain); their kind, and which of the three require gradients."""
    draw = random.Random(seed)
    kind = draw.choice(list(OWN))
    steps = draw.choices([*STEPS, *OWN[kind] * 2], k=draw.randint(3, 8))
    lines = "".join(f"    {step.replace('{n}', str(draw.randint(1, 4)))}\n" for step in steps)
    return (
        f"def program(p, q, x):\n    r = []\n{lines}    return r, p, q\n",
        kind,
        [draw.random() < 0.6 for _ in range(3)],
    )


def given(kind: str, wanted: list[bool], k: int) -> tuple[Tensor, ...]:
    rows = 4 + 2 * (k // 2)
    if kind == "Quantized":
        p, q = quantized(k, rows), quantized(k + 7, rows)
    elif kind == "Two":
        p, q = (Two(t(rows, 4, seed=k + s), t(rows, 4, seed=k + s + 1)) for s in (0, 5))
    else:
        p, q = Held(t(rows, 4, seed=k), 1.0 + k % 2), Held(t(rows, 4, seed=k + 5), 2.0)
    return tuple(v.requires_grad_(w) for v, w in zip((p, q, t(rows, 4, seed=k + 9)), wanted, strict=True))


def agrees(seed: int) -> Any:
    text, kind, wanted = drawn(seed)
    namespace: dict[str, Any] = dict(globals())
    exec(compile(text, f"<program {seed}>", "exec"), namespace)
    fast, log = compiled(namespace["program"], number_backend)
    for k in (0, 1, 2, 0):
        check(outcome(fast, given(kind, wanted, k)), outcome(namespace["program"], given(kind, wanted, k)))
    return log, text


@pytest.mark.parametrize("seed", range(3))
def test_random_programs(seed: int) -> None:
    log, text = agrees(seed)
    assert not log.fallbacks, (text, log.fallbacks)
