"""Linear layers of many rows, carried out by a kernel of our own on a packed weight: values, what follows them, layouts, and weights that change."""

from __future__ import annotations

import gc

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import intarsia
from intarsia.targets.build.toolchain import detect_isa, dots_bfloat16
from intarsia.testing import check

DTYPES = [torch.float32, torch.bfloat16]
pytestmark = pytest.mark.skipif(detect_isa() != "avx512", reason="the kernel is for AVX-512")


def is_own(model, *args):
    """How many calls of the kernel the program of the model holds."""
    with torch.no_grad():
        return intarsia.lower(model, *args).host().count(" linear_")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "inner,columns,rows",
    [(*shape, rows) for shape in ((16, 16), (18, 17)) for rows in (8, 13, 14, 15, 29, 128, 301)]
    + [(*shape, rows) for shape in ((96, 33), (768, 48), (100, 224)) for rows in (13, 29, 301)],
)
@torch.no_grad()
def test_values(dtype, inner, columns, rows):
    torch.manual_seed(0)
    check(nn.Linear(inner, columns).to(dtype), (torch.randn(rows, inner, dtype=dtype),))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@torch.no_grad()
def test_rows_that_share_places_of_the_cache(dtype):
    torch.manual_seed(0)
    check(nn.Linear(4096, 40, bias=False).to(dtype), (torch.randn(50, 4096, dtype=dtype),))


def test_which_calls_are_taken():
    assert is_own(nn.Linear(64, 48), torch.randn(2, 20, 64)) == 1
    assert is_own(nn.Linear(64, 48).bfloat16(), torch.randn(40, 64).bfloat16()) == int(dots_bfloat16())
    assert is_own(nn.Linear(63, 48).bfloat16(), torch.randn(40, 63).bfloat16()) == 0
    assert is_own(nn.Linear(64, 48), torch.randn(1, 64)) == 0
    assert is_own(nn.Linear(64, 4), torch.randn(40, 64)) == 0
    assert is_own(nn.Linear(64, 48).double(), torch.randn(40, 64).double()) == 0


FOLLOWING = {
    "gelu": F.gelu,
    "gelu_tanh": lambda y: F.gelu(y, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "leaky_relu": lambda y: F.leaky_relu(y, 0.2),
    "hardswish": F.hardswish,
    "sigmoid": torch.sigmoid,
    "twice": lambda y: F.gelu(y) + y,
    "relu6": F.relu6,
    "softplus": F.softplus,
    "chosen": lambda y: torch.where(y > 0, y * 2, y.exp() - 1),
    "numbers for columns": lambda y: y * torch.arange(50).to(y) + 1,
    "numbers for rows": lambda y: F.silu(y) * torch.arange(11).to(y)[:, None],
    "a sine": lambda y: torch.sin(y) + 1,
    "mean and rest": lambda y: torch.tanh(y) - y.mean(-1, keepdim=True),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", FOLLOWING)
@torch.no_grad()
def test_what_follows(dtype, name):
    torch.manual_seed(0)
    layer = nn.Linear(64, 50).to(dtype)
    check(lambda x: FOLLOWING[name](layer(x)), (torch.randn(3, 11, 64, dtype=dtype),))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@torch.no_grad()
def test_residuals(dtype):
    torch.manual_seed(0)
    layer, other = nn.Linear(64, 64).to(dtype), nn.Linear(64, 64).to(dtype)
    x, r = torch.randn(20, 64, dtype=dtype), torch.randn(64, 20, dtype=dtype).t()
    check(lambda x: x + layer(x), (x,))
    check(lambda x, r: torch.relu(layer(x) + r), (x, r))
    check(lambda x: layer(x) + other(x), (x,))
    check(lambda x, r: layer(x).add_(r), (x, r))
    check(lambda x, r: r[:1] + layer(x), (x, r))
    check(lambda x: F.layer_norm(x + other(F.gelu(layer(x))), (64,)), (x,))


@torch.no_grad()
def test_layouts_and_other_operators():
    torch.manual_seed(0)
    layer = nn.Linear(64, 48)
    check(layer, (torch.randn(64, 20).t(),))
    check(lambda x: layer(x[:, 3:13]), (torch.randn(2, 25, 64),))
    check(lambda x: layer(x.transpose(1, 2)).transpose(1, 2), (torch.randn(2, 64, 25),))
    turned = nn.Linear(64, 48)
    turned.weight = nn.Parameter(torch.randn(64, 48).t())
    check(turned, (torch.randn(20, 64),))
    weight, bias = nn.Parameter(torch.randn(64, 48)), nn.Parameter(torch.randn(48))

    class Products(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = weight, bias

        def forward(self, x):
            return (
                torch.addmm(self.bias, x, self.weight),
                x @ self.weight,
                torch.addmm(self.bias, x, self.weight, beta=2),
            )

    check(Products(), (torch.randn(20, 64),))
    assert is_own(Products(), torch.randn(20, 64)) == 2


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@torch.no_grad()
def test_infinite_and_undefined_numbers(dtype):
    layer = nn.Linear(64, 50).to(dtype)
    layer.weight[3, 5], layer.weight[4, 6] = float("inf"), float("nan")
    x = torch.randn(30, 64, dtype=dtype)
    x[7, 8], x[9, 10] = float("nan"), float("-inf")
    for model in (layer, nn.Sequential(layer, nn.ReLU()), nn.Sequential(layer, nn.Sigmoid())):
        check(model, (x,))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@torch.no_grad()
def test_changed_weights(dtype):
    torch.manual_seed(0)
    layer, x = nn.Linear(96, 80).to(dtype), torch.randn(30, 96, dtype=dtype)
    compiled = intarsia.compile(layer)

    def same():
        expected = layer(x)
        torch.testing.assert_close(compiled(x), expected, rtol=2e-2, atol=1e-2 * float(expected.abs().max()))

    same()
    layer.weight.mul_(-2)
    same()
    layer.weight.data[3] = 5  # torch does not count this one
    same()
    layer.load_state_dict({k: v * 3 for k, v in layer.state_dict().items()})
    same()
    layer.weight = nn.Parameter(torch.randn_like(layer.weight))
    same()


@torch.no_grad()
def test_where_copies_may_take_no_memory():
    gc.collect()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 700), nn.GELU(), nn.Linear(700, 512))
    limit = (intarsia.counters()["packed_bytes"] >> 20) + 2  # room for one of two
    x = torch.randn(20, 512)
    compiled = intarsia.compile(model, options={"packing": limit})
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
    assert intarsia.counters()["packed_bytes"] <= limit << 20
    none = intarsia.compile(model, options={"packing": 0})
    torch.testing.assert_close(none(x), model(x), rtol=1e-4, atol=1e-4)


def test_weights_of_inference_mode_have_no_version():
    with torch.inference_mode():
        layer, x = nn.Linear(64, 48), torch.randn(30, 64)
        compiled = intarsia.compile(lambda x: F.gelu(layer(x)))
        torch.testing.assert_close(compiled(x), F.gelu(layer(x)))
        layer.weight.mul_(2)
        torch.testing.assert_close(compiled(x), F.gelu(layer(x)))


@torch.enable_grad()
def test_gradients():
    torch.manual_seed(0)
    layer, x = nn.Linear(64, 48), torch.randn(30, 64, requires_grad=True)
    expected = torch.autograd.grad(F.gelu(layer(x)).sum(), [x, *layer.parameters()])
    found = torch.autograd.grad(intarsia.compile(lambda x: F.gelu(layer(x)))(x).sum(), [x, *layer.parameters()])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_sizes_that_change_share_the_weight():
    layer = nn.Linear(256, 128)
    gc.collect()
    compiled = intarsia.compile(layer, dynamic=False)
    before = intarsia.counters()["packed_bytes"]
    for rows in (20, 40, 60):
        x = torch.randn(rows, 256)
        torch.testing.assert_close(compiled(x), layer(x), rtol=1e-4, atol=1e-4)
    assert intarsia.counters()["packed_bytes"] - before == layer.weight.nbytes


@torch.no_grad()
def test_the_error_does_not_grow_with_the_inner_size():
    torch.manual_seed(0)
    models = [nn.Linear(inner, 64, bias=False).eval() for inner in (64, 768, 4096)]
    xs = [torch.randn(16, model.in_features) for model in models]
    found = intarsia.compile(lambda *xs: [model(x) for model, x in zip(models, xs, strict=True)])(*xs)
    for model, x, result in zip(models, xs, found, strict=True):
        gold = x.double() @ model.weight.double().t()
        ours, eager = ((y.double() - gold).square().mean().sqrt() for y in (result, model(x)))
        assert ours <= 1.6 * eager
