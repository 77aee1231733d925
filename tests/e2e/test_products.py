"""Products with a parameter through other calls than ATen's: values, dtypes, and weights that change between calls."""

from __future__ import annotations

import gc
import json
import threading

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import intarsia
from intarsia.targets.host.packed import Copies
from intarsia.targets.measure import choices
from intarsia.targets.torch_private import onednn_bfloat16, onednn_linear
from intarsia.testing import check

FIXED = {"libraries": "fixed"}
DTYPES = [torch.float32, torch.bfloat16]


def layers(dtype, bias=True, inner=160):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(96, inner, bias), nn.GELU(), nn.Linear(inner, 33, bias)).to(dtype).eval()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 2, 5, 64])
@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_values(dtype, rows, bias):
    check(layers(dtype, bias), (torch.randn(rows, 96, dtype=dtype),))


@pytest.mark.skipif(not onednn_bfloat16, reason="oneDNN does not multiply in bfloat16 on this processor")
@torch.no_grad()
def test_bfloat16_is_packed():
    model, x = layers(torch.bfloat16), torch.randn(6, 96, dtype=torch.bfloat16)  # our kernel takes more rows
    assert calls_of(model, x, libraries="fixed") == {"packed-product": 2}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 64])
@torch.no_grad()
def test_changed_weights(dtype, rows):
    model, x = layers(dtype), torch.randn(rows, 96, dtype=dtype)
    compiled = intarsia.compile(model)

    def same():
        expected = model(x)
        least = 1e-3 if dtype == torch.float32 else 0.01 * float(expected.abs().max())  # sums of bfloat16 cancel
        torch.testing.assert_close(compiled(x), expected, rtol=2e-2, atol=least)

    same()
    model[0].weight.mul_(-2)
    same()
    model[0].weight.data[3] = 5  # torch does not count this one
    same()
    model.load_state_dict({k: v * 3 for k, v in model.state_dict().items()})
    same()
    model[2].weight = nn.Parameter(torch.randn_like(model[2].weight))
    same()


@torch.no_grad()
def test_programs_share_a_packed_copy():
    gc.collect()
    before = intarsia.counters()["packed_bytes"]
    layer, x = nn.Linear(256, 512), torch.randn(64, 256)
    first, second = (intarsia.compile(fn, options=FIXED) for fn in (lambda x: layer(x) + 1, lambda x: layer(x) * 2))
    first(x), second(x)
    assert intarsia.counters()["packed_bytes"] - before == layer.weight.nbytes
    layer.weight.add_(1)
    torch.testing.assert_close(first(x), layer(x) + 1, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(second(x), layer(x) * 2, rtol=1e-4, atol=1e-4)


def test_a_copy_is_given_back_with_its_last_owner():
    copies, weight = Copies(), torch.randn(8, 8)
    first = copies.get("a", weight, torch.clone, -1)
    assert copies.get("a", weight, torch.clone, -1) is first and copies.bytes == weight.nbytes
    assert copies.get("b", weight, torch.clone, 300) is None and copies.refused == 1
    del first
    assert copies.bytes == 0 and copies.get("b", weight, torch.clone, 300) is not None


@torch.no_grad()
def test_packed_copies_are_bounded():
    gc.collect()
    held = intarsia.counters()["packed_bytes"]
    model, x = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 512)), torch.randn(64, 512)  # a MiB each
    limit = (held >> 20) + 2
    compiled = intarsia.compile(model, options={"packing": limit} | FIXED)
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
    assert held < intarsia.counters()["packed_bytes"] <= limit << 20


@torch.no_grad()
def test_two_threads_while_a_weight_changes():
    model, x = layers(torch.float32), torch.randn(64, 96)
    compiled = intarsia.compile(model)
    compiled(x)
    for _ in range(5):
        model[2].bias.zero_()
        model[2].weight.mul_(2)
        expected = model(x)
        found: list[torch.Tensor] = []

        def call(found=found):
            with torch.no_grad():
                found.append(compiled(x))

        threads = [threading.Thread(target=call) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for got in found:
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-3)


def calls_of(model, *args, **options):
    return intarsia.explain(model, options=options)(*args).graphs[0].library


@torch.no_grad()
def test_the_choice_is_measured_once_and_kept(tmp_path, monkeypatch):
    measured = []
    monkeypatch.setattr(choices, "_measure_product", lambda *shape: measured.append(shape) or "operator")
    x, options = torch.randn(6, 96), {"cache_dir": str(tmp_path), "libraries": "measure"}
    model = layers(torch.float32)
    assert calls_of(model, x, **options) == {"aten.linear.default": 2}
    assert [shape[:3] for shape in measured] == [(8, 128, 256), (8, 256, 64)]
    (table,) = tmp_path.glob("intarsia-cache/measured-*.json")
    assert set(json.loads(table.read_text()).values()) == {"operator"}
    assert calls_of(layers(torch.float32, inner=161), x, **options) == {"aten.linear.default": 2}
    assert len(measured) == 2  # the same buckets
    assert calls_of(model, x, **options | {"libraries": "fixed"}) == {"packed-product": 2}
    table.write_text("{ damaged")
    assert calls_of(layers(torch.float32, inner=162), x, **options) == {"aten.linear.default": 2}
    assert len(measured) == 4


@torch.no_grad()
def test_a_real_measurement_names_a_candidate():
    for dtype in (torch.float32, torch.bfloat16) if onednn_bfloat16 else (torch.float32,):
        for transposed in (False, True):
            found = choices._measure_product(4, 64, 64, dtype, transposed, True)
            assert found in (choices.PACKED, choices.OPERATOR)
            found = choices._measure_lying(4, 64, 64, dtype, transposed, True, turned=True)
            assert found in (choices.LYING, choices.OPERATOR)


def lies(rows, columns, how):
    """A matrix of that size, lying in memory in some way."""
    return {
        "rows": lambda: torch.randn(rows, columns),
        "columns": lambda: torch.randn(columns, rows).t(),
        "gaps": lambda: torch.randn(rows, columns + 5)[:, 2:-3],
        "gaps in columns": lambda: torch.randn(columns, rows + 5)[:, 1:-4].t(),
        "steps": lambda: torch.randn(rows, 2 * columns)[:, ::2],
        "one row": lambda: torch.randn(1, columns).expand(rows, columns),
        "overlapping": lambda: torch.randn(rows + columns).as_strided((rows, columns), (1, 1)),
    }[how]()


@pytest.mark.parametrize("weight", ["rows", "columns", "gaps", "gaps in columns", "steps", "one row", "overlapping"])
@torch.no_grad()
def test_factors_as_they_lie(weight):
    """Products of computed values and of weights that change: oneDNN takes what has no gaps along one side, ATen the others."""
    torch.manual_seed(0)

    def products(a, b, bias):
        return torch.mm(a, b), torch.addmm(bias, a, b), F.linear(a, b.t(), bias), torch.addmm(bias, a, b, beta=0.5)

    for x in ("rows", "columns", "steps", "one row"):
        args = lies(24, 40, x), lies(40, 48, weight), torch.randn(48)
        found = calls_of(products, *args, libraries="fixed")
        taken = onednn_linear is not None and weight in ("rows", "columns", "gaps", "gaps in columns")
        assert found.get("product", 0) == (3 if taken else 0) and sum(found.values()) == 4
        for a, b in zip(intarsia.compile(products, options=FIXED)(*args), products(*args), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
            assert a.stride() == b.stride()
    doubles = [t.double() for t in args]
    assert "product" not in calls_of(products, *doubles, libraries="fixed")


@torch.enable_grad()
def test_products_of_training():
    model, x = layers(torch.float32), torch.randn(64, 96)
    expected = torch.autograd.grad(model(x).square().sum(), model.parameters())
    found = torch.autograd.grad(intarsia.compile(model, options=FIXED)(x).square().sum(), model.parameters())
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
        assert a.stride() == b.stride()


@torch.no_grad()
def test_a_weight_that_the_program_writes_is_not_packed():
    model, x = nn.Linear(96, 160), torch.randn(64, 96)

    def step(x):
        y = model(x)
        model.weight.mul_(0.5)
        return y

    assert intarsia.explain(step, options=FIXED)(x).graphs[0].library.get("packed-product") is None


# inputs, outputs, window, stride, padding, dilation, images, pixels; whether the weight's gradient is a product
GRADIENTS = [
    ((256, 240, 3, 1, 1, 1, 2, 5), True),
    ((256, 240, (3, 3), (2, 1), (0, 2), (1, 2), 2, 7), True),
    ((1024, 512, 1, 2, 0, 1, 3, 4), True),
    ((240, 240, 3, 1, 1, 1, 2, 5), False),  # a small weight
    ((256, 240, 3, 1, 1, 1, 8, 20), False),  # many pixels
    ((512, 512, 3, 1, 1, 1, 2, 5, 2), False),  # two groups
]


@pytest.mark.parametrize(("sizes", "taken"), GRADIENTS)
@torch.enable_grad()
def test_gradients_of_convolutions(sizes, taken):
    inputs, outputs, window, stride, padding, dilation, images, pixels, *groups = sizes
    how = stride, padding, dilation, *(groups or [1])
    torch.manual_seed(0)
    x, weight = (
        torch.randn(images, inputs, pixels, pixels),
        torch.randn(outputs, inputs // how[3], *(window if type(window) is tuple else (window, window))),
    )
    shift = torch.randn(outputs)

    def gradients(x, weight, shift):
        y = F.conv2d(x, weight, shift, *how)
        return torch.autograd.grad(y.sigmoid().sum(), (x, weight, shift))

    args = [t.requires_grad_() for t in (x, weight, shift)]
    found = calls_of(gradients, *args, libraries="fixed")
    assert found.get("convolution-gradient", 0) == (taken and onednn_linear is not None)
    for layout in (torch.contiguous_format, torch.channels_last):
        args[0] = x.detach().to(memory_format=layout).requires_grad_()
        for a, b in zip(intarsia.compile(gradients, options=FIXED)(*args), gradients(*args), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)
            assert a.stride() == b.stride()


@torch.enable_grad()
def test_nothing_is_packed_of_weights_that_are_trained():
    """An optimizer outside changes them in every step: a packed copy, or Winograd's weights, would serve one call."""
    model = nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.Flatten(), nn.Linear(32 * 64, 64))
    x = torch.randn(4, 32, 8, 8)

    def step(x):
        loss = model(x).square().sum()
        loss.backward()
        return loss

    lowered = intarsia.lower(step, x)
    assert "constants" not in str(lowered.ir())
    found = calls_of(step, x, libraries="fixed")
    assert "packed-product" not in found and "packed-convolution" not in found and "aten.convolution.default" in found
    model.requires_grad_(False)
    assert "constants" in str(intarsia.lower(model, x).ir())
