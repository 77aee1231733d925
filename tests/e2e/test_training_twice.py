"""Gradients of gradients through compiled functions: right in eager, with a warning; an error where that cannot be; never zero."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import intarsia


@pytest.fixture(autouse=True)
def gradients():
    with torch.enable_grad():
        torch.manual_seed(0)
        yield


def leaf(*shape):
    return torch.randn(*shape).requires_grad_()


def test_second_and_third_derivatives(caplog):
    def derivatives(fn, x):
        value, found = fn(x).sum(), []
        for _ in range(3):
            (value,) = torch.autograd.grad(value.sum(), x, create_graph=True)
            found.append(value)
        return found

    def function(x):
        return x.sin() * x.exp()

    x = leaf(5)
    fast = intarsia.compile(function)
    for _ in range(2):
        torch.testing.assert_close(derivatives(fast, x), derivatives(function, x))
    assert [r.getMessage() for r in caplog.records if "create_graph=True" in r.getMessage()][1:] == []
    assert intarsia.counters()["fallbacks"] == 2  # one backward of the compiled node in each round


def test_gradient_penalty():
    def step(wrap):
        torch.manual_seed(2)
        model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
        fast, x = wrap(model), leaf(6, 4)
        for _ in range(2):
            out = fast(x)
            (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
            (out.mean() + (slope.norm(dim=1) - 1).square().mean()).backward()
        return x.grad, [p.grad for p in model.parameters()]

    torch.testing.assert_close(step(intarsia.compile), step(lambda m: m))
    assert intarsia.counters()["fallbacks"] == 0 and intarsia.counters()["graphs"] == 4  # each half, once and twice


def test_what_arrives_of_gradients_of_gradients():
    """Some of the results, recorded or not, in other strides, in other sizes: one compiled function for each kind, or eager."""

    def function(x, w):
        h = x @ w
        return h.sin(), h.mul(2), h.square().sum()

    compiled, w = intarsia.compile(function), leaf(4, 4)

    def step(fn, x, kind):
        a, b, c = fn(x, w)
        if kind == "one":
            value = a.sum()
        elif kind == "strided":
            value = (a.t() * torch.arange(a.shape[0])).sum() + c
        elif kind == "linear":
            value = b.sum()
        else:
            value = (a * b).square().sum() * c
        slopes = torch.autograd.grad(value, (x, w), create_graph=True)
        total = sum(s.square().sum() for s in slopes)
        return [*slopes, *(torch.autograd.grad(total, (x, w)) if total.requires_grad else ())]

    for rows in (3, 3, 5):
        for kind in ("one", "strided", "linear", "all"):
            x = leaf(rows, 4)
            found, wanted = step(compiled, x, kind), step(function, x, kind)
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
            assert [t.requires_grad for t in found] == [t.requires_grad for t in wanted]


def test_hooks_on_what_a_graph_is_given_are_called_once():
    def step(fn):
        torch.manual_seed(1)
        weight, x, seen = leaf(4), leaf(4), []
        weight.register_hook(lambda g: (seen.append(g.detach().clone()), g * 2)[1])
        h = x * 3
        h.register_hook(lambda g: (seen.append(g.detach().clone()), g * 5)[1])
        slopes = torch.autograd.grad(fn(h, weight).sum(), (x, weight), create_graph=True)
        sum(s.square().sum() for s in slopes).backward()
        return seen, x.grad, weight.grad

    def function(h, weight):
        return h.sin() * weight.exp()

    torch.testing.assert_close(step(intarsia.compile(function)), step(function))


def test_gradients_of_gradients_with_respect_to_what_arrives():
    def function(x):
        return x.sin(), x * 2

    def product(fn, x, v, w):  # forward mode by two backward passes
        arriving = (torch.zeros(4, requires_grad=True), torch.zeros(4, requires_grad=True))
        (g,) = torch.autograd.grad(fn(x), x, arriving, create_graph=True)
        return torch.autograd.grad(g, arriving, v)

    x, v = leaf(4), torch.randn(4)
    torch.testing.assert_close(product(intarsia.compile(function), x, v, v), product(function, x, v, v))


def test_gradients_of_gradients_through_an_input_that_was_computed():
    def step(fn):
        torch.manual_seed(1)
        a = leaf(4)
        b = a * 3
        out = fn(b, a)
        (g,) = torch.autograd.grad(out.sum(), b, create_graph=True)
        return torch.autograd.grad(g.square().sum(), a)

    def function(b, a):
        return (b * b * a).relu()

    torch.testing.assert_close(step(intarsia.compile(function)), step(function))


def test_hessian():
    def function(x):
        return (x.square().sum() * x.sin()).sum()

    x = torch.randn(4)
    fast = intarsia.compile(function)
    torch.testing.assert_close(
        torch.autograd.functional.hessian(fast, x), torch.autograd.functional.hessian(function, x)
    )


def test_what_cannot_be_made_again_is_an_error():
    def random(x):
        return F.dropout(x.sin(), 0.5) * x

    def writing(x, buffer):
        buffer.add_(1)
        return x.sin() * buffer

    for fn, args in ((random, ()), (writing, (torch.ones(5),))):
        x = leaf(5)
        (g,) = torch.autograd.grad(intarsia.compile(fn)(x, *args).sum(), x, create_graph=True)
        assert g.requires_grad
        with pytest.raises(RuntimeError, match="double backward"):
            torch.autograd.grad(g.sum(), x)


def test_changed_inputs_are_an_error():
    fast = intarsia.compile(lambda x, y: x.sin() + y.relu())
    x, y = leaf(5), leaf(5)
    out = fast(x, y)
    with torch.no_grad():
        y.mul_(-1)
    with pytest.raises(RuntimeError, match="create_graph=True|modified by an inplace"):
        torch.autograd.grad(out.sum(), x, create_graph=True)


def test_inputs_that_are_gone_are_an_error_and_the_first_gradient_is_not():
    fast = intarsia.compile(lambda h: h.sin())
    x = leaf(5)
    expected = (x * 2).cos() * 2
    out = fast(x * 2)
    torch.testing.assert_close(torch.autograd.grad(out.sum(), x, retain_graph=True)[0], expected)
    try:
        (g,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    except RuntimeError as error:
        assert "is gone" in str(error)
    else:  # torch keeps the tensor: then the second derivative is right
        torch.testing.assert_close(torch.autograd.grad(g.sum(), x)[0], -(x * 2).sin() * 4)
