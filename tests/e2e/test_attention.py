"""Attention by the kernel of our own: values, strides, masks, shared heads, sizes that are no multiple of anything."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import intarsia
from intarsia.testing import check

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
sdpa = F.scaled_dot_product_attention


def heads(x):
    """(batch, rows, heads, depth) as attention takes it, without a copy."""
    return x.transpose(1, 2)


def inputs(dtype, batch=2, queries=10, keys=13, q_heads=4, kv_heads=4, depth=16):
    torch.manual_seed(0)
    q = torch.randn(batch, queries, q_heads, depth, dtype=dtype)
    return q, *(torch.randn(batch, keys, kv_heads, depth, dtype=dtype) for _ in range(2))


def taken_over(fn, *args):
    """Right by the accuracy rule, and not a library call."""
    with torch.no_grad():
        check(fn, args)
        assert "scaled_dot_product" not in str(intarsia.explain(fn)(*args).graphs[0].library)


SIZES = [(1, 7), (2, 300), (20, 1100), (49, 49), (130, 257), (600, 33)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_sizes(dtype, causal):
    for queries, keys in SIZES if dtype == torch.float32 else SIZES[2::2]:
        taken_over(
            lambda q, k, v: sdpa(heads(q), heads(k), heads(v), is_causal=causal),
            *inputs(dtype, 1, queries, keys, 2, 2, 24),
        )


@pytest.mark.parametrize("depth", [1, 5, 40, 80, 128])
def test_depths(depth):
    taken_over(lambda q, k, v: sdpa(heads(q), heads(k), heads(v), scale=0.3), *inputs(torch.float32, depth=depth))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_of_another_width_and_other_layouts(dtype):
    q, k, v = inputs(dtype, queries=13)
    taken_over(lambda q, k, v: sdpa(q[..., :7], k.flip(2)[..., :7], v[..., :5] * 2), q, k, v)
    taken_over(lambda q, k, v: heads(sdpa(heads(q), heads(k), heads(v))).reshape(2, 13, 64), q, k, v)
    taken_over(lambda q, k, v: sdpa(q.transpose(2, 3), k.transpose(2, 3), v.transpose(2, 3)), q, k, v)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(2, 4, 10, 13), (2, 1, 1, 13), (1, 4, 10, 13), (10, 13), (4, 10, 1)], ids=str)
def test_masks(dtype, shape):
    q, k, v = inputs(dtype)
    for mask in (torch.randn(shape, dtype=dtype), torch.rand(shape) > 0.4):
        taken_over(lambda q, k, v, m: sdpa(heads(q), heads(k), heads(v), m), q, k, v, mask)
        if dtype == torch.float32:
            taken_over(lambda q, k, v, m: sdpa(heads(q), heads(k), heads(v), m.expand(2, 4, 10, 13)), q, k, v, mask)


@pytest.mark.parametrize("low", [False, True])
def test_rows_in_which_all_is_masked(low):
    q, k, v = inputs(torch.float32, keys=600)
    mask = torch.rand(10, 600) > 0.5
    mask[3], mask[4, :590], mask[5, 520:] = False, False, False
    given = torch.zeros(10, 600).masked_fill(~mask, float("-inf")) if low else mask
    taken_over(lambda q, k, v, m: sdpa(heads(q), heads(k), heads(v), m), q, k, v, given)
    assert intarsia.compile(sdpa)(heads(q), heads(k), heads(v), given)[:, :, 3].eq(0).all()


def test_infinite_and_undefined_scores():
    q, k, v = inputs(torch.float32)
    q[0, 1, 0, 0], q[0, 2, 1, 0], k[1, 3, 2, 0] = float("nan"), float("inf"), float("nan")
    expected, found = (f(heads(q), heads(k), heads(v)) for f in (sdpa, intarsia.compile(sdpa)))
    torch.testing.assert_close(found, expected, equal_nan=True)


@pytest.mark.parametrize("queries", [1, 2, 10, 40])
@pytest.mark.parametrize("causal", [False, True])
def test_shared_heads(queries, causal):
    q, k, v = inputs(torch.float32, queries=queries, kv_heads=2)

    def repeated(x):
        b, h, rows, depth = x.shape
        return x[:, :, None].expand(b, h, 2, rows, depth).reshape(b, 2 * h, rows, depth)

    taken_over(lambda q, k, v: sdpa(heads(q), heads(k), heads(v), is_causal=causal, enable_gqa=True), q, k, v)
    taken_over(lambda q, k, v: sdpa(heads(q), repeated(heads(k)), repeated(heads(v)), is_causal=causal), q, k, v)


def test_sizes_that_change():
    compiled = intarsia.compile(lambda q, k, v: heads(sdpa(heads(q), heads(k), heads(v))), dynamic=True)
    for batch, queries, keys in [(2, 10, 13), (3, 5, 7), (1, 40, 41), (2, 1, 300)]:
        q, k, v = inputs(torch.float32, batch, queries, keys)
        expected = heads(sdpa(heads(q), heads(k), heads(v)))
        torch.testing.assert_close(compiled(q, k, v), expected)


def test_two_threads_are_right():
    q, k, v = inputs(torch.float32, 2, 600, 600)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        taken_over(lambda q, k, v: sdpa(heads(q), heads(k), heads(v)), q, k, v)
    finally:
        torch.set_num_threads(before)


def written(q, k, v, mask=None, scale=0.25):
    """Attention as models write it."""
    scores = torch.matmul(q, k.transpose(-1, -2)) * scale
    if mask is not None:
        scores = scores + mask
    return torch.matmul(F.softmax(scores, dim=-1), v).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("shape", [None, (2, 1, 1, 13), (2, 4, 10, 13), (10, 13)], ids=str)
def test_written_attention_is_recognised(shape):
    q, k, v = (heads(x).contiguous() for x in inputs(torch.float32))
    mask = () if shape is None else (torch.randn(shape),)
    with torch.no_grad():
        check(written, (q, k, v, *mask))
        assert "aten.bmm.default" not in intarsia.explain(written)(q, k, v, *mask).graphs[0].library
        if mask:
            mask[0][..., 0, :] = float("-inf")  # nan, where the operator gives zeros
            check(written, (q, k, v, *mask))
            assert intarsia.compile(written)(q, k, v, *mask).isnan().any()


def test_written_attention_that_is_something_else():
    q, k, v = (heads(x).contiguous() for x in inputs(torch.float32))

    def over_queries(q, k, v):
        return torch.matmul(F.softmax(torch.matmul(q, k.transpose(-1, -2)), dim=-2), v)

    def with_weights(q, k, v):
        weights = F.softmax(torch.matmul(q, k.transpose(-1, -2)), dim=-1)
        return torch.matmul(weights, v), weights

    with torch.no_grad():
        for fn in (over_queries, with_weights):
            check(fn, (q, k, v))


def filled(number):
    def attention(q, k, v, m):
        scores = (q @ k.transpose(-1, -2) / 4).masked_fill(m, number)
        return scores.softmax(-1) @ v

    return attention


def added_and_filled(q, k, v, m):
    scores = (q @ k.transpose(-1, -2)).float() * 0.25 + m.float().to(q.dtype).float()
    return scores.masked_fill(m, -1e9).softmax(-1).to(q.dtype) @ v


def triangle(q, k, v, m):
    shut = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)
    return (q * 0.25 @ k.transpose(-1, -2)).masked_fill(shut, float("-inf")).softmax(-1) @ v


def three(q, k, v, m):
    q, k, v, m = (x.flatten(0, 1) for x in (q, k, v, m.expand(-1, q.shape[1], -1, -1)))
    bias = torch.zeros(m.shape, dtype=q.dtype).masked_fill(m, float("-inf"))
    return torch.baddbmm(bias, q, k.transpose(1, 2), beta=1, alpha=0.25).softmax(-1) @ v


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("fn", [filled(float("-inf")), filled(-6e4), added_and_filled, triangle, three])
def test_written_masks_are_recognised(fn, dtype):
    """A row is shut all over, in another only the last key is open; float16 has no number beside which a score vanishes."""
    q, k, v = (heads(x).contiguous() for x in inputs(dtype))
    mask = torch.rand(2, 1, 10, 13) < 0.4
    mask[0, :, 3], mask[1, :, 4, :12], mask[1, :, 4, 12] = True, True, False
    with torch.no_grad():
        found = intarsia.compile(fn)(q, k, v, mask)
        expected = fn(*(x.float() for x in (q, k, v)), mask)
        bound = 1e-5 if dtype == torch.float32 else 4e-3
        torch.testing.assert_close(found.float(), expected, atol=bound, rtol=bound, equal_nan=True)
        assert "bmm" not in str(intarsia.explain(fn)(q, k, v, mask).graphs[0].library)
