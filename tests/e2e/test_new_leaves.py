"""Calls that make a tensor require gradients, losses under autocast, layers of nothing."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import intarsia


@torch.enable_grad()
def test_factories_and_requires_grad_():
    def program(x):
        y = torch.ones(2, requires_grad=True) * x
        return y, torch.ops.aten.requires_grad_.default(x * 1), torch.signal.windows.hann(3, requires_grad=True), x * 2

    compiled = intarsia.compile(program, backend="eager")
    x = torch.rand(2)
    for a, b in zip(program(x), compiled(x), strict=True):
        assert a.requires_grad == b.requires_grad and a.is_leaf == b.is_leaf
    y = compiled(x)[0]
    y.sum().backward()  # reaches the tensor of ones

    def marked(x):
        return torch.ops.aten.requires_grad_.default(x).sin()

    for function in (marked, intarsia.compile(marked, backend="eager")):
        x = torch.rand(2)
        function(x).sum().backward()
        assert x.requires_grad and x.grad is not None


def test_a_loss_under_autocast():
    def program(x, target):
        return F.nll_loss(x, target), F.nll_loss(x[:, :, None], target[:, None]), x.sum()

    x = torch.randn(4, 3, dtype=torch.bfloat16)
    target = x.argmax(1)
    with torch.autocast("cpu"):
        wanted, found = program(x, target), intarsia.compile(program, fullgraph=True)(x, target)
    assert [t.dtype for t in found] == [t.dtype for t in wanted]
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b)


def test_layers_of_nothing():
    norms = torch.nn.BatchNorm1d(1), torch.nn.BatchNorm2d(3)

    def program(x, y):
        return norms[0](x), norms[1](y), F.pixel_unshuffle(y, 2)

    x, y = torch.randn(0, 1), torch.randn(0, 3, 4, 6)
    wanted, found = program(x, y), intarsia.compile(program, fullgraph=True)(x, y)
    assert [(t.shape, t.stride()) for t in found] == [(t.shape, t.stride()) for t in wanted]


@torch.enable_grad()
def test_a_gradient_of_zeros_without_memory():
    found = []
    for function in (torch.sgn, intarsia.compile(torch.sgn, fullgraph=True)):
        x = torch.randn(3, 4, requires_grad=True)
        function(x).sum().backward()
        found.append(x.grad)
    assert torch.equal(*found)


def requires_grad_then_checkpoint(m, x):
    return checkpoint(m, x.requires_grad_(), use_reentrant=True).sum()


def requires_grad_where_gradients_are_off(m, x):
    with torch.no_grad():
        x.requires_grad = True
    return m(x).sum()


def requires_grad_and_backward(m, x):
    loss = m(x.requires_grad_()).sum()
    loss.backward()
    return loss.detach()


def frozen_first(m, x):
    m[0].requires_grad_(False)
    m[2].bias.requires_grad_(False)
    m[2].bias.requires_grad_(True)
    return m(x.requires_grad_()).sum() * (2 if x.requires_grad and x.is_leaf else 3)


def used_before(m, x):
    y = x * 2
    with torch.no_grad():
        x.requires_grad_()
    return (m(x) + m(y)).sum()


SAID = [requires_grad_then_checkpoint, requires_grad_where_gradients_are_off, requires_grad_and_backward, frozen_first]


@torch.enable_grad()
@pytest.mark.parametrize("function", [*SAID, used_before])
def test_inputs_that_the_program_says_require_gradients(function):
    found = []
    for run in (function, intarsia.compile(function, options={"on_error": "raise"})):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        run(module, torch.randn(2, 3))  # parameters change
        for _ in range(2):
            x = torch.randn(2, 3)
            result = run(module, x)
            if result.requires_grad:
                result.backward()
            found.append([result.detach(), x.grad, x.requires_grad, *(p.grad for p in module.parameters())])
    assert found[0][2] is found[2][2] is True
    torch.testing.assert_close(found[:2], found[2:])
    assert bool(intarsia.counters()["breaks"]) == (function is used_before)
    assert intarsia.counters()["captures"] <= 2 or function is used_before


@torch.enable_grad()
def test_nothing_outside_requires_gradients():
    """A graph with new leaves alone: what it gives of them requires gradients all the same."""

    def method(x):
        y = x * 1
        y.requires_grad_()
        return y.sin()

    def attribute(x):
        y = torch.zeros(3)
        y.requires_grad = True
        return y * x, x + 1

    def new(x):
        return torch.zeros(3, requires_grad=True) * x

    for function in (method, attribute, new):
        compiled = intarsia.compile(function)
        for _ in range(2):
            x = torch.randn(3)
            wanted, found = function(x), compiled(x)
            for a, b in zip(wanted, found, strict=True) if type(wanted) is tuple else ((wanted, found),):
                assert (a.requires_grad, a.is_leaf) == (b.requires_grad, b.is_leaf)
                torch.testing.assert_close(b.detach(), a.detach())
