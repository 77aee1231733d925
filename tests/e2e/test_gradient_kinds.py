"""Gradients of other kinds: tangents, batches of gradients, through transforms of torch.func and around them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch import nn

import intarsia


@pytest.fixture(autouse=True)
def with_gradients() -> Iterator[None]:
    intarsia.reset()
    torch.manual_seed(0)
    with torch.enable_grad():
        yield


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("before", [False, True])
def test_tangents_are_carried_along(grad, before):
    m = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    x, tangent = torch.randn(4, 8), torch.randn(4, 8)
    compiled = intarsia.compile(m)
    with torch.set_grad_enabled(grad):
        if before:
            compiled(x)
        with forward_ad.dual_level():
            found = [forward_ad.unpack_dual(f(forward_ad.make_dual(x, tangent))) for f in (m, compiled)]
            torch.testing.assert_close(found[1].tangent, found[0].tangent)
        torch.testing.assert_close(compiled(x), m(x))
        assert intarsia.counters()["graphs"] >= 1


def test_level_within_the_program():
    def program(x, tangent):
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(torch.sin(forward_ad.make_dual(x, tangent)) * 2)

    x, tangent = torch.randn(5), torch.randn(5)
    found = intarsia.compile(program)(x, tangent)
    torch.testing.assert_close(found.tangent, program(x, tangent).tangent)


def batched(h, x):
    return torch.autograd.grad(h, x, torch.randn(3, *h.shape), is_grads_batched=True)


def with_none(h, x):
    unused = torch.ones(2, requires_grad=True)
    return torch.autograd.grad(h, (x, unused), torch.randn(3, *h.shape), is_grads_batched=True, allow_unused=True)


def by_vmap(h, x):
    def row(v):
        return torch.autograd.grad(h, x, v, retain_graph=True)

    return torch.func.vmap(row)(torch.randn(3, *h.shape))


def recorded(h, x):
    return torch.autograd.grad(h, x, torch.randn(3, *h.shape), is_grads_batched=True, create_graph=True)


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("take", [batched, with_none, by_vmap, recorded])
def test_batches_of_gradients(take, reduced):
    m = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8))
    compiled, found = intarsia.compile(m), []
    for f in (m, compiled):
        torch.manual_seed(1)
        x = torch.randn(4, 8).requires_grad_()
        h = f(x)
        found.append(take(h.sum(0) if reduced else h, x))
    torch.testing.assert_close(found[1], found[0])
    assert intarsia.counters()["graphs"] == (1 if take is recorded else 2)


def test_jacobians_at_once():
    m = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    x = torch.randn(4)
    compiled = intarsia.compile(m)
    for strategy in ("reverse-mode", "forward-mode"):
        wanted = torch.autograd.functional.jacobian(m, x, vectorize=True, strategy=strategy)
        found = torch.autograd.functional.jacobian(compiled, x, vectorize=True, strategy=strategy)
        torch.testing.assert_close(found, wanted)


class Doubled(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].cos() * 2


def rows(m, x):
    return torch.vmap(lambda r, s: r * s.sum(), in_dims=(0, 0))(m(x), x).square().sum()


def inner_gradient(m, x):
    return torch.func.grad(lambda h: h.sin().square().sum())(m(x)).square().sum()


def of_each_sample(m, x):
    def loss(weights, a):
        return torch.func.functional_call(m, weights, (a,)).square().mean()

    weights = dict(m.named_parameters())
    found = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, x)
    return sum(g.square().sum() for g in found.values())


def jacobian_of_weights(m, x):
    return torch.func.jacrev(lambda h: h.sin() * m.weight.sum())(m(x)[0]).square().sum()


def switched_off(m, x):
    def row(r):
        with torch.no_grad():
            s = m.weight.sum() * r
        return (r @ m.weight) * s

    return torch.vmap(row)(x).sum()


def own_gradient(m, x):
    return m(x).sum() + torch.func.grad(lambda r: Doubled.apply(r).sum())(x).sum()


def own_gradient_of_rows(m, x):
    return torch.vmap(torch.func.grad(lambda r: Doubled.apply(r).sum()))(m(x)).sum()


def own_gradient_around(m, x):
    return torch.vmap(Doubled.apply)(m(x)).sum()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("function", "breaks"),
    [
        *((f, 0) for f in (rows, inner_gradient, of_each_sample, jacobian_of_weights, switched_off)),
        *((f, 1) for f in (own_gradient, own_gradient_of_rows, own_gradient_around)),
    ],
)
def test_transforms_between_weights_and_a_loss(function, breaks):
    found = []
    for run in (function, intarsia.compile(function)):
        torch.manual_seed(2)
        m = nn.Linear(6, 6)
        loss = run(m, torch.randn(3, 6))
        loss.backward()
        found.append([loss.detach(), *(p.grad for p in m.parameters())])
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)
    assert intarsia.counters()["breaks"] == breaks


def asked_in_batches(m, x):
    x = x.detach().requires_grad_()
    h = m(x).sum(0)
    return torch.autograd.grad(h, x, torch.eye(6), is_grads_batched=True)[0]


def batches_in_a_loss(m, x):
    x = x.detach().requires_grad_()
    h = m(x).sum(0)
    (j,) = torch.autograd.grad(h, x, torch.eye(6), is_grads_batched=True, create_graph=True)
    loss = j.square().sum() + h.sum()
    loss.backward()
    return loss.detach()


def jacobian_at_once(m, x):
    return torch.autograd.functional.jacobian(m, x, vectorize=True)


def other_sizes(m, x):
    x = x.detach().requires_grad_()
    return torch.autograd.grad(m(x), x, torch.ones(3, 2, 2), is_grads_batched=True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("function", [asked_in_batches, batches_in_a_loss, jacobian_at_once, other_sizes])
def test_batches_inside_of_the_graph(function):
    found = []
    for run in (function, intarsia.compile(function)):
        torch.manual_seed(2)
        m = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
        for rows in (3, 3, 4):
            if rows == 4:  # the sizes become symbols
                assert intarsia.counters()["breaks"] == intarsia.counters()["fallbacks"] == 0
            try:
                found.append([run(m, torch.randn(rows, 6)), [p.grad for p in m.parameters()]])
            except RuntimeError as error:
                found.append(str(error)[:40])
    for mine, its in zip(found[3:], found[:3], strict=True):
        if isinstance(its, str):
            assert mine == its
        else:
            torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-5)
