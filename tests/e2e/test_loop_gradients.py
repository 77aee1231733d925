"""Gradients through loops that values end: one graph, for any number of rounds, none among them."""

import pytest
import torch
from torch import nn
from torch._higher_order_ops.while_loop import while_loop

import intarsia
from intarsia.frontend.torch_private.regions import TAKES_ROUNDS

pytestmark = pytest.mark.skipif(not TAKES_ROUNDS, reason="this torch has no scan that gives these gradients")


@pytest.fixture(autouse=True)
def _with_gradients():
    with torch.enable_grad():
        yield


W = torch.rand(3, 3, generator=torch.Generator().manual_seed(0))


def until_small(x, w):
    while x.norm() > 1:
        x = x * w.diagonal()
    return x * 2


def counted(x, w):
    for _ in range((x.detach().abs().sum() * 0.1).long().item()):
        x = torch.tanh(x @ w + 0.1)
    return x + w.sum()


def fixed_point(x, w):
    """As deep equilibrium models."""
    z, n = torch.zeros(3), 0
    while True:
        following = torch.tanh(z @ w * 0.3 + x)
        if (following - z).norm() < 1e-4:
            break
        z = following
        n += 1
    return following * 3, n


def collected(x, w):
    """As a recurrent network that stops early."""
    h, out = torch.zeros(3), torch.zeros(8, 3)
    for t in range(8):
        h = torch.tanh(h @ w + x * 0.1)
        out[t] = h
        if h.abs().max() > 0.9:
            break
    return out * 2


def watched(x, w):
    """Part of a round is not differentiated."""
    error, seen = torch.tensor(10.0), torch.zeros(())
    while error > 1e-2:
        z = torch.tanh(x @ w * 0.3)
        with torch.no_grad():
            error = (z - x).norm()
        seen = seen + error
        x = z
    return x, error, seen


def rows_read(x, w):
    """The number of a round chooses what it reads."""
    h, n = x, 0
    while h.sum() > 0.5 and n < 3:
        h = h * torch.sigmoid(w[n])
        n += 1
    return h, n


def adaptive(x, w):
    """As a solver that chooses its steps: a branch in the round."""
    t, step = torch.zeros(()), torch.tensor(0.4)
    while t < 1:
        change = torch.tanh(x @ w)
        step = torch.where(change.detach().norm() > 0.9, step * 0.85, step * 1.1)
        x = x + step * change
        t = t + step
    return x


def given_functions(x, w):
    return while_loop(
        lambda n, v: n < 4, lambda n, v: (n + 1, torch.tanh(v @ w)), (torch.zeros((), dtype=torch.long), x)
    )


XS = [torch.tensor([3.0, 1.0, 2.0]), torch.tensor([0.3, 0.1, 0.2]), torch.tensor([30.0, 1.0, 2.0])]


def seen(run, x, w):
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    results = run(x, w)
    results = results if isinstance(results, tuple) else (results,)
    sum((t * t).sum() for t in results if isinstance(t, torch.Tensor) and t.requires_grad).backward()
    shown = [(t.detach(), t.requires_grad) if isinstance(t, torch.Tensor) else t for t in results]
    return shown, x.grad, w.grad


@pytest.mark.parametrize(
    "f", [until_small, counted, fixed_point, collected, watched, rows_read, adaptive, given_functions]
)
def test_one_graph_with_eagers_gradients(f) -> None:
    fast = intarsia.compile(f, fullgraph=True)
    before = intarsia.counters()["fallbacks"]
    eager = f if f is not given_functions else unrolled
    for x in XS:
        found, expected = seen(fast, x, W), seen(eager, x, W)
        assert (found[2] is None) == (expected[2] is None)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    assert intarsia.counters()["fallbacks"] == before


def unrolled(x, w):
    n = torch.zeros((), dtype=torch.long)
    while n < 4:
        n, x = n + 1, torch.tanh(x @ w)
    return n, x


def test_gradients_of_gradients() -> None:
    def found(run):
        x = XS[0].clone().requires_grad_()
        (first,) = torch.autograd.grad(run(x, W).sum(), x, create_graph=True)
        return first, torch.autograd.grad(first.sum(), x)[0]

    def f(x, w):
        while x.norm() > 1:
            x = torch.sin(x) * 0.5
        return x * x

    torch.testing.assert_close(found(intarsia.compile(f)), found(f))


def test_parameters_of_a_module() -> None:
    """Gradients of all rounds are added, and the next step begins with other weights."""

    class Solver(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 3)
            nn.init.constant_(self.inner.bias, 0.1)

        def forward(self, x):
            z = torch.zeros_like(x)
            for _ in range(20):
                old = z
                z = torch.tanh(self.inner(z) * 0.4 + x)
                if (z - old).abs().max() < 1e-3:
                    break
            return z

    losses = []
    for wrap in (lambda m: m, lambda m: intarsia.compile(m, fullgraph=True)):
        torch.manual_seed(0)
        module = Solver()
        run, optimizer = wrap(module), torch.optim.SGD(module.parameters(), 0.5, momentum=0.9)
        for k in range(4):
            optimizer.zero_grad()
            loss = (run(torch.full((2, 3), 0.2 * k)) - 0.5).square().sum()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    torch.testing.assert_close(losses[4:], losses[:4])


def drawn(x, w):
    while x.norm() > 1:
        x = x * w.diagonal() * torch.rand(3)
    return x


def leaf_written(x, w):
    n = 0
    while x.norm() > 1 and n < 3:
        x.mul_(0.5)
        n += 1
    return x


def shifted(x, w):
    """How many rounds there are decides whether a gradient comes to `w`."""
    a, b, c = x * 2, x * 3, w.sum(0)
    while a.norm() > 1:
        a, b, c = b * 0.1, c * 0.1, c * 0.1
    return a


@pytest.mark.parametrize(
    ("f", "reason"),
    [
        (drawn, "draws random numbers"),
        (leaf_written, "RuntimeError is raised"),
        (shifted, "decides which tensors gradients come to"),
    ],
)
def test_what_breaks(f, reason) -> None:
    with pytest.raises((intarsia.GraphBreak, RuntimeError), match=reason):
        intarsia.compile(f, fullgraph=True)(XS[0].clone().requires_grad_(), W.clone().requires_grad_())


def test_without_checkless_history() -> None:
    """Torch before 2.13 needs a start that takes gradients: the same results with one."""
    from intarsia.frontend.regions import rounds

    before = rounds.KEEPS_GRADIENTS
    try:
        rounds.KEEPS_GRADIENTS = False
        torch.testing.assert_close(seen(intarsia.compile(fixed_point), XS[1], W), seen(fixed_point, XS[1], W))
    finally:
        rounds.KEEPS_GRADIENTS = before
