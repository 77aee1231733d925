"""Sizes that a tensor's values decide may be 0: the strides of what is empty are eager's."""

import random

import pytest
import torch

import intarsia


def identity(y, n):
    return torch.eye(y[y > 0].shape[0])


def made(y, n):
    return torch.zeros(3, n, 4), torch.ones(n, n), torch.zeros(n, 2, n, 3).sum(0)


def products(y, n):
    a = y[y > 0]
    b = a[:, None] * a[None]
    c = torch.stack([a, a])
    return b, b.t() + 1, c, torch.nonzero(y > 0), c[:, :, None] * torch.ones(3), b @ b, b.expand(2, -1, -1)


def views(y, n):
    b = torch.ones(2, n, 3) * n
    return b, b.transpose(0, 1).reshape(n, 6), b.permute(2, 0, 1).clone(), b[:, :n], b[..., :2]


def parts(y, n):
    b = y[:, None].repeat(1, 5)
    return b[:, :n].clone() * 2, b[:, :n] + 1, torch.cat([b[:, :n], b[:, :n]], 1)


@pytest.mark.parametrize("function", [identity, made, products, views, parts])
def test_strides(function):
    def program(y, n):
        return function(y, n.item())

    rng, compiled = random.Random(function.__name__), intarsia.compile(program)
    for count in (2, 0, 1, rng.randint(0, 4), 0):
        y = torch.tensor([float(rng.choice((-1, 1))) for _ in range(4)]) if rng.random() < 0.7 else -torch.ones(4)
        wanted, found = (run(y, torch.tensor(count)) for run in (program, compiled))
        both = [r if isinstance(r, tuple) else (r,) for r in (found, wanted)]
        assert [(t.shape, t.stride()) for t in both[0]] == [(t.shape, t.stride()) for t in both[1]]


@pytest.mark.parametrize(("size", "stride"), [((0, 3), (0, 0)), ((3, 0), (0, 1)), ((0,), (0,)), ((2, 0, 3), (0, 0, 0))])
def test_empty_tensors_that_repeat_nothing(size, stride):
    """A copy of one read its first element: there is none, nor memory that would hold it."""
    x = torch.empty_strided(size, stride)
    for function in (lambda x: x.clone(), lambda x: (x + 1, x.clone().transpose(0, -1))):
        found, wanted = (torch.utils._pytree.tree_leaves(f(x)) for f in (intarsia.compile(function), function))
        assert [(t.shape, t.stride()) for t in found] == [(t.shape, t.stride()) for t in wanted]
