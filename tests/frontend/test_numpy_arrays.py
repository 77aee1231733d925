"""NumPy arrays of the caller's that become tensors: inputs of the graph, over the array's memory or copies, as in eager."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import intarsia

FALLS = {"on_error": "warn", "verify_each": False}


def account(f: Any, args: tuple[Any, ...]) -> Any:
    try:
        found = f(*args)
    except (TypeError, ValueError) as error:
        return repr(error)
    return found, found.dtype, found.stride(), [a.tolist() for a in args if isinstance(a, np.ndarray)]


def agree(f: Any, *calls: tuple[Any, ...]) -> Any:
    """As eager, arrays that are written to as well; the counters."""
    intarsia.reset()
    fast = intarsia.compile(f, options=FALLS)
    for args in calls:
        found, expected = account(fast, copy.deepcopy(args)), account(f, copy.deepcopy(args))
        assert str(found) == str(expected)
    counts = intarsia.counters()
    return counts["breaks"], counts["fallbacks"], counts["captures"]


def numbers(*shape: int, dtype: str = "float32") -> Any:
    return (np.arange(float(np.prod(shape))) + 1).astype(dtype).reshape(shape)


def over(a: Any) -> Tensor:
    return torch.from_numpy(a) * 2


def written(a: Any) -> Tensor:
    x = torch.from_numpy(a)
    x.add_(1)
    return x * 2


def both(a: Any, b: Any) -> Tensor:
    x, y = torch.from_numpy(a), torch.as_tensor(b)
    x.add_(1)
    return x + y


@pytest.mark.parametrize(
    "f",
    [
        over,
        written,
        lambda a: torch.from_numpy(a),
        lambda a: torch.as_tensor(a, dtype=torch.float64).sin(),
        lambda a: torch.as_tensor(a),
        lambda a: torch.tensor(a),
        lambda a: torch.tensor(a, dtype=torch.int32) + torch.asarray(a),
    ],
    ids=range(7),
)
def test_sizes_and_types_that_change(f: Any) -> None:
    calls = [(numbers(n, 3),) for n in (4, 5, 6)] + [(numbers(7, 3, dtype="float64"),)]
    assert agree(f, *calls) == (0, 0, 3)


def test_strides() -> None:
    arrays = [numbers(3, 4).T, numbers(3, 4)[:, ::2], numbers(4, 3)[1:], np.zeros((0, 3), "float32")]
    for f in (over, written, lambda a: torch.tensor(a), lambda a: torch.as_tensor(a, dtype=torch.int64)):
        assert agree(f, *((a,) for a in arrays))[:2] == (0, 0)


@pytest.mark.parametrize(
    "value",
    [numbers(4)[::-1], np.array(["a"]), numbers(3, dtype=">f4"), np.float32(3), [1.0, 2.0], np.ma.array([1.0])],
    ids=lambda v: type(v).__name__,
)
def test_what_is_no_plain_array(value: Any) -> None:
    """What torch refuses is refused at the program's own line, in a later call, too."""
    for f in (over, lambda a: torch.as_tensor(a), lambda a: torch.tensor(a)):
        agree(f, (numbers(4),), (value,), (numbers(4),))
        agree(f, (value,), (value,))


def test_arrays_over_one_memory() -> None:
    one = numbers(4)
    assert agree(both, (numbers(4), numbers(4)), (one, one), (numbers(4), numbers(4)))[0] == 0
    assert agree(lambda a: torch.from_numpy(a) + torch.from_numpy(a), (one,), (numbers(5),), (numbers(6),))[:2] == (
        0,
        0,
    )


def test_an_attribute() -> None:
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factors = numbers(3)

        def forward(self, x: Tensor) -> Tensor:
            return x * torch.from_numpy(self.factors)

    model = Scaled()
    intarsia.reset()
    fast = intarsia.compile(model, options=FALLS)
    x = torch.ones(3)
    torch.testing.assert_close(fast(x), model(x))
    model.factors[1] = 7.0
    torch.testing.assert_close(fast(x), model(x))
    model.factors = numbers(3, dtype="float64")
    torch.testing.assert_close(fast(x), model(x))
    assert intarsia.counters()["breaks"] == 0


def test_with_gradients() -> None:
    def f(a: Any, w: Tensor) -> Tensor:
        return (torch.from_numpy(a) @ w).sin()

    fast = intarsia.compile(f)
    with torch.enable_grad():
        for n in (4, 5, 6):
            w, a = torch.randn(3, requires_grad=True), numbers(n, 3)
            torch.testing.assert_close(torch.autograd.grad(fast(a, w).sum(), w), torch.autograd.grad(f(a, w).sum(), w))
