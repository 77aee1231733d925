"""Special methods that classes of the program's define for their tensors: Python asks them, and not torch's, whatever the class is besides."""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import compiled, number_backend
from test_torch_function import Plain, Unwrapped
from test_wrapper_gradients import Pair
from test_wrapper_shells import Held
from torch import Tensor

CALLED: list[Any] = []


class Switched(Tensor):
    """Calls of torch give plain tensors."""

    __torch_function__ = torch._C._disabled_torch_function_impl


class Inherits(Tensor):
    """Has torch's `__torch_function__`."""


KINDS: dict[Any, Callable[..., Tensor]] = {
    Inherits: lambda kind, t: t.as_subclass(kind),
    Plain: lambda kind, t: t.as_subclass(kind),
    Unwrapped: lambda kind, t: t.as_subclass(kind),
    Switched: lambda kind, t: t.as_subclass(kind),
    Pair: lambda kind, t: kind(t, t * 3),
    Held: lambda kind, t: kind(t),
}


def put(p):
    p[0] = 5
    return len(CALLED)


def deleted(p):
    operator.setitem(p, 1, 2)
    return len(CALLED)


def looped(p):
    found = []
    for row in p:
        found.append(row)
    return found


def starred(p):
    first, *others = p
    return first, others


METHODS: dict[str, tuple[Any, list[Callable[[Any], Any]]]] = {
    "__getitem__": (
        lambda self, key: ("item", key),
        [lambda p: p[0], lambda p: p[1:, 0], lambda p: operator.getitem(p, 0)],
    ),
    "__setitem__": (lambda self, key, value: CALLED.append((key, value)), [put, deleted]),
    "__len__": (lambda self: 77, [lambda p: len(p), lambda p: list(range(len(p)))[-1], lambda p: p.__len__()]),
    "__iter__": (lambda self: iter([1, 2]), [lambda p: list(p), looped, starred, lambda p: dict(enumerate(p))]),
    "__reversed__": (lambda self: [9], [lambda p: list(reversed(p))]),
    "__contains__": (lambda self, item: item == 3, [lambda p: 3 in p, lambda p: 4 not in p]),
    "__call__": (lambda self, *args: ("called", args), [lambda p: p(1), lambda p: callable(p)]),
    "__neg__": (lambda self: "neg", [lambda p: -p, lambda p: operator.neg(p)]),
    "__invert__": (lambda self: "invert", [lambda p: ~p]),
    "__abs__": (lambda self: "abs", [lambda p: abs(p), lambda p: operator.abs(p)]),
    "__round__": (lambda self, digits=0: ("round", digits), [lambda p: round(p), lambda p: round(p, 1)]),
    "__floor__": (lambda self: "floor", [lambda p: math.floor(p)]),
    "__pow__": (lambda self, other: "pow", [lambda p: pow(p, 2), lambda p: p**2]),
    "__rpow__": (lambda self, other: "rpow", [lambda p: pow(2, p), lambda p: 2**p]),
    "__add__": (lambda self, other: "add", [lambda p: p + 1, lambda p: sum([p], 0), lambda p: 1 + p]),
    "__eq__": (lambda self, other: "eq", [lambda p: p == 1, lambda p: p in [p]]),
    "__bool__": (
        lambda self: True,
        [lambda p: 1 if p else 2, lambda p: not p, lambda p: any([p]), lambda p: all((p,)), lambda p: p and 3, bool],
    ),
    "__int__": (lambda self: 42, [lambda p: int(p)]),
    "__float__": (lambda self: 4.5, [lambda p: float(p)]),
    "__index__": (lambda self: 2, [lambda p: [1, 2, 3][p], lambda p: operator.index(p)]),
    "__deepcopy__": (lambda self, memo: "copy", [lambda p: copy.deepcopy(p)]),
}
ASKED_OF_ONE = ("__bool__", "__int__", "__float__", "__index__")


def plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        with torch._C.DisableTorchFunctionSubclass():
            held = getattr(value, "held", getattr(value, "a", value)).detach().as_subclass(Tensor)
            return type(value).__name__, held.tolist()
    return type(value)(map(plain, value)) if isinstance(value, list | tuple) else value


def outcome(use: Callable[[Any], Any], given: Any) -> Any:
    CALLED.clear()
    try:
        return plain(use(given))
    except Exception as error:
        return type(error), str(error).splitlines()[:1]


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("base", KINDS)
def test_the_class_is_asked(base, name):
    method, uses = METHODS[name]
    kind = type("Own", (base,), {name: method, **({"__hash__": Tensor.__hash__} if name == "__eq__" else {})})
    for use in uses:
        fast, _ = compiled(use, number_backend)
        for seed in range(2):
            value = torch.zeros(1) if name in ASKED_OF_ONE else torch.arange(6.0).view(3, 2) + seed
            found, wanted = (outcome(f, KINDS[base](kind, value.clone())) for f in (fast, use))
            assert found == wanted, use


class Scaled(Plain):
    """Goes on to torch's methods."""

    def __getitem__(self, key):
        return super().__getitem__(key) * 10

    def __setitem__(self, key, value):
        super().__setitem__(key, value + 1)

    def __len__(self):
        return super().__len__() + 100

    def __iter__(self):
        return iter([row + 1 for row in super().__iter__()])

    def __neg__(self):
        return super().__neg__() * 2


@pytest.mark.parametrize("size", [3, 5])
def test_methods_that_go_on_to_torchs_are_part_of_the_graph(size):
    def program(p):
        p[1] = 2.0
        return p[0], len(p), [*p], -p, p

    fast, log = compiled(program, number_backend)
    for seed in range(2):
        made = [(torch.arange(size * 2.0).view(size, 2) + seed).as_subclass(Scaled) for _ in range(2)]
        assert plain(fast(made[0])) == plain(program(made[1]))
    assert len(log.captures) == 1 and not log.breaks and not log.fallbacks


def test_a_method_that_is_replaced_is_asked_anew():
    kind = type("Own", (Plain,), {"__len__": lambda self: 3})
    fast, _ = compiled(lambda p: len(p))
    assert fast(torch.ones(2).as_subclass(kind)) == 3
    kind.__len__ = lambda self: 4
    assert fast(torch.ones(2).as_subclass(kind)) == 4
