"""Calls that make a tensor require gradients, losses under autocast, layers of nothing."""

import torch
from torch.nn import functional as F

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
