"""What loops of training have beside model and optimizer: schedules of every number of a group, averages of weights, flags in tensors."""

import copy

import pytest
import torch
from harness import compiled, number_backend
from torch import nn
from torch.optim import lr_scheduler as schedulers
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_avg_fn, get_ema_multi_avg_fn

STEPS = 10


def trained(around, compile, steps=STEPS):
    """What `around(model, optimizer)` gives: what follows each step inside of the compiled function, and outside of it."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    inside, outside, kept = around(model, optimizer)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        inside()
        return loss.detach()

    fast, seen = compile(step), []
    for _ in range(steps):
        seen.append(fast(torch.randn(5, 4)))
        outside()
    return seen, [t.detach().clone() for t in (*model.state_dict().values(), *kept())]


def captures(around, steps=STEPS):
    """How often a step is captured that agrees with eager; without breaks."""
    logs = []

    def compile(function):
        fast, log = compiled(function, number_backend, on_error="raise")
        logs.append(log)
        return fast

    want = trained(around, lambda function: function, steps)
    torch.testing.assert_close(trained(around, compile, steps), want)
    assert not logs[0].breaks and not logs[0].fallbacks
    return len(logs[0].captures)


def nothing():
    return ()


def decay(optimizer):
    def change():
        for group in optimizer.param_groups:
            group["weight_decay"] += 0.01
            group["betas"] = (group["betas"][0] - 0.01, group["betas"][1])

    return change


SCHEDULES = {
    "one cycle": lambda o: schedulers.OneCycleLR(o, 0.1, total_steps=40).step,  # changes betas too
    "cyclic": lambda o: schedulers.CyclicLR(o, 0.01, 0.1, step_size_up=4).step,
    "cosine": lambda o: schedulers.CosineAnnealingWarmRestarts(o, 3).step,
    "warm-up": lambda o: (
        schedulers.SequentialLR(
            o, [schedulers.LinearLR(o, total_iters=2), schedulers.CosineAnnealingLR(o, 9)], [2]
        ).step
    ),
    "by hand": decay,
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_numbers_of_a_group_that_change_in_each_step(name):
    """The step that makes the states, the step whose numbers have changed."""
    assert captures(lambda model, optimizer: (nothing, SCHEDULES[name](optimizer), nothing)) <= 3


AVERAGES = {
    "equal": {},
    "exponential": {"avg_fn": get_ema_avg_fn(0.9)},
    "many": {"multi_avg_fn": get_ema_multi_avg_fn(0.9), "use_buffers": True},
    "own": {"avg_fn": lambda averaged, now, count: averaged + (now - averaged) / (count + 1)},
}


@pytest.mark.parametrize("name", AVERAGES)
def test_averages_of_weights(name):
    def around(model, optimizer):
        averaged = AveragedModel(model, **AVERAGES[name])
        return lambda: averaged.update_parameters(model), nothing, lambda: list(averaged.state_dict().values())

    assert captures(around) == 2


def test_weights_averaged_by_hand_and_the_rate_of_swa():
    def around(model, optimizer):
        averaged = copy.deepcopy(model)
        schedule = SWALR(optimizer, swa_lr=0.05, anneal_epochs=4)

        @torch.no_grad()
        def update():
            for mine, now in zip(averaged.parameters(), model.parameters(), strict=True):
                mine.lerp_(now, 0.1)

        return update, schedule.step, lambda: list(averaged.state_dict().values())

    assert captures(around) <= 3


@pytest.mark.parametrize("kind", [torch.int64, torch.bool, torch.float32])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_flag_in_a_tensor_is_a_guard(kind, shape):
    def function(x, flag):
        x = x * 2
        if flag:
            x = x + 1
        if flag == 0:
            x = x - 3
        return x if flag > 0.5 else -x

    fast, log = compiled(function, number_backend, on_error="raise")
    for number in (0, 1, 0, 1, 1):
        x, flag = torch.randn(3), torch.full(shape, number).to(kind)
        assert torch.equal(fast(x, flag), function(x, flag))
    assert len(log.captures) == 2 and not log.breaks


def test_a_flag_is_asked_before_it_is_written_to_and_not_behind():
    def function(x, count):
        first = bool(count == 0)
        count += 1
        if first:
            x = x + 1
        return x * 2 if count > 1 else x

    fast, log = compiled(function, number_backend, on_error="raise")
    count, other = torch.tensor(0), torch.tensor(0)
    for _ in range(4):
        x = torch.randn(3)
        assert torch.equal(fast(x, count), function(x, other)) and torch.equal(count, other)
    assert {b.reason for b in log.breaks} == {"control flow depends on a tensor's value"}
    shared = torch.tensor([0, 0])
    alias = shared.clone()
    assert torch.equal(fast(x, shared[0]), function(x, alias[0])) and torch.equal(shared, alias)


def test_flags_that_turn_all_the_time_are_breaks():
    flags = [torch.tensor(False) for _ in range(5)]

    def function(x):
        for flag in flags:
            x = x + 1 if flag else x * 2
        return x

    fast, log = compiled(function, number_backend, on_error="raise")
    draw = torch.Generator().manual_seed(0)
    for _ in range(20):
        for flag in flags:
            flag.fill_(bool(torch.randint(0, 2, (), generator=draw)))
        x = torch.randn(3)
        assert torch.equal(fast(x), function(x))
    assert log.breaks and not log.fallbacks


def test_an_exported_graph_asks_for_its_flag():
    import intarsia

    def function(x, flag):
        return x + 1 if flag else x - 1

    module, _ = intarsia.export(function)(torch.ones(2), torch.tensor(True))
    assert torch.equal(module(torch.zeros(2), torch.tensor(True)), torch.ones(2))
    with pytest.raises(ValueError, match="expected True, got False"):
        module(torch.zeros(2), torch.tensor(False))
