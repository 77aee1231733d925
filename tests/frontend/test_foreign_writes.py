"""Writes to foreign tensors: eager's values, places, errors and what the caller's tensors are afterwards, in one graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import compiled, number_backend
from test_foreign_tensors import coo, csr, t, twice
from torch import Tensor
from torch.utils import _pytree as pytree

import intarsia

Given = Callable[[int], tuple[Any, ...]]
PROGRAMS: dict[str, tuple[Any, Given, str]] = {}
MAKERS = {"csr": csr, "coo": coo}


def program(given: Given, breaks: str = "") -> Any:
    """Add a function."""

    def add(function: Any) -> Any:
        PROGRAMS[function.__name__] = function, given, breaks
        return function

    return add


def quantized(k: int) -> Tensor:
    return torch.quantize_per_tensor(t(6) * (k + 1), 0.1 + 0.05 * k, 3 + k, torch.quint8)


def bsr(k: int) -> Tensor:
    return (t(4, 4) + k).to_sparse_bsr((2, 2))


for _name, _make in MAKERS.items():

    @program(lambda k, make=_make: (make(4, 5, k=k), t(5, 2)))
    def made_here(a, d):
        b = a.clone()
        b.mul_(2)
        held = b._values() if b.layout is torch.sparse_coo else b.values()
        b *= 3
        return b @ d, held, b

    @program(lambda k, make=_make: (make(4, 5, k=k), t(5, 2)))
    def of_the_caller(a, d):
        a.mul_(2)
        a /= 4
        a.neg_()
        return a @ d, a.sum()

    @program(lambda k, make=_make: (make(4, 5, k=k), make(4, 5, k=k) * 3))
    def copied(a, b):
        return a.copy_(b), a

    @program(lambda k, make=_make: (make(4, 5, k=k), make(4, 5, k=(k + 1) % 3)))
    def copied_from_other_places(a, b):
        return a.copy_(b).to_dense() + 1, a

    @program(lambda k, make=_make: (t(4, 2) * k, make(4, 5, k=k), t(5, 2)))
    def product_added(x, a, d):
        return x.addmm_(a, d), x * 2

    @program(lambda k, make=_make: (t(4, 2).requires_grad_(), make(4, 5, k=k), t(5, 2).requires_grad_()))
    def product_added_with_gradients(x, a, d):
        y = x.sin()
        y.addmm_(a, d)
        return y * y

    @program(lambda k, make=_make: (make(4, 5, k=k),))
    def transposed_before(a):
        b = a.clone()
        c = b.t()
        b.mul_(3)
        return c, b, b.to_dense() - c.to_dense().t()

    for _function in (
        *(made_here, of_the_caller, copied, copied_from_other_places, product_added),
        *(product_added_with_gradients, transposed_before),
    ):
        PROGRAMS[f"{_function.__name__}-{_name}"] = PROGRAMS.pop(_function.__name__)


@program(lambda k: (coo(4, 5, k=k), coo(4, 5, k=1), t(5, 2)))
def other_places(a, b, d):
    before = a.to_dense()
    a.add_(b)
    a.add_(b, alpha=2)
    return a @ d, a, before, a.coalesce().values() * 2


@program(lambda k: (coo(4, 5, k=k), twice(4, 5)))
def all_gone(a, b):
    c = b.clone().zero_()
    return a.zero_(), c, c._nnz(), a.is_coalesced()


@program(lambda k: (t(4, 5) + k, coo(4, 5, k=k)))
def dense_added_to(x, a):
    y = x.clone()
    y += a
    return y, x.add_(a, alpha=2), x


@program(lambda k: (t(4, 5).requires_grad_(), coo(4, 5, k=k)))
def leaf(x, a):
    return x.add_(a)


@program(lambda k: (bsr(k),))
def blocks(a):
    return a.mul_(2), a.values() + 1


@program(lambda k: (quantized(k), t(6) - k))
def quantized_here(q, x):
    c = q.clone()
    c.copy_(x)
    return c.dequantize(), c, c.q_scale()


@program(lambda k: (quantized(k), t(6) - k), "writes to its argument")
def quantized_of_the_caller(q, x):
    return q.copy_(x)


@program(lambda k: (t(6) - k,), "a view of a quantized tensor is given out")
def quantized_with_a_view(x):
    q = torch.quantize_per_tensor(x, 0.1, 3, torch.quint8)
    v = q.view(2, 3)
    q.copy_(x * 2)
    return v.dequantize()


@program(lambda k: (coo(4, 5, k=k), t(4, 5)))
def refused(a, x):
    return a.add_(x)


def _facts(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    if value.is_quantized:
        return value.dequantize(), value.dtype, value.q_scale(), value.q_zero_point()
    if value.layout is torch.strided:
        return value.detach(), value.requires_grad, value.stride()
    nnz = value.is_coalesced() if value.layout is torch.sparse_coo else 0
    return value.to_dense(), value.layout, value._nnz(), nnz, value.requires_grad


def account(function: Any, given: tuple[Any, ...]) -> Any:
    """What a call gives or raises, what its arguments are then, and their gradients."""
    before = [v._version for v in given]
    try:
        result = function(*given)
        floats = [v for v in pytree.tree_leaves(result) if v.requires_grad] if isinstance(result, Tensor) else []
        sum(v.sin().sum() for v in floats).backward() if floats else None
    except Exception as error:
        return type(error), str(error).splitlines()[0]
    written = [v._version > old for v, old in zip(given, before, strict=True)]
    return [pytree.tree_map(_facts, [result, given, [v.grad for v in given]]), written]


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    function, given, breaks = PROGRAMS[name]
    fast, log = compiled(function, number_backend)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for k in (0, 1, 2, 0):
            _agree(account(fast, given(k)), account(function, given(k)))
    found = [*(b.reason for b in log.breaks), *(why for *_, why in log.fallbacks)]
    assert breaks in found[0] if breaks else not found, found


def _agree(got: Any, want: Any) -> None:
    one, other = pytree.tree_leaves(got), pytree.tree_leaves(want)
    assert len(one) == len(other), (got, want)
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b) if isinstance(b, Tensor) else _same(a, b)


def _same(one: Any, other: Any) -> None:
    assert one == other


COMPILED = [
    "made_here-csr",
    "of_the_caller-csr",
    "of_the_caller-coo",
    "other_places",
    "product_added_with_gradients-csr",
]


@pytest.mark.parametrize("name", COMPILED)
def test_with_the_compiler(name: str) -> None:
    function, given, _ = PROGRAMS[name]
    fast = intarsia.compile(function)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for k in (0, 1, 2):
            _agree(account(fast, given(k)), account(function, given(k)))


# ---- the caller's tensors that are handed to calls whole ----


def _inputs(function: Any, *given: Any) -> list[str]:
    fast, log = compiled(function, number_backend)
    for k in (1, 2, 3):
        fast(*(g * k if not g.is_quantized else quantized(k) for g in given))
    (*_, last) = log.captures
    return [source.name() for source in last.inputs]


@pytest.mark.parametrize("make", [csr, coo])
def test_whole_where_only_calls_take_it(make: Any) -> None:
    """Each clause of `hold_whole`, on both sides."""
    a, d = make(4, 5), t(5, 2)

    def held(function: Any, *given: Any) -> bool:
        names = _inputs(function, *given)
        return any("handle_of" in n for n in names) and not any("parts" in n for n in names)

    def values(a: Tensor) -> Tensor:
        return a._values() if a.layout is torch.sparse_coo else a.values()

    def leaf(a: Tensor, d: Tensor) -> Tensor:
        weight = torch.ones(5, 2, requires_grad=True)
        return a @ weight

    assert held(lambda a, d: a @ d, a, d)
    assert held(lambda a, d: (a @ d + 1, a.to_dense(), a), a, d)
    assert not held(lambda a, d: (a @ d, values(a) * 2), a, d)
    assert not held(lambda a, d: (a @ d, a._nnz()), a, d)
    assert held(lambda a, d: (a * 2) @ d, a, d)
    assert held(lambda a, d: a.t() @ d[:4], a, d) is (make is coo)  # a transposed CSR tensor has the same parts
    assert not held(lambda a, d: a @ d.mul_(2), a, d)
    assert not held(leaf, a, d)
    with torch.no_grad():
        assert held(lambda a, d: a @ d, a, d)


def test_whole_tensors_are_those_of_the_call() -> None:
    def function(a: Tensor, q: Tensor, d: Tensor) -> Any:
        return a @ d, q.dequantize() * 2, a.to_dense()

    fast, log = compiled(function, number_backend)
    a, q = csr(4, 5), quantized(0)
    for k in (0, 1, 2):
        _agree(fast(a, q, t(5, 2)), function(a, q, t(5, 2)))
        a.values().mul_(3)
        q.copy_(t(6) * k)
        _agree(fast(a, q, t(5, 2)), function(a, q, t(5, 2)))
        a.data, q = csr(4, 5, k=k), quantized(k)
        _agree(fast(a, q, t(5, 2)), function(a, q, t(5, 2)))
        _agree(fast(csr(6, 5), q, t(5, 3)), function(csr(6, 5), q, t(5, 3)))
    assert not log.breaks and not log.fallbacks
    assert len(log.captures) <= 3
