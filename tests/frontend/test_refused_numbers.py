"""Numbers that a tensor's type does not hold: the program gets eager's error, also where the number changes between calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import intarsia

DTYPES = [torch.uint8, torch.int8, torch.int32, torch.float16, torch.bfloat16, torch.float32]
NUMBERS = [5, 6, 7, -1, 127, 128, 255, 256, -129, 2**31, 6e4, 1e6, -1e9, 3.3e38, 1e39, float("inf"), 2**63 - 1]


def _set(x: Tensor, place: Any, v: Any) -> Tensor:
    y = x.clone()
    y[place] = v
    return y


PROGRAMS: dict[str, Callable[[Tensor, Any], Any]] = {
    "fill": lambda x, v: x.clone().fill_(v),
    "full": lambda x, v: torch.full((2,), v, dtype=x.dtype),
    "full without a type": lambda x, v: torch.full((2,), v),
    "full_like": lambda x, v: (torch.full_like(x, v), x.new_full((2,), v)),
    "masked_fill": lambda x, v: x.masked_fill(x > 0, v),
    "pad": lambda x, v: F.pad(x, (1, 0), value=v),
    "an item": lambda x, v: _set(x, 0, v),
    "a slice": lambda x, v: _set(x, slice(1, 3), v),
    "by a mask": lambda x, v: _set(x, x > 0, v),
    "by indices": lambda x, v: _set(x, torch.tensor([0, 2]), v),
    "clamp": lambda x, v: x.clamp(max=v),
    "sum": lambda x, v: (x + v, x * 2),
    "where": lambda x, v: torch.where(x > 0, x, v),
    "caught": lambda x, v: _caught(lambda: x.masked_fill(x > 0, v)),
}


def _caught(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except RuntimeError as error:
        return str(error)


def _answer(function: Any, *args: Any) -> str:
    try:
        return str(function(*args))
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager(name: str) -> None:
    function = PROGRAMS[name]
    for dtype in DTYPES:
        fast, x = intarsia.compile(function, backend="eager"), torch.ones(4).to(dtype)
        for number in NUMBERS:
            assert _answer(fast, x, number) == _answer(function, x, number), (dtype, number)


def test_compiled() -> None:
    function = PROGRAMS["masked_fill"]
    fast, x = intarsia.compile(function), torch.ones(4, dtype=torch.int8)
    for number in (5, 6, 300, 127, -3):
        assert _answer(fast, x, number) == _answer(function, x, number), number


def _of_split(x: Tensor) -> Tensor:
    y = x.abs().split(1, 0)[-1]
    y[1:] = 0
    return y


def _of_unbind(x: Tensor) -> Tensor:
    y = x.abs().unbind(0)[-1]
    y.mul_(2)
    return y


def _of_a_select(x: Tensor) -> Tensor:
    y = x.abs().select(0, 1)
    y.mul_(2)
    return y


@pytest.mark.parametrize("function", [_of_split, _of_unbind, _of_a_select], ids=lambda f: f.__name__)
def test_writes_to_one_of_several_views(function: Any) -> None:
    fast = intarsia.compile(function, backend="eager")
    for tracked in (False, True):
        x = torch.ones(2, 2, requires_grad=tracked)
        assert _answer(lambda f, x=x: f(x).detach(), fast) == _answer(lambda f, x=x: f(x).detach(), function)


@pytest.mark.parametrize("other", [True, 2, 1.5, torch.tensor(2), torch.tensor([1.5]), torch.tensor([True])], ids=str)
@pytest.mark.parametrize("name", ["add_", "sub_", "mul_", "div_", "pow_", "remainder_", "bitwise_and_", "eq_", "copy_"])
def test_writes_of_another_kind(name: str, other: Any) -> None:
    def function(x: Tensor) -> Tensor:
        return getattr(x[1:], name)(other)

    fast = intarsia.compile(function, backend="eager")
    for dtype in (torch.bool, torch.int32, torch.uint8, torch.float32):
        x = torch.tensor([1, 0, 1]).to(dtype)
        if name == "copy_" and type(other) is not Tensor:
            continue
        mine, theirs = x.clone(), x.clone()
        assert _answer(fast, mine) == _answer(function, theirs), dtype
        assert torch.equal(mine, theirs)


READ: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "fill": lambda x, n: x.clone().fill_(n.item()),
    "full": lambda x, n: torch.full((2,), n.item(), dtype=x.dtype),
    "masked_fill": lambda x, n: x.masked_fill(x > 0, n.item()),
    "pad": lambda x, n: F.pad(x, (1, 0), value=n.item()),
    "an item": lambda x, n: _set(x, 0, n.item()),
    "clamp": lambda x, n: x.clamp(max=n.item()),
    "of a computed one": lambda x, n: x.clamp(max=n.item() * 2),
    "where": lambda x, n: torch.where(x > 0, x, n.item()),
    "a size beside": lambda x, n: x.new_full((x.sum().long().item(),), n.item()),
}


@pytest.mark.parametrize("name", READ)
def test_numbers_that_are_read(name: str) -> None:
    function, kinds = READ[name], (torch.int64, torch.uint8, torch.float32, torch.float64)
    fast = intarsia.compile(function, backend="eager")
    for dtype in (torch.uint8, torch.int32, torch.float16, torch.float32):
        x = torch.ones(3).to(dtype)
        for number in (5, 300, -1, -300, 2**40, 1e39, float("nan"), float("inf"), 3.5):
            for kind in kinds[-2:] if type(number) is float else kinds if 0 <= number < 256 else kinds[:1]:
                n = torch.tensor(number, dtype=kind)
                assert _answer(fast, x, n) == _answer(function, x, n), (dtype, n)


def test_a_type_that_holds_all_numbers_of_another_needs_no_check() -> None:
    def function(x: Tensor, n: Tensor) -> Tensor:
        return x.masked_fill(x > 0, n.item()).clamp(-x.sum().item(), x.sum().item())

    fast = intarsia.compile(function, backend="eager", fullgraph=True)
    for n in (3, 2**62, -(2**62)):
        assert torch.equal(fast(torch.ones(3), torch.tensor(n)), function(torch.ones(3), torch.tensor(n)))
