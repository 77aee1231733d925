"""Convolutions that kernels of our own carry out: every shape of window, what follows them, layouts, and changes of parameters."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from threads import agree_in_threads

import intarsia
from intarsia.targets.build.toolchain import detect_isa

pytestmark = pytest.mark.skipif(detect_isa() != "avx512", reason="made for AVX-512")


def normed(channels):
    norm = nn.BatchNorm2d(channels)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    return norm


def same(compiled, model, *args):
    expected, found = model(*args), compiled(*args)
    assert found.stride() == expected.stride()
    finite = expected[expected.isfinite()].abs()
    scale = max(1.0, finite.max().item()) if finite.numel() else 1.0
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-5 * scale, equal_nan=True)


# inputs, outputs, window, stride, padding, dilation, groups, height, width
SHAPES = [
    (3, 16, 3, 2, 1, 1, 1, 33, 31),
    (3, 20, 7, 2, 3, 1, 1, 40, 40),
    (1, 1, 3, 1, 1, 1, 1, 5, 5),
    (7, 33, (3, 1), (1, 2), (1, 0), 1, 1, 9, 10),
    (24, 72, 1, 1, 0, 1, 1, 14, 15),
    (24, 40, 1, 2, 0, 1, 1, 15, 15),
    (40, 24, 1, 1, 1, 1, 1, 4, 4),
    (64, 64, 3, 1, 1, 1, 1, 8, 9),
    (17, 130, 3, 1, 2, 2, 1, 11, 7),
    (96, 10, 1, 1, 0, 1, 1, 1, 1),
    (32, 48, 5, 1, 4, 1, 1, 2, 2),
    (16, 16, 3, 1, 1, 1, 16, 7, 7),
    (20, 20, 5, 1, 2, 1, 20, 15, 16),
    (72, 72, 5, 2, 2, 1, 72, 14, 13),
    (96, 96, 7, 1, 3, 1, 96, 9, 9),
    (33, 33, (2, 3), (1, 2), (0, 1), 1, 33, 6, 6),
    (32, 32, 3, 1, 1, 2, 32, 9, 9),
    (32, 32, 3, 3, 1, 1, 32, 9, 9),
    (32, 64, 3, 1, 1, 1, 4, 9, 9),
    (8, 8, 3, 1, 1, 1, 8, 9, 9),
    (32, 64, 3, 1, 1, 1, 32, 9, 9),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(shape):
    inputs, outputs, window, stride, padding, dilation, groups, height, width = shape
    torch.manual_seed(0)
    for bias, norm, batch in ((True, False, 1), (False, True, 3)):
        layers = [nn.Conv2d(inputs, outputs, window, stride, padding, dilation, groups, bias)]
        model = nn.Sequential(*layers, *([normed(outputs), nn.ReLU()] if norm else [])).eval()
        compiled = intarsia.compile(model, fullgraph=True, options={"winograd": False})
        x = torch.randn(batch, inputs, height, width)
        same(compiled, model, x)
        x[0, 0, 0, 0] = torch.nan
        same(compiled, model, x)


ACTIVATIONS = [
    nn.ReLU(), nn.ReLU6(), nn.Hardtanh(-0.5, 0.25), nn.Hardsigmoid(), nn.Hardswish(), nn.SiLU(), nn.Sigmoid(), nn.Tanh(),
    nn.LeakyReLU(0.2), nn.GELU(), nn.GELU("tanh"), nn.ELU(), nn.Softplus(), nn.Mish(),
]  # fmt: skip


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=repr)
def test_activations_keep_special_values(activation):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(16, 24, 1), activation, nn.Conv2d(24, 24, 3, groups=24), normed(24), activation
    ).eval()
    compiled = intarsia.compile(model, fullgraph=True)
    x = torch.randn(2, 16, 6, 6)
    same(compiled, model, x)
    one = nn.Sequential(nn.Conv2d(16, 16, 1, groups=16, bias=False), activation).eval()
    one[0].weight.data.fill_(1)
    if isinstance(activation, nn.GELU):  # eager's own gelu(inf) is nan or inf, depending on how many elements there are
        return
    special = torch.randn(1, 16, 3, 3)
    special[0, :8, 0, 0] = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1e30, -1e30, 88.0])
    same(intarsia.compile(one, fullgraph=True), one, special)


class Residual(nn.Module):
    """Two branches that meet; the one may be a convolution too."""

    def __init__(self, down):
        super().__init__()
        self.first, self.norm = nn.Conv2d(16, 32, 3, 1, 1, bias=False), normed(32)
        self.second, self.other = nn.Conv2d(32, 16, 1), normed(16)
        self.down = nn.Sequential(nn.Conv2d(16, 16, 1, bias=False), normed(16)) if down else None

    def forward(self, x):
        """(n, 16, h, w) -> the same."""
        y = self.other(self.second(self.norm(self.first(x)).relu_()))
        y += x if self.down is None else self.down(x)
        return F.relu(y, inplace=True)


@pytest.mark.parametrize("down", [False, True])
def test_residuals(down):
    torch.manual_seed(0)
    model = Residual(down).eval()
    compiled = intarsia.compile(model, fullgraph=True)
    for x in (torch.randn(2, 16, 7, 9), torch.randn(2, 16, 7, 9).to(memory_format=torch.channels_last)):
        same(compiled, model, x)


def test_a_result_that_is_added_to_itself_or_read_twice():
    conv = nn.Conv2d(16, 16, 1).eval()

    def f(x):
        y = conv(x)
        return y + y, y.relu() + 1

    for found, expected in zip(intarsia.compile(f)(X), f(X), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


X = torch.randn(2, 16, 6, 6)

CHANGES = {
    "weight in place": lambda c, n: c.weight.mul_(2),
    "one element of the weight": lambda c, n: c.weight.data.view(-1)[5].add_(1),
    "weight replaced": lambda c, n: setattr(c, "weight", nn.Parameter(torch.randn_like(c.weight))),
    "weight data replaced": lambda c, n: setattr(c.weight, "data", torch.randn_like(c.weight)),
    "bias data": lambda c, n: c.bias.data.add_(1),
    "mean in place": lambda c, n: n.running_mean.add_(1),
    "variance replaced": lambda c, n: setattr(n, "running_var", torch.rand(16) + 1),
    "shift data": lambda c, n: n.bias.data.sub_(2),
    "all loaded": lambda c, n: n.load_state_dict(normed(16).state_dict()),
    "optimizer": lambda c, n: _step(c, n),
}


def _step(conv, norm):
    optimizer = torch.optim.SGD([*conv.parameters(), *norm.parameters()], 0.1)
    with torch.enable_grad():
        norm(conv(X)).square().sum().backward()
    optimizer.step()


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", CHANGES)
def test_changed_parameters(name, grad):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(16, 16, 3), normed(16)).eval()
    compiled = intarsia.compile(model)
    with torch.set_grad_enabled(grad):
        same(compiled, model, X)
        with torch.no_grad():
            CHANGES[name](model[0], model[1])
        same(compiled, model, X)
        same(compiled, model, X)


def test_inference_mode():
    with torch.inference_mode():
        model = nn.Sequential(nn.Conv2d(16, 16, 3), normed(16), nn.ReLU()).eval()
        compiled = intarsia.compile(model)
        same(compiled, model, X)
        model[0].weight.mul_(2)
        same(compiled, model, X)


def test_two_threads():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3, groups=32)).eval()
    inputs = [torch.randn(1, 16, 12, 12) for _ in range(4)]
    agree_in_threads(intarsia.compile(model), model, inputs, calls=20, warm=True)


@torch.no_grad()
def test_numbers_for_each_channel_that_are_no_parameters():
    model = nn.Conv2d(16, 24, 3).eval()
    compiled = intarsia.compile(lambda x, scale: F.silu(model(x) * scale[:, None, None]), fullgraph=True)
    x, scale = torch.randn(2, 16, 9, 7), torch.randn(24)
    torch.testing.assert_close(compiled(x, scale), F.silu(model(x) * scale[:, None, None]), rtol=1e-5, atol=2e-5)
    assert intarsia.counters()["fallbacks"] == 0


def test_dynamic_sizes():
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(3, 16, 3, 2, 1),
        normed(16),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, 1, 1, groups=16),
        nn.Conv2d(16, 24, 1),
    ]
    model = nn.Sequential(*layers).eval()
    compiled = intarsia.compile(model, dynamic=True)
    for n, h, w in itertools.product((1, 3), (16, 21), (9,)):
        same(compiled, model, torch.randn(n, 3, h, w))


def test_without_packing():
    model = nn.Sequential(nn.Conv2d(16, 16, 3), normed(16), nn.ReLU()).eval()
    same(intarsia.compile(model, options={"packing": False}), model, X)


POOLS = [
    (3, 2, 1, 1, False),
    (2, 2, 0, 1, False),
    (3, 1, 1, 1, True),
    ((2, 3), (2, 1), (1, 1), 1, False),
    (3, 2, 0, 2, True),
]


@pytest.mark.parametrize("pool", POOLS, ids=str)
def test_max_pool(pool):
    window, stride, padding, dilation, ceil = pool
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 20, 3), nn.MaxPool2d(window, stride, padding, dilation, ceil_mode=ceil), nn.Conv2d(20, 16, 1)
    ).eval()
    x = torch.randn(2, 3, 14, 13)
    x[0, 0, 4, 4] = torch.nan
    x[1, :, :8, :8] = -torch.inf
    same(intarsia.compile(model, fullgraph=True), model, x)
    indices = nn.Sequential(nn.Conv2d(3, 20, 3), nn.MaxPool2d(2, return_indices=True)).eval()
    for found, expected in zip(intarsia.compile(indices)(x), indices(x), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_factors_of_channels_behind():
    """A tensor of an element for each channel lies in order, not as an image."""
    conv = nn.Conv2d(3, 64, 3, padding=1).eval()
    args = torch.randn(1, 3, 9, 6), torch.randn(64), torch.rand(64) + 0.5
    with torch.no_grad():
        fn = lambda x, mean, var: F.batch_norm(conv(x), mean, var)  # noqa: E731
        same(intarsia.compile(fn), fn, *args)
        assert not intarsia.explain(fn)(*args).graphs[0].library
