"""torch.autograd.Function with gradients: forward and backward are part of the graph, or break it where they cannot be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import intarsia

LOG: list[int] = []


@pytest.fixture(autouse=True)
def with_gradients() -> Any:
    intarsia.reset()
    with torch.enable_grad():
        yield


class Straight(Function):
    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return a.sign() * 2

    @staticmethod
    def backward(ctx, g):
        (a,) = ctx.saved_tensors
        return g * a.abs()


class Exp(Function):
    """Saves its output, and a number on `ctx`."""

    @staticmethod
    def forward(ctx, a, k):
        y = (a * k).exp()
        ctx.save_for_backward(y)
        ctx.k = k
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * y * ctx.k, None


class Two(Function):
    """Two outputs, `setup_context`, gradients as they are needed."""

    @staticmethod
    def forward(a, b):
        return a @ b, (a * 2).sum()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g, h):
        a, b = ctx.saved_tensors
        return (g @ b.T + h * 2 if ctx.needs_input_grad[0] else None), (a.T @ g if ctx.needs_input_grad[1] else None)


class Reverse(Function):
    @staticmethod
    def forward(ctx, a):
        return a.view_as(a)

    @staticmethod
    def backward(ctx, g):
        return -g


class Itself(Reverse):
    @staticmethod
    def forward(ctx, a):
        return a


class Flat(Function):
    @staticmethod
    def forward(ctx, a):
        ctx.shape = a.shape
        return a.reshape(-1)

    @staticmethod
    def backward(ctx, g):
        return (g * 2).view(ctx.shape)


class Top(Function):
    """An output without gradients."""

    @staticmethod
    def forward(ctx, a):
        values, places = a.topk(2, -1)
        ctx.save_for_backward(places)
        ctx.shape = a.shape
        ctx.mark_non_differentiable(places)
        return values, places

    @staticmethod
    def backward(ctx, g, _):
        (places,) = ctx.saved_tensors
        return torch.zeros(ctx.shape).scatter(-1, places, g)


class Once(Function):
    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return a**3

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (a,) = ctx.saved_tensors
        return 3 * a * a * g


class Cast(Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, a, w):
        ctx.save_for_backward(a, w)
        return a @ w

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, g):
        a, w = ctx.saved_tensors
        return (g @ w.T).to(a.dtype), (a.T @ g).to(w.dtype)


class Logs(Straight):
    @staticmethod
    def backward(ctx, g):
        LOG.append(1)
        return g * 2


class Dirty(Function):
    @staticmethod
    def forward(ctx, a):
        a.mul_(2)
        ctx.mark_dirty(a)
        return a

    @staticmethod
    def backward(ctx, g):
        return g * 2


class Missing(Function):
    """Takes None for a gradient that does not arrive."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.set_materialize_grads(False)
        return a * 2, b * 3

    @staticmethod
    def backward(ctx, g, h):
        return (None if g is None else g * 2), (None if h is None else h * 3)


class Activated(Function):
    @staticmethod
    def forward(ctx, a):
        a.clamp_(min=0)
        positive = a > 0
        ctx.mark_dirty(a)
        ctx.mark_non_differentiable(positive)
        ctx.save_for_backward(a)
        return a, positive

    @staticmethod
    def backward(ctx, g, _):
        (a,) = ctx.saved_tensors
        return g * (a > 0) * 2


class Forward(Once):
    @staticmethod
    def jvp(ctx, tangent):
        raise AssertionError("no tangent arrives")


class Raises(Straight):
    @staticmethod
    def backward(ctx, g):
        raise ValueError("no gradient here")


class Numbers(Straight):
    """Outputs that are no tensors."""

    @staticmethod
    def forward(ctx, a, k):
        ctx.save_for_backward(a)
        return a * k, k + 1, None, (a.shape[0], "rows")

    @staticmethod
    def backward(ctx, g, *others):
        (a,) = ctx.saved_tensors
        return g * a * len(others), None


class Wide(Straight):
    """A gradient of another shape."""

    @staticmethod
    def backward(ctx, g):
        return g[:, :3]


class Recorded(Function):
    """Backward goes through what autograd has recorded in forward."""

    @staticmethod
    def forward(ctx, a, m):
        with torch.enable_grad():
            inner = a.detach().requires_grad_()
            ctx.inner = inner, m(inner)
        return ctx.inner[1].detach()

    @staticmethod
    def backward(ctx, g):
        return torch.autograd.grad(ctx.inner[1], ctx.inner[0], g)[0], None


class Again(Function):
    """Backward computes forward again, with gradients."""

    @staticmethod
    def forward(ctx, a, m):
        ctx.m = m
        ctx.save_for_backward(a)
        return m(a)

    @staticmethod
    def backward(ctx, g):
        with torch.enable_grad():
            inner = ctx.saved_tensors[0].detach().requires_grad_()
            y = ctx.m(inner)
        return torch.autograd.grad(y, inner, g)[0], None


class Still(Straight):
    """A part of backward is a constant, whoever differentiates it."""

    @staticmethod
    def backward(ctx, g):
        (a,) = ctx.saved_tensors
        with torch.no_grad():
            slope = a.cos()
        return g * slope * a


class Asks(Straight):
    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0] * (3 if torch.is_grad_enabled() else 2)


class Nested(Straight):
    @staticmethod
    def backward(ctx, g):
        return Exp.apply(g * ctx.saved_tensors[0], 0.5)


class WritesGradient(Straight):
    @staticmethod
    def backward(ctx, g):
        return g.mul_(2)


Program = Callable[[nn.Module, Tensor], Tensor]


def cast(m: nn.Module, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        y = Cast.apply(x, m.weight)
    return y.float().sum()


def layers(m: nn.Module, x: Tensor) -> Tensor:
    for _ in range(3):
        x = Straight.apply(m(x)) + x
    return x.sum()


def outputs(m: nn.Module, x: Tensor) -> Tensor:
    y, s = Two.apply(x, m.weight)
    return y.tanh().sum() + s


def places(m: nn.Module, x: Tensor) -> Tensor:
    values, found = Top.apply(m(x))
    return (values * found).sum()


def written(m: nn.Module, x: Tensor) -> Tensor:
    y = m(x) * 2
    early = y + 1
    same = Dirty.apply(y)
    assert same is y
    return (early * x).sum() + (y.sin() * same).sum()


def numbers(m: nn.Module, x: Tensor) -> Tensor:
    y, k, nothing, (rows, text) = Numbers.apply(m(x), 3)
    return (y * k * rows * len(text)).sum() if nothing is None else y


def saved_and_written(m: nn.Module, x: Tensor) -> Tensor:
    y = Exp.apply(x, 0.5)
    y += 1  # backward needs it as it was: eager's error
    return (y * m(x)).sum()


CAPTURED: dict[str, Program] = {
    "straight through": lambda m, x: Straight.apply(m(x)).sum(),
    "a saved output": lambda m, x: ((Exp.apply(x, 0.5) + 1) * m(x)).sum(),
    "written to later": lambda m, x: Straight.apply(m(x)).add_(1).mul(x).sum(),
    "reversed": lambda m, x: (Reverse.apply(m(x)) * x).sum(),
    "itself": lambda m, x: (Itself.apply(m(x)) * x).sum(),
    "a view": lambda m, x: (Flat.apply(m(x)) * 3).sum(),
    "once": lambda m, x: Once.apply(m(x)).sum(),
    "of an argument": lambda m, x: Straight.apply(x).sum() + m(x).sum(),
    "two outputs": outputs,
    "an output without gradients": places,
    "in a loop": layers,
    "cast": cast,
    "dirty": lambda m, x: (Dirty.apply(m(x) + 0) * 3).sum(),
    "dirty, used before and behind": written,
    "dirty and saved": lambda m, x: (Activated.apply(m(x) + 0)[0] * x).sum(),
    "None for the second gradient": lambda m, x: Missing.apply(x, m(x))[0].sum(),
    "None for the first gradient": lambda m, x: Missing.apply(x, m(x))[1].sum(),
    "both gradients": lambda m, x: sum(y.sum() for y in Missing.apply(x, m(x))),
    "a forward mode": lambda m, x: Forward.apply(m(x)).sum(),
    "outputs that are no tensors": numbers,
    "computed again": lambda m, x: sum((Again.apply(x * k, m) * m.bias).sum() for k in (1, 2)),
    "a mode inside": lambda m, x: (Still.apply(m(x)) + Asks.apply(m(x)) + Nested.apply(m(x))).sum(),
}
LEFT: dict[str, Program] = {
    "a side effect": lambda m, x: Logs.apply(m(x)).sum(),
    "another shape": lambda m, x: Wide.apply(m(x)).sum(),
    "what forward recorded": lambda m, x: (Recorded.apply(x, m) * m.bias).sum(),
    "a dirty leaf": lambda m, x: (Dirty.apply(x) * m(x)).sum(),
    "a dirty view": lambda m, x: (Dirty.apply(m(x)[:, 2:]) * 3).sum(),
    "an error": lambda m, x: Raises.apply(m(x)).sum(),
    "a gradient is written to": lambda m, x: (WritesGradient.apply(m(x)) * x).sum(),
    "a saved output is written to": saved_and_written,
}


def trained(program: Any, m: nn.Module, rows: int) -> list[Any]:
    """The loss and the gradients of a call, or the error; what was logged."""
    LOG.clear()
    x = torch.linspace(-1, 1, rows * 8).reshape(rows, 8).requires_grad_()
    m.zero_grad()
    try:
        loss = program(m, x)
        loss.backward()
    except Exception as error:
        return [type(error).__name__, str(error)[:50], list(LOG)]
    return [loss.detach(), x.grad, m.weight.grad, m.bias.grad, torch.tensor(LOG)]


def same(found: list[Any], wanted: list[Any]) -> None:
    if isinstance(wanted[0], str):
        assert found == wanted
        return
    torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("name", CAPTURED)
def test_forward_and_backward_are_in_the_graph(name: str) -> None:
    torch.manual_seed(0)
    m, program = nn.Linear(8, 8), CAPTURED[name]
    compiled = intarsia.compile(lambda m, x: program(m, x), fullgraph=True)
    for rows in (4, 4, 5, 6):
        same(trained(compiled, m, rows), trained(program, m, rows))
    assert intarsia.counters()["fallbacks"] == 0


@pytest.mark.parametrize("name", LEFT)
def test_what_cannot_be_captured_runs_as_python(name: str) -> None:
    torch.manual_seed(0)
    m, program = nn.Linear(8, 8), LEFT[name]
    compiled = intarsia.compile(lambda m, x: program(m, x))
    for _ in range(2):
        same(trained(compiled, m, 4), trained(program, m, 4))


TWICE: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda x: (Exp.apply(x, 0.5) * x).sum(),
    "a constant in backward": lambda x: (Still.apply(x) * x).sum(),
    "the mode is asked for": lambda x: (Asks.apply(x) * x).sum(),
    "a function in backward": lambda x: Nested.apply(x * x).sum(),
    "once, which gives a constant": lambda x: Once.apply(x * x).sum(),
    "once, which is eager's error": lambda x: Once.apply(x * x).square().sum(),
}


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("name", TWICE)
def test_a_gradient_of_a_gradient(name: str, inside: bool) -> None:
    def step(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        (g,) = torch.autograd.grad(function(x), x, create_graph=True)
        g.square().sum().backward()
        assert x.grad is not None
        return x.grad

    function, found = TWICE[name], list[Any]()
    compiled = intarsia.compile(step) if inside else lambda f, x: step(intarsia.compile(f), x)
    for run in (step, compiled):
        x = torch.linspace(-1, 1, 8).requires_grad_()
        try:
            found.append(run(function, x))
        except RuntimeError as error:
            found.append(str(error))
    if isinstance(found[0], str):
        assert found[1] == found[0]
    else:
        torch.testing.assert_close(found[1], found[0])


def test_what_backward_reads_is_guarded() -> None:
    class Scaled(Straight):
        negative = False

        @staticmethod
        def backward(ctx, g):
            return -g if Scaled.negative else g

    def program(m: nn.Module, x: Tensor) -> Tensor:
        return Scaled.apply(m(x)).sum()

    m, compiled = nn.Linear(8, 8), intarsia.compile(program)
    for Scaled.negative in (False, False, True):
        same(trained(compiled, m, 4), trained(program, m, 4))
