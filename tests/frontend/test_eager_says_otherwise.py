"""What capture would see in another way than eager ends the graph: classes that a call makes, kernels that cast inside."""

from __future__ import annotations

import enum
import operator

import pytest
import torch
from harness import compiled, number_backend
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
    assert "it is an enumeration" in log.breaks[0].reason


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


TRUTHS = {
    "equal": lambda s: (s > 1) == True,  # noqa: E712
    "unequal": lambda s: (s > 1) != True,  # noqa: E712
    "to_a_number": lambda s: ((s > 1) == 1, (s > 1) < 1, (s > 1) == 1.0),
    "to_nothing": lambda s: (s > 1) == None,  # noqa: E711
    "to_another": lambda s: ((s > 1) == (s > 3), (s > 1) is (s > 3)),
    "identity": lambda s: ((s > 1) is True, (s > 1) is not False, (s > 1) is None),
    "among": lambda s: ((s > 1) in (True,), (s > 1) in [0, None], (s > 1) in {True}),
    "operator": lambda s: operator.eq(s > 1, True),
    "numbers": lambda s: ((s > 1) + 1, [5, 7][s > 1], {True: 5, False: 7}[s > 1], f"{s > 1}"),
}


@pytest.mark.parametrize("kind", ["argument", "read"])
@pytest.mark.parametrize("name", TRUTHS)
def test_truths_of_numbers_that_change(name, kind) -> None:
    """A comparison of symbolic sizes or numbers, compared again: torch's own gives False for all but its own kind."""

    def f(x, s):
        return x * s, TRUTHS[name](s.item() if kind == "read" else s)

    for values in ((1.0, 0.02, 5.2, 2.0), (1, 2, 5, 0)):
        fast, _ = compiled(f, number_backend)
        for v in values:
            given = torch.tensor(v, dtype=torch.float64 if type(v) is float else torch.int64) if kind == "read" else v
            assert str(fast(torch.ones(2), given)) == str(f(torch.ones(2), given))


@pytest.mark.parametrize("trained", [False, True])
def test_equal_results_are_memory_of_their_own(trained) -> None:
    """Views and detached results of values that are computed twice are of two memories in eager."""

    def f(y, p):
        return (y * p).view(-1), (y * p).view(-1), (y * p)[0], (y * p).sum().detach(), (y * p).sum().detach()

    y, p = torch.randn(5), torch.randn(5, requires_grad=trained)
    found, wanted = intarsia.compile(f)(y, p), f(y, p)
    torch.testing.assert_close(found, wanted)
    assert len({t.untyped_storage().data_ptr() for t in found}) == 5
    found[3].add_(1)
    assert torch.equal(found[4], wanted[4])
