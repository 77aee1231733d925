"""Sides of branches that warn or raise are left out, with a check: results, warnings and errors are eager's; and what sides may call."""

from __future__ import annotations

import logging
import random
import warnings
from typing import Any

import pytest
import torch
from harness import compiled, number_backend
from torch import Tensor

import intarsia

LOGGER = logging.getLogger("of the program")


def warn(text: str) -> None:
    warnings.warn(text, stacklevel=2)


def fail(text: str) -> None:
    raise ValueError(text)


def warned(x: Tensor) -> Tensor:
    total = x.sum()
    if total <= 0:
        warn(f"the sum of {len(x)} numbers is not positive")
        y = torch.zeros_like(x)
    else:
        y = x / total
    return y * 2


def logged(x: Tensor) -> Tensor:
    y = x + 1
    if x.sum() > 0:
        return y * 2
    LOGGER.warning("small: %s", y)
    return y


def raised_by_another(x: Tensor) -> Tensor:
    if x.sum() < 0:
        fail(f"{x.sum()} is too small")
    return x + 1


def with_gradients(x: Tensor) -> Tensor:
    y = x * W
    if y.sum() <= 0:
        warn("not positive")
        return y * 3
    return y.log1p()


def caught(x: Tensor) -> Tensor:
    try:
        if x.sum() <= 0:
            fail("small")
        return x + 1
    except ValueError:
        return x - 1


W = torch.linspace(0.5, 2, 3).requires_grad_()
UNLIKELY = (warned, logged, raised_by_another, with_gradients, caught)
XS = [torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0, 0.5])]


def outcome(function: Any, x: Tensor) -> Any:
    """What a call gives: the result and its gradient, or the error; its warnings."""
    W.grad = None
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        try:
            result = function(x)
            if result.requires_grad:
                result.sum().backward()
        except ValueError as error:
            result = str(error)
    made = result.detach().tolist() if isinstance(result, Tensor) else result
    return made, None if W.grad is None else W.grad.tolist(), [str(w.message) for w in given]


def messages(caplog: Any) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == LOGGER.name]


@pytest.mark.parametrize("function", UNLIKELY)
@pytest.mark.parametrize("sign", [1, -1])
def test_one_graph_until_a_call_warns(function, sign, caplog):
    fast, log = compiled(function, number_backend)
    for x in XS:
        assert outcome(fast, sign * x) == outcome(function, sign * x)
        assert sign < 0 or (log.breaks == [] and len(log.captures) == 1)
    draw = random.Random(0)
    for _ in range(6):
        x = torch.tensor([draw.uniform(-2, 2) for _ in range(3)])
        caplog.clear()
        expected, said = outcome(function, x), messages(caplog)
        caplog.clear()
        assert outcome(fast, x) == expected and messages(caplog) == said
    assert log.fallbacks == [] and len(log.captures) < 9


def test_checks_that_raise_stay_when_one_that_warns_has_failed():
    def function(x):
        if (x > 100).any():
            raise ValueError("large")
        if x.sum() <= 0:
            warn("small")
        return x + 1

    fast, log = compiled(function, number_backend)
    for x in (XS[0], -XS[0], XS[1], -XS[1], XS[0] * 100):
        assert outcome(fast, x) == outcome(function, x)
    assert log.breaks and all("any" not in b.place.text for b in log.breaks)


def test_nothing_is_left_out_of_what_is_exported():
    with pytest.raises(Exception, match=r"if total <= 0"):
        intarsia.export(warned)(XS[0])


TABLE = {"first": 2.0, "second": 3.0}


def looks_up(x: Tensor) -> Tensor:
    return x * TABLE.get("first", 1.0) if x.sum() > 0 else x * TABLE.get("third", 5.0)


def lists_of_its_own(x: Tensor) -> Tensor:
    if x.sum() > 0:
        parts = []
        for k in range(2):
            parts.append(x + k)
        return parts[0] * parts[-1]
    return x - 1


def text_of_its_own(x: Tensor) -> Tensor:
    y = x
    if x.sum() > 0:
        y = x * TABLE["fir{}".format("st")] + TABLE.get(f"{'second'.upper().lower()}")
    return y + 1


def changes_the_callers(x: Tensor) -> Tensor:
    found: list[int] = []
    held = [found]
    if x.sum() > 0:
        found.append(1)
        y = x + 1
    else:
        y = x - 1
    return y * len(held[0])


@pytest.mark.parametrize("function", [looks_up, lists_of_its_own, text_of_its_own])
def test_sides_that_call_what_changes_nothing(function):
    fast, log = compiled(function, number_backend)
    for x in (XS[0], -XS[0], XS[1]):
        assert torch.equal(fast(x), function(x))
    assert log.breaks == log.fallbacks == [] and len(log.captures) == 1


def test_a_list_that_was_there_before():
    fast, log = compiled(changes_the_callers, number_backend)
    for x in (XS[0], -XS[0], XS[1]):
        assert torch.equal(fast(x), changes_the_callers(x))
    assert log.breaks


def test_numbers_that_follow_from_numbers():
    """As the relative positions of a Funnel transformer: floats that no argument decides are read."""

    def function(x):
        at = torch.arange(0, x.shape[0]).to(torch.float32)
        drawn = torch.empty(2).uniform_(at[0], at[-1])
        return x.sum() + torch.arange(at[0] - at[-1], at[1] + 5, 2, dtype=torch.long), drawn

    fast, log = compiled(function, number_backend)
    for x in XS:
        torch.manual_seed(0)
        expected = function(x)
        torch.manual_seed(0)
        assert all(map(torch.equal, fast(x), expected))
    assert log.breaks == log.fallbacks == [] and len(log.captures) == 1


def test_floats_of_the_callers_are_not_taken_for_numbers():
    def function(x, end):
        return x.sum() + torch.arange(0, end, 1.0)

    fast, log = compiled(function, number_backend)
    for end in (3.0, 5.0, 2.0):
        assert torch.equal(fast(XS[0], torch.tensor(end)), function(XS[0], torch.tensor(end)))
    assert log.breaks
