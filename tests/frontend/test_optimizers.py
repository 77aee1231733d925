"""Optimizers of torch's, and their like, as one graph each: values as in eager bit for bit, one capture for the first step, one for all others."""

import copy
import types

import pytest
import torch
from harness import compile_into, compiled, number_backend
from torch import nn

from intarsia.frontend.graph import host_numbers
from intarsia.frontend.operators.fused_steps import is_left

FLAGS = {
    "SGD": [{}, {"momentum": 0.9, "nesterov": True}, {"momentum": 0.9, "dampening": 0.5, "maximize": True}],
    "Adam": [{}, {"amsgrad": True, "weight_decay": 0.1}, {"maximize": True}],
    "AdamW": [{}, {"amsgrad": True}],
    "RMSprop": [{}, {"momentum": 0.9, "centered": True, "weight_decay": 0.1}],
    "Adagrad": [{"lr_decay": 0.1, "weight_decay": 0.1}],
    "Adadelta": [{}],
    "Adamax": [{}],
    "NAdam": [{}, {"decoupled_weight_decay": True, "weight_decay": 0.1}],
    "RAdam": [{}],
    "ASGD": [{"t0": 3.0}],
    "Rprop": [{}],
}
CASES = [(name, {**flags, "foreach": each}) for name, many in FLAGS.items() for flags in many for each in (None, True)]
CASES += [
    ("SGD", {"lr": torch.tensor(0.01)}),
    ("Adam", {"lr": torch.tensor([0.01])}),
    ("Muon", {}),
]
CAPTURES = {"RAdam": 3, "ASGD": 6}  # these decide by the number of the step; one of ASGD's numbers is zero at first


def twins(make, shapes=((3, 4), (5,)), dtypes=(torch.float32, torch.float32)):
    """Two equal lists of parameters, each with its optimizer."""
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        parameters = [nn.Parameter(torch.randn(s).to(d)) for s, d in zip(shapes, dtypes, strict=True)]
        found.append((parameters, make(parameters)))
    return found


def set_gradients(parameters, seed, none=()):
    generator = torch.Generator().manual_seed(seed)
    for i, p in enumerate(parameters):
        gradient = torch.randn(p.shape, generator=generator).to(p.dtype)
        p.grad = None if i in none else gradient


def assert_same(one, other):
    (parameters, optimizer), (others, second) = one, other
    torch.testing.assert_close(others, parameters, rtol=0, atol=0, equal_nan=True)
    state, wanted = second.state_dict(), optimizer.state_dict()
    torch.testing.assert_close(state["state"], wanted["state"], rtol=0, atol=0, equal_nan=True)
    assert [p._version for p in others] == [p._version for p in parameters]
    assert str(state["param_groups"]) == str(wanted["param_groups"])


@pytest.mark.parametrize(("name", "flags"), CASES, ids=lambda v: v if isinstance(v, str) else str(v)[:60])
def test_each(name, flags):
    def make(parameters):
        given = {"lr": 0.01, **copy.deepcopy(flags)}
        return getattr(torch.optim, name)(parameters, **given)

    eager, ours = twins(make, ((3, 4), (4, 2)))
    step, log = compiled(ours[1].step, number_backend, on_error="raise")
    for seed in range(8):
        for parameters, _ in (eager, ours):
            set_gradients(parameters, seed)
        eager[1].step()
        step()
        assert_same(eager, ours)
    assert not log.breaks and not log.fallbacks and len(log.captures) <= CAPTURES.get(name, 2), log.recompiles


FUSED = [
    ("SGD", {}),
    ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("SGD", {"momentum": 0.9, "dampening": 0.5, "maximize": True, "lr": torch.tensor(0.01)}),
    ("Adam", {"weight_decay": 0.1}),
    ("Adam", {"amsgrad": True, "maximize": True, "lr": torch.tensor(0.01)}),
    ("AdamW", {}),
    ("AdamW", {"amsgrad": True, "weight_decay": 0.3}),
    ("Adagrad", {"lr_decay": 0.1, "weight_decay": 0.1}),
    ("Adagrad", {"maximize": True}),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("name", "flags"), FUSED, ids=lambda v: v if isinstance(v, str) else str(v)[:60])
def test_fused_kernels_are_part_of_the_graph(name, flags, dtype):
    def make(parameters):
        return getattr(torch.optim, name)(parameters, **{"lr": 0.01, **copy.deepcopy(flags)}, fused=True)

    eager, ours = twins(make, ((3, 4), (4, 2)), (dtype, dtype))
    step, log = compiled(ours[1].step, number_backend, on_error="raise")
    for seed in range(6):
        for parameters, _ in (eager, ours):
            set_gradients(parameters, seed, none=(1,) if seed == 3 else ())
        eager[1].step()
        step()
        for a, b in zip(ours[0], eager[0], strict=True):
            torch.testing.assert_close(a, b)
        one, other = (each[1].state_dict()["state"] for each in (ours, eager))
        torch.testing.assert_close(one, other)
    assert not log.breaks and not log.fallbacks


def test_fused_kernels_of_a_device_are_the_librarys():
    for device in ("cpu", "meta"):
        groups = [{"fused": True, "params": [nn.Parameter(torch.zeros(2, device=device))]}]
        assert is_left(types.SimpleNamespace(param_groups=groups)) is (device != "cpu")


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_fused_kernels_that_a_scaler_speaks_to_are_the_librarys(kind):
    eager, ours = twins(lambda parameters: kind(parameters, lr=0.1, fused=True))
    step, log = compiled(lambda: ours[1].step(), number_backend, on_error="raise")
    for seed in range(4):
        for parameters, optimizer in (eager, ours):
            set_gradients(parameters, seed)
            optimizer.grad_scale, optimizer.found_inf = torch.tensor(4.0), torch.tensor(float(seed % 2))
        eager[1].step()
        step()
        torch.testing.assert_close(ours[0], eager[0], rtol=0, atol=0)
    assert {b.reason for b in log.breaks} == {"a fused kernel of the library's updates the parameters"}


@pytest.mark.parametrize("each", [None, True])
def test_on_a_gpu_the_host_counts_steps(each, monkeypatch):
    """What is on a GPU here is what has dimensions."""
    monkeypatch.setattr(host_numbers, "on_gpu", lambda tensor: tensor.dim() > 0)
    eager, ours = twins(lambda parameters: torch.optim.NAdam(parameters, lr=0.1, foreach=each))
    step, log = compiled(ours[1].step, number_backend, on_error="raise")
    for seed in range(5):
        for parameters, _ in (eager, ours):
            set_gradients(parameters, seed)
        eager[1].step()
        step()
        assert_same(eager, ours)
    assert len(log.captures) == 2
    for capture in log.captures:
        inputs = [i for i in capture.example_inputs if isinstance(i, torch.Tensor)]
        assert inputs and all(i.dim() for i in inputs)


class Lion(torch.optim.Optimizer):
    """One of a program's own."""

    def __init__(self, parameters, lr=1e-3, betas=(0.9, 0.99), decay=0.1):
        super().__init__(parameters, {"lr": lr, "betas": betas, "decay": decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            low, high = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if len(state) == 0:
                    state["average"] = torch.zeros_like(p)
                    state["count"] = 0
                state["count"] += 1
                average = state["average"]
                p.mul_(1 - group["lr"] * group["decay"])
                p.add_(torch.sign(average * low + p.grad * (1 - low)), alpha=-group["lr"])
                average.mul_(high).add_(p.grad, alpha=1 - high)


def test_one_of_the_programs_own():
    eager, ours = twins(lambda parameters: Lion(parameters, lr=0.01))
    step, log = compiled(ours[1].step, number_backend, on_error="raise")
    for seed in range(6):
        for parameters, _ in (eager, ours):
            set_gradients(parameters, seed)
        eager[1].step()
        step()
        assert_same(eager, ours)
    assert not log.breaks and len(log.captures) <= 3


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_a_schedule_is_one_compile(name):
    eager, ours = twins(lambda parameters: getattr(torch.optim, name)(parameters, lr=0.1, foreach=True))
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(o, 50) for _, o in (eager, ours)]

    def step():
        ours[1].step()
        ours[1].zero_grad()

    fast, log = compiled(step, number_backend, on_error="raise")
    for seed in range(40):
        for parameters, _ in (eager, ours):
            set_gradients(parameters, seed)
        eager[1].step()
        eager[1].zero_grad()
        fast()
        assert all(p.grad is None for p in ours[0])
        for schedule in schedules:
            schedule.step()
    assert_same(eager, ours)
    assert len(log.captures) == (1 if name == "SGD" else 2) and not log.breaks


@pytest.mark.parametrize("name", ["Adam", "RMSprop", "Adadelta", "NAdam", "Adamax"])
def test_the_step_that_makes_the_states_has_the_graph_of_all_others(name):
    """Its program is found in the cache then."""
    _, (parameters, optimizer) = twins(lambda parameters: getattr(torch.optim, name)(parameters))
    step, log = compiled(optimizer.step, number_backend, on_error="raise")
    for seed in range(3):
        set_gradients(parameters, seed)
        step()
    first, second = ([n for n in made.graph_module.graph.nodes] for made in log.captures)
    places = [{n: at for at, n in enumerate(nodes)} for nodes in (first, second)]

    def text(nodes, place):
        return [(n.op, n.op == "placeholder" or n.target, [place[m] for m in n.all_input_nodes]) for n in nodes]

    assert text(first, places[0]) == text(second, places[1])


@pytest.mark.parametrize("name", ["StepLR", "ExponentialLR", "OneCycleLR"])
def test_a_scheduler_inside(name):
    options = {"StepLR": (3, 0.5), "ExponentialLR": (0.9,), "OneCycleLR": (0.1, 50)}[name]
    eager, ours = twins(lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    schedules = [getattr(torch.optim.lr_scheduler, name)(o, *options) for _, o in (eager, ours)]

    def step(optimizer, schedule):
        optimizer.step()
        schedule.step()

    fast, log = compiled(step, number_backend, on_error="raise")
    for seed in range(12):
        for parameters, _ in (eager, ours):
            set_gradients(parameters, seed)
        step(eager[1], schedules[0])
        fast(ours[1], schedules[1])
        assert_same(eager, ours)
        assert schedules[1].get_last_lr() == schedules[0].get_last_lr()
    assert not log.breaks and len(log.captures) <= 3


def test_states_come_from_eager_and_go_back_and_load():
    eager, ours = twins(lambda parameters: torch.optim.Adam(parameters, lr=0.1))
    step, log = compiled(ours[1].step, number_backend, on_error="raise")
    for seed in range(12):
        for parameters, optimizer in (eager, ours):
            set_gradients(parameters, seed)
            if seed in (4, 8):
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        eager[1].step()
        before = {k: dict(v) for k, v in ours[1].state.items()}
        (ours[1].step if seed in (0, 5) else step)()
        for parameter, state in before.items():
            assert all(ours[1].state[parameter][k] is v for k, v in state.items())
        assert_same(eager, ours)
    assert (
        len(log.captures) == 2
    )  # loaded groups have another order; loaded states are other tensors, and the same graph's


def test_groups_missing_gradients_and_new_parameters():
    shapes, dtypes = ((3, 4), (5,), (2, 2)), (torch.float32, torch.bfloat16, torch.float32)

    def make(parameters):
        return torch.optim.AdamW([{"params": parameters[:2], "lr": 0.5}, {"params": parameters[2:]}], lr=0.01)

    eager, ours = twins(make, shapes, dtypes)
    step, log = compiled(ours[1].step, number_backend, on_error="raise")
    for seed in range(8):
        for parameters, optimizer in (eager, ours):
            if seed == 5:
                torch.manual_seed(seed)
                parameters.append(nn.Parameter(torch.randn(3)))
                optimizer.add_param_group({"params": parameters[-1:], "lr": 0.3})
            set_gradients(parameters, seed, none=(seed % 3,) if seed < 3 else ())
        eager[1].step()
        step()
        assert_same(eager, ours)
    assert not log.fallbacks


def test_steps_that_differ_between_parameters():
    """One symbol stands for the steps that are equal at capture; where they come apart, the graph is another."""
    eager, ours = twins(lambda parameters: torch.optim.Adam(parameters, lr=0.1))
    step, log = compiled(ours[1].step, number_backend, on_error="raise")
    for seed in range(8):
        for parameters, optimizer in (eager, ours):
            set_gradients(parameters, seed)
            if seed == 4:
                optimizer.state[parameters[1]]["step"].fill_(50.0)
        eager[1].step()
        step()
        assert_same(eager, ours)
    assert len(log.captures) == 3


def test_bad_gradients_and_errors():
    eager, ours = twins(lambda parameters: torch.optim.Adam(parameters, lr=0.1))
    step, log = compiled(ours[1].step, number_backend)
    for bad in (float("nan"), float("inf"), 1.0):
        for parameters, _ in (eager, ours):
            set_gradients(parameters, 0)
            parameters[0].grad[0, 0] = bad
        eager[1].step()
        step()
        assert_same(eager, ours)
    for parameters, _ in (eager, ours):
        parameters[0].grad = torch.zeros(3, 4).to_sparse()
    with pytest.raises(RuntimeError, match="does not support sparse gradients"):
        step()


@pytest.mark.parametrize("norm", [2.0, 1.0, float("inf")])
def test_clipping(norm):
    eager, ours = twins(lambda parameters: torch.optim.SGD(parameters, lr=0.1))

    def step(parameters, optimizer):
        total = nn.utils.clip_grad_norm_(parameters, 1.0, norm)
        nn.utils.clip_grad_value_(parameters, 0.25)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return total

    fast, log = compiled(step, number_backend, on_error="raise")
    for seed in range(3):
        for parameters, _ in (eager, ours):
            set_gradients(parameters, seed)
        assert torch.equal(fast(*ours), step(*eager))
        assert_same(eager, ours)
        assert not any(p.grad.any() for p in ours[0])
    assert len(log.captures) == 1 and not log.breaks


def test_a_scaler_skips_steps_that_are_not_finite():
    def train(compile):
        torch.manual_seed(0)
        model = nn.Linear(4, 3)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=2)

        def step(x):
            optimizer.zero_grad()
            scaler.scale(model(x).square().mean()).backward()
            scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            return norm

        fast, seen = compile(step), []
        for k in range(6):
            x = torch.randn(5, 4)
            x[0, 0] = float("inf") if k == 3 else x[0, 0]
            seen += [fast(x), scaler.get_scale(), *(p.detach().clone() for p in model.parameters())]
        return seen

    logs = []
    compile = compile_into(logs)

    torch.testing.assert_close(train(compile), train(lambda function: function), equal_nan=True)
    assert all("depends on a tensor's value" in b.reason for b in logs[0].breaks) and logs[0].breaks


def test_a_closure_runs_in_eager_where_the_optimizer_decides_by_values():
    eager, ours = twins(lambda parameters: torch.optim.LBFGS(parameters, lr=0.5))

    def step(parameters, optimizer):
        def closure():
            optimizer.zero_grad()
            loss = sum(((p - 1) ** 2).sum() for p in parameters)
            loss.backward()
            return loss

        return optimizer.step(closure)

    fast, log = compiled(step, number_backend)
    for _ in range(3):
        torch.testing.assert_close(fast(*ours), step(*eager))
    torch.testing.assert_close(ours[0], eager[0])
    assert "an optimizer" in str(log.breaks[0].reason)


def test_hooks_are_called():
    eager, ours = twins(lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    seen = []
    for _, optimizer in (eager, ours):
        optimizer.register_step_pre_hook(lambda o, args, kwargs: seen.append("before"))
        optimizer.register_step_post_hook(lambda o, args, kwargs: seen.append("after"))
    step, _ = compiled(ours[1].step, number_backend)
    for parameters, _ in (eager, ours):
        set_gradients(parameters, 0)
    eager[1].step()
    step()
    step()
    assert seen == ["before", "after"] * 3


def test_a_number_in_a_tensor():
    """What `item` reads before and after arithmetic and writes, with sharing of memory looked after."""

    @torch.no_grad()
    def function(x, count, other):
        first = count.item()
        count += 2
        count.mul_(0.5)
        y = x * (first + count.item()) - (other * 3).item()
        other.sub_(first)
        return y * other.item()

    fast, log = compiled(function, number_backend, on_error="raise")
    for k in range(5):
        x, count, other = torch.randn(3), torch.tensor(0.1 + k), torch.tensor([3.7 * k])
        given = [t.clone() for t in (count, other)]
        assert torch.equal(fast(x, count, other), function(x, *given))
        assert torch.equal(count, given[0]) and torch.equal(other, given[1])
    assert len(log.captures) == 2 and not log.breaks  # zero, whose sign counts, is a program of its own
    shared = torch.tensor([2.0])
    again = shared.clone()
    assert torch.equal(fast(x, shared, shared.view(1)), function(x, again, again.view(1)))


@pytest.mark.parametrize("case", [("Adam", {}), ("RAdam", {}), ("SGD", {"momentum": 0.9})], ids=str)
def test_after_torch_compile_has_marked_the_optimizers(case):
    """Its first use in a process marks optimizers of torch as not to be compiled; what a program marks stays marked."""
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))
    assert hasattr(torch.optim.Adam._init_group, "_torchdynamo_orig_callable")
    test_each(*case)
    _, optimizer = twins(lambda parameters: torch.optim.Adam(parameters))[0]
    set_gradients(optimizer.param_groups[0]["params"], 0)
    optimizer.step = torch.compiler.disable(optimizer.step)
    fast, log = compiled(lambda: optimizer.step(), number_backend)
    fast()
    assert [b.reason for b in log.breaks] == ["a function is called that is marked torch.compiler.disable"]
