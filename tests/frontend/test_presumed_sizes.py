"""What a program decides by a size that values decide is presumed to be what it is of many, and checked: results are eager's for any."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from harness import compiled, number_backend
from torch import Tensor

import intarsia

W = torch.linspace(0.5, 2, 3).requires_grad_()


def nothing_found(x: Tensor) -> Any:
    i = torch.where(x[:, 0] > 0)[0]
    if len(i) == 0:
        return (x * W).sum() * 0
    return (x[i] * W).mean()


def one_at_most(x: Tensor) -> Any:
    i = (x[:, 0] > 0).nonzero()[:, 0]
    return (x * W).sum() if i.numel() <= 1 else (x[i] * W).std()


def by_truth(x: Tensor) -> Any:
    y = x[x > 0]
    if not y.numel():
        return x * W
    return y.amax() * W


def all_of_several(x: Tensor) -> Any:
    parts = x[x > 0], x[x < 0.5]
    if all(len(part) > 0 for part in parts):
        return parts[0].amax() * W, parts[1].amin() * W
    return x * W


def several(x: Tensor) -> Any:
    a, b = x[x > 0], x[x < 0]
    if a.numel() + b.numel() > 1:
        return (a.sum() + b.sum()) * W
    return [a, b]


def fails_on_nothing(x: Tensor) -> Any:
    y = x[x[:, 0] > 0]
    if len(y) < 2:
        return None
    return y[1] * W + y.view(-1, 3).amax(0)


def effects(x: Tensor, seen: list[int] = []) -> Any:  # noqa: B006
    y = x[x[:, 0] > 0]
    if y.shape[0] > 0:
        seen.append(len(x))
        x.add_(1)
        return y.sum() * W
    seen.append(-len(x))
    return x * W, list(seen)


def parts_of_a_mixture(x: Tensor) -> Any:
    out = torch.zeros_like(x)
    kind = (x[:, 0] * 3).long().clamp(-1, 1)
    for k in range(-1, 2):
        rows = torch.where(kind == k)[0]
        if rows.numel() == 0:
            continue
        out = out.index_add(0, rows, x[rows] * W * k)
    return out


def of_operators(x: Tensor) -> Any:
    """What these ask of sizes inside is presumed."""
    y = x[x[:, 0] > 0] * W
    normed = F.batch_norm(y, None, None, training=True)
    return y.logsumexp(0), y.roll(1, 0), y.diff(dim=0), F.bilinear(y, y, torch.ones(2, 3, 3)), normed


def attended(x: Tensor) -> Any:
    y = (x[x[:, 0] > 0] * W)[:, None, :, None].expand(-1, 2, -1, 4)
    return F.scaled_dot_product_attention(y, y, y).sum()


def asked_again(x: Tensor) -> Any:
    """What an operator has taken for granted decides, too."""
    y = x[x[:, 0] > 0][:, :1] * W[0]
    z = y.squeeze()
    if len(y) == 1:
        return z + 100
    return z.sum()


def asked_behind_a_sum(x: Tensor) -> Any:
    y = x[x[:, 0] > 0] * W
    z = y.logsumexp(0)
    return z * 0 + 100 if len(y) == 0 else z


def counted_kinds(x: Tensor) -> Any:
    kind = (x[:, 0] * 3).abs().long()
    counts = torch.bincount(kind, minlength=4).tolist()
    parts = x[kind.argsort(stable=True)].split(counts)
    return [part.sum() * W for part in parts], counts


def one_at_most_of_one(x: Tensor) -> Any:
    """A size that is 0 or 1 is presumed to be 1."""
    first = x[:1]
    y = (first[first[:, 0] < 0] * W).contiguous()
    z = y.view(len(y) * 3).roll(1, 0)
    if len(y) == 1:
        return z, y.diff(dim=0), F.pad(y, (1, 1))
    return z.sum() * 2


def both_of_few(x: Tensor) -> Any:
    """Of two such sizes one is presumed to be 1, the other to be more."""
    first, rest = x[:1], x[1:]
    a, b = first[first[:, 0] < 0] * W, rest[rest[:, 1] > -0.5] * W
    if len(a) < len(b):
        return torch.cat([a, b]).std(0)
    return a.sum() + b.sum()


FUNCTIONS = [
    one_at_most_of_one,
    both_of_few,
    asked_again,
    asked_behind_a_sum,
    counted_kinds,
    of_operators,
    attended,
    nothing_found,
    one_at_most,
    by_truth,
    all_of_several,
    several,
    fails_on_nothing,
    effects,
    parts_of_a_mixture,
]
MANY = torch.linspace(-1, 1, 24).reshape(8, 3)[torch.tensor([3, 1, 7, 0, 4, 2, 6, 5])]
ONE = torch.tensor([[0.4, 0.3, -1.0], [-1, 0.2, 0.1], [-0.2, 0, 0]])
CALLS = [MANY, MANY * 0.9, MANY[:5], ONE, -MANY.abs(), MANY, ONE[:2] - 2, MANY.abs() + 0.1, MANY[:0]]


def outcome(function: Any, x: Tensor) -> Any:
    x = x.clone()
    try:
        result = function(x)
    except (RuntimeError, IndexError, ValueError) as error:
        return type(error)
    W.grad = None
    tensors = [t for t in torch.utils._pytree.tree_leaves(result) if isinstance(t, Tensor)]
    wanted = [t.sum() for t in tensors if t.requires_grad]
    if wanted:
        torch.stack(wanted).sum().backward()
    return result, x, None if W.grad is None else W.grad.clone()


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_as_eager(function: Any) -> None:
    for order in (CALLS, CALLS[::-1]):
        expected = []
        for x in order:
            effects.__defaults__[0].clear()  # type: ignore[index]
            expected.append(outcome(function, x))
        fast, log = compiled(function, number_backend)
        for k, (x, wanted) in enumerate(zip(order, expected, strict=True)):
            effects.__defaults__[0].clear()  # type: ignore[index]
            found = outcome(fast, x)
            torch.testing.assert_close(found, wanted, equal_nan=True) if isinstance(wanted, tuple) else None
            assert isinstance(wanted, tuple) or found is wanted
            if order is CALLS and k == 2 and function not in (effects, parts_of_a_mixture):
                assert log.breaks == [] == log.fallbacks


def test_compiled() -> None:
    for function in (
        nothing_found,
        one_at_most_of_one,
        both_of_few,
        all_of_several,
        of_operators,
        asked_again,
        counted_kinds,
    ):
        fast = intarsia.compile(function)
        for x in CALLS:
            found, wanted = outcome(fast, x), outcome(function, x)
            torch.testing.assert_close(found, wanted, equal_nan=True) if isinstance(wanted, tuple) else None
            assert isinstance(wanted, tuple) or found is wanted


def until_few(x: Tensor) -> Tensor:
    while x.numel() > 2:
        x = x[x > x.mean()]
    return x * 2


def until_few_with_returns(x: Tensor) -> Any:
    count = 0
    while True:
        x = x[x > x.mean()]
        count += 1
        if len(x) <= 1:
            return x * W[:1], count


def recursive(x: Tensor) -> Tensor:
    return x if len(x) <= 1 else recursive(x[x > x.mean()]) + 1


@pytest.mark.parametrize("function", [until_few, until_few_with_returns, recursive], ids=lambda f: f.__name__)
def test_loops_and_recursions_end(function: Any) -> None:
    fast, _ = compiled(function, number_backend)
    for n in (9, 9, 12, 40):
        torch.testing.assert_close(fast(torch.linspace(0, 1, n)), function(torch.linspace(0, 1, n)))
