"""The rules of derivatives against eager's operators: special values, kinks, dtypes, masks of results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_decompose_values import compare, matrix, vector
from torch import Tensor

import intarsia
from intarsia.frontend.functional.trace import functionalize
from intarsia.ir.dialects import kernel
from intarsia.ir.fx.importer import import_fx
from intarsia.ir.interpreter.run import run
from intarsia.ir.retarget import retarget
from intarsia.passes.core.context import CompileContext
from intarsia.passes.graph.aten_rules.builder import RULES
from intarsia.passes.graph.decompose import Decompose
from tests.opdb.harness import try_interpreter

A = torch.ops.aten
FLOATS = (torch.float32, torch.float64, torch.bfloat16)

ACTIVATIONS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "threshold_backward": lambda g, x: A.threshold_backward(g, x, 0.5),
    "sigmoid_backward": A.sigmoid_backward,
    "tanh_backward": A.tanh_backward,
    "silu_backward": A.silu_backward,
    "gelu_backward": A.gelu_backward,
    "gelu_backward tanh": lambda g, x: A.gelu_backward(g, x, approximate="tanh"),
    "mish_backward": A.mish_backward,
    "hardtanh_backward": lambda g, x: A.hardtanh_backward(g, x, -1.0, 2.5),
    "hardswish_backward": A.hardswish_backward,
    "hardsigmoid_backward": A.hardsigmoid_backward,
    "leaky_relu_backward": lambda g, x: A.leaky_relu_backward(g, x, 0.1, False),
    "elu_backward": lambda g, x: A.elu_backward(g, 1.5, 0.7, 0.9, False, x),
    "elu_backward result": lambda g, x: A.elu_backward(g, 1.5, 0.7, 0.9, True, x),
    "softplus_backward": lambda g, x: A.softplus_backward(g, x, 2.0, 5.0),
    "log_sigmoid_backward": lambda g, x: A.log_sigmoid_backward(g, x, torch.exp(-x.abs())),
    "log_sigmoid_forward": lambda g, x: A.log_sigmoid_forward(x),
    "hardshrink_backward": lambda g, x: A.hardshrink_backward(g, x, 0.5),
    "softshrink_backward": lambda g, x: A.softshrink_backward(g, x, 0.5),
    "native_dropout_backward": lambda g, x: A.native_dropout_backward(g, x > 0, 2.0),
    "_prelu_kernel": lambda g, x: A._prelu_kernel(x, g),
    "_prelu_kernel_backward": lambda g, x: A._prelu_kernel_backward(g, x, x.flip(0)),
    "glu": lambda g, x: A.glu(x, 0),
    "glu_backward": lambda g, x: A.glu_backward(g[:7], x, 0),
    "mse_loss_backward": lambda g, x: A.mse_loss_backward(g, x, x.flip(0), 0),
    "smooth_l1_loss_backward": lambda g, x: A.smooth_l1_loss_backward(g[:1], x, x.flip(0), 1, 2.0),
    "huber_loss_backward": lambda g, x: A.huber_loss_backward(g, x, x.flip(0), 0, 1.5),
    "_softmax_backward_data": lambda g, x: A._softmax_backward_data(g, x, 0, x.dtype),
    "_log_softmax_backward_data": lambda g, x: A._log_softmax_backward_data(g, x, 0, x.dtype),
}

# Where eager itself computes nan from infinities in another way than by the derivative, values are finite.
FINITE = {
    "softplus_backward",
    "log_sigmoid_backward",
    "mish_backward",
    "gelu_backward tanh",
    "gelu_backward",
    "silu_backward",
}


def covered(fn: Callable[..., Any], *args: Any) -> None:
    """As eager, and without a library call."""
    compare(fn, *args)
    assert try_interpreter(fn, args, {})[1] == 0


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_elementwise(name: str) -> None:
    assert f"aten.{name.split()[0]}.default" in RULES
    for dtype in FLOATS:
        if name == "hardsigmoid_backward" and dtype == torch.float64:
            continue  # eager's sixth is a float32's there
        # Whole vectors of each number: in eager the last few elements of a tensor take another path, which treats nan in another way.
        x = vector(dtype).repeat_interleave(64)
        if name in FINITE:
            x = x.nan_to_num(0.25, 4.0, -4.0)
        compare(ACTIVATIONS[name], matrix(dtype, 14 * 64), x)
    covered(ACTIVATIONS[name], matrix(torch.float32, 14), matrix(torch.float32, 14) * 3)


MASKS = [[True, True, True], [True, False, True], [False, True, False], [False, False, True]]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_layer_norm(mask: list[bool], dtype: torch.dtype) -> None:
    x, g, w = matrix(dtype, 4, 5, 6), matrix(dtype, 4, 5, 6).flip(0), matrix(dtype, 5, 6)
    _, mean, rstd = A.native_layer_norm(x, [5, 6], w, w, 1e-5)
    covered(lambda g, x, m, r, w: A.native_layer_norm_backward(g, x, [5, 6], m, r, w, w, mask), g, x, mean, rstd, w)
    covered(
        lambda g, x, m, r: A.native_layer_norm_backward(g, x, [5, 6], m, r, None, None, [True, False, False]),
        *(g, x, mean, rstd),
    )


def as_on_a_gpu(fn: Callable[..., Any], *args: Tensor, calls: tuple[str, ...] = ()) -> list[Any]:
    """The results of the graph as it is decomposed for a GPU, which has these library calls."""
    functional = functionalize(torch.fx.symbolic_trace(fn), list(args))
    module = import_fx(functional).module
    retarget(module, "cuda:0")
    Decompose().apply(CompileContext(), module)
    assert tuple(op["target"] for op in module.walk() if isinstance(op, kernel.Extern)) == calls
    retarget(module, "cpu")
    return run(module, list(args))


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("train", (True, False))
def test_normalisations_on_a_gpu(train: bool, dtype: torch.dtype) -> None:
    x, g, w = matrix(dtype, 3, 6, 4, 5), matrix(dtype, 3, 6, 4, 5).flip(0), matrix(dtype, 6)
    _, m, r = A.native_group_norm(x, w, w, 3, 6, 20, 2, 1e-5)
    mean, var, wide = matrix(torch.float32, 6), matrix(torch.float32, 6).abs() + 0.5, w.float()
    _, bm, br = A.native_batch_norm(x, wide, wide, mean.clone(), var.clone(), True, 0.1, 1e-5)

    def group(g: Tensor, x: Tensor, m: Tensor, r: Tensor, w: Tensor) -> Any:
        return A.native_group_norm_backward(g, x, m, r, w, 3, 6, 20, 2, [True, True, True])

    def batch(g: Tensor, x: Tensor, w: Tensor, mean: Tensor, var: Tensor, m: Tensor, r: Tensor) -> Any:
        return A.native_batch_norm_backward(g, x, w, mean, var, m, r, train, 1e-5, [True, True, True])

    for fn, args in ((group, (g, x, m, r, w)), (batch, (g, x, wide, mean, var, bm.float(), br.float()))):
        found = as_on_a_gpu(fn, *args)
        near = 1e-4 if dtype == torch.float32 else 6e-2
        for ours, eager in zip(found, fn(*args), strict=True):
            torch.testing.assert_close(ours.float(), eager.float(), rtol=near, atol=near)


@pytest.mark.parametrize("train", (True, False))
@pytest.mark.parametrize("mask", MASKS[:2])
def test_batch_norm_of_a_half_type_with_wide_parameters(mask: list[bool], train: bool) -> None:
    x, g = matrix(torch.bfloat16, 4, 6, 3, 5), matrix(torch.bfloat16, 4, 6, 3, 5).flip(0)
    w, mean, var = matrix(torch.float32, 6), matrix(torch.float32, 6), matrix(torch.float32, 6).abs() + 0.5
    _, m, r = A.native_batch_norm(x, w, w, mean.clone(), var.clone(), True, 0.1, 1e-5)

    def fn(g: Tensor, x: Tensor, w: Tensor, mean: Tensor, var: Tensor, m: Tensor, r: Tensor) -> Any:
        return A.native_batch_norm_backward(g, x, w, mean, var, m, r, train, 1e-5, mask)

    compare(fn, g, x, w, mean, var, m, r)


@pytest.mark.parametrize("reduction", (0, 1, 2))
@pytest.mark.parametrize("weighted", (True, False))
def test_nll_loss(reduction: int, weighted: bool) -> None:
    x, target = F.log_softmax(matrix(torch.float32, 5, 7), 1), torch.tensor([0, 6, 2, -100, 3])
    w = matrix(torch.float32, 7).abs() if weighted else None
    loss, total = A.nll_loss_forward(x, target, w, reduction, -100)
    g = torch.full_like(loss, 1.5)
    covered(lambda g, x, t, w, n: A.nll_loss_backward(g, x, t, w, reduction, -100, n), g, x, target, w, total)


def test_parts() -> None:
    g = matrix(torch.float32, 3, 4)
    for index in (0, 2, -1):
        covered(lambda g, index=index: A.select_backward(g, [3, 5, 4], 1, index), g)
    for start, end in ((0, 4), (2, 6), (-4, 2**63 - 1)):
        covered(lambda g, a=start, b=end: A.slice_backward(g, [3, 6], 1, a, b, 1), g)
    compare(lambda g: A.slice_backward(g, [3, 8], 1, 0, 8, 2), g)


def test_safe_softmax_of_rows_that_see_nothing() -> None:
    x = matrix(torch.float32, 4, 6)
    x[1] = -torch.inf
    x[2, 3] = torch.nan
    covered(lambda x: A._safe_softmax(x, -1), x)


def test_mixed_precision_training_of_batch_norm_on_a_cpu() -> None:
    """The saved statistics of a graph are rounded to bfloat16 there, eager's are not; a mean far from 0 would show it."""
    norm = torch.nn.BatchNorm2d(4).train()
    x = (torch.randn(8, 4, 6, 6) + 40).bfloat16()
    gradients = []
    for fn in (norm, intarsia.compile(norm)):
        norm.zero_grad()
        leaf = x.clone().requires_grad_()
        (fn(leaf).float() * torch.linspace(-1, 1, 6)).pow(3).sum().backward()
        assert leaf.grad is not None and norm.weight.grad is not None
        gradients.append((leaf.grad.float(), norm.weight.grad.clone()))
    for expected, found in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("size, apart, low", [(3, 2, 1), (2, 2, 0), ((3, 2), (1, 2), (1, 0)), (2, 3, 1), (5, 2, 2)])
def test_pools_on_a_gpu_ask_the_windows_that_cover_an_element(
    size: Any, apart: Any, low: Any, ceil_mode: bool, dtype: torch.dtype
) -> None:
    x = torch.randn(2, 3, 11, 8).to(dtype)
    made, places = A.max_pool2d_with_indices(x, size, apart, low, 1, ceil_mode)
    g = torch.randn(made.shape).to(dtype)

    def back(g: Tensor, x: Tensor, places: Tensor) -> Any:
        return A.max_pool2d_with_indices_backward(g, x, *map(_two, (size, apart, low)), [1, 1], ceil_mode, places)

    (found,) = as_on_a_gpu(back, g, x, places)
    near = {torch.float32: 1e-6, torch.float64: 1e-12, torch.bfloat16: 2e-2}[dtype]  # eager adds in bfloat16 on a CPU
    torch.testing.assert_close(found, back(g, x, places), rtol=near, atol=near)


def _two(n: Any) -> list[int]:
    return [*n] if isinstance(n, tuple) else [n, n]


CONVOLUTIONS = {  # groups, window, stride, padding, dilation; what is left to the library
    "plain": (1, 3, 1, 1, 1, True),
    "one filter a channel": (6, 3, 1, 1, 1, False),
    "large windows": (6, 5, 1, 0, 1, False),
    "steps": (6, 3, 2, 1, 1, True),
    "gaps": (6, 3, 1, 2, 2, True),
    "two filters a group": (3, 3, 1, 1, 1, True),
    "more padding than window": (6, 1, 1, 1, 1, True),
}


@pytest.mark.parametrize("mask", [[True, True, True], [True, False, False], [False, True, True], [False, False, True]])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_derivatives_of_convolutions_on_a_gpu(name: str, mask: list[bool]) -> None:
    groups, size, step, low, apart, library = CONVOLUTIONS[name]
    x, w = torch.randn(2, 6, 9, 8), torch.randn(6, 6 // groups, size, size)
    how = [6], [step, step], [low, low], [apart, apart], False, [0, 0], groups

    def back(g: Tensor, x: Tensor, w: Tensor) -> Any:
        found = A.convolution_backward(g, x, w, *how, mask)
        return [found[k] for k in range(3) if mask[k]]

    g = torch.randn_like(torch.conv2d(x, w, None, step, low, apart, groups))
    backward, forward = "aten.convolution_backward.default", "aten.convolution.default"
    calls = [backward] * (mask[1] or library and mask[0]) + [forward] * (mask[0] and not library)
    found = as_on_a_gpu(back, g, x, w, calls=tuple(sorted(calls, key=lambda c: c != forward)))
    for ours, eager in zip(found, back(g, x, w), strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-4)
