"""Gradients that a program takes of tensors of its own classes, leaves of such, and what it decides by their values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import compiled, number_backend
from test_torch_function import Plain, Tagged
from test_wrapper_tensors import Two
from torch import Tensor

t = torch.tensor


def tensor(seed: int) -> Tensor:
    torch.manual_seed(seed)
    return torch.randn(3, 4)


KINDS: dict[str, Any] = {
    "tensor": tensor,
    "plain": lambda seed: tensor(seed).as_subclass(Plain),
    "tagged": lambda seed: tensor(seed).as_subclass(Tagged),
    "two": lambda seed: Two(tensor(seed), tensor(seed + 1)),
}


def leaf(x, w):
    y = x.detach().clone()
    y.requires_grad_()
    return y, y.requires_grad, y.is_leaf


def leaf_and_more(x, w):
    y = x.detach().clone().requires_grad_()
    return y, y * 2 + w


def leaf_with_gradient(x, w):
    y = x.detach().clone().requires_grad_()
    (y * y).sum().backward()
    return y, y.grad


def backward_as_a_function(x, w):
    y = x.detach().clone().requires_grad_()
    torch.Tensor.backward((y * y).sum())
    return y.grad


def a_hook_by_a_function(x, w):
    y = w * 2
    torch.Tensor.register_hook(y, lambda gradient: gradient * 3)
    (y * y).sum().backward()
    return w.grad


def backward_of_a_list(x, w):
    y = x.detach().clone().requires_grad_()
    torch.autograd.backward([(y * y).sum()])
    return y.grad


def grad(x, w):
    y = x * w
    return torch.autograd.grad([y.sum(), (y * 2).sum()], [w, y], create_graph=True)


def grad_of_grad(x, w):
    y = x.detach().clone().requires_grad_()
    (one,) = torch.autograd.grad((y**3).sum(), y, create_graph=True)
    (two,) = torch.autograd.grad(one.sum(), y)
    return two, type(one), type(two)


def arrives_at_an_argument(x, w):
    (x * w).sum().backward()
    return w.grad


def two_results(x, w):
    return torch.stack([x * w, x], 1), (x * w).t().contiguous()


def number(x, w):
    return float(x.detach().sum()) * w


def truths(x, w):
    return bool((x.detach() == x.detach()).all()), w * 2 if (x.detach() > 100).any() else w


def asserted(x, w):
    torch._assert((x == x).all(), "no")
    return x * 2


PROGRAMS = (
    *(leaf, leaf_and_more, leaf_with_gradient, backward_as_a_function, a_hook_by_a_function, backward_of_a_list, grad),
    *(grad_of_grad, arrives_at_an_argument, two_results, number, truths, asserted),
)


def facts(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [facts(item) for item in value]
    if not isinstance(value, Tensor):
        return value
    parts = [value.a, value.b] if isinstance(value, Two) else [value.detach().as_subclass(Tensor)]
    gradient = value.grad if value.is_leaf else None
    return type(value), value.requires_grad, value.is_leaf, parts, facts(gradient)


def agree(got: Any, want: Any) -> None:
    if isinstance(want, list | tuple):
        assert type(got) is type(want) and len(got) == len(want)
        for one, other in zip(got, want, strict=True):
            agree(one, other)
    elif isinstance(want, Tensor):
        torch.testing.assert_close(got, want)
    else:
        assert got == want


def account(function: Any, kind: str, seed: int) -> Any:
    x, w = KINDS[kind](seed), tensor(seed + 7).requires_grad_()
    result = function(x, w)
    first = facts(result)
    for made in result if isinstance(result, tuple) else [result]:
        if isinstance(made, Tensor) and made.requires_grad and made.grad_fn is not None:
            (made * made).sum().backward(retain_graph=True)
    return first, facts(result), facts(w), facts(x)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_as_eager(program, kind):
    fast, log = compiled(program, number_backend)
    for seed in (1, 2):
        agree(account(fast, kind, seed), account(program, kind, seed))
    assert not log.fallbacks or program is leaf_with_gradient and kind == "two", log.fallbacks


@pytest.mark.parametrize("kind", ["plain", "tagged"])
@pytest.mark.parametrize("program", [leaf, leaf_with_gradient, backward_as_a_function, grad, grad_of_grad, asserted])
def test_in_one_graph(program, kind):
    fast, log = compiled(program, number_backend)
    agree(account(fast, kind, 1), account(program, kind, 1))
    assert not log.breaks and not log.fallbacks


def test_lists_of_a_wrapper_are_refused_as_in_eager():
    fast, _ = compiled(lambda x: x.sum(0).tolist())
    with pytest.raises(RuntimeError, match="not supported for tensor subclasses"):
        fast(KINDS["two"](1))


@pytest.mark.parametrize("args", [(t([1.0]), 2), (2, t([1.0])), (t([1.0]).as_subclass(Plain), t([1.0]))])
def test_divmod_is_refused_as_in_eager(args):
    fast, _ = compiled(lambda a, b: divmod(a, b))
    said = []
    for call in (divmod, fast):
        with pytest.raises(TypeError, match="divmod") as raised:
            call(*args)
        said.append(str(raised.value))
    assert said[0] == said[1]


def test_strides_of_parts_that_are_copied():
    """A method that writes is followed on copies; the class makes its tensors by the strides of what it is given."""

    def program(x):
        x[1] = 5
        x[:, 0] *= 2
        return x * 1

    fast, log = compiled(program)
    one, other = KINDS["two"](1), KINDS["two"](1)
    agree(facts([fast(one), one]), facts([program(other), other]))
    assert not log.fallbacks
