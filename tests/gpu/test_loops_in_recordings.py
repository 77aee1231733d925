"""Loops and branches that values decide are nodes of a recording: values of many calls, writes, nesting, Ctrl-C."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import intarsia
from intarsia.targets.recordings import conditional

GPU = "cuda:0"
CALLS = 6  # the first ones run as they are, the next is recorded, the others are played back


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def newton(x: Tensor) -> Any:
    step = torch.ones_like(x)
    while step.abs().max() > 1e-6:
        step = (x * x * x - 2) / (3 * x * x)
        x = x - step
    return x * 1


def early(x: Tensor) -> Any:
    out, h = torch.zeros(8, 16, device=x.device), x[0] * 1
    for t in range(8):
        h = torch.tanh(h + x[t])
        out[t] = h
        if h.abs().mean() > 0.7:
            break
    return out, h, t


def nested(x: Tensor) -> Any:
    rounds = 0
    while x.max() > 1:
        y = x * 1
        while y.min() > 0.1:
            y = y * 0.5
        x, rounds = x * 0.5 + y * 0.01, rounds + 1
    return x * 1, rounds


def written(x: Tensor) -> Any:
    y = torch.zeros_like(x)
    while x.abs().sum() > 3:
        y += x
        x = x * 0.5
    return y * 2, x * 1


def to_the_caller(x: Tensor) -> Any:
    n = 0
    while x.sum() > 10:
        x.mul_(0.5)
        n += 1
    return x.cos(), n


def turned(x: Tensor) -> Any:
    """Each round hands its values on in another order."""
    a, b, c = x * 1, x + 1, x * x
    while a.abs().sum() + b.abs().sum() < 500:
        a, b, c = b, c, a + b * 0.5
    return a * 1, b * 1, c * 1


def branch(x: Tensor) -> Any:
    y = torch.cond(x.sum() > 0, lambda a: ((a @ a.t()).sin() @ a, a * 2), lambda a: (a.cos() * 2, a + 1), (x,))
    return (y[0] + 1).relu() * 2, y[1]


def branch_in_loop(x: Tensor) -> Any:
    n = 0
    while n < 6 and x.abs().max() < 50:
        x = torch.cond(x.sum() > 4, lambda a: a * 0.25, lambda a: a * 3 + 1, (x,))
        n += 1
    return x * 1, n


PROGRAMS = [newton, early, nested, written, to_the_caller, turned, branch, branch_in_loop]


def given(seed: int, by: float) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(8, 16, generator=generator) * by + 0.2).to(GPU)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_recorded_calls_are_eagers(program: Callable[[Tensor], Any]):
    fast = intarsia.compile(program)
    for call in range(2 * CALLS):
        x = given(call, (0.01, 1.0, 20.0)[call % 3])
        mine = x.clone()
        for a, b in zip((*program(x), x), (*fast(mine), mine), strict=True):
            torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-4)
    seen = intarsia.counters()
    assert seen["replays"] >= 2 and seen["fallbacks"] == 0


def test_results_are_the_callers():
    fast = intarsia.compile(written)
    results = [fast(given(seed, 5.0)) for seed in range(CALLS)]
    for seed, (y, x) in enumerate(results):
        a, b = written(given(seed, 5.0))
        torch.testing.assert_close(y, a)
        torch.testing.assert_close(x, b)


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError])
def test_a_loop_that_never_ends_is_interrupted(error: type[BaseException]):
    def forever(x: Tensor) -> Tensor:
        y = x * 1
        while y.sum() > 0:
            y = (y + 1) * 1
        return y * 2

    fast = intarsia.compile(forever)
    for _ in range(CALLS):
        fast(-given(0, 1.0))
    assert intarsia.counters()["replays"] >= 1

    def interrupt(*_: Any) -> None:
        raise error

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    start = time.perf_counter()
    try:
        with pytest.raises(error):
            fast(torch.ones(8, 16, device=GPU))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert time.perf_counter() - start < 5
    torch.testing.assert_close(fast(-given(1, 1.0)), -2 * given(1, 1.0))  # and goes on as before


def word() -> conditional.Nodes:
    nodes = conditional.Nodes(torch.cuda.current_device())
    nodes.stop = nodes._word
    return nodes


def test_the_word_that_ends_loops_is_written_behind_what_its_memory_was_used_for():
    given = [torch.full((1,), 7, dtype=torch.int32, device=GPU) for _ in range(64)]
    # The driver loads a kernel only where nothing runs: those below are used once before.
    read, players = [given[0] + 1], [conditional.Interruptible(lambda stream: None, word())]
    torch.cuda.synchronize()
    torch.cuda._sleep(1_000_000_000)  # kernels behind it wait
    read = [x + 1 for x in given]
    del given
    players += [
        conditional.Interruptible(lambda stream: None, word()) for _ in range(2 * len(read))
    ]  # some get that memory
    assert torch.stack(read).eq(8).all() and not any(int(player.stop) for player in players)
