"""Linear layers of a few rows, which read the weight where it lies: values, layouts, and weights that change between calls."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.nn as nn

import intarsia
from intarsia.testing import check

DTYPES = [torch.float32, torch.bfloat16]


def is_own(model, *args):
    """Whether the program of the model calls the kernel that these tests are about."""
    with torch.no_grad():
        return "rows_" in intarsia.lower(model, *args).host()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 2, 3, 4])
@pytest.mark.parametrize("inner,outer", [(1, 1), (7, 5), (33, 17), (96, 64), (160, 257)])
@torch.no_grad()
def test_values(dtype, bias, rows, inner, outer):
    torch.manual_seed(0)
    check(nn.Linear(inner, outer, bias).to(dtype), (torch.randn(rows, inner, dtype=dtype),))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_it_is_the_own_kernel(dtype):
    model = nn.Linear(64, 48).to(dtype)
    assert is_own(model, torch.randn(1, 1, 64, dtype=dtype))
    assert not is_own(model, torch.randn(64, 64, dtype=dtype))


@torch.no_grad()
def test_layouts_of_inputs_and_weights():
    torch.manual_seed(0)
    model = nn.Linear(64, 48)
    check(model, (torch.randn(64, 2).t(),))
    check(lambda x: model(x[:, -1:, :]), (torch.randn(2, 5, 64),))
    turned = nn.Linear(64, 48)
    turned.weight = nn.Parameter(torch.randn(64, 48).t())
    check(turned, (torch.randn(2, 64),))
    check(lambda x: model(x).transpose(0, 1), (torch.randn(2, 64),))


@torch.no_grad()
def test_infinite_and_undefined_numbers():
    model = nn.Linear(64, 48)
    model.weight[3, 5] = float("inf")
    model.weight[4, 6] = float("nan")
    check(model, (torch.randn(1, 64),))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@torch.no_grad()
def test_changed_weights(dtype):
    torch.manual_seed(0)
    model, x = nn.Linear(96, 80).to(dtype), torch.randn(1, 96, dtype=dtype)
    compiled = intarsia.compile(model)

    def same():
        torch.testing.assert_close(compiled(x), model(x), rtol=2e-2, atol=1e-3)

    same()
    model.weight.mul_(-2)
    same()
    model.weight.data[3, 4] = 5  # nothing is copied, so that a write that torch does not count is seen too
    same()
    model.load_state_dict({k: v * 3 for k, v in model.state_dict().items()})
    same()
    model.weight = nn.Parameter(torch.randn_like(model.weight))
    same()
    model.weight = nn.Parameter(torch.randn(96, 80, dtype=dtype).t())
    same()


@torch.no_grad()
def test_two_threads():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(96, 256), nn.GELU(), nn.Linear(256, 33))
    compiled, wrong = intarsia.compile(model), []
    inputs = [torch.randn(1, 96) for _ in range(2)]
    wanted = [model(x) for x in inputs]
    compiled(inputs[0])

    def work(k):
        for _ in range(200):
            if not torch.allclose(compiled(inputs[k]), wanted[k], atol=1e-5):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
