"""The grad mode that capture sets is not the program's: not where a capture is begun again, breaks, or goes on behind an exception."""

import pytest
import torch
from harness import number_backend

import intarsia


class Twice(torch.autograd.Function):
    """Its forward does what `doing` does, in a block of its own where gradients are off or on."""

    @staticmethod
    def forward(ctx, x, doing):
        with torch.enable_grad() if doing is in_grad else torch.no_grad():
            return doing(x.detach()).detach() * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2, None


def writes(x):
    """The capture is begun again: a side of a branch writes."""
    y = x.clone()
    if x.sum() > 0:
        y[0] = 1
    return y


def prints(x):
    print("sum", end="")
    return x + 1


def in_grad(x):
    print("on", end="")
    return x + 2


def leaves(x):
    """A loop is left in the middle of a round, which capture finds late."""
    for item in x:
        if item > 2:
            return x + item
    return x


def raises(x):
    raise ValueError("no")


def caught(x, doing):
    try:
        y = Twice.apply(x, doing)
    except ValueError:
        y = x.sin()
    return y * 3


def hooked(x, doing):
    """A hook raises in the middle of backward, and the program goes on."""
    w = x.detach().clone().requires_grad_()
    w.register_post_accumulate_grad_hook(doing)
    try:
        (w * x.detach()).sum().backward()
    except ValueError:
        pass
    return x * w.detach()


KINDS = [(caught, doing) for doing in (writes, prints, in_grad, leaves, raises)] + [(hooked, raises)]


@pytest.mark.parametrize(("function", "doing"), KINDS)
def test_gradients_go_on(function, doing):
    intarsia.reset()
    fast = intarsia.compile(function, backend=number_backend)
    for sign in (1, -1, 1):
        a = (torch.arange(4.0) * sign).requires_grad_()
        b = a.detach().clone().requires_grad_()
        expected = function(a, doing)
        assert torch.is_grad_enabled()
        found = fast(b, doing)
        assert torch.is_grad_enabled(), "the thread's grad mode is capture's"
        assert found.requires_grad is expected.requires_grad is True
        expected.sum().backward()
        found.sum().backward()
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(b.grad, a.grad)
