"""Threads at work on shared and own compiled functions, with a watch for the one that stands still."""

from __future__ import annotations

import faulthandler
import gc
import random
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intarsia

STILL = 120.0  # seconds without an action: a deadlock, whatever the machine is busy with


@dataclass
class Found:
    """What a stress did and found."""

    done: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        counts = ", ".join(f"{name} {number}" for name, number in sorted(self.done.items()))
        return "\n".join([f"{sum(self.done.values())} actions ({counts}), {len(self.errors)} errors", *self.errors[:5]])


class Net(nn.Module):
    """Products, a convolution, a norm and a hoisted table: everything of which copies are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(24, 32), nn.Linear(32, 8)
        self.norm = nn.LayerNorm(32)
        self.conv = nn.Conv1d(4, 4, 3, padding=1)
        self.table = nn.Parameter(torch.randn(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        """(rows, 24) -> (rows, 8)."""
        y = F.gelu(self.norm(self.first(x)))
        y = self.conv(y.reshape(-1, 4, 8)).reshape(y.shape)
        return self.last(y) @ self.table.softmax(-1)


def broken(x: Tensor) -> Tensor:
    """A function with a break and a loop."""
    y = x * 2
    for k in range(2):
        y = y.sin() + k
        intarsia.graph_break()
    return y + y.mean()


def branches(x: Tensor, n: int) -> Tensor:
    """A function that is captured anew for some numbers, and raises for others."""
    if n < 0:
        raise ValueError(n)
    return x * n if n % 2 else (x + n).relu()


LOCK = threading.RLock()


def locked(x: Tensor) -> Tensor:
    """A function that takes a lock of the program's."""
    with LOCK:
        return torch.tanh(x) * 3


class _Shared:
    """What all threads work on. Weights are changed while nobody calls: a program that does not lock them has no result to compare."""

    def __init__(self) -> None:
        self.net = Net()
        self.models = [intarsia.compile(self.net) for _ in range(2)]
        self.functions = {f: intarsia.compile(f) for f in (broken, branches, locked)}
        self.weights = threading.Lock()


def stress(seconds: float, threads: int = 16, seed: int = 0) -> Found:
    """Let so many threads work for so long."""
    found, shared, end = Found(), _Shared(), time.monotonic() + seconds
    alive = [time.monotonic()] * threads
    guard = threading.Lock()

    def run(number: int) -> None:
        draw = random.Random(seed * 1000 + number)
        while time.monotonic() < end and not found.errors:
            action = draw.choices(list(ACTIONS), ACTIONS.values())[0]
            try:
                action(shared, draw)
            except BaseException:
                with guard:
                    found.errors.append(f"{action.__name__}: {traceback.format_exc()}")
            alive[number] = time.monotonic()
            with guard:
                found.done[action.__name__] += 1

    interval = sys.getswitchinterval()
    sys.setswitchinterval(2e-4)  # threads take turns often
    workers = [threading.Thread(target=run, args=(k,), daemon=True) for k in range(threads)]
    for worker in workers:
        worker.start()
    for number, worker in enumerate(workers):
        while worker.is_alive():
            worker.join(1.0)
            if time.monotonic() - alive[number] > STILL:
                faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
                found.errors.append(f"thread {number} stands still: a deadlock")
                return found
    sys.setswitchinterval(interval)
    return found


def _input(draw: random.Random) -> Tensor:
    return torch.randn(draw.choice([1, 3, 8, 8, 8]), 24)


def _same(ours: Any, eagers: Any, what: str) -> None:
    torch.testing.assert_close(ours, eagers, atol=1e-3, rtol=1e-3, msg=lambda text: f"{what}: {text}")


def call_a_model(shared: _Shared, draw: random.Random) -> None:
    """Inference of a shared model."""
    x = _input(draw)
    with shared.weights, torch.no_grad():
        _same(draw.choice(shared.models)(x), shared.net(x), "a model")


def call_a_model_freely(shared: _Shared, draw: random.Random) -> None:
    """Beside threads that change its weights: some result of the right shape."""
    x = _input(draw)
    with torch.set_grad_enabled(draw.random() < 0.3):
        assert draw.choice(shared.models)(x).shape == (len(x), 8)


def differentiate(shared: _Shared, draw: random.Random) -> None:
    """Gradients of a shared model."""
    x = _input(draw).requires_grad_()
    with shared.weights:
        ours, eagers = (
            torch.autograd.grad(m(x).square().sum(), [x, *shared.net.parameters()])
            for m in (draw.choice(shared.models), shared.net)
        )
    for a, b in zip(ours, eagers, strict=True):
        _same(a, b, "gradients")


def change_weights(shared: _Shared, draw: random.Random) -> None:
    """In place, through `.data`, or as another parameter."""
    with shared.weights, torch.no_grad():
        weight = draw.choice(list(shared.net.parameters()))
        way = draw.randrange(3)
        if way == 0:
            weight.add_(torch.randn_like(weight) * 0.1)
        elif way == 1:
            weight.data.view(-1)[draw.randrange(weight.numel())] = draw.random()
        else:
            shared.net.last.weight = nn.Parameter(torch.randn(8, 32) * 0.3)


def call_a_function(shared: _Shared, draw: random.Random) -> None:
    """A function with breaks, with a lock, or one that is captured again and again and raises."""
    function, x = draw.choice(list(shared.functions)), _input(draw)
    args = (x, draw.randrange(-3, 6)) if function is branches else (x,)
    outcomes = []
    for call in (shared.functions[function], function):
        try:
            outcomes.append(call(*args))
        except ValueError as error:
            outcomes.append(str(error))
    if isinstance(outcomes[0], str) or isinstance(outcomes[1], str):
        assert outcomes[0] == outcomes[1]
    else:
        _same(*outcomes, function.__name__)


def call_under_a_lock(shared: _Shared, draw: random.Random) -> None:
    """Compile and call while holding the lock that a captured function waits for."""
    with LOCK:
        _same(shared.functions[locked](_input(draw)).shape[1], 24, "locked")
        compile_and_drop(shared, draw)


def compile_and_drop(shared: _Shared, draw: random.Random) -> None:
    """A function of one's own, compiled, called and dropped."""
    factor, gradients = float(draw.randrange(4)), draw.random() < 0.3
    own: Callable[[Tensor], Tensor] = lambda x: (x * factor).exp().sum(-1)  # noqa: E731
    x = torch.randn(draw.choice([2, 5]), 7, requires_grad=gradients)
    result = intarsia.compile(own, backend=draw.choice(["auto", "eager"]))(x)
    _same(result, own(x), "a function of one's own")
    if gradients:
        _same(torch.autograd.grad(result.sum(), x)[0], torch.autograd.grad(own(x).sum(), x)[0], "its gradient")


def reset(shared: _Shared, draw: random.Random) -> None:
    """Forget everything; rarely, or nothing else would be done."""
    if draw.random() < 0.2:
        intarsia.reset()
    elif draw.random() < 0.3:
        with intarsia.set_stance("force_eager"):
            pass
    else:
        gc.collect()


ACTIONS = {
    call_a_model: 6,
    call_a_model_freely: 4,
    differentiate: 4,
    change_weights: 4,
    call_a_function: 6,
    call_under_a_lock: 2,
    compile_and_drop: 4,
    reset: 1,
}
