"""Batch norm and activations behind the library's calls: values, and changes of every tensor involved between calls."""

from __future__ import annotations

import pytest
import torch
import torch.nn as nn

import intarsia
from intarsia.passes.pipeline import default_pipeline
from intarsia.targets.host.library import PackedConvolution


def block(activation=None, groups=1, bias=True, affine=True):
    """Convolution, batch norm with statistics of its own, and an activation."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(16, affine=affine)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    if affine:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    return nn.Sequential(nn.Conv2d(16, 16, 3, 1, 1, 1, groups, bias), norm, activation or nn.Identity()).eval()


def compiled_with(fn):
    """Compiled without convolutions of our own."""
    kept = [item.name for item in default_pipeline() if item.name != "own-convolution"]
    return intarsia.compile(fn, options={"pipeline": ",".join(kept)})


def same(compiled, model, x):
    expected, found = model(x), compiled(x)
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-5)


ACTIVATIONS = [
    nn.Identity(), nn.ReLU(), nn.ReLU6(), nn.SiLU(), nn.Hardswish(), nn.Hardsigmoid(), nn.Sigmoid(), nn.Tanh(),
    nn.LeakyReLU(0.2), nn.GELU(), nn.GELU(approximate="tanh"),
]  # fmt: skip


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=repr)
def test_activations(activation):
    model = nn.Sequential(
        block(activation), nn.Conv2d(16, 8, 1), activation, nn.Flatten(2), nn.Linear(36, 5), activation
    )
    compiled = compiled_with(model.eval())
    x = torch.randn(2, 16, 6, 6)
    same(compiled, model, x)
    x[0, 3, 2, 2] = torch.nan  # what eager makes nan stays nan
    torch.testing.assert_close(compiled(x).isnan(), model(x).isnan())


@pytest.mark.parametrize("groups", [1, 4, 16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("affine", [True, False])
def test_groups_and_missing_parameters(groups, bias, affine):
    model = block(nn.SiLU(), groups, bias, affine)
    compiled = compiled_with(model)
    same(compiled, model, torch.randn(2, 16, 9, 7))
    assert intarsia.counters()["fallbacks"] == 0


CHANGES = {
    "weight in place": lambda c, n: c.weight.mul_(2),
    "weight data": lambda c, n: c.weight.data.mul_(2),
    "weight replaced": lambda c, n: setattr(c, "weight", nn.Parameter(torch.randn_like(c.weight))),
    "bias in place": lambda c, n: c.bias.add_(1),
    "bias data": lambda c, n: c.bias.data.add_(1),
    "one element of the bias": lambda c, n: c.bias.data[5].add_(1),
    "mean in place": lambda c, n: n.running_mean.add_(1),
    "mean data": lambda c, n: n.running_mean.data.add_(1),
    "one element of the mean": lambda c, n: n.running_mean.data[15].add_(1),
    "mean replaced": lambda c, n: setattr(n, "running_mean", torch.randn(16)),
    "variance in place": lambda c, n: n.running_var.mul_(3),
    "variance data": lambda c, n: n.running_var.data.mul_(3),
    "variance replaced": lambda c, n: setattr(n, "running_var", torch.rand(16) + 1),
    "scale data": lambda c, n: n.weight.data.neg_(),
    "scale and shift exchanged": lambda c, n: n.load_state_dict({**n.state_dict(), "weight": n.bias, "bias": n.weight}),
    "shift in place": lambda c, n: n.bias.sub_(2),
    "shift replaced": lambda c, n: setattr(n, "bias", nn.Parameter(torch.randn(16))),
    "all loaded": lambda c, n: n.load_state_dict(block()[1].state_dict()),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changed_tensors(name):
    model = block(nn.Tanh())
    compiled = compiled_with(model)
    x = torch.randn(1, 16, 5, 5)
    same(compiled, model, x)
    CHANGES[name](model[0], model[1])
    same(compiled, model, x)
    same(compiled, model, x)


def test_channels_last_input():
    model = block(nn.SiLU()).to(memory_format=torch.channels_last)
    same(compiled_with(model), model, torch.randn(2, 16, 6, 6).to(memory_format=torch.channels_last))


def test_used_twice_is_not_folded():
    conv, norm, _ = block()

    def f(x):
        y = conv(x)
        return norm(y) + y

    same(compiled_with(f), f, torch.randn(2, 16, 6, 6))


def test_train_mode_is_not_folded():
    model, twin = block(nn.SiLU()).train(), block(nn.SiLU()).train()
    x = torch.randn(2, 16, 6, 6)
    torch.testing.assert_close(compiled_with(model)(x), twin(x), rtol=1e-5, atol=2e-5)
    torch.testing.assert_close(model[1].running_mean, twin[1].running_mean)


def test_inference_tensors_take_the_plain_road():
    with torch.inference_mode():
        conv = block()[0]
    step = PackedConvolution([1, 1], [1, 1], [1, 1], 1, [2, 16, 6, 6], lambda *_: 0)
    x = torch.randn(2, 16, 6, 6)
    for _ in range(2):
        torch.testing.assert_close(step(x, conv.weight, conv.bias), conv(x))
        with torch.inference_mode():
            conv.weight.add_(1)


def test_linear_with_activation_on_three_dimensions_and_changed_bias():
    model = nn.Sequential(nn.Linear(24, 40), nn.GELU(), nn.Linear(40, 24, bias=False), nn.SiLU())
    compiled = compiled_with(model)
    x = torch.randn(2, 7, 24)
    same(compiled, model, x)
    model[0].bias.data.add_(1)
    model[2].weight.data.mul_(2)
    same(compiled, model, x)
