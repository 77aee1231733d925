"""Quantized weights that are trained: an autograd function in `__torch_function__` of a wrapper class, or called with its tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import compiled
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.utils._python_dispatch import return_and_correct_aliasing

import intarsia

aten = torch.ops.aten
SEEN: list[int] = []


class Linear(torch.autograd.Function):
    """A product with a weight of integers; the gradient of the weight is a plain tensor."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x)
        ctx.weight = weight
        made = x @ weight.dequantize().t()
        return made if bias is None else made + bias

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        rows = grad.flatten(0, -2)
        return grad @ ctx.weight.dequantize(), rows.t() @ x.flatten(0, -2), rows.sum(0)


class Twice(torch.autograd.Function):
    """Two outputs, and a backward that is told which gradients do not arrive."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.set_materialize_grads(False)
        ctx.scale = weight.scale.sum()
        return x * ctx.scale, x + 1

    @staticmethod
    @once_differentiable
    def backward(ctx, first, second):
        made = None if first is None else first * ctx.scale
        return (second if made is None else made), None


class Noting(Twice):
    """Backward changes a list of the program's."""

    @staticmethod
    def backward(ctx, first, second):
        SEEN.append(1)
        return first, None


class Int8(Tensor):
    """Rows of integers with a scale each, of the sizes of what they were made of."""

    @staticmethod
    def __new__(cls, held, scale):
        return Tensor._make_wrapper_subclass(cls, held.shape, dtype=scale.dtype, device=held.device)

    def __init__(self, held, scale):
        self.held, self.scale = held, scale

    def __tensor_flatten__(self):
        return ["held", "scale"], []

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size=None, stride=None):
        return cls(inner["held"], inner["scale"])

    @classmethod
    def of(cls, value):
        scale = value.abs().amax(1, keepdim=True) / 127
        return cls((value / scale).round().to(torch.int8), scale)

    def dequantize(self):
        return self.held.to(self.scale.dtype) * self.scale

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is functional.linear:
            return Linear.apply(*args, **(kwargs or {}))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs):
        if func in (aten.detach.default, aten.clone.default):
            made = cls(func(args[0].held), func(args[0].scale))
            return return_and_correct_aliasing(func, args, kwargs or {}, made)
        raise NotImplementedError(f"{func} of Int8")


def t(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def given(seed: int, weight: bool = True) -> tuple[Tensor, ...]:
    made = nn.Parameter(Int8.of(t(5, 4, seed=seed)), requires_grad=weight)
    return t(3, 4, seed=seed + 1).requires_grad_(), made, t(5, seed=seed + 2).requires_grad_()


def by_function(x, w, b):
    return functional.linear(x.sin(), w, b).relu()


def called(x, w, b):
    return Linear.apply(x * 2, w, b).sin()


def layers(x, w, b):
    for _ in range(3):
        x = functional.linear(functional.linear(x, w, b)[..., :4], w, b)[..., :4]
    return x


def first_of_two(x, w, b):
    return Twice.apply(x, w)[0] * 2


def second_of_two(x, w, b):
    return Twice.apply(x, w)[1] * 2


def noting(x, w, b):
    return Noting.apply(x, w)[0]


def inside(x, w, b):
    class Local(Linear):
        pass

    return Local.apply(x, w, b)


def outcome(function: Any, values: tuple[Tensor, ...]) -> list[Any]:
    result = function(*values)
    result.pow(2).sum().backward()
    return [result, *(v.grad for v in values), len(SEEN)]


@pytest.mark.parametrize("program", [by_function, called, layers, first_of_two, second_of_two, noting, inside])
@pytest.mark.parametrize("weight", [True, False])
def test_as_eager(program, weight):
    """One graph, forward and backward, where both halves of the function only compute."""
    fast, log = compiled(program)
    for seed in range(3):
        found, wanted = (outcome(f, given(seed, weight)) for f in (fast, program))
        for one, other in zip(found[:-1], wanted[:-1], strict=True):
            assert type(one) is type(other)
            torch.testing.assert_close(one, other)
        assert wanted[-1] - found[-1] == (program is noting)  # backward has run once in each
    assert not log.fallbacks
    assert bool(log.breaks) == (program in (noting, inside)), log.breaks
    assert program in (noting, inside) or len(log.captures) == 1


def test_as_a_layer():
    """Compiled to code of ours, with the weight as a parameter."""

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            _, self.weight, self.bias = given(0)
            self.bias = nn.Parameter(self.bias.detach())

        def forward(self, x):
            return functional.linear(x, self.weight, self.bias).relu()

    layer, other = Layer(), Layer()
    fast = intarsia.compile(layer, fullgraph=True)
    for seed in range(2):
        one, two = (f(t(3, 4, seed=seed)) for f in (fast, other))
        torch.testing.assert_close(one, two)
        one.sum().backward(), two.sum().backward()
        torch.testing.assert_close(layer.weight.grad, other.weight.grad)
        torch.testing.assert_close(layer.bias.grad, other.bias.grad)


class Quantized(torch.autograd.Function):
    """A plain tensor to integers, whose gradient is what arrives, made plain."""

    @staticmethod
    def forward(ctx, x):
        return Int8.of(x)

    @staticmethod
    def backward(ctx, grad):
        return grad.dequantize() if isinstance(grad, Int8) else grad


class Plain(torch.autograd.Function):
    """And back; the gradient is a plain tensor."""

    @staticmethod
    def forward(ctx, x):
        return x.dequantize()

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class Strict(Quantized):
    """Takes plain gradients alone."""

    @staticmethod
    def backward(ctx, grad):
        if isinstance(grad, Int8):
            raise TypeError("not this one")
        return grad


class Counted(Quantized):
    """Changes a list of the program's where the gradient is plain."""

    @staticmethod
    def backward(ctx, grad):
        if not isinstance(grad, Int8):
            SEEN.append(1)
        return grad


def round_trip(x, w, b):
    return Plain.apply(Quantized.apply(x.sin())).cos()


def of_a_strict_one(x, w, b):
    return Plain.apply(Strict.apply(x)).cos() + Plain.apply(Quantized.apply(x * 2))


def of_a_counted_one(x, w, b):
    return Plain.apply(Counted.apply(x)).cos()


def linear_of_it(x, w, b):
    return functional.linear(Plain.apply(Quantized.apply(x)), w, b)


@pytest.mark.parametrize("program", [round_trip, of_a_strict_one, of_a_counted_one, linear_of_it])
def test_functions_that_give_wrapper_tensors(program):
    """Gradients of another class than the output are what backward is given in eager, and in the graph."""
    fast, log = compiled(program)
    counted = program is of_a_counted_one
    for seed in range(3):
        found, wanted = (outcome(f, given(seed)) for f in (fast, program))
        for one, other in zip(found[:-1], wanted[:-1], strict=True):
            assert type(one) is type(other)
            torch.testing.assert_close(one, other)
        assert wanted[-1] - found[-1] == counted
    assert counted or len(log.captures) == 1 and not log.fallbacks
    assert bool(log.breaks or log.fallbacks) == counted, log.breaks


def test_many_functions_that_give_wrapper_tensors():
    """Capture starts again for each of them, as often as there are such."""
    kinds = [type(f"Own{k}", (Quantized,), {}) for k in range(9)]

    def program(x):
        for kind in kinds:
            x = Plain.apply(kind.apply(x)) * 1.5
        return x

    fast, log = compiled(program)
    for seed in range(2):
        one, other = (t(3, 4, seed=seed).requires_grad_() for _ in range(2))
        torch.testing.assert_close(fast(one), program(other))
        fast(one).sum().backward(), program(other).sum().backward()
        torch.testing.assert_close(one.grad, other.grad)
    assert not log.breaks and not log.fallbacks
