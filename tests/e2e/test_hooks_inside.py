"""Hooks where backward is part of the graph: called in eager's order, with eager's gradients, and what they change is seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import intarsia

pytestmark = [pytest.mark.usefixtures("gradients_on"), pytest.mark.filterwarnings("ignore:Full backward hook")]

Step = Callable[[Tensor, list[Any]], Any]
CASES: dict[str, Callable[[nn.Module], Step]] = {}
LEFT: dict[str, Callable[[nn.Module], Step]] = {}


@pytest.fixture
def gradients_on() -> Any:
    with torch.enable_grad():
        yield


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def inside(prepare: Callable[[nn.Module], Step]) -> Callable[[nn.Module], Step]:
    CASES[prepare.__name__] = prepare
    return prepare


def left(prepare: Callable[[nn.Module], Step]) -> Callable[[nn.Module], Step]:
    LEFT[prepare.__name__] = prepare
    return prepare


@inside
def several_on_one_tensor(m):
    def step(x, seen):
        h = m[0](x)
        h.register_hook(lambda g: seen.append(g.norm()))
        h.register_hook(lambda g: g.clamp(-0.1, 0.1))
        h.register_hook(seen.append)
        removed = h.register_hook(lambda g: g * 1000)
        kept = h.register_hook(lambda g: g + seen[0])
        removed.remove()
        loss = m[2](m[1](h)).square().sum()
        loss.register_hook(lambda g: g * 3)
        loss.backward()
        seen.append(removed.id < kept.id)

    return step


@inside
def on_leaves(m):
    kept = []
    m[0].weight.register_hook(lambda g: g.clamp(-0.1, 0.1))
    m[0].bias.register_hook(kept.append)
    m[2].bias.register_hook(lambda g: g * m[2].bias)

    def masked(g):
        g[:, 0] = 0

    m[2].weight.register_hook(masked)

    def step(x, seen):
        m.zero_grad()
        m(x).square().sum().backward()
        m[0].bias.grad.mul_(2)  # not what the hook has kept
        seen.append(kept.pop())

    return step


@inside
def updates_in_backward(m):
    optimizers = {p: torch.optim.SGD([p], lr=0.1, momentum=0.9) for p in m.parameters()}
    seen_before = []

    def update(p):
        seen_before.append(sum(q.grad is not None for q in m.parameters()))
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in m.parameters():
        p.register_post_accumulate_grad_hook(update)

    def step(x, seen):
        m(x).square().sum().backward()
        seen.extend(seen_before)
        seen_before.clear()

    return step


@inside
def order_of_accumulation(m):
    log = []
    names = {p: n for n, p in m.named_parameters()}
    for p in m.parameters():
        p.register_post_accumulate_grad_hook(
            lambda p: log.append((names[p], p.grad.sum(), sum(q.grad is not None for q in m.parameters())))
        )

    def step(x, seen):
        m(x).square().sum().backward()
        m.zero_grad()
        seen.extend(log)
        log.clear()

    return step


@inside
def of_modules(m):
    log = []
    for number, module in enumerate(m):
        module.register_full_backward_pre_hook(lambda _, go: (go[0] * 0.5,))
        module.register_full_backward_hook(
            lambda _, gi, go, n=number: log.append((n, go[0].abs().max(), gi[0] is None))
        )
        module.register_forward_hook(lambda _, given, result: result * 2)
    m[1].register_full_backward_hook(lambda _, gi, go: (gi[0].clamp(-1, 1),))

    def step(x, seen):
        m(x).square().sum().backward()
        seen.extend(log)
        log.clear()

    return step


@inside
def gradients_asked_for(m):
    def step(x, seen):
        x = x.clone().requires_grad_()
        x.register_hook(lambda g: g * 3)
        h = m[0](x)
        h.register_hook(lambda g: seen.append(g.sum()))
        k = m[1](h)
        k.register_hook(lambda g: g * 2 if not seen else g * seen[0])
        seen.extend(torch.autograd.grad(m[2](k).square().sum(), [x, h, m[0].weight]))

    return step


@inside
def called_twice(m):
    def step(x, seen):
        x = x.clone().requires_grad_()
        h = m(x)
        h.register_hook(lambda g: g * (len(seen) + 2))
        h.register_hook(lambda g: seen.append(g.norm()))
        (gradient,) = torch.autograd.grad(h.square().sum(), x, create_graph=True)
        (h.sum() + gradient.square().sum()).backward()

    return step


@inside
def one_gradient_of_two_tensors(m):
    def step(x, seen):
        a, b = m[0](x), m[0](x * 2)
        a.register_hook(seen.append)
        b.register_hook(seen.append)
        (a + b).sum().backward()
        seen.append(seen[0] is seen[1])

    return step


@inside
def backward_outside(m):
    def step(x, seen):
        h = m[0](x)
        y = (h * 3).sum()
        h.register_hook(lambda g: g * 0.5 + x.shape[0])
        h.register_hook(lambda g: g * 1000).remove()
        k = m[1](h)
        k.register_hook(lambda g: g.clamp(-0.1, 0.1) + h.mean())
        return m[2](k).square().sum() + y

    return step


@inside
def written_to_behind_the_hook(m):
    def step(x, seen):
        h = m[0](x)
        h.register_hook(lambda g: g * 2)
        h.mul_(2)
        h.square().sum().backward()

    return step


@inside
def gradients_that_are_kept(m):
    def step(x, seen):
        h = m[0](x)
        h.retain_grad()
        k = m[1](h)
        k.retain_grad()
        k.register_hook(lambda g: g * 2)  # comes before
        loss = m[2](k).square().sum()
        loss.backward(retain_graph=True)
        seen.append(h.grad * 1)
        loss.backward()
        seen.extend([h.grad, k.grad, k.grad is k.grad])
        m.kept = h
        assert m.kept.grad is h.grad

    return step


@left
def kept_for_backward_outside(m):
    def step(x, seen):
        h = m[0](x)
        y = (h * 3).sum()
        h.retain_grad()
        m.kept = h
        return m[2](m[1](h)).square().sum() + y

    return step


@left
def seen_outside(m):
    def step(x, seen):
        h = m[0](x)
        y = (h * 3).sum()
        h.register_hook(lambda g: seen.append(g.sum()))
        return h.square().sum() + y

    return step


@left
def handle_kept(m):
    def step(x, seen):
        h = m[0](x)
        y = (h * 3).sum()
        m.handle = h.register_hook(lambda g: g * 2)
        return h.square().sum() + y

    return step


@left
def state_read(m):
    def step(x, seen):
        h = m[0](x)
        h.register_hook(lambda g: g * m.scale)
        return h.square().sum()

    m.scale = 2.0
    return step


@left
def a_break_behind(m):
    def step(x, seen):
        h = m[0](x)
        y = (h * 3).sum()
        h.register_hook(lambda g: g * 2)
        print(end="")
        return m[1](h).square().sum() + y

    return step


@left
def of_a_module_and_backward_outside(m):
    m[0].register_full_backward_hook(lambda _, gi, go: None)

    def step(x, seen):
        return m(x).square().sum()

    return step


@left
def value_read(m):
    def step(x, seen):
        h = m[0](x)
        h.register_hook(lambda g: seen.append(int(g.sum())))
        h.square().sum().backward()

    return step


@left
def writes_to_another_tensor(m):
    total = torch.zeros(())

    def step(x, seen):
        h = m[0](x)
        h.register_hook(lambda g: total.add_(g.sum()) and None)
        h.square().sum().backward()
        seen.append(total.clone())

    return step


@left
def for_good_on_a_parameter(m):
    def step(x, seen):
        handle = m[0].weight.register_hook(lambda g: g * 2)
        m(x).square().sum().backward()
        handle.remove()

    return step


@left
def raises(m):
    def step(x, seen):
        h = m[0](x)
        h.register_hook(lambda g: g[0])
        try:
            h.square().sum().backward()
        except RuntimeError as error:
            seen.append(str(error))

    return step


def compare(prepare: Callable[[nn.Module], Step]) -> None:
    found = []
    for compiled in (False, True):
        torch.manual_seed(0)
        module = layers()
        step = prepare(module)
        run = intarsia.compile(step, options={"on_error": "raise"}) if compiled else step
        log: list[Any] = []
        for _ in range(3):
            seen: list[Any] = []
            result = run(torch.randn(5, 8), seen)
            if isinstance(result, Tensor):
                result.backward()
            kept = [module.kept.grad] if hasattr(module, "kept") else []
            log.append([*seen, *kept, *(None if p.grad is None else p.grad.clone() for p in module.parameters())])
        found.append((log, list(module.parameters())))
    for ours, its in zip(*map(pytree.tree_leaves, found), strict=True):
        if isinstance(its, Tensor):
            torch.testing.assert_close(ours, its, rtol=1e-4, atol=1e-4)
        else:
            assert ours == its or isinstance(its, float) and ours == pytest.approx(its, rel=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_hooks_are_part_of_the_graph(name: str) -> None:
    compare(CASES[name])
    counted = intarsia.counters()
    assert counted["breaks"] == counted["fallbacks"] == 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LEFT)
def test_hooks_that_are_visibly_left(name: str) -> None:
    compare(LEFT[name])
    assert intarsia.counters()["breaks"] or intarsia.counters()["fallbacks"]


def test_other_hooks_are_another_capture() -> None:
    module, seen = layers(), []

    @intarsia.compile(fullgraph=True)
    def step(x):
        module(x).sum().backward()

    def call() -> Tensor:
        module.zero_grad()
        step(torch.ones(2, 8))
        return module[2].bias.grad

    assert call().eq(2).all()
    double = module[2].bias.register_hook(lambda g: g * 2)
    behind = module[2].bias.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad * 1))
    assert call().eq(4).all() and call().eq(4).all() and len(seen) == 2 and seen[1].eq(4).all()
    module[2].bias.register_hook(lambda g: g + 1)
    behind.remove()
    assert call().eq(5).all() and len(seen) == 2
    double.remove()
    assert call().eq(3).all()


def test_a_graph_that_runs_in_eager_calls_each_hook_once() -> None:
    module, seen = layers(), []
    module[0].weight.register_hook(lambda g: g * 2)
    module[0].weight.register_hook(lambda g: seen.append(g.sum()))

    def step(x):
        module(x).sum().backward()

    results = []
    for run in (step, intarsia.compile(step, backend="eager", fullgraph=True)):
        module.zero_grad()
        run(torch.ones(2, 8))
        results.append(module[0].weight.grad)
    torch.testing.assert_close(*results)
    assert len(seen) == 2 and len(module[0].weight._backward_hooks) == 2


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_of_the_callers_that_the_program_removes(register: str) -> None:
    """Between two calls of backward in one graph: the second one calls what is left."""

    def step(x: Tensor, first: Any, said: list[str]) -> Tensor:
        (x * 2).sum().backward()
        first.remove()
        (x * x).sum().backward()
        return x.grad

    def answers(function: Callable[..., Any]) -> list[Any]:
        x, said = torch.arange(3.0, requires_grad=True), list[str]()
        handles = [getattr(x, register)(lambda _, k=k: said.append(k)) for k in "ab"]
        found = function(x, handles[0], said).tolist()
        return [found, said, len(x._backward_hooks or x._post_accumulate_grad_hooks)]

    fast = intarsia.compile(step)
    for _ in range(2):
        assert answers(fast) == answers(step)


def test_a_hook_on_several_tensors_is_one_break() -> None:
    """torch's own function asks for nodes of autograd's: the graph ends in front of it, not once for each question."""

    def step(x: Tensor, seen: list[Tensor]) -> Tensor:
        a, b = x.sin(), x.cos()
        torch.autograd.graph.register_multi_grad_hook((a, b), lambda grads: seen.append(grads[0] + grads[1]))
        return (a * b).sum()

    intarsia.reset()
    fast, results = intarsia.compile(step), []
    for run in (step, fast):
        x, seen = torch.arange(3.0, requires_grad=True), list[Tensor]()
        run(x, seen).backward()
        results.append([x.grad, *seen])
    torch.testing.assert_close(*results)
    assert intarsia.counters()["breaks"] == 1
