"""torch.func's transforms in the graph: what their functions see, when they are made, sizes that change."""

from __future__ import annotations

import functools

import pytest
import torch
from harness import check, compiled
from torch.func import grad, hessian, jvp, linearize, vjp, vmap

import intarsia

X = torch.randn(4, 8)
GRADIENT = grad(lambda v: (v * X[0]).sin().sum())
HESSIAN = hessian(lambda v: (v * X[0]).sin().sum())


def test_keywords_of_vmap_are_not_batched():
    check(lambda x: vmap(lambda r, s: r * s.sum() + s.shape[0])(x, s=x), X)


def test_transforms_that_were_made_before():
    check(lambda x: (GRADIENT(x[1]), HESSIAN(x[1])), X)


def test_a_function_is_called_for_each_chunk():
    def function(x):
        calls = []
        return vmap(lambda r: calls.append(1) or r * len(calls), chunk_size=3)(x), len(calls)

    check(function, X)


def test_the_grad_mode_inside_and_around():
    def inner(v):
        with torch.no_grad():
            y = v * 2
        return (v * v + y).sum() * (3 if torch.is_grad_enabled() else 5)

    check(lambda x: (grad(inner)(x), vmap(inner)(x)), X)


def test_functions_that_vjp_and_linearize_give():
    def function(x):
        value, back = vjp(torch.sin, x[0])
        _, along = linearize(lambda v: (v * x[1]).exp(), x[0])
        return back(value), vmap(back)(torch.eye(8)), along(x[2]), vmap(along)(x), jvp(torch.tanh, (x,), (x,))

    check(function, X)


def test_sizes_that_change():
    fast, log = compiled(lambda x: (vmap(grad(lambda r: r.sin().sum()))(x), vjp(torch.cos, x)[1](x)), dynamic=True)
    for n in (4, 5, 7):
        x = torch.randn(n, 3)
        a, (b,) = fast(x)
        torch.testing.assert_close((a, b), (x.cos(), -x * x.sin()))
    assert len(log.captures) == 1 and not log.breaks


def test_a_tensor_that_leaves_its_transform_breaks():
    def function(x):
        kept = []
        gradient = grad(lambda v: kept.append(v * 2) or v.sin().sum())(x)
        return gradient, kept[0] + 1

    fast, log = compiled(function)
    torch.testing.assert_close(fast(X), (X.cos(), X * 2 + 1))
    assert log.fallbacks


def test_a_decorator_around_a_compiled_function_is_not_skipped():
    inner = intarsia.compile(torch.sin)

    @functools.wraps(inner)
    def around(x):
        return inner(x) * 100

    outer, _ = compiled(lambda x: around(x))
    torch.testing.assert_close(outer(X), X.sin() * 100)
    torch.testing.assert_close(compiled(lambda x: vmap(around)(x))[0](X), X.sin() * 100)


def test_random_numbers_that_are_the_same_in_all_chunks_break():
    def function(x):
        return vmap(lambda r: r + torch.randn(8), randomness="same", chunk_size=3)(x), torch.rand(2)

    fast, log = compiled(function)
    for _ in range(2):
        torch.manual_seed(1)
        want = function(X)
        torch.manual_seed(1)
        torch.testing.assert_close(fast(X), want, rtol=0, atol=0)
    assert "same in all chunks" in log.breaks[0].reason
    check(lambda x: vmap(lambda r: r + torch.randn(8), randomness="different", chunk_size=3)(x), X)


def test_whether_a_transform_runs_is_known():
    ask = getattr(torch._C, "_are_functorch_transforms_active", None)
    if ask is None:
        pytest.skip("this torch has no such question")

    def asks(x):
        return x * 2 if ask() else x * 3

    def function(x):
        return asks(x), vmap(asks)(x), grad(lambda v: asks(v).sum())(x), torch.func.functionalize(asks)(x), asks(x)

    check(function, X)
    fast, _ = compiled(asks)  # a call inside a transform runs in eager, also behind one that does not
    for _ in range(2):
        torch.testing.assert_close(fast(X), X * 3)
        torch.testing.assert_close(vmap(fast)(X), X * 2)
