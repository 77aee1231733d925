"""Writes to parts of tensors whose bounds are read: `y[:, k:] += 1`. One graph without gradients, right with them."""

import itertools
import random
import types

import pytest
import torch
from harness import number_backend
from torch import Tensor

import intarsia
from intarsia.frontend.functional.overlap import _is_apart, is_folded
from intarsia.frontend.torch_private.symbols import new_shape_env, unknown_int


def columns(x: Tensor, k: int) -> Tensor:
    y = x.clone()
    y[:, k:] += 1
    y[k:] *= x[0]
    return y


def corner(x: Tensor, k: int) -> Tensor:
    y = x * 2
    y[k:, k:] += 1
    y[..., -k:] -= 2
    y[1:k, k:] = 0
    return y.sum(0)


def between(x: Tensor, k: int) -> Tensor:
    y = x * 2
    y[:, k : k + 2] = 7
    y.t()[k:] -= 1
    return y


def of_the_caller(x: Tensor, k: int) -> Tensor:
    x = x.detach() if x.requires_grad else x
    x[:, k:] += 1
    return x * 2


def another_key(x: Tensor, k: int) -> Tensor:
    """What is written is no part of the same place."""
    y = x * 2
    part = y[k:]
    y[: y.shape[0] - k] = part * 1
    return y


def another_layout(x: Tensor, k: int) -> Tensor:
    """The tensor lies otherwise when its part is written back."""
    y = x[:3, :3] * 2
    part = y[k:]
    y.t_()
    y[k:] = part * 3
    return y


def part_changed(x: Tensor, k: int) -> Tensor:
    y = x[:3, :3] * 2
    part = y[k:, k:]
    part.t_()
    y[k:, k:] = part
    return y


def windows(x: Tensor, k: int) -> Tensor:
    """Elements of windows lie in the same place."""
    y = (x * 2).unfold(1, 2, 1)
    y[k:] += 1
    return y


def expanded(x: Tensor, k: int) -> Tensor:
    y = (x * 2)[:, None].expand(3, 2, 4)
    y[k:] += 1
    return y


ONE_GRAPH = (columns, corner, between, of_the_caller)


def seen(function, x, n, grad):
    x = x.clone().requires_grad_(grad)
    try:
        made = function(x, n)
    except RuntimeError as error:
        return str(error)
    if made.requires_grad:
        made.square().sum().backward()
    return made.detach(), x.detach(), x.grad


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    "function", [*ONE_GRAPH, another_key, another_layout, part_changed, windows, expanded], ids=lambda f: f.__name__
)
def test_a_write_to_a_part(function, grad):
    intarsia.reset()

    def read(x, n):
        return function(x, n.item())

    fast = intarsia.compile(read, backend=number_backend)
    torch.manual_seed(0)
    for n in (1, 2, 0, 3, 1, 2):
        x, n = torch.randn(3, 4), torch.tensor(n)
        expected, found = seen(read, x, n, grad), seen(fast, x, n, grad)
        if isinstance(expected, str):
            assert found == expected
        else:
            torch.testing.assert_close(found, expected)
    if function in ONE_GRAPH and not grad:
        counts = intarsia.counters()
        assert counts["captures"] == 1
        assert not counts["breaks"]


def test_compiled():
    intarsia.reset()
    fast = intarsia.compile(lambda x, n: columns(x, n.item()) + corner(x, n.item()))
    for n in (2, 1, 3):
        x = torch.randn(3, 4)
        torch.testing.assert_close(fast(x, torch.tensor(n)), columns(x, n) + corner(x, n))
    assert not intarsia.counters()["breaks"]


def test_apart_is_apart_for_all_sizes():
    """Random layouts: what is said to be apart has no two elements in one place, for any sizes within the bounds."""
    draw, said = random.Random(0), 0
    for _ in range(300):
        env, most = new_shape_env(), [draw.randint(0, 4) for _ in range(draw.randint(1, 3))]
        strides = tuple(draw.choice([0, 1, 2, 3, 4, 5, 8, 12, 15]) for _ in most)
        unknown = [draw.random() < 0.6 for _ in most]
        sizes = tuple(unknown_int(env, 0, n) if odd else n for n, odd in zip(most, unknown, strict=True))
        apart = _is_apart(types.SimpleNamespace(shape=sizes, stride=lambda strides=strides: strides))
        if not any(unknown):
            assert not apart
        if apart:
            said += 1
            for found in itertools.product(
                *(range(n + 1) if odd else [n] for n, odd in zip(most, unknown, strict=True))
            ):
                assert not is_folded(torch.empty_strided(found, strides))
    assert said > 30, said
