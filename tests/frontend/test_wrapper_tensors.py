"""Tensors of classes with `__torch_dispatch__` that are made of other tensors, in graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from harness import compiled
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

import intarsia

aten = torch.ops.aten


class Two(Tensor):
    """Two tensors of one shape; operators run on both."""

    @staticmethod
    def __new__(cls, a, b, note="n"):
        return Tensor._make_wrapper_subclass(cls, a.shape, a.stride(), dtype=a.dtype, device=a.device)

    def __init__(self, a, b, note="n"):
        self.a, self.b, self.note = a, b, note

    def __tensor_flatten__(self):
        return ["a", "b"], {"note": self.note}

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Two(inner["a"], inner["b"], context["note"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        note = next(
            x.note for x in (*args, *(args[0] if isinstance(args[0], list | tuple) else ())) if isinstance(x, Two)
        )
        a = func(*tree_map_only(Two, lambda x: x.a, args), **tree_map_only(Two, lambda x: x.a, kwargs or {}))
        b = func(*tree_map_only(Two, lambda x: x.b, args), **tree_map_only(Two, lambda x: x.b, kwargs or {}))
        return Two(a, b, note) if isinstance(a, Tensor) else a

    def difference(self):
        return self.a - self.b

    @property
    def label(self):
        return self.note + "!"


class Int8(Tensor):
    """A weight in int8 with a scale for each row, as quantization libraries have it."""

    @staticmethod
    def __new__(cls, data, scale):
        return Tensor._make_wrapper_subclass(cls, data.shape, dtype=scale.dtype, device=data.device)

    def __init__(self, data, scale):
        self.data_, self.scale = data, scale

    def __tensor_flatten__(self):
        return ["data_", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["data_"], inner["scale"])

    @classmethod
    def of(cls, weight):
        scale = weight.abs().amax(1, keepdim=True) / 127
        return cls((weight / scale).round().to(torch.int8), scale)

    def dequantize(self):
        return self.data_.to(self.scale.dtype) * self.scale

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is F.linear:
            x, w, bias = (*args, None)[:3]
            y = x @ w.data_.to(x.dtype).t() * w.scale.t()
            return y if bias is None else y + bias
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is aten.detach.default:
            return cls(args[0].data_, args[0].scale)
        if func in (aten.mm.default, aten.addmm.default, aten.t.default, aten.mul.Tensor):
            return func(*tree_map_only(Int8, Int8.dequantize, args), **(kwargs or {}))
        raise NotImplementedError(f"{func} of Int8")


def x(seed=0, grad=False):
    torch.manual_seed(seed)
    return torch.randn(3, 4).requires_grad_(grad)


def two(seed=0, note="n"):
    return Two(x(seed), x(seed + 1), note)


def flat(value: Any) -> Any:
    if isinstance(value, Two):
        return ("Two", value.a, value.b, value.note)
    return [flat(v) for v in value] if isinstance(value, tuple | list) else value


def agree(got, want):
    if isinstance(want, tuple | list):
        assert len(got) == len(want)
        for one, other in zip(got, want):
            agree(one, other)
    elif isinstance(want, Tensor):
        torch.testing.assert_close(got, want)
    else:
        assert got == want


def same(program, *calls, graphs=1):
    function, log = compiled(program)
    for args in calls:
        agree(flat(function(*args)), flat(program(*args)))
    assert len(log.captures) == graphs and not log.breaks and not log.fallbacks, (log.breaks, log.fallbacks)
    return function


def test_arguments_and_results():
    def program(t, x):
        y = t * 2 + x
        return y, y.sum(0), y.shape, t, type(y).__name__, isinstance(y, Two), y.dtype, t.view(-1)

    same(program, (two(), x(5)), (two(3), x(6)), (two(4), x(7)))


def test_parts_methods_and_constants():
    def program(t):
        y = (t + 1) * t
        return y.difference(), y.a, t.b + 1, t.difference(), t.label, y.note, y.label, hasattr(y, "nothing")

    same(program, (two(),), (two(3),))


def test_the_whole_road():
    def program(t, x):
        return (t * 2 + x).sin().difference()

    function = intarsia.compile(program, fullgraph=True)
    for seed in (0, 1):
        torch.testing.assert_close(function(two(seed), x(5)), program(two(seed), x(5)))


def test_guards_on_what_a_wrapper_is():
    def program(t):
        return t * 2

    function, log = compiled(program)
    given = [
        two(),
        two(note="m"),
        x(),
        Two(x()[:2], x(1)[:2]),
        two(3),
        two(4, "m"),
        x(4),
        Two(x().double(), x().double()),
    ]
    for each in given:
        agree(flat(function(each)), flat(program(each)))
    assert len(log.captures) == 5


def test_a_quantized_weight():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    for layer in (net[0], net[2]):
        layer.weight = nn.Parameter(Int8.of(layer.weight.detach()), requires_grad=False)
    function = intarsia.compile(net, fullgraph=True)
    for seed in (0, 1):
        torch.testing.assert_close(function(x(seed)), net(x(seed)))
    net[0].weight.scale.mul_(2)
    torch.testing.assert_close(function(x()), net(x()))
    net[0].weight = nn.Parameter(Int8.of(torch.randn(8, 4)), requires_grad=False)
    torch.testing.assert_close(function(x()), net(x()))


def test_gradients_through_a_quantized_weight():
    weight = Int8.of(torch.randn(5, 4))

    def program(x, w):
        return (F.linear(x, w).sin() @ torch.ones(5, 2)).sum()

    function = intarsia.compile(program, fullgraph=True)
    for seed in (0, 1):
        one, other = x(seed, True), x(seed, True)
        function(one, weight).backward()
        program(other, weight).backward()
        torch.testing.assert_close(one.grad, other.grad)


def test_an_operator_that_the_class_does_not_have():
    def program(x, w):
        return w.sin() + x

    with pytest.raises(NotImplementedError, match="sin"):
        compiled(program)[0](x(), Int8.of(x()))


@pytest.mark.parametrize(
    "program",
    [
        lambda t: t.t_(),
        lambda t: torch.rand_like(t) * 0 + t,
        lambda t: setattr(t, "note", "other") or t * 1,
    ],
)
def test_what_is_left_to_eager(program):
    function, log = compiled(program)
    one, other = two(), two()
    agree(flat(function(one)), flat(program(other)))
    agree(flat(one), flat(other))
    assert log.breaks or log.fallbacks


class Lying(Two):
    """Says something else than what it is made of."""

    how = ""

    def __tensor_flatten__(self):
        if self.how == "raises":
            raise ValueError("no parts")
        names = ["a", "note"] if self.how == "no tensor" else ["a", "b"]
        return names, {"note": object() if self.how == "context" else self.note}

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        if Lying.how == "class":
            return Two(inner["a"], inner["b"])
        return Lying(inner["a"][:2] if Lying.how == "shape" else inner["a"], inner["b"], context["note"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return func(args[0].a, *args[1:], **(kwargs or {}))


@pytest.mark.parametrize("how", ["raises", "no tensor", "context", "class", "shape"])
def test_what_lies_about_itself(how, monkeypatch):
    def program(t):
        return t * 2

    monkeypatch.setattr(Lying, "how", how)
    function, log = compiled(program)
    given = Lying(x(), x(1))
    torch.testing.assert_close(function(given), program(given))
    assert not any(c.operations for c in log.captures) and "Lying" in str(log.fallbacks) + str(log.breaks)
    with pytest.raises(intarsia.frontend.errors.CaptureError, match="Lying"):
        compiled(program, fullgraph=True)[0](given)


def test_a_result_that_cannot_be_put_together_again():
    class Shrinking(Two):
        @staticmethod
        def __tensor_unflatten__(inner, context, size, stride):
            if inner["a"].shape[0] > 3:
                return Two(inner["a"], inner["b"])
            return Shrinking(inner["a"], inner["b"])

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            return Shrinking(*(torch.cat([p, p]) for p in (args[0].a, args[0].b)))

    function, log = compiled(lambda t: t * 2)
    got = function(Shrinking(x(), x(1)))
    assert type(got) is Shrinking and got.shape == (6, 4)
    assert log.fallbacks or log.breaks


def test_what_a_wrapper_holds_beside_its_parts():
    class Scaled(Two):
        by = 1

        @staticmethod
        def __tensor_unflatten__(inner, context, size, stride):
            return Scaled(inner["a"], inner["b"])

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            return func(args[0].a, *args[1:], **(kwargs or {})) * args[0].by

    def program(t):
        return t + 1

    function, log = compiled(program)
    for by in (None, 5, 6, None):
        given = Scaled(x(), x(1))
        if by is not None:
            given.by = by
        torch.testing.assert_close(function(given), program(given))


def family(by):
    class Member(Two):
        @staticmethod
        def __tensor_unflatten__(inner, context, size, stride):
            return Member(inner["a"], inner["b"])

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            return func(args[0].a, *args[1:], **(kwargs or {})) * by

    return Member


def test_classes_of_one_name_share_nothing():
    for by in (2, 3):
        given = family(by)(x(), x(1))
        for _ in range(2):
            torch.testing.assert_close(intarsia.compile(lambda t: t + 1, fullgraph=True)(given), (x() + 1) * by)


def test_a_method_that_changes_is_seen():
    kind = family(2)
    function, given = compiled(lambda t: t + 1)[0], kind(x(), x(1))
    torch.testing.assert_close(function(given), (x() + 1) * 2)
    kind.__torch_dispatch__ = classmethod(lambda cls, func, types, args=(), kwargs=None: func(args[0].b, *args[1:]))
    torch.testing.assert_close(function(given), x(1) + 1)


# ---- a weight with what is done to the activation ----


def rounded(x, bits=8):
    scale = x.abs().amax(-1, keepdim=True) / (2 ** (bits - 1) - 1)
    return (x / scale).round() * scale


def halved(x, bits=8):
    return x / bits


class WithInput(Tensor):
    """Holds another wrapper tensor, a function and its options; its attribute hides a method of torch's (`Tensor.inner`)."""

    @staticmethod
    def __new__(cls, inner, function, options):
        return Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner, function, options):
        self.inner, self.function, self.options = inner, function, options

    def __tensor_flatten__(self):
        return ["inner"], [self.function, self.options]

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["inner"], *context)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is F.linear:
            x, w, bias = (*args, None)[:3]
            return F.linear(w.function(x, **w.options), w.inner, bias)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func in (aten.detach.default, aten.clone.default, aten.alias.default):
            return cls(func(args[0].inner), args[0].function, args[0].options)
        raise NotImplementedError(str(func))


@pytest.mark.parametrize("trained", [False, True])
def test_a_weight_that_holds_a_function(trained: bool) -> None:
    """Another function, other options and another weight are seen."""
    layer = nn.Linear(8, 4)
    fast, log = compiled(lambda x: layer(x).sin())
    for k, (function, bits) in enumerate([(rounded, 8), (rounded, 8), (rounded, 4), (halved, 4), (rounded, 8)]):
        torch.manual_seed(k)
        weight = WithInput(Int8.of(torch.randn(4, 8)), function, {"bits": bits})
        layer.weight = nn.Parameter(weight, requires_grad=False)
        results = []
        for call in (lambda x: layer(x).sin(), fast):
            x = torch.randn(3, 8, generator=torch.Generator().manual_seed(k)).requires_grad_(trained)
            layer.zero_grad()
            result = call(x)
            if trained:
                result.sum().backward()
            results.append((result.detach(), x.grad, None if layer.bias.grad is None else layer.bias.grad.clone()))
        for want, got in zip(*results, strict=True):
            assert (want is None) == (got is None)
            if want is not None:
                torch.testing.assert_close(got, want)
    assert not log.breaks and not log.fallbacks, ([b.reason for b in log.breaks], log.fallbacks)
