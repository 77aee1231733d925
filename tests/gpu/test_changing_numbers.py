"""What changes from step to step is an argument of a recording: learning rates, seeds; and updates over lists of tensors."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor, nn

import intarsia
from intarsia.targets.recordings.graphs import STATISTICS

GPU = "cuda:0"


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def test_learning_rates_are_no_part_of_a_recording() -> None:
    w, g = torch.randn(32, 32, device=GPU), torch.randn(32, 32, device=GPU)

    def step(w: Tensor, g: Tensor, lr: float) -> None:
        for _ in range(6):
            w.sub_((w @ g).tanh() * lr)

    fast, ours, eager = intarsia.compile(step), w.clone(), w.clone()
    recordings, replays = STATISTICS.recordings, STATISTICS.replays
    for k in range(20):
        fast(ours, g, 0.1 / (k + 1))
        step(eager, g, 0.1 / (k + 1))
        torch.testing.assert_close(ours, eager, rtol=1e-3, atol=1e-3)
    assert STATISTICS.recordings <= recordings + 2 and STATISTICS.replays >= replays + 12


def test_a_program_that_draws_beside_a_thread_that_may() -> None:
    """Progress bars and data loaders have threads: a seed is an argument of the recording."""
    net = nn.Sequential(
        *(nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Dropout(), nn.LayerNorm(32)) for _ in range(4))
    ).to(GPU)
    ready = threading.Event()
    thread = threading.Thread(target=ready.wait)
    thread.start()
    try:
        fast, x = intarsia.compile(net), torch.randn(8, 32, device=GPU)
        before = STATISTICS.replays
        for _ in range(6):
            fast(x)
        assert STATISTICS.replays > before
        torch.manual_seed(3)
        first = [fast(x) for _ in range(4)]
        after = torch.rand(1, device=GPU)
        torch.manual_seed(3)
        assert all(torch.equal(a, fast(x)) for a in first) and torch.equal(after, torch.rand(1, device=GPU))
        assert not any(torch.equal(a, first[0]) for a in first[1:])
    finally:
        ready.set()
        thread.join()


def test_a_step_over_many_tensors() -> None:
    """Three launches for 300 tensors, of all sizes, beside the bounds of a block."""
    shapes = [(1,), (7,), (1024,), (1025,), (300, 41), (), (3, 5, 7)] * 43
    ours = [[torch.rand(s, device=GPU) for s in shapes] for _ in range(4)]
    eager = [[x.clone() for x in part] for part in ours]

    def adamw(p: list[Tensor], g: list[Tensor], m: list[Tensor], v: list[Tensor], lr: float) -> None:
        torch._foreach_mul_(p, 1 - lr * 0.01)
        torch._foreach_lerp_(m, g, 0.1)
        torch._foreach_mul_(v, 0.99)
        torch._foreach_addcmul_(v, g, g, 0.01)
        torch._foreach_addcdiv_(p, m, torch._foreach_add(torch._foreach_sqrt(v), 1e-8), -lr)

    fast, before = intarsia.compile(adamw), intarsia.counters()["captures"]
    for k in range(6):
        fast(*ours, 0.1 / (k + 1))
        adamw(*eager, 0.1 / (k + 1))
    for a, b in zip(sum(ours, []), sum(eager, []), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert intarsia.counters()["captures"] - before == 2
