"""Classes of tensors that count, hold settings, make something else of their parts, or define methods that torch's own code calls."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import compiled, number_backend
from test_torch_function import Plain
from test_wrapper_gradients import Pair
from test_wrapper_shells import Held
from torch import Tensor
from torch.nn import functional


class Counts(Tensor):
    """Counts its calls in the class, and takes a setting from there."""

    calls = 0
    mode = "once"

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.calls += 1
        made = super().__torch_function__(func, types, args, kwargs or {})
        return made * 2 if cls.mode == "twice" and func is torch.sin else made


class CountsBelow(Held):
    """The same in `__torch_dispatch__`."""

    calls = 0

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        cls.calls += 1
        return super().__torch_dispatch__(func, types, args, kwargs)


class Settings(Pair):
    """Parts are scaled by a setting of the class."""

    scale = 1.0

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        made = super().__torch_dispatch__(func, types, args, kwargs)
        return Settings(made.a * cls.scale, made.b)


def counted(p):
    return p * 2, p.calls, type(p).calls


def switched(p):
    Counts.mode = "twice"
    made = torch.sin(p)
    Counts.mode = "once"
    return made, torch.sin(p), p.mode


def new(p):
    type(p).fresh = 3
    return p.fresh, hasattr(p, "fresh"), p * 2


def hidden(p):
    p.calls = 7
    return p.calls, type(p).calls, p * 2


def scaled(p):
    Settings.scale = 3.0
    return p * 2, p.scale


def flat(value: Any) -> Any:
    if isinstance(value, Tensor):
        with torch._C.DisableTorchFunctionSubclass():
            held = getattr(value, "held", getattr(value, "a", value)).detach().as_subclass(Tensor)
            return type(value).__name__, held.tolist()
    return type(value)(map(flat, value)) if isinstance(value, list | tuple) else value


def numbers(seed: int = 0) -> Tensor:
    return torch.arange(6.0).view(3, 2) + seed


def reset() -> None:
    Counts.calls, Counts.mode, CountsBelow.calls, Settings.scale = 0, "once", 0, 1.0
    for kind in (Counts, CountsBelow):
        if "fresh" in vars(kind):
            del kind.fresh


def run(function: Any, make: Any) -> list[Any]:
    reset()
    found = []
    for seed in range(4):
        result = flat(function(make(numbers(seed))))
        found.append((result, Counts.calls, Counts.mode, CountsBelow.calls, Settings.scale))
    reset()
    return found


@pytest.mark.parametrize(
    ("program", "make", "breaks"),
    [
        *((program, lambda t: t.as_subclass(Counts), False) for program in (counted, switched, new, hidden)),
        *((program, CountsBelow, False) for program in (counted, new, hidden)),
        (scaled, lambda t: Settings(t, t + 1), True),
    ],
)
def test_attributes_of_the_class(program, make, breaks):
    fast, log = compiled(program, number_backend)
    assert run(fast, make) == run(program, make)
    assert bool(log.breaks) == breaks and not log.fallbacks, (log.breaks, log.fallbacks)
    assert breaks or len(log.captures) == 2  # the count is a number that changes from the second call on


class Grows(Pair):
    """Makes something else of its parts: taken apart and put together it would be another tensor."""

    def __init__(self, a, b):
        self.a, self.b = a + 1, b

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Grows(inner["a"], inner["b"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        made = super().__torch_dispatch__(func, types, args, kwargs)
        return Grows(made.a, made.b)


class Copies(Grows):
    """Copies its parts, which no program can tell by their values."""

    def __init__(self, a, b):
        self.a, self.b = a.clone(), b

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Copies(inner["a"], inner["b"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        made = Pair.__torch_dispatch__.__func__(cls, func, types, args, kwargs)
        return Copies(made.a, made.b)


@pytest.mark.parametrize("kind", [Grows, Copies])
def test_a_class_that_makes_something_else_of_its_parts(kind):
    for program in (lambda p: p * 2, lambda p: type(p)(p.a, p.b) * 2, lambda p: kind(p.a, p.b).a):
        fast, _ = compiled(program)
        for seed in range(2):
            assert flat(fast(kind(numbers(seed), numbers()))) == flat(program(kind(numbers(seed), numbers())))


@pytest.mark.parametrize("base", [Plain, Tensor])
def test_methods_that_torchs_own_code_calls(base):
    own = {
        "softmax": lambda self, *_, **__: "softmax",
        "unbind": lambda self, dim=0: ("unbind",),
        "dim": lambda self: 1,
    }
    kind = type(
        "Own", (base,), own | ({"__torch_function__": torch._C._disabled_torch_function_impl} if base is Tensor else {})
    )
    for program in (
        lambda p: functional.softmax(p, -1),
        lambda p: list(p),
        lambda p: functional.relu(p),
        lambda p: p + 1,
    ):
        found, wanted = (flat(f(numbers().as_subclass(kind))) for f in (compiled(program)[0], program))
        assert found == wanted
