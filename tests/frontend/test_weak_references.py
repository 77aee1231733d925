"""Weak references to what the call itself made: read while a variable leads to it, else the call is CPython's."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import check, compiled
from torch import Tensor

X = torch.arange(3.0)


class Made:
    held: Any = None


def variable(x: Tensor) -> Any:
    made = Made()
    reference = weakref.ref(made)
    return x + 1, reference() is made


def in_containers(x: Tensor) -> Any:
    kept = [{"key": Made()}]
    reference = weakref.ref(kept[0]["key"])

    def inner() -> Any:
        return reference() is kept[0]["key"]

    return x + 1, inner()


def attribute(x: Tensor) -> Any:
    made = Made()
    made.held = Made()
    reference = weakref.ref(made.held)
    return x + 1, reference() is made.held


def tensor(x: Tensor) -> Any:
    y = x * 2
    reference = weakref.ref(y)
    return y, reference() is y


@pytest.mark.parametrize("program", [variable, in_containers, attribute, tensor], ids=lambda f: f.__name__)
def test_alive(program: Callable[..., Any]) -> None:
    check(program, X)


def at_once(x: Tensor) -> Any:
    return x + 1, weakref.ref(Made())() is None


def deleted(x: Tensor) -> Any:
    made = Made()
    kept, reference = [made], weakref.ref(made)
    del made
    before = reference() is None
    kept.clear()
    return x + 1, before, reference() is None


def deleted_tensor(x: Tensor) -> Any:
    y = x * 2
    reference = weakref.ref(y)
    del y
    return x + 1, reference() is None


def called_back(x: Tensor) -> Any:
    log: list[int] = []
    made = Made()
    reference = weakref.ref(made, lambda _: log.append(1))
    del made
    return x + 1, log, reference() is None


def of_values(x: Tensor) -> Any:
    table, made = weakref.WeakValueDictionary[str, Made](), Made()
    table["key"] = made
    count = len(table)
    del made
    return x + 1, count, len(table)


@pytest.mark.parametrize(
    "program", [at_once, deleted, deleted_tensor, called_back, of_values], ids=lambda f: f.__name__
)
def test_gone(program: Callable[..., Any]) -> None:
    function, log = compiled(program)
    for _ in range(2):
        assert function(X)[1:] == program(X)[1:]
    assert log.fallbacks
