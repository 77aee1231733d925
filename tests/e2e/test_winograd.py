"""3x3 convolutions in fewer products: sizes, padding, what follows, changed weights, special values, accuracy."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from threads import agree_in_threads

import intarsia
from intarsia.ir.packing import unpack, winograd_weight
from intarsia.targets.build.toolchain import detect_isa
from intarsia.testing import check

pytestmark = pytest.mark.skipif(detect_isa() != "avx512", reason="made for AVX-512")


def error(found, gold):
    return (found.double() - gold).square().mean().sqrt().item()


def close(compiled, model, x, allowed=3.0):
    """The error against float64 is at most `allowed` times eager's."""
    expected, found = model(x), compiled(x)
    assert found.stride() == expected.stride() and found.dtype == expected.dtype
    gold = nn.Sequential(model).double()(x.double())
    model.float()
    assert error(found, gold) <= allowed * error(expected, gold) + 1e-6


# inputs, outputs, padding, height, width
SHAPES = [
    (16, 16, 1, 3, 3),
    (16, 16, 0, 5, 5),
    (16, 16, 1, 3, 17),
    (17, 20, 1, 8, 8),
    (31, 33, 1, 7, 9),
    (32, 80, 2, 5, 6),
    (64, 64, 1, 13, 4),
    (48, 130, (0, 1), 6, 11),
    (20, 10, (2, 0), 4, 7),
    (24, 100, 3, 4, 5),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@torch.no_grad()
def test_shapes(shape):
    """One program for three sizes of the batch in both layouts; shapes take turns in which of them have a bias."""
    inputs, outputs, padding, height, width = shape
    torch.manual_seed(0)
    batches, turn = (1, 3, 16), SHAPES.index(shape)
    models = [nn.Conv2d(inputs, outputs, 3, 1, padding, bias=(i + turn) % 2 == 0).eval() for i in range(3)] * 2
    xs = [torch.randn(batch, inputs, height, width) for batch in batches]
    xs += [x.to(memory_format=torch.channels_last) for x in xs]
    compiled = intarsia.compile(lambda *xs: [model(x) for model, x in zip(models, xs, strict=True)], fullgraph=True)
    found = compiled(*xs)
    for model, x, result in zip(models, xs, found, strict=True):
        close(lambda x, result=result: result, model, x)
    assert all(torch.equal(a, b) for a, b in zip(compiled(*xs), found, strict=True))


ACTIVATIONS = [
    nn.ReLU(), nn.ReLU6(), nn.Hardtanh(-0.5, 0.25), nn.Hardsigmoid(), nn.Hardswish(), nn.SiLU(), nn.Sigmoid(), nn.Tanh(),
    nn.LeakyReLU(0.2), nn.GELU(), nn.GELU("tanh"), nn.Mish(),
]  # fmt: skip


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=repr)
@torch.no_grad()
def test_activations(activation):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(16, 40, 3, 1, 1), activation).eval()
    close(intarsia.compile(model, fullgraph=True), model, torch.randn(3, 16, 6, 7))


class Block(nn.Module):
    """A residual block."""

    def __init__(self, channels):
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, 1, 1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2))
        for norm in self.norms:
            norm.running_mean.normal_(std=0.1)
            norm.running_var.uniform_(0.8, 1.2)

    def forward(self, x):
        """(n, channels, h, w) -> the same."""
        return F.relu(x + self.norms[1](self.second(F.relu(self.norms[0](self.first(x))))))


def test_residuals():
    torch.manual_seed(0)
    check(Block(32).eval(), (torch.randn(2, 32, 7, 9),))


def test_a_deep_net_keeps_the_accuracy_rule():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), *(Block(32) for _ in range(10)), nn.AdaptiveAvgPool2d(1)).eval()
    check(net, (torch.randn(2, 3, 24, 24),))


@pytest.mark.parametrize("winograd, allowed", [(True, 4.5), (False, 1.5)])
@torch.no_grad()
def test_the_error_does_not_grow_with_the_channels(winograd, allowed):
    torch.manual_seed(0)
    models = [nn.Conv2d(channels, 32, 3, 1, 1, bias=False).eval() for channels in (16, 64, 256, 512)]
    xs = [torch.randn(1, model.in_channels, 14, 14).relu() for model in models]
    compiled = intarsia.compile(
        lambda *xs: [model(x) for model, x in zip(models, xs, strict=True)], options={"winograd": winograd}
    )
    for model, x, found in zip(models, xs, compiled(*xs), strict=True):
        gold = F.conv2d(x.double(), model.weight.double(), None, 1, 1)
        plain = model(x.to(memory_format=torch.channels_last))
        assert error(found, gold) <= allowed * max(error(model(x), gold), error(plain, gold))


@torch.no_grad()
def test_dynamic_sizes():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(16, 24, 3, 1, 1), nn.ReLU(), nn.Conv2d(24, 16, 3)).eval()
    compiled = intarsia.compile(model, dynamic=True)
    for n, h, w in itertools.product((1, 5), (3, 8, 21), (9,)):
        close(compiled, model, torch.randn(n, 16, h, w))


@torch.no_grad()
def test_changed_weights():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(16, 16, 3, 1, 1), nn.BatchNorm2d(16)).eval()
    compiled = intarsia.compile(model)
    x = torch.randn(2, 16, 6, 6)
    close(compiled, model, x)
    model[0].weight.mul_(2)
    close(compiled, model, x)
    model[0].weight.data.view(-1)[5] += 1
    close(compiled, model, x)
    model[1].running_var.mul_(3)
    close(compiled, model, x)
    model[0].weight = nn.Parameter(torch.randn_like(model[0].weight))
    close(compiled, model, x)
    model[0].load_state_dict(nn.Conv2d(16, 16, 3, 1, 1).state_dict())
    close(compiled, model, x)


def test_gradients():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(16, 16, 3, 1, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, 1, 1))
    check(model, (torch.randn(2, 16, 6, 6, requires_grad=True),))


@torch.no_grad()
def test_special_values_reach_their_tiles_only():
    torch.manual_seed(0)
    model = nn.Conv2d(16, 16, 3, 1, 1).eval()
    compiled = intarsia.compile(model)
    exact = intarsia.compile(model, options={"winograd": False})
    for value in (torch.nan, torch.inf, -torch.inf):
        x = torch.randn(1, 16, 12, 12)
        clean = model(x)
        x[0, 3, 5, 6] = value  # all tiles that read it: rows 4 to 7, columns 4 to 7
        expected, found = model(x), compiled(x)
        torch.testing.assert_close(exact(x), expected, rtol=1e-5, atol=1e-5, equal_nan=True)
        assert not found[~expected.isfinite()].isfinite().any()
        found[..., 4:8, 4:8] = clean[..., 4:8, 4:8]
        torch.testing.assert_close(found, clean, rtol=1e-4, atol=1e-5)


def test_two_threads():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(16, 32, 3, 1, 1), nn.ReLU(), nn.Conv2d(32, 32, 3, 1, 1)).eval()
    inputs = [torch.randn(2, 16, 12, 12) for _ in range(4)]
    agree_in_threads(intarsia.compile(model), model, inputs, calls=20, warm=True)


@torch.no_grad()
def test_many_threads_share_tiles_or_weights():
    torch.manual_seed(0)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        for channels, size in ((64, 20), (256, 8)):
            model = nn.Conv2d(channels, channels, 3, 1, 1).eval()
            close(intarsia.compile(model), model, torch.randn(1, channels, size, size))
    finally:
        torch.set_num_threads(before)


def test_a_switch_for_it():
    torch.manual_seed(0)
    model = nn.Conv2d(16, 16, 3).eval()
    x = torch.randn(2, 16, 9, 9)
    with torch.no_grad():
        exact, fast = (intarsia.compile(model, options={"winograd": on})(x) for on in (False, True))
    assert not torch.equal(exact, fast)
    with pytest.raises(ValueError, match="winograd"):
        intarsia.compile(model, options={"winograd": "perhaps"})


def test_weights_come_back():
    for outputs, inputs in ((16, 16), (20, 17)):
        weight = torch.randn(outputs, inputs, 3, 3)
        packed = winograd_weight(weight)
        assert packed.shape == (-(-outputs // 16), 36, inputs, 16)
        torch.testing.assert_close(unpack(packed, weight.shape), weight, rtol=1e-5, atol=1e-5)
