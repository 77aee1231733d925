"""Attention whose scores a program changes, element by element: one kernel, with what happens to them as its region."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import intarsia
from intarsia.ir.interpreter.run import run
from intarsia.ir.text import parse_module

B, H, D = 2, 4, 24
Change = Callable[[Tensor, "Case"], Tensor]


class Case:
    """Operands of an attention, and tensors for its scores, in one of several layouts."""

    def __init__(self, seed: int, dtype: torch.dtype = torch.float32) -> None:
        torch.manual_seed(seed)
        self.rng = random.Random(seed)
        self.rows, self.keys = self.rng.choice([(1, 40), (5, 13), (17, 33), (70, 70), (9, 700)])
        self.shared = self.rng.choice((1, 1, 2))
        heads = H // self.shared
        self.q = torch.randn(B, self.rows, H, D).to(dtype).transpose(1, 2)
        self.k, self.v = (torch.randn(B, heads, self.keys, D).to(dtype) for _ in range(2))
        bias = torch.randn(self.keys, self.rows).to(dtype).t() if seed % 2 else torch.randn(B, 1, self.rows, self.keys)
        self.tensors = [
            bias.to(dtype),
            torch.rand(H),
            torch.randint(0, 3, (B, self.rows)),
            torch.randint(0, 3, (B, self.keys)),
        ]
        self.tensors.append(torch.rand(B, H, self.rows, self.keys) < 0.3)


def positions(s: Tensor) -> tuple[Tensor, Tensor]:
    return torch.arange(s.shape[-2])[:, None], torch.arange(s.shape[-1])[None]


def capped(s: Tensor, *_: Tensor) -> Tensor:
    return torch.tanh(s / 3.0) * 3.0


def distances(s: Tensor, bias: Tensor, slopes: Tensor, *_: Tensor) -> Tensor:
    i, j = positions(s)
    return capped(s) - slopes[:, None, None] * (i - j).abs()


def window(s: Tensor, *_: Tensor) -> Tensor:
    i, j = positions(s)
    return torch.where((i - j).abs() < 4, capped(s), -torch.inf)


def causal(s: Tensor, *_: Tensor) -> Tensor:
    i, j = positions(s)
    return capped(s).masked_fill(j > i, torch.finfo(s.dtype).min)


def documents(s: Tensor, bias: Tensor, slopes: Tensor, a: Tensor, b: Tensor, *_: Tensor) -> Tensor:
    return (s * 0.3).sigmoid().masked_fill(a[:, None, :, None] != b[:, None, None], -torch.inf)


def factor(s: Tensor, bias: Tensor, *_: Tensor) -> Tensor:
    return (s + bias) * 0.5


def gated(s: Tensor, *_: Tensor) -> Tensor:
    return s * s.sigmoid()


def moderate(s: Tensor, bias: Tensor, slopes: Tensor, a: Tensor, b: Tensor, shut: Tensor) -> Tensor:
    return s.masked_fill(shut, -2.0)  # no mask: something is left of these scores


def scaled(s: Tensor, bias: Tensor, slopes: Tensor, *_: Tensor) -> Tensor:
    return s * slopes[None, :, None, None]


CHANGES = [capped, distances, window, causal, documents, factor, gated, moderate, scaled]


def attention(change: Callable[..., Tensor], shared: int) -> Callable[..., Tensor]:
    def fn(q: Tensor, k: Tensor, v: Tensor, *tensors: Tensor) -> Tensor:
        if shared > 1:
            b, h, n, d = k.shape
            k, v = (x[:, :, None].expand(b, h, shared, n, d).reshape(b, h * shared, n, d) for x in (k, v))
        scores = q @ k.transpose(-2, -1) / math.sqrt(D)
        return (change(scores, *tensors).softmax(-1).to(v.dtype) @ v).transpose(1, 2)

    return fn


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
def test_one_kernel(change: Callable[..., Tensor], seed: int) -> None:
    """Values, and that no product is left."""
    case = Case(1000 + seed * 7 + CHANGES.index(change))
    fn = attention(change, case.shared)
    args = [case.q, case.k, case.v, *case.tensors]
    with torch.no_grad():
        expected = fn(*args)
        found = intarsia.compile(fn, options={"verify_each": True})(*args)
        torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-5, equal_nan=True)
        last = intarsia.lower(fn, *args).stages["plan-buffers"]
        assert "bmm" not in last and last.count("buffer.extern<aten.scaled_dot_product_attention.default>") == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_types(dtype: torch.dtype) -> None:
    for change in (capped, distances, factor):
        case = Case(3, dtype)
        fn = attention(change, case.shared)
        args = [case.q, case.k, case.v, *case.tensors]
        with torch.no_grad():
            expected = fn(*(x.float() if x.is_floating_point() else x for x in args))
            found = intarsia.compile(fn)(*args)
        torch.testing.assert_close(found.float(), expected, rtol=4e-2, atol=4e-2)


def test_rows_that_are_shut() -> None:
    """-inf all over gives nan, a low number the mean of the values, as the operations say; nan and inf stay what they are."""
    q, k, v = (torch.randn(1, 2, 30, D) for _ in range(3))
    q[0, 0, 4, 0], k[0, 1, 7, 0] = torch.nan, torch.inf
    shut = torch.rand(30, 30) < 0.2
    shut[3] = True
    for number in (-torch.inf, -1e30):

        def fn(q: Tensor, k: Tensor, v: Tensor, shut: Tensor, number: float = number) -> Tensor:
            return capped(q @ k.transpose(-2, -1)).masked_fill(shut, number).softmax(-1) @ v

        expected, found = fn(q, k, v, shut), intarsia.compile(fn)(q, k, v, shut)
        assert expected[0, 0, 3].isnan().all() == (number == -torch.inf)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_sizes_that_change() -> None:
    compiled = intarsia.compile(attention(distances, 1), dynamic=True)
    slopes = torch.rand(H)
    for rows, keys in ((5, 7), (20, 33), (1, 90), (90, 12)):
        q, k, v = torch.randn(B, H, rows, D), torch.randn(B, H, keys, D), torch.randn(B, H, keys, D)
        expected = attention(distances, 1)(q, k, v, q, slopes)
        torch.testing.assert_close(compiled(q, k, v, q, slopes), expected, rtol=2e-5, atol=2e-5)


def test_gradients() -> None:
    """The weights are kept for the gradient: these stay products."""
    q, k, v = (torch.randn(1, 2, 12, D, requires_grad=True) for _ in range(3))
    fn = attention(capped, 1)
    with torch.enable_grad():
        expected = torch.autograd.grad(fn(q, k, v).square().sum(), (q, k, v))
        found = torch.autograd.grad(intarsia.compile(fn)(q, k, v).square().sum(), (q, k, v))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_what_is_no_change_of_single_elements() -> None:
    """Scores of other places, scores that are read again, an angle: these stay products."""
    q, k, v = (torch.randn(1, 2, 12, D) for _ in range(3))
    for change in (
        lambda s: s + s.flip(-1),
        lambda s: s.transpose(-2, -1).tanh(),
        lambda s: s - s.mean(-1, keepdim=True),
        lambda s: s + s.roll(1, -1),
        lambda s: s.sin(),
    ):
        fn = attention(change, 1)
        with torch.no_grad():
            torch.testing.assert_close(intarsia.compile(fn)(q, k, v), fn(q, k, v), rtol=1e-5, atol=1e-5)
            assert "scaled_dot_product" not in intarsia.lower(fn, q, k, v).stages["plan-buffers"]


def test_the_region_is_text() -> None:
    """The call parses back at each level, and the interpreter gives the same values from it."""

    def fn(k: Tensor, q: Tensor, slopes: Tensor, v: Tensor) -> Tensor:
        return attention(distances, 1)(q, k, v, q, slopes)

    args = [torch.randn(1, 2, 12, D), torch.randn(1, 2, 12, D), torch.rand(2), torch.randn(1, 2, 12, D)]
    stages = intarsia.lower(fn, *args).stages
    assert "prim.tanh" in stages["match-attention"].split("scaled_dot_product")[1].split("kernel.yield")[0]
    for level in ("match-attention", "layout"):
        module = parse_module(stages[level])
        names = module.body.block.first_op["arg_names"]  # type: ignore[index,union-attr]
        (found,) = run(module, [args[["k", "q", "slopes", "v"].index(name)] for name in names])
        torch.testing.assert_close(found, fn(*args), rtol=1e-5, atol=1e-5)
