"""Nested tensors in the jagged layout: taken in, made inside, given out, with ragged sizes that change between calls."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from harness import compiled, number_backend
from torch import Tensor, nn
from torch.nested import as_nested_tensor, nested_tensor, nested_tensor_from_jagged, to_padded_tensor

import intarsia

torch.manual_seed(0)
LINEAR, NORM = nn.Linear(4, 3), nn.LayerNorm(4)


def jagged(seed, grad=False):
    torch.manual_seed(seed)
    rows = [torch.randn(2 + (k * seed) % 5, 4) for k in range(3)]
    return nested_tensor(rows, layout=torch.jagged, requires_grad=grad)


def dense(seed):
    torch.manual_seed(seed)
    return torch.randn(6 + seed, 4), torch.tensor([0, 2, 3, 6 + seed])


def agree(got: Any, want: Any) -> None:
    if isinstance(want, tuple | list):
        assert len(got) == len(want)
        for one, other in zip(got, want):
            agree(one, other)
    elif isinstance(want, Tensor):
        assert (type(got), got.requires_grad) == (type(want), want.requires_grad)
        agree(list(got.unbind()), list(want.unbind())) if want.is_nested else torch.testing.assert_close(got, want)
    else:
        assert got == want


def same(program, make, after=lambda result, args: result, graphs=2):
    function, log = compiled(program, number_backend)
    for seed in (1, 2, 3, 1):
        one, other = make(seed), make(seed)
        agree(after(function(*one), one), after(program(*other), other))
        agree(one, other)
    assert len(log.captures) <= graphs and not log.fallbacks and not log.breaks, (
        log.recompiles,
        log.breaks,
        log.fallbacks,
    )


@pytest.mark.parametrize(
    "program",
    [
        lambda n: (n * 2 + 1).sin() * n,
        lambda n: (LINEAR(n).relu(), NORM(n)),
        lambda n: (n.sum(1), n.mean(-1), torch.softmax(n, -1)),
        lambda n: (n.shape[0], n.size(-1), n.dim(), n.is_nested, n.layout, n + 1),
        lambda n: n.reshape(n.shape[0], n.shape[1], 2, 2) * 2,
        lambda n: (n.unflatten(-1, [2, 2]).transpose(1, 2) * 2, n.transpose(1, 2)),
        lambda n: (n.offsets().diff(), n.values() * 2),
        lambda n: n.mul_(2),
    ],
)
def test_arguments(program):
    same(program, lambda seed: (jagged(seed),))


def test_padding():
    same(lambda n: to_padded_tensor(n * 2, 0.5), lambda seed: (jagged(seed),), graphs=4)


def test_results_belong_to_their_arguments():
    same(lambda n: n * 2, lambda seed: (jagged(seed),), lambda result, args: result + args[0])


def test_two_of_them():
    same(lambda n, m: n * m, lambda seed: (lambda a: (a, a * 3))(jagged(seed)))
    same(lambda n, m: (n * 2, m * 3), lambda seed: (jagged(seed), jagged(seed + 1)))


def test_made_inside():
    same(lambda v, o: (LINEAR(nested_tensor_from_jagged(v * 2, o)).values(), o), dense)
    same(lambda v, o: nested_tensor_from_jagged(v * 2, o).sin(), dense)
    same(lambda v, o: as_nested_tensor([v * 2, v[:2]], layout=torch.jagged).sum(1), dense, graphs=4)


def backward(result, args):
    result.values().sum().backward()
    gradients = [t.grad for t in (*args, LINEAR.weight) if t.dtype.is_floating_point]
    LINEAR.zero_grad()
    return [result, gradients]


def test_gradients():
    same(lambda n: LINEAR(n * 2).sin(), lambda seed: (jagged(seed, True),), backward)
    same(
        lambda v, o: LINEAR(nested_tensor_from_jagged(v * 2, o)),
        lambda s: (dense(s)[0].requires_grad_(), dense(s)[1]),
        backward,
    )


def test_the_whole_road():
    def program(n, v, o):
        return LINEAR(n * 2).sin(), LINEAR(nested_tensor_from_jagged(v * 2, o))

    function = intarsia.compile(program, fullgraph=True)
    for seed in (1, 2, 3):
        results = []
        for call in (function, program):
            args = jagged(seed, True), dense(seed)[0].requires_grad_(), dense(seed)[1]
            one, other = call(*args)
            (one.values().sum() + other.values().sin().sum()).backward()
            results.append((one, other, [t.grad for t in args[:2]], LINEAR.weight.grad.clone()))
            LINEAR.zero_grad()
        agree(*results)


def heads(n):
    return n.unflatten(-1, (2, 2)).transpose(1, 2)


def attended(n):
    """Attention as a model has it."""
    q, k, v = heads(NORM(n)), heads(n * 2), heads(n)
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2) + n


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    "program",
    [
        attended,
        lambda n: F.scaled_dot_product_attention(heads(n), heads(n), heads(n), scale=0.3).transpose(1, 2),
        lambda n: F.scaled_dot_product_attention(heads(n), heads(n), heads(n), enable_gqa=True).transpose(1, 2),
        lambda n: (attended(n).to_padded_tensor(0.0), n.shape == (n * 2).shape),
        lambda n: (n[0] * 2, n[-1].sum(), n * 2),
    ],
)
def test_attention_and_rows(program, grad):
    def after(result, args):
        found = [v for v in result if isinstance(v, Tensor)] if isinstance(result, tuple) else [result]
        if grad:
            sum((v.values() if v.is_nested else v).sin().sum() for v in found).backward()
        return [result, [a.grad for a in args if grad], [p.grad is None for p in NORM.parameters()]]

    same(program, lambda seed: (jagged(seed, grad),), after, graphs=4)


@pytest.mark.parametrize(
    ("program", "lengths"),
    [
        (lambda n: F.scaled_dot_product_attention(heads(n), heads(n), heads(n), is_causal=True), (2, 3)),
        (lambda n: F.scaled_dot_product_attention(heads(n), heads(n), heads(n), n), (2, 3)),
        (lambda n: F.scaled_dot_product_attention(n, n, n), (2, 3)),
        (lambda n: F.scaled_dot_product_attention(heads(n), heads(n), heads(n)), (0, 3)),
        (lambda n: n[5], (2, 3)),
    ],
)
def test_what_eager_refuses(program, lengths):
    given = nested_tensor([torch.randn(n, 4) for n in lengths], layout=torch.jagged)
    found = []
    for call in (program, compiled(program, number_backend)[0]):
        try:
            found.append(call(given))
        except Exception as error:
            found.append((type(error), str(error).splitlines()[0]))
    agree(found[1], found[0])


@pytest.mark.parametrize("grad", [False, True])
def test_dropout_draws_what_eager_draws(grad):
    """For the weights alone, not for what fills rows up; where a row is empty, eager says what happens, an error or not."""

    def program(n, m):
        found = F.scaled_dot_product_attention(heads(n), heads(m), heads(m), dropout_p=0.4).transpose(1, 2)
        return found * torch.rand(1)

    def account(call, lengths):
        torch.manual_seed(sum(lengths[0]))
        n, m = (
            nested_tensor([torch.randn(k, 4) for k in each], layout=torch.jagged, requires_grad=grad)
            for each in lengths
        )
        try:
            made = call(n, m)
            if grad:
                made.values().sin().sum().backward()
        except RuntimeError as error:
            return str(error).splitlines()[0], torch.rand(1)
        return [made.detach(), [t.grad for t in (n, m) if grad], torch.rand(1)]

    function, log = compiled(program, number_backend)
    for lengths in (((2, 3), (4, 1)), ((3, 1), (1, 5)), ((2, 2), (2, 2)), ((2, 0, 3), (2, 1, 3)), ((5, 4), (3, 2))):
        agree(account(function, lengths), account(program, lengths))
    assert not log.breaks


def changed_row(n):
    n = n * 1
    rows = n.unbind()
    rows[0].mul_(0)
    return n.sum(), rows[1]


@pytest.mark.parametrize(
    "program",
    [
        lambda n: [row * 2 for row in (n + 1).unbind()],
        lambda n: [row * 2 for row in n + 1],
        lambda n: [row.mean(0) for row in n.transpose(1, 2).unbind()],
        lambda n: torch.stack([(row.softmax(0) * row).sum() for row in n.sin().unbind(dim=0)]),
        lambda n: (n.unbind()[0].shape[0], sum(row.sum() for row in n.unbind(0))),
        changed_row,
    ],
)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("backend", [number_backend, None])
def test_rows(program, grad, backend):
    """Their numbers are read of the offsets; empty rows, and another number of rows."""
    function, log = compiled(program, backend) if backend else (intarsia.compile(program), None)
    if grad and program is changed_row:
        for call in (program, function):
            with pytest.raises(RuntimeError, match="is being modified inplace"):
                call(jagged(1, True))
        return
    for lengths in ((2, 3), (3, 1), (2, 0), (2, 3, 4)):
        results = []
        values = torch.randn(sum(lengths), 4)
        for call in (function, program):
            given = nested_tensor(list(values.split(lengths)), layout=torch.jagged, requires_grad=grad)
            made = call(given)
            found = [made, given.detach()]
            if grad:
                floats = [t for t in (made if isinstance(made, list | tuple) else [made]) if isinstance(t, Tensor)]
                found += torch.autograd.grad(sum(t.sin().sum() for t in floats), given)
            results.append(found)
        agree(*results)
    assert log is None or not log.breaks and not log.fallbacks


def test_a_backward_that_lengths_decide_is_eagers():
    """Its gradient asks for the longest row: the graph ends in front of the call, which frees nothing before."""

    def program(n):
        weight = torch.ones(4, 2, requires_grad=True)
        (n.detach() @ weight).sin().values().sum().backward()
        return weight.grad

    function, log = compiled(program, number_backend)
    for seed in (1, 2, 3):
        agree(function(jagged(seed)), program(jagged(seed)))
    assert not log.fallbacks
