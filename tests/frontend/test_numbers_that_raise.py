"""Numbers that change between calls and decide whether Python or torch raises, and those that torch's symbols do not compute as ints do."""

import math
import operator
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import intarsia


def outcome(function: Callable[..., Any], *args: Any) -> str:
    """The result and what became of the arguments, or the first line of the exception."""
    try:
        return f"{function(*args)} {args}"
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]} {args}"


def caught(asked: Callable[[Any], Any]) -> Callable[..., Any]:
    def f(x: torch.Tensor, k: Any) -> torch.Tensor:
        try:
            return x * asked(k)
        except (ArithmeticError, ValueError, IndexError):
            return x - 1

    return f


ASKED: dict[str, Callable[[Any], Any]] = {
    "division": lambda k: 1 / k,
    "of a difference": lambda k: 2 / (k - 3),
    "of floats": lambda k: 3.0 // k,
    "remainder": lambda k: 7 % k,
    "divmod": lambda k: divmod(5, k)[0],
    "negative power": lambda k: k**-1,
    "zero's power": lambda k: 0.0**k,
    "shift": lambda k: 1 << k,
    "root": lambda k: math.sqrt(k),
    "logarithm": lambda k: math.log(k),
    "overflow": lambda k: math.exp(k * 300),
    "item": lambda k: [1.0, 2.0, 3.0][k],
    "domain": lambda k: math.acos(k / 4),
}


@pytest.mark.parametrize("name", ASKED)
def test_whether_an_operator_raises_is_asked_in_each_call(name: str) -> None:
    draw = random.Random(name)
    f = caught(ASKED[name])
    for _ in range(3):
        intarsia.reset()
        fast = intarsia.compile(f, backend="eager")
        for _ in range(8):
            k = draw.randint(-3, 6)
            for value in (k, float(k)):
                assert outcome(fast, torch.ones(2), value) == outcome(f, torch.ones(2), value), (name, value)


def test_digits_of_a_rounded_int() -> None:
    def f(x: torch.Tensor, k: int) -> Any:
        return x * round(k * 5, -1), round(k, 2), round(k), round(k, ndigits=-1)

    fast = intarsia.compile(f, backend="eager")
    for k in (1, 2, 3, 5, 11, -3, 25):
        assert outcome(fast, torch.ones(2), k) == outcome(f, torch.ones(2), k)


def numbers(x: torch.Tensor, k: int) -> Any:
    return (
        *(make(k) for make in (torch.tensor, torch.as_tensor, torch.asarray)),
        torch.tensor([k, 1]),
        torch.tensor([[k], [2]], dtype=torch.float64),
        torch.tensor(k, requires_grad=False) + 1,
        x.new_tensor(k),
        x.long().new_tensor([k, k]),
    )


@pytest.mark.parametrize("backend", ["eager", "auto"])
def test_tensors_of_ints_of_more_than_32_bits(backend: str) -> None:
    fast = intarsia.compile(numbers, backend=backend)
    for k in (7, 9, 2**53 + 1, 2**31 + 5, -(2**40)):
        assert outcome(fast, torch.ones(2), k) == outcome(numbers, torch.ones(2), k)


def test_a_tensor_of_a_changing_int_does_not_recompile() -> None:
    def f(x: torch.Tensor, k: int) -> torch.Tensor:
        return x * torch.tensor(k)

    intarsia.reset()
    fast = intarsia.compile(f, backend="eager")
    before = intarsia.counters()["captures"]
    assert [fast(torch.ones(1), k).item() for k in range(3, 12)] == list(range(3, 12))
    assert intarsia.counters()["captures"] - before == 2


WRITES = [getattr(operator, f"__i{name}__") for name in ("add", "sub", "mul", "truediv", "pow")]
WRITES += [torch.Tensor.add_, torch.Tensor.mul_, torch.Tensor.sub_]
KINDS = (torch.int64, torch.bool, torch.float32, torch.float16, torch.complex64)
GIVEN = (
    2,
    2.5,
    1j,
    True,
    torch.tensor(1.5),
    torch.tensor([1.5]),
    torch.tensor([2j]),
    torch.tensor(2),
    torch.tensor([3]),
)


@pytest.mark.filterwarnings("ignore")
def test_writes_of_wider_kinds_are_refused_as_in_eager() -> None:
    draw = random.Random(1)
    for write in WRITES:

        def f(x: torch.Tensor, k: Any, write: Any = write) -> Any:
            try:
                return write(x, k)
            except RuntimeError as error:
                return str(error).splitlines()[0], x + x

        fast = intarsia.compile(f, backend="eager")
        for _ in range(8):  # no more entries than are kept
            kind, given = draw.choice(KINDS), draw.choice(GIVEN)
            made = [torch.ones(3).to(kind) for _ in range(2)]
            assert outcome(fast, made[0], given) == outcome(f, made[1], given), (write, kind, given)


def test_numbers_in_tensors_have_no_dimensions() -> None:
    def f(x: torch.Tensor, k: Any) -> Any:
        return torch.addcmul(x, x, x, value=k), torch.add(x, x, alpha=k)

    fast = intarsia.compile(f, backend="eager")
    for given in (2, torch.tensor(2), torch.tensor(2.5), torch.tensor([2]), torch.tensor([[2.0]]), torch.tensor(3)):
        for kind in (torch.float32, torch.int64):
            x = torch.ones(3, dtype=kind)
            assert outcome(fast, x, given) == outcome(f, x, given)


POWERS: dict[str, Callable[..., Any]] = {
    "sign": lambda x, k: x * (-1) ** k,
    "of a size": lambda x, k: x * (-1) ** x.shape[0],
    "tensor": lambda x, k: (-1.0) ** torch.arange(x.shape[0]) * x,
    "wide": lambda x, k: (-3) ** torch.arange(4) + k,
    "positive": lambda x, k: x * 2**k + (-x) ** k,
}


@pytest.mark.parametrize("backend", ["eager", "auto"])
@pytest.mark.parametrize("name", POWERS)
def test_powers_of_negative_numbers(name: str, backend: str) -> None:
    intarsia.reset()
    fast = intarsia.compile(POWERS[name], backend=backend)
    for k in (3, 4, 5, 6):
        assert outcome(fast, torch.ones(k), k) == outcome(POWERS[name], torch.ones(k), k), (name, k)


MADE: dict[str, Callable[..., Any]] = {
    "tensor": lambda k: torch.tensor(k),
    "list": lambda k: torch.tensor([1.0, k]),
    "as_tensor": lambda k: torch.as_tensor(k),
    "dtype": lambda k: torch.tensor(k, dtype=torch.float16),
    "inside": lambda k: torch.tensor((np.float64(1), 2)) + torch.tensor(np.int32(3)) + k,
    "sum": lambda k: torch.tensor(k * 2 + 1),
}


@pytest.mark.parametrize("name", MADE)
def test_tensors_of_numpy_numbers_have_their_type(name: str) -> None:
    intarsia.reset()
    fast = intarsia.compile(MADE[name], backend="eager")
    for k in (np.float64(2.5), np.float64(3.5), 1.5, 2, np.int32(2), np.float32(2.5), np.int64(3)):
        found, wanted = fast(k), MADE[name](k)
        assert found.dtype == wanted.dtype and torch.equal(found, wanted), (name, k)
