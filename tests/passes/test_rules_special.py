"""Every rule for an activation, its gradient, and the reductions: eager's answer at nan, infinities, signed zeros and at the rules' edges."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from intarsia.ir.dialects import kernel
from intarsia.ir.fx.importer import import_fx
from intarsia.ir.interpreter.run import run
from intarsia.passes.core.context import CompileContext
from intarsia.passes.graph.decompose import Decompose

NAN, INF = float("nan"), float("inf")
aten: Any = torch.ops.aten
# Each number fills whole vectors: eager's last few elements take another path, which treats nan in another way.
X = torch.tensor([NAN, INF, -INF, -0.0, 0.0, 1.0, -1.0, 3.0, -3.0, 0.5, -0.5, 20.0, -30.0]).repeat_interleave(32)
FINITE = X[X.isfinite() | X.isnan()]


def ours(func: Any, args: tuple[Any, ...]) -> tuple[list[Tensor], list[Tensor]]:
    """What the rule gives in the interpreter, and what eager gives."""
    graph, given = fx.Graph(), []
    nodes: list[Any] = []
    for a in args:
        node: Any = a
        if isinstance(a, Tensor):
            node = graph.placeholder(f"x{len(given)}")
            node.meta["val"] = a
            given.append(a)
        nodes.append(node)
    call = graph.call_function(func, tuple(nodes))
    wanted = func(*args)
    call.meta["val"] = wanted
    flat = list(wanted) if isinstance(wanted, tuple | list) else [wanted]
    outs: list[Any] = [call]
    if isinstance(wanted, tuple | list):
        import operator

        outs = [graph.call_function(operator.getitem, (call, k)) for k in range(len(flat))]
        for node, value in zip(outs, flat, strict=True):
            node.meta["val"] = value
    graph.output(tuple(outs))
    functional = SimpleNamespace(
        graph_module=fx.GraphModule({}, graph), outputs=[("value", k) for k in range(len(flat))], mutations=[]
    )
    module = import_fx(functional).module
    Decompose().apply(CompileContext(), module)
    assert not any(isinstance(op, kernel.Extern) for op in module.walk()), f"{func} is a library call"
    return run(module, given), flat


def same(func: Any, *args: Any, signs: bool = True) -> None:
    for a, b in zip(*ours(func, args), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6, equal_nan=True, msg=lambda m: f"{func}: {m}")
        zeros = (a == 0) & (b == 0)
        assert not signs or torch.equal(a.signbit()[zeros], b.signbit()[zeros]), f"{func}: signs of zeros"


@pytest.mark.parametrize("g", [1.0, -2.0, INF, NAN, 0.0])
def test_gradients_of_activations(g: float) -> None:
    grad = torch.full_like(X, g)
    same(aten.hardswish_backward.default, grad, X, signs=False)
    same(aten.hardsigmoid_backward.default, grad, X, signs=False)
    same(aten.hardshrink_backward.default, grad, X, 0.5)
    same(aten.softshrink_backward.default, grad, X, 0.5)
    same(aten.hardtanh_backward.default, grad, X, -1.0, 1.0)
    same(aten.threshold_backward.default, grad, X, 0.0)
    same(aten.leaky_relu_backward.default, grad, X, 0.1, False)
    same(aten.elu_backward.default, grad, 1.0, 1.0, 1.0, False, X)
    same(aten.silu_backward.default, grad, X, signs=False)
    same(aten.softplus_backward.default, grad, X, 1.0, 20.0)
    same(aten.tanh_backward.default, grad, X.tanh())
    same(aten.sigmoid_backward.default, grad, X.sigmoid())


def test_activations() -> None:
    for name in ("softshrink", "hardshrink", "silu", "hardswish", "hardsigmoid", "elu", "softplus", "leaky_relu"):
        same(getattr(aten, name).default, X, signs=name in ("softshrink", "hardshrink"))


def test_dropped_gradients_are_zero() -> None:
    mask = torch.arange(X.numel()) % 3 > 0
    same(aten.native_dropout_backward.default, torch.full_like(X, 3e38), mask, 2.0)
    same(aten.native_dropout_backward.default, X, mask, 1.25)


def test_gradients_of_softmax() -> None:
    rng = random.Random(0)
    for _ in range(20):
        y = torch.randn(6, 5).softmax(1)
        g = torch.randn(6, 5)
        for t in (g, y):
            t[rng.randrange(6), rng.randrange(5)] = rng.choice((INF, -INF, NAN, 0.0))
        same(aten._softmax_backward_data.default, g, y, rng.choice((0, 1)), torch.float32, signs=False)


def test_sums_of_negative_zeros() -> None:
    for shape, dims in (((), []), ((1,), [0]), ((1, 1), [0, 1]), ((3, 1), [1]), ((4,), [0])):
        zeros = torch.full(shape, -0.0)
        same(aten.sum.dim_IntList, zeros, dims)
        same(aten.mean.dim, zeros, dims)
        same(aten.nansum.default, zeros, dims)
        same(aten.sum.default, zeros)


@pytest.mark.parametrize("name", ["var_mean", "std_mean"])
@pytest.mark.parametrize("special", [INF, -INF, NAN])
def test_mean_and_deviation_of_infinities(name: str, special: float) -> None:
    x = torch.randn(5, 6)
    x[torch.arange(4), torch.arange(4)] = special  # nowhere last: there eager's running mean stays infinite
    for dims in ([1], [0, 1]):
        (deviation, mean), (wanted, wanted_mean) = ours(getattr(aten, name).correction, (x, dims))
        torch.testing.assert_close(deviation, wanted, equal_nan=True)
        torch.testing.assert_close(mean, wanted_mean, equal_nan=True)


@pytest.mark.parametrize("special", [INF, -INF, NAN, 0.0])
def test_affine_parameters_of_norms(special: float) -> None:
    x, scale, shift = torch.randn(4, 6), torch.randn(6), torch.randn(6)
    for which in range(2):
        parameters = [scale.clone(), shift.clone()]
        parameters[which][2] = special
        same(aten.native_layer_norm.default, x, [6], *parameters, 1e-5, signs=False)
        if which == 0 and abs(special) == INF:
            continue  # eager's x * scale - mean * scale is nan for an infinite scale, (x - mean) * scale is not
        same(aten.native_group_norm.default, x, *parameters, 4, 6, 1, 2, 1e-5, signs=False)
        running = (torch.randn(6), torch.rand(6))
        same(aten._native_batch_norm_legit_no_training.default, x, *parameters, *running, 0.1, 1e-5, signs=False)
