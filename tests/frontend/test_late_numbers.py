"""Numbers that are read of what the graph computes: right, of Python's types, and without a break where nothing asks for the number."""

import math

import pytest
import torch
from harness import compile_into, compiled, number_backend
from torch import nn

KEPT, HELD = [], {}


def kept(x):
    number = (x * 2).sum().item()
    KEPT.append((number, {"half": number / 2}))
    HELD["least"] = min(HELD.get("least", 1.0), number)
    return number, -number, 7 - number, [number * 3], max(1.0, number), min(number, -5.0), abs(number)


def summed(x):
    total = 0.0
    for k in range(3):
        total += (x * k).mean().item()
    return total / 3


def by_float(x):
    return float(x.sum()) + 1, x * float(x[:1])


def clipped(x):
    """A norm is not negative, and not 0 with something added."""
    return x * min(1.0 / (x.norm().item() + 1e-6), 1.0), math.sqrt(abs(x.sum().item()))


def operands(x):
    number = x.abs().mean().item()
    y = torch.ones_like(x)
    y.add_(x, alpha=-number).addcdiv_(x, x.abs() + 1, value=number).lerp_(x, number / 10)
    y = y * (1 - number) / (number + 2) + y.clamp(-number, max=number)
    return y, x.to(torch.bfloat16) * number, x.double() - number


def numbers_in_tensors(x):
    return torch.addcmul(x, x, x, value=x.mean())


def written_to(x):
    total = (x.double() * 2).sum()
    number = total.item()
    total.add_(1)
    return number, total


def not_finite(x):
    number = (x * float("nan")).sum().item()
    return max(1.0, number), max(number, 1.0), min(1.0, number), x * number


def with_gradients(x):
    with torch.enable_grad():
        y = x.clone().requires_grad_()
        loss = (y * y).sum()
        loss.backward()
    return y.grad * loss.item(), loss.item()


def compared(x):
    number = x.sum().item()
    return x + 1 if number > 0 else x * number


def as_text(x):
    number = x.sum().item()
    return f"{number:.4f}" + str(number), x + 1


def whole(x):
    return int(x.sum().item()), round(x.mean().item(), 2), (x > 0).sum().item()


def asked(x):
    number = x.sum().item()
    return math.isfinite(number), number == number, number in (1.0, 2.0), {number: 1}, number**2


def ordered(x):
    found = [(x * k).sum().item() for k in range(3)]
    found.sort()
    return found, sum(found), max(found)


def divided(x):
    return 1 / (x * 0).sum().item()


def not_in_a_table(x):
    return torch.nn.functional.leaky_relu(x, x.mean().item()), torch.full((2,), x.mean().item())


def scaled(x):
    """`max` of a number and a tensor is either of them; arithmetic takes both."""
    scale = max(1e-3, x.norm() / 2)
    rate = scale * 0.1
    y = x.clone()
    y.mul_(rate).add_(x, alpha=-0.5 * rate)
    return y, x * min((x * float("nan")).mean(), 0.5), max(x.abs().mean(), 0.5) * x


def asked_for_its_type(x):
    scale = max(0.5, x.abs().mean())
    return x * scale if isinstance(scale, torch.Tensor) else x - scale


def handed_on(x):
    scale = max(0.5, x.abs().mean())
    KEPT.append(scale)
    return scale


def the_same_object(x):
    mean = x.abs().mean()
    return max(0.5, mean) is mean, min(0.5, mean) is mean


def of_other_dtypes(x):
    scale = max(0.5, x.abs().mean())
    return x.sum() * scale, x.double() * scale, x.half().sum() * scale, x.half() * max(0.5, x.half().abs().mean())


def behind_a_branch(x):
    scale = max(0.5, x.abs().mean())
    if x.sum() > 0:
        x = x + 1
    return x * scale


CAPTURED = [
    *(scaled, kept, summed, by_float, clipped, operands, numbers_in_tensors, written_to, not_finite),
    with_gradients,
    behind_a_branch,
    compared,
    as_text,
    divided,
]
BROKEN = [
    asked_for_its_type,
    handed_on,
    the_same_object,
    of_other_dtypes,
    whole,
    asked,
    ordered,
    not_in_a_table,
]


def result_of(function, x):
    KEPT.clear()
    HELD.clear()
    try:
        return function(x), list(KEPT), dict(HELD)
    except ZeroDivisionError as error:
        return type(error), str(error)


def same(a, b):
    if isinstance(a, torch.Tensor):
        rounding = 2e-2 if a.dtype is torch.bfloat16 else 1e-5
        torch.testing.assert_close(b, a, rtol=rounding, atol=rounding, equal_nan=True)
    elif isinstance(a, list | tuple):
        assert type(a) is type(b) and len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same(x, y)
    elif isinstance(a, dict):
        same(list(a.items()), list(b.items()))
    else:
        assert type(a) is type(b) and (a == b or a != a and b != b)


@pytest.mark.parametrize("function", CAPTURED + BROKEN, ids=lambda f: f.__name__)
def test_each(function):
    fast, log = compiled(function, number_backend, on_error="raise")
    for seed in range(4):
        x = torch.randn(4, generator=torch.Generator().manual_seed(seed))
        same(result_of(function, x.clone()), result_of(fast, x.clone()))
    assert not log.fallbacks
    if function in CAPTURED:
        assert len(log.captures) == 1 and not log.breaks
    else:
        assert all("a tensor's value" in b.reason for b in log.breaks) and log.breaks


def test_a_loop_with_its_meters_is_one_graph():
    """An epoch as people write it: gradients, the step, the schedule, a running mean."""

    def train(compile):
        torch.manual_seed(0)
        model = nn.Linear(4, 3)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)
        history = []

        def epoch(batches):
            total = 0.0
            for x in batches:
                optimizer.zero_grad()
                loss = model(x).square().mean()
                loss.backward()
                norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                total += loss.item()
                history.append({"norm": norm.item(), "rate": schedule.get_last_lr()[0]})
            return total / len(batches)

        fast, found = compile(epoch), []
        for _ in range(6):
            found.append((fast([torch.randn(5, 4) for _ in range(2)]), [list(h.values()) for h in history]))
            history.clear()
        return found, [p.detach() for p in model.parameters()]

    logs = []
    compile = compile_into(logs)

    torch.testing.assert_close(train(compile), train(lambda function: function))
    assert not logs[0].breaks and len(logs[0].captures) <= 3


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adafactor_is_one_graph(decay):
    """Its step sizes are Python's arithmetic on norms."""
    found, logs = [], []
    for compile in (False, True):
        torch.manual_seed(0)
        parameters = [nn.Parameter(torch.randn(s)) for s in ((3, 4), (5,))]
        optimizer = torch.optim.Adafactor(parameters, lr=0.1, weight_decay=decay)
        step = optimizer.step
        if compile:
            step, log = compiled(step, number_backend, on_error="raise")
            logs.append(log)
        for seed in range(6):
            generator = torch.Generator().manual_seed(seed)
            for p in parameters:
                p.grad = torch.randn(p.shape, generator=generator)
            step()
        found.append([p.detach() for p in parameters])
    torch.testing.assert_close(*found)
    assert len(logs[0].captures) == 2 and not logs[0].breaks


def test_hooks_and_checkpoints_read_numbers():
    weight, seen = nn.Parameter(torch.randn(4, 3)), []

    def step(x):
        y = (x @ weight).sin()
        y.register_hook(lambda g: g / max(1.0, g.norm().item()))
        y.register_hook(lambda g: seen.append(g.sum().item()))
        z = torch.utils.checkpoint.checkpoint(lambda y: y * y.norm().item(), y, use_reentrant=False)
        weight.grad = None
        z.sum().backward()
        return z.detach()

    fast, log = compiled(step, number_backend, on_error="raise")
    for _ in range(3):
        x, found = torch.randn(2, 4), []
        for run in (step, fast):
            seen.clear()
            found.append((run(x), weight.grad.clone(), list(seen)))
        torch.testing.assert_close(*found)
    assert not log.breaks
