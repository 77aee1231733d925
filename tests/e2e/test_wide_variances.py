"""Variances of values whose squares leave the range of float32, and of too few values: eager computes in float64 on a CPU."""

import random

import pytest
import torch

import intarsia


def moments(x):
    return (
        x.var(),
        x.var(0),
        x.std(1, correction=0),
        *torch.var_mean(x, (0, 1)),
        x.var(1, correction=4),
        torch.std(x, 0),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_of_every_size(dtype):
    rng = random.Random(5)
    fast = intarsia.compile(moments, dynamic=False)
    for _ in range(12):
        x = (torch.randn(6, 4) + rng.choice((0.0, 3.0))) * 10.0 ** rng.uniform(-44, 38)
        x = x.to(dtype)
        wide = torch.finfo(dtype).eps * 4
        for found, wanted in zip(fast(x), moments(x), strict=True):
            torch.testing.assert_close(found, wanted, rtol=max(wide, 1e-5), atol=1e-44, equal_nan=True)
    for special in (float("inf"), float("nan")):
        x = torch.ones(6, 4, dtype=dtype)
        x[2, 1] = special
        assert [r.isnan().tolist() for r in fast(x)] == [r.isnan().tolist() for r in moments(x)]


def test_of_too_few():
    def few(x):
        return x.var(0), x.std(0, correction=2), torch.var_mean(x, 0), x.var(correction=2.5), x[:0].var(), x[:0].std(0)

    x = torch.tensor([[1.0, 2.0, 1e30]])
    with pytest.warns(UserWarning, match="degrees of freedom"):
        found, wanted = intarsia.compile(few, dynamic=False)(x), few(x)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=0, equal_nan=True)
