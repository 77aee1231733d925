"""Wrapper tensors that are written to, that require gradients, that are made inside, that hold each other."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

import pytest
import torch
from harness import compiled
from test_wrapper_tensors import Int8, aten
from torch import Tensor, nn
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_map_only

import intarsia


class Pair(Tensor):
    """Two tensors of one shape; views share memory with what they are views of."""

    @staticmethod
    def __new__(cls, a, b):
        return Tensor._make_wrapper_subclass(cls, a.shape, a.stride(), dtype=a.dtype, device=a.device)

    def __init__(self, a, b):
        self.a, self.b = a, b

    def __tensor_flatten__(self):
        return ["a", "b"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Pair(inner["a"], inner["b"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        a = func(*tree_map_only(Pair, lambda t: t.a, args), **tree_map_only(Pair, lambda t: t.a, kwargs))
        b = func(*tree_map_only(Pair, lambda t: t.b, args), **tree_map_only(Pair, lambda t: t.b, kwargs))
        return return_and_correct_aliasing(func, args, kwargs, Pair(a, b) if isinstance(a, Tensor) else a)


def x(seed=0):
    torch.manual_seed(seed)
    return torch.randn(3, 4)


def pair(seed=0, grad=False):
    return Pair(x(seed), x(seed + 1)).requires_grad_(grad)


def nested(seed=0, grad=False):
    return Pair(pair(seed), pair(seed + 7)).requires_grad_(grad)


def flat(value: Any) -> Any:
    if isinstance(value, Tensor) and type(value) is not Tensor:
        return type(value), value.requires_grad, [flat(getattr(value, name)) for name in value.__tensor_flatten__()[0]]
    return list(map(flat, value)) if isinstance(value, tuple | list) else value


def agree(got, want):
    torch.testing.assert_close(flat(got), flat(want)) if isinstance(want, Tensor) and type(want) is Tensor else None
    got, want = flat(got), flat(want)
    if isinstance(want, tuple | list):
        assert len(got) == len(want)
        for one, other in zip(got, want):
            agree(one, other)
    elif not isinstance(want, Tensor):
        assert got == want


def shown(value):
    """All that a caller sees of a tensor."""
    return (value, value._version, value.requires_grad) if isinstance(value, Tensor) else value


def same(program, make, after=lambda result, args: None, graphs=1, breaks=False):
    function, log = compiled(program)
    for seed in range(3):
        one, other = make(seed), make(seed)
        got, want = function(*one), program(*other)
        agree(got, want)
        agree(after(got, one), after(want, other))
        agree([*map(shown, one)], [*map(shown, other)])
    assert len(log.captures) == graphs and not log.fallbacks and bool(log.breaks) == breaks, (log.breaks, log.fallbacks)


def without_grad(t):
    with torch.no_grad():
        t.mul_(2)
    return t + 1


def in_a_view(t):
    t.view(-1)[2:5].mul_(3)
    return t + 1


def in_a_part(t):
    t.a.add_(1)
    return t * 2


def write(result, args):
    result.add_(1)
    return result._version


@pytest.mark.parametrize(
    "program",
    [
        lambda t: t.add_(1),
        lambda t: t.copy_(t * 2 + 1),
        lambda t: nn.init.zeros_(t),
        lambda t: t.__setitem__(0, 1.0),
        without_grad,
        in_a_view,
        in_a_part,
    ],
)
@pytest.mark.parametrize("make", [pair, nested])
def test_writes(program, make):
    same(program, lambda seed: (make(seed),))


@pytest.mark.parametrize(
    "program", [lambda t: t.view(-1), lambda t: t.t()[1], lambda t: (t * 2).view(-1), lambda t: t + 1]
)
def test_results_are_written_to(program):
    same(program, lambda seed: (pair(seed),), write)


def test_memory_that_is_shared_with_another_argument():
    def program(t, y):
        t.add_(1)
        return y * 2

    function, _ = compiled(program)
    for shared in (False, True, False):
        results = []
        for call in (function, program):
            y = x()
            results.append((call(Pair(y if shared else y.clone(), x(1)), y), y))
        agree(*results)


def test_parts_that_are_one_tensor():
    def program(t, y):
        return t.a is t.b, t.a is y, t * 2

    function, _ = compiled(program)
    for kind in (0, 1, 2, 0):
        y = x()
        given = Pair(y if kind == 2 else x(), x(1))
        given = Pair(given.a, given.a) if kind == 1 else given
        agree(function(given, y), program(given, y))


def test_made_inside():
    def program(y, z):
        t = Pair(y, z)
        u = Pair(y * 2, b=t.b)
        return t, t.a is y, u * t, u.b, isinstance(u, Pair), type(u).__name__

    same(program, lambda seed: (x(seed), x(seed + 1)), lambda result, args: write(result[0], args))


def backward(result, args):
    result.sum().backward(aten.ones_like(result.sum().detach()))
    return [t.grad for t in args]


@pytest.mark.parametrize("make", [pair, nested])
@pytest.mark.parametrize(
    "program", [lambda t, u: (t * u).sin(), lambda t, u: (t.view(-1) * 2).sum(0), lambda t, u: t[1] * 2]
)
def test_gradients(program, make):
    same(program, lambda seed: (make(seed, True), make(seed + 2, True)), backward)
    function = intarsia.compile(program, fullgraph=True)
    one, other = (make(0, True), make(1, True)), (make(0, True), make(1, True))
    agree(backward(function(*one), one), backward(program(*other), other))


class Dequantized(Int8):
    """The gradient of a quantized weight is a plain tensor."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is aten.detach.default:
            return cls(args[0].data_, args[0].scale)
        return func(*tree_map_only(Int8, Int8.dequantize, args), **(kwargs or {}))


def test_gradients_that_are_plain():
    def make(seed):
        return Dequantized.of(x(seed)).requires_grad_(), x(seed + 1).requires_grad_()

    def program(w, y):
        return (y @ w.t()).sin()

    def penalty(result, args):
        (slope,) = torch.autograd.grad(result.sum(), args[1], create_graph=True)
        slope.sin().sum().backward()
        return [t.grad for t in args]

    same(program, make, backward)
    for after in (backward, penalty):
        function = intarsia.compile(program, fullgraph=True)
        one, other = make(0), make(0)
        agree(after(function(*one), one), after(program(*other), other))


def test_a_parameter_is_trained():
    def run(compile):
        weight = nn.Parameter(pair())
        optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
        function = compile(lambda y: (y * weight).sin())
        for seed in range(3):
            backward(function(x(seed)), [])
            optimizer.step()
            optimizer.zero_grad()
        return weight.detach(), type(weight), isinstance(weight, nn.Parameter), weight._version

    agree(run(lambda f: intarsia.compile(f, fullgraph=True)), run(lambda f: f))


@pytest.mark.parametrize("grad", [False, True])
def test_writes_that_autograd_sees(grad):
    """A leaf that is written to is an error; others have a history behind the call."""

    def program(t, w):
        t[0].copy_(w)
        return t * 2

    def run(function):
        t, w = pair(0, grad), pair(3)[0].requires_grad_()
        try:
            result = function(t, w)
        except RuntimeError as error:
            return str(error)
        return backward(result, [w]), t.requires_grad, t._version

    agree(run(compiled(program)[0]), run(program))


class Kind(enum.Enum):
    ROWS = 1
    COLUMNS = 2


@dataclasses.dataclass
class Settings:
    by: float
    kind: Kind = Kind.ROWS


class Scaled(Pair):
    """What its operators do is said by its context, and by what an instance holds."""

    def __init__(self, a, b, settings):
        super().__init__(a, b)
        self.settings = settings

    @staticmethod
    def __new__(cls, a, b, settings):
        return Pair.__new__(cls, a, b)

    def __tensor_flatten__(self):
        return ["a", "b"], self.settings

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Scaled(inner["a"], inner["b"], context)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        s = args[0].settings
        return func(args[0].a, *args[1:]) * (s.by if s.kind is Kind.ROWS else -s.by)


def test_contexts_that_are_dataclasses():
    def program(t):
        return t + 1

    function, log = compiled(program)
    given = Scaled(x(), x(1), Settings(2.0))
    for by, kind in ((2.0, Kind.ROWS), (2, Kind.ROWS), (3.0, Kind.ROWS), (3.0, Kind.COLUMNS), (2.0, Kind.ROWS)):
        given.settings.by, given.settings.kind = by, kind  # the same object, which changes
        agree(function(given), program(given))
    assert len(log.captures) == 4 and not log.fallbacks


def test_an_object_that_may_change_is_left_to_eager():
    class Box:
        by = 1

    def program(t):
        return t * 2

    class Boxed(Pair):
        @staticmethod
        def __tensor_unflatten__(inner, context, size, stride):
            return Boxed(inner["a"], inner["b"])

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            return func(args[0].a, *args[1:]) * getattr(args[0], "box", Box).by

    given = Boxed(x(), x(1))
    given.box = Box()
    function = compiled(program)[0]
    for by in (2, 3):
        given.box.by = by
        agree(function(given), program(given))


class Lying(Pair):
    """Says something else of itself than what it is."""

    how = ""

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        a, b = inner["a"], inner["b"]
        if Lying.how == "raises":
            raise ValueError("lost")
        a = {"dtype": a.double(), "strides": a.t().contiguous().t()}.get(Lying.how, a)
        made = Lying(a, b)
        return made.requires_grad_() if Lying.how == "requires_grad" else made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return func(args[0].a, *args[1:], **(kwargs or {}))


@pytest.mark.parametrize("how", ["raises", "dtype", "strides", "requires_grad"])
def test_lies(how, monkeypatch):
    monkeypatch.setattr(Lying, "how", how)
    function, log = compiled(lambda t: t * 2)
    agree(function(Lying(x(), x(1))), x() * 2)
    assert "Lying" in str(log.fallbacks) + str(log.breaks)
    with pytest.raises(intarsia.frontend.errors.CaptureError, match="Lying"):
        compiled(lambda t: t * 2, fullgraph=True)[0](Lying(x(), x(1)))


class Replacing(Pair):
    """Writes by taking other parts."""

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Replacing(inner["a"], inner["b"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is aten.add_.Tensor:
            args[0].a = args[0].a + args[1]
            return args[0]
        return func(args[0].a, *args[1:], **(kwargs or {}))


def test_parts_that_are_replaced():
    def program(t):
        t.add_(1)
        return t * 2

    function, log = compiled(program)
    for seed in range(2):
        one, other = Replacing(x(seed), x()), Replacing(x(seed), x())
        agree(function(one), program(other))
        agree(one.a, other.a)
    assert "a of a Replacing is assigned" in str(log.breaks)


class Sized(Pair):
    """The product with a plain matrix is one, too."""

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Sized(inner["a"], inner["b"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        each = [[getattr(v, n) if isinstance(v, cls) else v for v in args] for n in "ab"]
        return Sized(*(func(*given, **(kwargs or {})) for given in each))


@pytest.mark.parametrize("grad", [False, True])
def test_results_whose_sizes_change(grad):
    """Sizes that a plain argument has are symbols in the third call; a wrapper tensor that is given out has numbers."""
    function, log = compiled(lambda y, p: y @ p)
    for rows in (4, 6, 8, 4):
        y, p = torch.ones(rows, 3).requires_grad_(grad), Sized(x(), x(1))
        agree(function(y, p), y @ p)
    assert not log.breaks and not log.fallbacks
