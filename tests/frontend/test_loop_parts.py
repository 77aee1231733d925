"""What loops of training have beside model and optimizer: schedules of every number of a group, averages of weights, flags in tensors."""

import copy
import math

import pytest
import torch
from harness import compile_into, compiled, number_backend
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
    compile = compile_into(logs)

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
    assert not log.breaks
    shared = torch.tensor([0, 0])
    alias = shared.clone()
    assert torch.equal(fast(x, shared[0]), function(x, alias[0])) and torch.equal(shared, alias)


def test_flags_that_turn_all_the_time_choose_what_both_sides_compute():
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
    assert not log.breaks and not log.fallbacks


def test_an_exported_graph_asks_for_its_flag():
    import intarsia

    def function(x, flag):
        return x + 1 if flag else x - 1

    module, _ = intarsia.export(function)(torch.ones(2), torch.tensor(True))
    assert torch.equal(module(torch.zeros(2), torch.tensor(True)), torch.ones(2))
    with pytest.raises(ValueError, match="expected True, got False"):
        module(torch.zeros(2), torch.tensor(False))


# ---- numbers of the program that change in each step, where gradients go through what they meet ----


def mixed(x, k, a):
    return (x * a + x.flip(0) * (1 - a)).tanh()


def annealed(x, k, a):
    return x * math.exp(-5 * (1 - min(k / 20, 1.0)) ** 2) + x.square() * math.log2(k + 2)


def clipped(x, k, a):
    low = x.clamp(-a, min(2.0, 3 * a))
    return torch.lerp(low, x, a) + torch.add(x, x.sin(), alpha=a) - torch.sub(x, x, alpha=1 - a)


def powers(x, k, a):
    y = (x.abs() + 0.1) ** a
    return a**y + a / (y + 1) - (a - y)


def in_place(x, k, a):
    y = x * 1
    y += a
    y = y * 1
    y *= a
    return y.div_(a + 1)


def of_halves(x, k, a):
    y = x.to(torch.bfloat16) * a + a
    return (a - y).float() / a


def not_in_the_table(x, k, a):
    return torch.nn.functional.leaky_relu(x, a)


def of_what_needs_none(x, k, a):
    return x + x.detach().mul(a).addcmul(x.detach(), x.detach(), value=a)


@pytest.mark.parametrize("outside", [False, True], ids=["whole", "backward outside"])
@pytest.mark.parametrize(
    "function",
    [mixed, annealed, clipped, powers, in_place, of_halves, of_what_needs_none, not_in_the_table],
    ids=lambda f: f.__name__,
)
def test_numbers_that_change(function, outside):
    weight = nn.Parameter(torch.randn(4, 3))

    def step(x, k, a):
        loss = function(x @ weight, k, a).sum()
        if outside:
            return loss
        weight.grad = None
        loss.backward()
        return loss.detach()

    fast, log = compiled(step, number_backend, on_error="raise")
    for k in range(2, 14):
        found = []
        for run in (step, fast):
            loss = run(torch.full((2, 4), 0.3 * k), k, 0.25 + 0.01 * k)
            if outside:
                weight.grad = None
                loss.backward()
            found.append((loss.detach(), weight.grad.clone()))
        rounding = 2e-2 if function is of_halves else 1e-5  # eager rounds some numbers to half precision first
        torch.testing.assert_close(*found, rtol=rounding, atol=rounding)
        assert found[0][0].dtype == found[1][0].dtype
    assert not log.breaks and not log.fallbacks
    most = 2 + (not outside)  # the first step finds no gradient that is there
    assert len(log.captures) <= most if function is not not_in_the_table else len(log.captures) > most


def test_the_rate_of_a_schedule_by_hand_and_the_step_of_an_own_optimizer():
    """nanoGPT's loop sets the rate in the groups; old optimizers count steps in Python and compute in grad mode."""

    class Own(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {"lr": 0.1, "betas": (0.9, 0.99)})

        def step(self):
            for group in self.param_groups:
                for p in group["params"]:
                    state = self.state[p]
                    if not state:
                        state["step"], state["m"] = 0, torch.zeros_like(p.data)
                    state["step"] += 1
                    state["m"].mul_(0.9).add_(p.grad.data, alpha=0.1)
                    scale = math.sqrt(1 - 0.99 ** state["step"]) / (1 - math.pow(0.9, state["step"]))
                    p.data.addcdiv_(state["m"], p.grad.data.abs() + 1, value=-group["lr"] * scale)

    def around(compile):
        torch.manual_seed(0)
        model, found = nn.Linear(4, 3), []
        optimizer = Own(model.parameters())

        def step(x, rate):
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        fast = compile(step)
        for k in range(60):
            found.append(fast(torch.randn(5, 4), 0.05 * (1 + math.cos(k / 20))))
        return found, [p.detach() for p in model.parameters()]

    logs = []
    compile = compile_into(logs)

    torch.testing.assert_close(around(compile), around(lambda function: function))
    assert len(logs[0].captures) <= 3 and not logs[0].breaks


def test_backward_has_the_number_of_its_forward():
    """Two steps are under way at once; what backward computes of a number is not the other's."""
    import intarsia

    weight = nn.Parameter(torch.randn(4))

    def loss_of(x, a):
        return ((x * weight).tanh() * a / (1 + a)).square().sum()

    intarsia.reset()
    fast = intarsia.compile(loss_of)
    for k in range(4):
        found = []
        for run in (loss_of, fast):
            weight.grad = None
            losses = [run(torch.full((4,), 0.5), 0.2 + 0.1 * n + k) for n in range(2)]
            for loss in losses:
                loss.backward()
            found.append((*(loss.detach() for loss in losses), weight.grad))
        torch.testing.assert_close(*found)
    counters = intarsia.counters()
    assert not counters["fallbacks"] and counters["captures"] == 2


def test_a_number_that_a_graph_gives_back_is_one():
    import intarsia

    fast = intarsia.compile(lambda x, a: (x * a, a * 2))
    for a in (0.5, 0.75, 1.25):
        result, number = fast(torch.ones(2, requires_grad=True), a)
        assert type(number) is float and number == 2 * a and torch.equal(result, torch.full((2,), a))


def test_a_number_inside_of_a_transform():
    weight = torch.randn(4, 3)

    def function(x, a):
        inner = torch.func.grad(lambda v: ((x @ v).tanh() * a).sum())(weight)
        return inner.sum() + torch.vmap(lambda row: (row @ weight).tanh() * (1 - a))(x).sum()

    fast, log = compiled(function, number_backend, on_error="raise")
    for k in range(8):
        x = torch.randn(2, 4)
        torch.testing.assert_close(fast(x, 0.1 * k + 0.2), function(x, 0.1 * k + 0.2))
    assert len(log.captures) == 2 and not log.breaks


def test_a_number_that_an_operator_needs_breaks_the_graph_behind_another_break():
    weight = nn.Parameter(torch.randn(4, 3))

    def function(x, a):
        x = x * 2
        if x.sum() > 1e9:
            x.add_(1)  # what a side writes to must be its own
        return torch.nn.functional.leaky_relu(x @ weight, a * 2).sum()

    fast, log = compiled(function, number_backend, on_error="raise")
    for k in range(20):
        x = torch.randn(2, 4)
        torch.testing.assert_close(fast(x, 0.1 + 0.01 * k), function(x, 0.1 + 0.01 * k))
    reasons = {b.reason for b in log.breaks}
    assert len(log.captures) < 16 and len(reasons) > 1 and any("control flow depends on" in r for r in reasons)
