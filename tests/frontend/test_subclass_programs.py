"""Programs as users of tensor subclasses write them: units, intervals, layouts beside parts, gradients taken inside."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import compiled, number_backend
from test_shells_with_gradients import Two, facts, trained
from test_wrapper_gradients import Pair
from test_wrapper_shells import Held, check, t
from torch import Tensor
from torch.utils import _pytree as pytree

aten = torch.ops.aten


def outcome(function: Callable[..., Any], given: tuple[Any, ...]) -> Any:
    try:
        return facts(function(*given)), facts(list(given))
    except Exception as error:
        return type(error), str(error).splitlines()[0]


def agree(program: Any, make: Callable[[int], tuple[Any, ...]], breaks: int = 0, calls: int = 3) -> None:
    fast, log = compiled(program, number_backend)
    for k in (*range(calls), 0):
        check(outcome(fast, make(k)), outcome(program, make(k)))
    assert len(log.breaks) == breaks and not log.fallbacks, ([b.reason for b in log.breaks], log.fallbacks)


class Quantity(Tensor):
    """A tensor with a unit, which sums must agree in."""

    @staticmethod
    def of(data: Tensor, unit: str) -> Any:
        made: Any = data.as_subclass(Quantity)
        made.unit = unit
        return made

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        found = super().__torch_function__(func, types, args, kwargs or {})
        units = [v.unit for v in args if isinstance(v, Quantity)]
        if isinstance(found, Quantity) and units:
            if "add" in func.__name__ and len(set(units)) > 1:
                raise TypeError(f"{units[0]} and {units[1]} are added")
            found.unit = "".join(units)
        return found


def quantities(a, b):
    """Python says that the operator takes neither, by their classes."""
    said = []
    for add in (lambda: a + b, lambda: torch.add(a, b), lambda: a.add(b), lambda: 1 + a):
        try:
            said.append(add().unit)
        except TypeError as error:
            said.append(str(error))
    return said, (a * b).unit


def test_operands_are_named_as_the_program_knows_them() -> None:
    agree(quantities, lambda k: (Quantity.of(t(3, seed=k), "m"), Quantity.of(t(3, seed=k), "ms"[k % 2])))


class Interval(Tensor):
    """Two bounds; what layers make of them."""

    @staticmethod
    def __new__(cls, low, high):
        return Tensor._make_wrapper_subclass(cls, low.shape, dtype=low.dtype, device=low.device)

    def __init__(self, low, high):
        self.low, self.high = low, high

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is aten.relu.default:
            return cls(args[0].low.relu(), args[0].high.relu())
        bias, x, weight = args if func is aten.addmm.default else (0, *args)
        up, down = weight.clamp(min=0), weight.clamp(max=0)
        return cls(x.low @ up + x.high @ down + bias, x.high @ up + x.low @ down + bias)


def test_layers_ask_for_the_device_of_a_parameter() -> None:
    def bounds(x, weight, bias):
        y = torch.nn.functional.linear(Interval(x - 0.1, x + 0.1), weight, bias).relu()
        return y.low, (y.high - y.low).mean()

    agree(bounds, lambda k: (t(3, 4, seed=k), t(2, 4, seed=k + 1), t(2, seed=k + 2)))


class Grouped(Pair):
    """Holds an object beside its parts, which says how large groups are."""

    def __init__(self, a, b, layout):
        super().__init__(a, b)
        self.grouped = layout

    @staticmethod
    def __new__(cls, a, b, layout):
        return Pair.__new__(cls, a, b)

    def __tensor_flatten__(self):
        return ["a", "b"], (type(self.grouped), self.grouped.size)

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Grouped(inner["a"], inner["b"], context[0](context[1]))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return func(*pytree.tree_map(lambda v: v.a * v.grouped.size + v.b if isinstance(v, cls) else v, args))


class Groups:
    """One that says what is equal to it."""

    def __init__(self, size):
        self.size = size

    def __eq__(self, other):
        return type(other) is type(self) and self.size == other.size

    __hash__ = None  # type: ignore[assignment]


class Own:
    """One that is equal to itself alone: a copy would be another."""

    def __init__(self, size):
        self.size = size


class Copied(Groups):
    """One that is copied by code of its own."""

    def __deepcopy__(self, memo):
        return type(self)(self.size + 1)


@pytest.mark.parametrize(("layout", "breaks"), [(Groups, 0), (Own, 1), (Copied, 1)])
def test_objects_beside_parts(layout: type, breaks: int) -> None:
    given = [(Grouped(t(3, seed=k), t(3), layout(k % 2 + 2)), t(3, seed=k)) for k in range(4)]
    agree(lambda p, x: p * x, lambda k: given[k], breaks)


# ---- gradients that the program takes ----

KINDS: dict[str, Callable[[int], Any]] = {
    "leaf": lambda k: trained(Held(t(3, 4, seed=k), 2.0)),
    "two": lambda k: trained(Two(t(3, 4, seed=k), t(3, 4, seed=k + 1))),
    "history": lambda k: trained(Held(t(3, 4, seed=k), 2.0)) * 2,
    "declared": lambda k: trained(Pair(t(3, 4, seed=k), t(3, 4, seed=k + 1))),
    "plain": lambda k: trained(t(3, 4, seed=k)),
    "plain, history": lambda k: trained(t(3, 4, seed=k)) * 2,
}
ASKED = ["w", "y", "v", "(v, w)", "(w, y)", "(v, u)"]


def taken(seed: int) -> tuple[str, Any, str]:
    draw = random.Random(seed)
    kind, asked = draw.choice(list(KINDS)), draw.choice(ASKED)
    lines = ["v = w * 2", draw.choice(["u = v.sin()", "u = v * y", "u = v + w"]), "loss = (u * y).sum()"]
    options = draw.choice(["", ", retain_graph=True", ", create_graph=True", ", allow_unused=True"])
    lines += [f"found = torch.autograd.grad(loss, {asked}{options})", "return [g * 2 for g in found if g is not None]"]
    return "def program(w, y):\n" + "".join(f"    {line}\n" for line in lines), KINDS[kind], kind


def agree_on_gradients(seed: int) -> Any:
    text, make, kind = taken(seed)
    namespace: dict[str, Any] = {"torch": torch}
    exec(compile(text, f"<program {seed}>", "exec"), namespace)
    program = namespace["program"]
    fast, log = compiled(program, number_backend)
    for k in (0, 1, 0):
        given = [(make(k), trained(t(3, 4, seed=k + 5))) for _ in range(2)]
        for one in given:
            one[0].retain_grad()
        check(outcome(fast, given[0]), outcome(program, given[1]))
    assert not log.fallbacks, log.fallbacks
    return log, kind, text


@pytest.mark.parametrize("seed", range(14))
def test_gradients_are_taken(seed: int) -> None:
    """Only what is given, and has a history, may lead to another that gradients are asked of."""
    log, kind, text = agree_on_gradients(seed)
    if kind not in ("history", "plain, history") or any(f"(loss, {asked}" in text for asked in ("v", "(v, u)")):
        assert not log.breaks, (text, kind, [b.reason for b in log.breaks])
