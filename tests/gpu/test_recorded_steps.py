"""Whole training steps as recordings: schedules, dropout, gradients that are added up, last batches, memory."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intarsia
from intarsia.targets.recordings.graphs import STATISTICS

GPU = "cuda:0"
Step = Callable[[Tensor, Tensor], Any]


@pytest.fixture(autouse=True)
def with_gradients():
    with torch.enable_grad():
        yield


def network(p: float = 0.1) -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(3):
        layers += [nn.Linear(256, 256), nn.LayerNorm(256), nn.GELU(), nn.Dropout(p)]
    return nn.Sequential(*layers, nn.Linear(256, 10)).to(GPU)


def step_of(net: nn.Module) -> Step:
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)

    def step(x: Tensor, target: Tensor) -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), target)
        loss.backward()
        optimizer.step()
        schedule.step()
        return loss.detach(), F.dropout(torch.arange(512.0, device=GPU)).sum()

    return step


def batches(count: int, size: Callable[[int], int] = lambda k: 64) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(1)
    return [(torch.randn(size(k), 256, device=GPU), torch.randint(0, 10, (size(k),), device=GPU)) for k in range(count)]


def run(step: Step, given: list[tuple[Tensor, Tensor]]) -> tuple[list[Tensor], list[float], float]:
    torch.manual_seed(7)
    results = [step(*b) for b in given]
    return [r[0] for r in results], [r[1].item() for r in results], torch.rand(1, device=GPU).item()


@pytest.mark.parametrize("sizes", ["one", "last batches"])
def test_a_schedule_of_whole_steps(sizes: str) -> None:
    """One recording for each size, the numbers of calls without recordings, random ones too, and no more memory than eager."""
    given = batches(60, lambda k: 24 if sizes != "one" and k % 5 == 4 else 64)
    found = {}
    for recorded in (False, True):
        STATISTICS.clear()
        fast = intarsia.compile(step_of(network()), options={"cuda_graphs": recorded})
        found[recorded] = run(fast, given)
    (plain, noise, after), (losses, drawn, end) = found[False], found[True]
    torch.testing.assert_close(torch.stack(losses), torch.stack(plain), rtol=1e-2, atol=1e-3)
    assert drawn == noise and end == after and len(set(drawn)) > 30
    assert not STATISTICS.refused
    if sizes == "one":
        assert STATISTICS.recordings == 1 and STATISTICS.replays >= 60 - 6
    else:
        assert STATISTICS.recordings <= 4 and STATISTICS.replays >= 40  # two sizes, known ones and then symbols


def test_losses_are_those_of_eager() -> None:
    given = batches(30)
    eager, _, _ = run(step_of(network(0.0)), given)
    fast, _, _ = run(intarsia.compile(step_of(network(0.0))), given)
    torch.testing.assert_close(torch.stack(fast), torch.stack(eager), rtol=2e-2, atol=2e-3)


def test_memory_of_a_recorded_step() -> None:
    """Gradients are not there twice, nor copied."""
    peaks = []
    for compiled in (False, True):
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.manual_seed(0)
        net = nn.Sequential(*(m for _ in range(6) for m in (nn.Linear(2048, 2048), nn.GELU()))).to(GPU)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)

        def step(x: Tensor, net: nn.Module = net, optimizer: Any = optimizer) -> Tensor:
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        fast, x = intarsia.compile(step) if compiled else step, torch.randn(256, 2048, device=GPU)
        before = torch.cuda.memory_allocated()
        STATISTICS.clear()
        for k in range(12):
            if k == 1:  # the first makes the optimizer's states
                torch.cuda.reset_peak_memory_stats()
            fast(x)
        peaks.append(torch.cuda.max_memory_allocated() - before)
        assert all(p.grad is not None for p in net.parameters())
    assert STATISTICS.replays >= 8 and not STATISTICS.refused
    assert peaks[1] <= 1.05 * peaks[0], peaks


def test_memory_of_recorded_halves() -> None:
    """The model and the optimizer's step compiled apart: gradients lie where saved tensors were, with the memory of recordings."""
    peaks, losses = [], []
    for compiled in (False, True):
        intarsia.reset()
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        torch.manual_seed(0)
        net = nn.Sequential(*(m for _ in range(6) for m in (nn.Linear(2048, 2048), nn.GELU()))).to(GPU)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
        loss_of, update = (lambda x, net=net: net(x).square().mean()), optimizer.step
        if compiled:
            loss_of, update = intarsia.compile(loss_of), intarsia.compile(update)
        x, found = torch.randn(4096, 2048, device=GPU), []
        STATISTICS.clear()
        for k in range(14):
            if k == 12:
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            loss = loss_of(x)
            loss.backward()
            update()
            optimizer.zero_grad(set_to_none=True)
            found.append(loss.detach())
        peaks.append(torch.cuda.max_memory_reserved() - before)
        losses.append(torch.stack(found))
        del net, optimizer, loss_of, update, x, loss, found
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-2, atol=1e-4)
    assert STATISTICS.replays >= 2 * 14 - 2 - 5 and not STATISTICS.refused
    assert peaks[1] <= peaks[0], peaks


def test_backward_twice_and_gradients_that_outlive_forward() -> None:
    """What is in use is not written to, though both halves have one memory at first."""
    for kind in ("retained", "kept behind forward", "two graphs"):
        nets = [network(0.0), network(0.0)]
        model = intarsia.compile(nets[1])
        for k, (x, target) in enumerate(batches(30)):
            grads = []
            for run, net in ((nets[0], nets[0]), (model, nets[1])):
                if kind != "kept behind forward":
                    net.zero_grad()
                loss = F.cross_entropy(run(x), target)
                if kind == "two graphs" and k > 12:
                    loss = loss + F.cross_entropy(run(x * 2), target)
                if kind == "kept behind forward":
                    net.zero_grad()
                if kind == "retained" and k > 10:
                    loss.backward(retain_graph=True)
                loss.backward()
                grads.append([p.grad.clone() for p in net.parameters() if p.grad is not None])
            for one, other in zip(*grads, strict=True):
                torch.testing.assert_close(other, one, rtol=2e-2, atol=2e-3)
    assert not STATISTICS.refused


@pytest.mark.parametrize("inside", [True, False])
def test_gradients_that_are_added_up(inside: bool) -> None:
    """Micro-batches: backward inside of what is compiled, or outside of it."""
    given, losses = batches(80), []
    for compiled in (False, True):
        net = network(0.0)
        optimizer = torch.optim.SGD(net.parameters(), 0.05)
        model = intarsia.compile(net) if compiled and not inside else net

        def micro(x: Tensor, target: Tensor, model: Any = model) -> Tensor:
            loss = F.cross_entropy(model(x), target) / 4
            loss.backward()
            return loss.detach()

        part = intarsia.compile(micro) if compiled and inside else micro
        STATISTICS.clear()
        losses.append([])
        for k, (x, target) in enumerate(given):
            losses[-1].append(part(x, target))
            if k % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
    torch.testing.assert_close(torch.stack(losses[1]), torch.stack(losses[0]), rtol=2e-2, atol=2e-3)
    assert not STATISTICS.refused and STATISTICS.replays >= (60 if inside else 120)


def test_gradients_that_the_user_keeps() -> None:
    """Those of earlier steps are never written to, in whatever order they are let go of."""
    net, kept = network(0.0), []
    step = intarsia.compile(step_of(net))
    for k, (x, target) in enumerate(batches(24)):
        step(x, target)
        kept += [(p.grad, p.grad.clone()) for p in net.parameters() if p.grad is not None]
        assert all(torch.equal(a, b) for a, b in kept)
        if k % 5 > 2:
            kept = kept[-3:] if k % 2 else []
