"""Warnings and log messages name the lines that they name in eager, and what the package itself says is not for the program."""

import itertools
import logging
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch
from harness import compiled, only_capture_raises
from torch import Tensor

from intarsia.frontend.runtime.hidden_frames import is_unseen

X = torch.arange(4.0)
log = logging.getLogger("tests.messages")
HOW: dict[str, Any] = {"level": 1, "breaks": False, "tries": False}


def tells(x: Tensor) -> Tensor:
    warnings.warn("told", stacklevel=HOW["level"])
    log.warning("said", stacklevel=HOW["level"])
    return x * 2


def between(x: Tensor) -> Tensor:
    if HOW["breaks"]:
        print(end="")
    if HOW["tries"]:
        try:
            x = tells(x)
        finally:
            x = x + 1
    return tells(x) + 1


def outer(x: Tensor) -> Tensor:
    return between(x * 2) + 1


class Callee:
    def method(self, x: Tensor) -> Tensor:
        return between(x)


def places(function: Callable[[Tensor], Tensor], hook: bool) -> list[Any]:
    """Which lines are named in two calls, in which order, by a hook of the program's or in its list."""
    seen: list[Any] = []
    handler = logging.Handler()
    handler.emit = lambda r: seen.append((r.filename, r.lineno, r.funcName))  # type: ignore[method-assign]
    log.handlers[:], log.propagate = [handler], False
    with warnings.catch_warnings(record=not hook) as kept:
        warnings.simplefilter("always")
        if hook:
            warnings.showwarning = lambda message, kind, file, line, *_: seen.append((file, line))
        for _ in range(2):
            (lambda: function(X))()
    return seen + [(w.filename, w.lineno) for w in kept or ()]


def test_lines_above_a_compiled_call() -> None:
    for level, breaks, tries in itertools.product(range(1, 6), (False, True), (False, True)):
        HOW.update(level=level, breaks=breaks, tries=tries)
        for function, hook in ((outer, tries), (Callee().method, not tries)):
            fast, _ = compiled(function)
            assert places(fast, hook) == places(function, hook), (HOW, function, hook)


def test_lines_above_a_call_in_eager() -> None:
    HOW.update(level=3, breaks=False, tries=False)

    def eager(x: Tensor) -> Tensor:
        only_capture_raises()
        return tells(x) + 2

    fast, told = compiled(eager)
    assert places(fast, True) == places(eager, True) and told.fallbacks


def test_tracebacks_show_the_files_of_frames_that_are_passed_over() -> None:
    def fails(x: Tensor) -> float:
        if float(x.sum()) > 1e9:
            return 1.0
        raise KeyError(print(end=""))

    fast, _ = compiled(fails)
    for _ in range(2):
        try:
            fast(X)
        except KeyError as error:
            frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if is_unseen(f.filename)]
    assert frames[0].filename == frames[-1].filename == __file__ and len(ours) == len(frames) - 2
    assert all(f.line for f in ours if not f.filename.startswith("<intarsia "))


def test_what_the_package_says_is_no_warning_of_the_program() -> None:
    fast, told = compiled(lambda x, n: x + n, recompile_limit=1, dynamic=False)
    with warnings.catch_warnings(record=True) as kept:
        warnings.simplefilter("error")
        for n in range(3):
            assert torch.equal(fast(X, n), X + n)
    assert not kept
