"""What capture would see in another way than eager ends the graph: classes that a call makes, kernels that cast inside."""

from __future__ import annotations

import enum

import pytest
import torch
from harness import compiled
from torch import nn
from torch.overrides import TorchFunctionMode

import intarsia


def test_an_enumeration_made_by_a_call_is_a_new_one_in_each_call() -> None:
    def f(x):
        made = enum.Enum("Kind", "A B")
        return made, x + made.B.value

    fast, log = compiled(f)
    (first, a), (second, _) = fast(torch.ones(2)), fast(torch.ones(2))
    assert first is not second and first.__module__ == __name__ and torch.equal(a, torch.full((2,), 3.0))
    assert "an enumeration is made by calling Enum" in log.breaks[0].reason


def test_encoder_layers_under_autocast_have_eagers_dtype() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval().requires_grad_(False)
    fast, x = intarsia.compile(layer), torch.randn(2, 3, 8)
    for dtype in (torch.bfloat16, torch.float16, None):
        with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
            wanted, found = layer(x), fast(x)
        assert found.dtype == wanted.dtype
        torch.testing.assert_close(found, wanted)


def caught(y):
    try:
        return y.max(0)
    except IndexError as error:
        return str(error)


def on_its_way(y):
    try:
        return y @ y
    finally:
        y.resolve_neg()._version  # noqa: B018  # the graph ends here


def of_a_method(y):
    try:
        return y.view(7, -1)
    except RuntimeError as error:
        return type(error), error.args


def in_place_of_a_leaf(y):
    leaf = y.detach().requires_grad_()
    try:
        leaf.add_(1)
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("f", [caught, on_its_way, of_a_method, in_place_of_a_leaf])
def test_errors_that_the_program_sees_are_eagers(f, dynamic) -> None:
    """torch's fake tensors refuse some calls in other words than eager, or with other exceptions."""
    fast = intarsia.compile(f, dynamic=dynamic)
    for y in (torch.randn(0), torch.randn(0, 3), torch.randn(3, 4), torch.randn(5, 6)):
        results = []
        for run in (f, fast):
            try:
                results.append(run(y))
            except Exception as error:
                results.append((type(error), str(error)))
        assert str(results[0]) == str(results[1])


class Noting(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.seen.append(function.__name__)
        return function(*args, **(kwargs or {}))


def test_a_mode_around_the_call_sees_what_it_sees_in_eager() -> None:
    def f(x):
        return (x.sin() + 1).sum()

    fast, x = intarsia.compile(f), torch.randn(3)
    fast(x)  # compiled before, so that there are guards
    for _ in range(2):
        with Noting() as wanted:
            f(x)
        with Noting() as found:
            fast(x)
        assert found.seen == wanted.seen == ["sin", "add", "sum"]
    assert torch.equal(fast(x), f(x))
