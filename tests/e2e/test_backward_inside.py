"""Gradients that the program takes itself: forward, backward and updates by hand are one graph, as in eager bit by bit of state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import intarsia

pytestmark = pytest.mark.usefixtures("gradients_on")


@pytest.fixture
def gradients_on() -> Any:
    with torch.enable_grad():
        yield


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))


def images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(144, 4)
    )


def frozen() -> nn.Module:
    module = layers()
    module[0].requires_grad_(False)
    return module


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm, self.out = nn.Embedding(10, 8), nn.LayerNorm(8), nn.Linear(8, 10, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.norm(self.embedding(tokens)))


def update(module: nn.Module) -> None:
    with torch.no_grad():
        for p in module.parameters():
            if p.grad is not None:
                p -= 0.1 * p.grad


CASES: dict[str, tuple[Callable[..., Any], Any, Any]] = {}


def case(model: Any = layers, inputs: Any = lambda: (torch.randn(5, 8), torch.randn(5, 4))) -> Any:
    def add(function: Any) -> Any:
        CASES[function.__name__] = function, model, inputs
        return function

    return add


@case()
def accumulated(m, x, y):
    loss = F.mse_loss(m(x), y)
    loss.backward()
    return loss


@case()
def whole_step(m, x, y):
    loss = F.mse_loss(m(x), y)
    loss.backward()
    update(m)
    m.zero_grad()
    return loss.detach()


@case()
def zeroed_in_place(m, x, y):
    m.zero_grad(set_to_none=False)
    loss = F.mse_loss(m(x), y)
    loss.backward()
    update(m)
    return loss


@case(images, lambda: (torch.randn(2, 3, 8, 8), torch.randint(0, 4, (2,))))
def batch_norm_and_dropout(m, x, y):
    loss = F.cross_entropy(m(x), y)
    torch.autograd.backward([loss])
    update(m)
    m.zero_grad()
    return loss.detach()


@case(Tied, lambda: (torch.randint(0, 10, (3, 5)),))
def tied_weights(m, tokens):
    loss = F.cross_entropy(m(tokens)[:, :-1].reshape(-1, 10), tokens[:, 1:].reshape(-1))
    loss.backward()
    return loss


@case()
def autocast(m, x, y):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = (m(x).float() - y).square().mean()
    loss.backward()
    update(m)
    m.zero_grad()
    return loss.detach().round(decimals=1)


@case(frozen)
def frozen_parts(m, x, y):
    loss = F.mse_loss(m(x), y)
    loss.backward()
    return loss


@case()
def several_losses(m, x, y):
    h = m(x)
    a, b = h.square().mean(), (h - y).abs().sum()
    a.backward(retain_graph=True)
    b.backward(inputs=[m[0].weight, m[2].bias])
    return a, b.detach()


@case()
def given_gradient(m, x, y):
    h = m(x)
    h.backward(y)
    return h.detach()


@case(inputs=lambda: (torch.randn(5, 8, requires_grad=True),))
def input_that_is_a_leaf(m, x):
    loss = m(x).square().sum()
    loss.backward()
    return loss.detach(), x.grad * 2


@case()
def part_of_a_weight(m, x, y):
    F.mse_loss(m(x), y).backward()
    with torch.no_grad():
        m[0].weight[:2].sub_(m[0].weight.grad[:2], alpha=0.1)
    m[0].weight.grad = None


@case()
def penalty(m, x, y):
    x = x.detach().requires_grad_()
    loss = m(x).square().mean()
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    total = loss + gradient.square().sum()
    total.backward()
    return total.detach()


@case()
def adversarial(m, x, y):
    delta = torch.zeros(8, requires_grad=True)
    (gradient,) = torch.autograd.grad(F.mse_loss(m(x + delta), y), delta)
    with torch.no_grad():
        moved = x + 0.1 * gradient.sign()
    loss = F.mse_loss(m(moved), y)
    loss.backward()
    return loss.detach(), moved


@case()
def unused_inputs(m, x, y):
    wanted = [m[0].weight, m[2].bias]
    some = torch.autograd.grad(m[2](y.repeat(1, 4)).sum(), wanted, allow_unused=True)
    return some, torch.autograd.grad(m[2](y.repeat(1, 4)).sum(), wanted, materialize_grads=True)


@case()
def micro_batches(m, x, y):
    m.zero_grad()
    for part in range(2):
        loss = F.mse_loss(m(x[part::2]), y[part::2]) / 2
        loss.backward()
    update(m)
    return loss


@case()
def toggled(m, x, y):
    m[0].requires_grad_(False)
    with torch.no_grad():
        target = m(x) + 1
    F.mse_loss(m(x), target).backward()
    m[0].requires_grad_(True)


@case()
def leaf_made_inside(m, x, y):
    z = x.clone().requires_grad_()
    (m(z) * 2).square().sum().backward()
    return z, z.grad


@case()
def recorded_gradients(m, x, y):
    (m(x).square().mean()).backward(create_graph=True)
    norm = sum(p.grad.square().sum() for p in m.parameters())
    m.zero_grad()
    norm.backward()
    return norm.detach()


@case()
def one_gradient_for_two(m, x, y):
    loss = (m[0].bias[:4] + m[2].bias).sum() + m[2].weight.t().contiguous().square().sum()
    loss.backward()
    m[2].bias.grad.add_(1)
    return loss.detach()


@case(lambda: nn.LSTM(8, 6, batch_first=True), lambda: (torch.randn(2, 3, 8),))
def recurrent(m, x):
    loss = m(x)[0].square().sum()
    loss.backward()
    return loss.detach()


def facts(t: Tensor) -> tuple[Any, ...]:
    return t.shape, t.stride(), t.dtype, t.requires_grad, t.is_leaf, t.grad_fn is None


def check_state(mine: nn.Module, its: nn.Module, tolerance: dict[str, float]) -> None:
    for p, q in zip(mine.parameters(), its.parameters(), strict=True):
        torch.testing.assert_close(p, q, **tolerance)
        assert p._version == q._version and p.requires_grad == q.requires_grad
        assert (p.grad is None) == (q.grad is None)
        if p.grad is not None:
            torch.testing.assert_close(p.grad, q.grad, **tolerance)
            assert facts(p.grad) == facts(q.grad)
    for p, q in zip(mine.buffers(), its.buffers(), strict=True):
        torch.testing.assert_close(p, q)


@pytest.mark.filterwarnings("ignore:Using backward:UserWarning")
@pytest.mark.parametrize("name", CASES)
def test_as_in_eager(name: str) -> None:
    function, model, inputs = CASES[name]
    fast = intarsia.compile(function, fullgraph=True, options={"on_error": "raise"})
    modules = []
    for _ in range(2):
        torch.manual_seed(0)
        modules.append(model())
    before: list[list[Any]] = []
    close = {"rtol": 5e-2, "atol": 1e-2} if name == "autocast" else {"rtol": 1e-4, "atol": 1e-5}
    for call in range(3):
        results, grads = [], []
        for module, run in zip(modules, (function, fast), strict=True):
            torch.manual_seed(call)
            args = inputs()
            results.append((run(module, *args), [a.grad for a in args]))
            grads.append([p.grad for p in module.parameters()])
        for a, b in zip(*map(pytree.tree_leaves, results), strict=True):
            torch.testing.assert_close(a, b, **close)
            assert a is None or facts(a) == facts(b)
        check_state(*modules, close)
        if before:
            same = [[a is b for a, b in zip(*pair, strict=True)] for pair in zip(before, grads, strict=True)]
            assert same[0] == same[1]
        before = grads
    assert intarsia.counters()["fallbacks"] == 0 and intarsia.counters()["breaks"] == 0


def twice(m, x):
    loss = m(x).sum()
    loss.backward()
    loss.backward()


def not_a_scalar(m, x):
    m(x).backward()


def no_gradients(m, x):
    with torch.no_grad():
        loss = m(x).sum()
    loss.backward()


def saved_tensor_changed(m, x):
    h = m[0](x).sigmoid()
    h.add_(1)
    h.sum().backward()


def parameter_changed(m, x):
    loss = m(x).square().sum()
    with torch.no_grad():
        m[2].weight.mul_(2)
    loss.backward()


def not_differentiable(m, x):
    m(x).argmax().backward()


def wrong_gradient(m, x):
    m(x).backward(torch.ones(3))


def not_used(m, x):
    return torch.autograd.grad(m[0](x).sum(), [m[2].bias])


ERRORS = [
    *(twice, not_a_scalar, no_gradients, saved_tensor_changed),
    *(parameter_changed, not_differentiable, wrong_gradient, not_used),
]


@pytest.mark.parametrize("function", ERRORS)
def test_errors_are_eagers(function: Callable[..., Any]) -> None:
    raised, states = [], []
    for run in (function, intarsia.compile(function)):
        torch.manual_seed(0)
        module = layers()
        x = torch.randn(5, 8)
        for _ in range(2):
            with pytest.raises(RuntimeError) as error:
                run(module, x)
            raised.append(str(error.value))
        states.append([None if p.grad is None else p.grad.clone() for p in module.parameters()])
    assert raised[:2] == raised[2:]
    torch.testing.assert_close(states[0], states[1])


def test_backward_from_a_result_whose_graph_is_freed_is_eagers_error() -> None:
    fast = intarsia.compile(CASES["accumulated"][0], fullgraph=True)
    found = []
    for run in (CASES["accumulated"][0], fast):
        loss = run(layers(), torch.randn(5, 8), torch.randn(5, 4))
        assert loss.requires_grad and not loss.is_leaf and loss.item() == loss.detach().item()
        (loss * 2).item()
        with pytest.raises(RuntimeError, match="backward through the graph a second time") as error:
            (loss * 2).backward()
        found.append(str(error.value))
    assert found[0] == found[1]


OUTER: dict[str, tuple[Callable[..., Any], Any, Any]] = {}  # the caller goes backward from the first result


def outer(model: Any = layers, inputs: Any = lambda: (torch.randn(5, 8), torch.randn(5, 4))) -> Any:
    def add(function: Any) -> Any:
        OUTER[function.__name__] = function, model, inputs
        return function

    return add


@outer()
def gradients_wanted_later(m, x, y):
    a, b = m(x).square().sum(), m(x * 2).abs().sum()
    a.backward()
    return b, a.detach()


@outer()
def retained(m, x, y):
    loss = F.mse_loss(m(x), y)
    loss.backward(retain_graph=True)
    return loss * 2


@outer(
    lambda: nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)),
    lambda: (torch.randn(5, 8), torch.randn(5, 8)),
)
def penalty_of_an_outer_loss(m, real, made):
    mixed = (0.3 * real + 0.7 * made).requires_grad_()
    score = m(mixed)
    (gradient,) = torch.autograd.grad(score, mixed, torch.ones_like(score), create_graph=True)
    return m(made).mean() - m(real).mean() + (gradient.norm(2, dim=1) - 1).square().mean()


@outer()
def forces(m, x, y):
    energy = m(x.requires_grad_()).sum()
    (force,) = torch.autograd.grad(energy, x, create_graph=True)
    return F.mse_loss(force[:, :4], y), force, energy


@outer()
def inner_step(m, x, y):
    weights = dict(m.named_parameters())
    found = torch.autograd.grad(F.mse_loss(m(x), y), list(weights.values()))
    moved = {name: w - 0.1 * g for (name, w), g in zip(weights.items(), found, strict=True)}
    return F.mse_loss(torch.func.functional_call(m, moved, (x * 2,)), y)


@outer(lambda: nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Linear(6, 4)))
def attacked(m, x, y):
    delta = torch.zeros(5, 8, requires_grad=True)
    for _ in range(2):
        (gradient,) = torch.autograd.grad(F.mse_loss(m(x + delta), y), delta)
        delta = (delta + 0.1 * gradient.sign()).detach().requires_grad_()
    return F.mse_loss(m(x + delta.detach()), y)


def leaf_that_is_returned(m, x, y):
    z = x.detach().requires_grad_()
    loss = m(z).square().mean()
    (gradient,) = torch.autograd.grad(loss, z, create_graph=True)
    return loss + gradient.square().sum(), z


def history_before_the_call(m, x, y):
    (x * 2).sum().backward()
    return x.sum()


def thawed_behind_its_use(m, x, y):
    first = m(x * 2).sum()
    first.backward()
    x.requires_grad_()
    return m(x).sum()


def outer_gradients(function: Any, model: Any, inputs: Any, history: bool = False) -> None:
    found = []
    for run in (function, intarsia.compile(function, options={"on_error": "raise"})):
        torch.manual_seed(0)
        module = model()
        for call in range(2):
            torch.manual_seed(call)
            given = inputs()
            leaf = given[0].requires_grad_(history)
            results = run(module, leaf.clone() if history else leaf, *given[1:])
            results = results if isinstance(results, tuple) else (results,)
            results[0].backward()
            found.append(
                [t.detach() for t in results]
                + [t.grad for t in (*given, *results, *module.parameters()) if t.is_leaf]
                + [b.clone() for b in module.buffers()]
            )
    torch.testing.assert_close(found[:2], found[2:], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", OUTER)
def test_backward_goes_on_through_a_graph_that_takes_gradients(name: str) -> None:
    outer_gradients(*OUTER[name])
    assert intarsia.counters()["breaks"] == intarsia.counters()["fallbacks"] == 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("function", [leaf_that_is_returned, history_before_the_call, thawed_behind_its_use])
def test_what_autograd_outside_takes_part_in_is_visibly_left(function: Callable[..., Any]) -> None:
    inputs = OUTER["retained"][2]
    outer_gradients(function, layers, inputs, history=function is history_before_the_call)
    assert intarsia.counters()["breaks"] or intarsia.counters()["fallbacks"]


HOOKS: dict[str, Callable[[nn.Module, list[int]], Any]] = {
    "tensor": lambda m, seen: m[0].weight.register_hook(lambda g: seen.append(1)),
    "accumulated": lambda m, seen: m[0].weight.register_post_accumulate_grad_hook(lambda p: seen.append(1)),
    "module": lambda m, seen: m[0].register_full_backward_hook(lambda *_: seen.append(1)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", HOOKS)
def test_hooks_that_were_there_before_are_called(kind: str) -> None:
    function = CASES["accumulated"][0]
    fast = intarsia.compile(function)
    module, seen = layers(), []
    x, y = torch.randn(5, 8), torch.randn(5, 4)
    fast(module, x, y)  # compiled without
    handle = HOOKS[kind](module, seen)
    fast(module, x, y)
    fast(module, x, y)
    assert len(seen) == 2
    handle.remove()
    fast(module, x, y)
    assert len(seen) == 2


def test_one_program_with_updates_written_in_place() -> None:
    module = layers()
    e = intarsia.explain(CASES["whole_step"][0])(module, torch.randn(64, 8), torch.randn(64, 4))
    assert e.graph_count == 1 and not e.breaks
    pointers = [p.data_ptr() for p in module.parameters()]
    fast = intarsia.compile(CASES["whole_step"][0], fullgraph=True)
    fast(module, torch.randn(64, 8), torch.randn(64, 4))
    assert pointers == [p.data_ptr() for p in module.parameters()]


def test_other_sizes_and_a_graph_break_behind_backward() -> None:
    def step(m, x, y):
        loss = F.mse_loss(m(x), y)
        loss.backward()
        value = loss.item()
        update(m)
        m.zero_grad()
        return value

    modules = []
    for _ in range(2):
        torch.manual_seed(0)
        modules.append(layers())
    fast = intarsia.compile(step)
    for size in (3, 5, 7, 9):
        x, y = torch.randn(size, 8), torch.randn(size, 4)
        assert fast(modules[1], x, y) == pytest.approx(step(modules[0], x, y), rel=1e-5)
    check_state(modules[0], modules[1], {"rtol": 1e-4, "atol": 1e-5})


def test_an_error_that_the_program_catches() -> None:
    def step(m, x):
        loss = m(x).square().sum()
        loss.backward()
        try:
            (loss + m[0].bias.sum()).backward()
        except RuntimeError:
            return "caught"

    found = []
    for run in (step, intarsia.compile(step)):
        torch.manual_seed(0)
        module = layers()
        assert run(module, torch.ones(2, 8)) == "caught"
        found.append([p.grad for p in module.parameters()])
    torch.testing.assert_close(found[0], found[1])


def test_sparse_gradients_and_other_backends_are_visibly_left() -> None:
    def step(m, i):
        loss = m(i).square().sum()
        loss.backward()
        return loss.detach()

    found = []
    for run in (step, intarsia.compile(step), intarsia.compile(step, backend="aot_eager")):
        torch.manual_seed(0)
        module = nn.Embedding(10, 4, sparse=True)
        run(module, torch.tensor([1, 1, 3]))
        run(module, torch.tensor([1, 1, 3]))
        found.append(module.weight.grad.to_dense())
    torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(found[0], found[2])


def test_the_program_comes_out_of_the_cache() -> None:
    for _ in range(2):
        intarsia.reset()
        step = intarsia.compile(CASES["whole_step"][0], fullgraph=True, options={"verify_each": False})
        step(layers(), torch.randn(6, 8), torch.randn(6, 4))
    assert intarsia.counters()["cache_hits"] == 1 and "functionalize" not in intarsia.counters()["seconds"]


@pytest.mark.parametrize("budget", [0.5, 0.0])
def test_a_memory_budget_of_a_whole_step(budget: float) -> None:
    """Products are computed again in backward, within the one program; random numbers are not."""

    def step(x: Tensor, *weights: Tensor) -> Tensor:
        for w in weights:
            x = F.dropout(torch.tanh(x @ w), 0.2)
        loss = x.square().mean()
        loss.backward()
        with torch.no_grad():
            for w in weights:
                w -= w.grad
                w.grad = None
        return loss.detach()

    found = []
    for options in (None, {"memory_budget": budget}):
        torch.manual_seed(0)
        args = [torch.randn(64, 64), *((torch.randn(64, 64) / 8).requires_grad_() for _ in range(6))]
        run = step if options is None else intarsia.compile(step, options=options, fullgraph=True)
        with torch.enable_grad():
            losses = [run(*args) for _ in range(3)]
            if options is not None:
                partition = intarsia.explain(step, options=options)(*args).graphs[0].partition
                assert partition is not None and partition.costly["mm"] >= (1 if budget else 5)
                assert partition.bytes <= partition.least + budget * (partition.most - partition.least)
        found.append(losses)
    for got, want in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)
