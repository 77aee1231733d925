"""`.grad` of tensors is state that capture reads with a guard and writes behind the graph."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from intarsia.frontend.gradients.grads import takes_gradients
from tests.frontend.harness import compiled, graph_backend


def layer() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def descend(module: nn.Module, x: Tensor) -> None:
    with torch.no_grad():
        for p in module.parameters():
            if p.grad is not None:
                p.sub_(p.grad, alpha=0.5)


def clear(module: nn.Module, x: Tensor) -> None:
    module.zero_grad(set_to_none=True)


def zero(module: nn.Module, x: Tensor) -> None:
    module.zero_grad(set_to_none=False)


def replace(module: nn.Linear, x: Tensor) -> Any:
    before = module.bias.grad
    module.bias.grad = None
    empty = module.bias.grad is None
    module.bias.grad = torch.ones_like(module.bias) * x.sum()
    return before, empty, module.bias.grad * 2


def delete(module: nn.Linear, x: Tensor) -> Any:
    del module.weight.grad
    return x + 1 if module.weight.grad is None else x


def hand_over(module: nn.Linear, x: Tensor) -> Any:
    module.bias.grad = x.detach()[:2]
    return module.bias.grad


@pytest.mark.parametrize("step", [descend, clear, zero, replace, delete, hand_over])
def test_grad_is_read_and_written_as_in_eager(step: Callable[..., Any]) -> None:
    modules = layer(), layer()
    fast, log = compiled(step, fullgraph=True)
    x = torch.randn(4)
    for call in range(6):
        kept = []
        for module, run in zip(modules, (step, fast), strict=True):
            if call in (2, 3, 5):
                module.weight.grad, module.bias.grad = torch.full((2, 3), 2.0), torch.ones(2)
            if call == 4:
                module.weight.grad, module.bias.grad = None, torch.ones(2)
            kept.append((module.bias.grad, run(module, x)))
        torch.testing.assert_close(kept[0][1], kept[1][1])
        for p, q in zip(modules[0].parameters(), modules[1].parameters(), strict=True):
            torch.testing.assert_close(p, q)
            assert p._version == q._version and (p.grad is None) == (q.grad is None)
            if p.grad is not None and q.grad is not None:
                torch.testing.assert_close(p.grad, q.grad)
                assert p.grad._version == q.grad._version and p.grad.stride() == q.grad.stride()
        same = [module.bias.grad is before for module, (before, _) in zip(modules, kept, strict=True)]
        assert same[0] == same[1]
    assert not log.fallbacks and not log.breaks


@pytest.mark.parametrize("wrong", [torch.ones(5), torch.ones(2, dtype=torch.float64), 3], ids=["size", "dtype", "int"])
def test_a_gradient_that_does_not_fit_is_eagers_error(wrong: Any) -> None:
    def step(p: Tensor) -> None:
        p.grad = wrong

    fast, _ = compiled(step, fullgraph=True)
    with pytest.raises((RuntimeError, TypeError)) as eager:
        step(layer().bias)
    with pytest.raises(type(eager.value)) as mine:
        fast(layer().bias)
    assert str(mine.value) == str(eager.value)


def test_two_parameters_with_one_gradient_are_another_capture() -> None:
    def step(p: Tensor, q: Tensor) -> Tensor:
        assert p.grad is not None and q.grad is not None
        p.grad.add_(1.0)
        return q.grad * 2

    fast, _ = compiled(step)
    for shared in (False, True, False):
        results = []
        for run in (step, fast):
            p, q = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
            p.grad = torch.ones(2)
            q.grad = p.grad if shared else torch.ones(2)
            results.append(run(p, q))
        assert torch.equal(*results)


@pytest.mark.parametrize("returned", [False, True])
def test_gradients_that_are_replaced_are_gone_before_the_graph_runs(returned: bool) -> None:
    kept: list[Any] = []
    alive: list[int] = []

    def step(module: nn.Linear, x: Tensor) -> Any:
        before = module.bias.grad
        module.zero_grad()
        module(x).square().sum().backward()
        return before if returned else None

    def watching(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            alive.append(sum(found() is not None for found in kept))
            return graph(*args)

        return run

    watching.takes_gradients = graph_backend.takes_gradients  # type: ignore[attr-defined]
    module = layer()
    with torch.enable_grad():
        fast, _ = compiled(step, backend=watching, fullgraph=True)
        for _ in range(4):
            kept[:] = [weakref.ref(p.grad) for p in module.parameters() if p.grad is not None]
            result = fast(module, torch.ones(2, 3))
            assert not returned or not kept or result is kept[1]()
            del result
    assert alive[2:] == [int(returned)] * 2


@pytest.mark.parametrize("added", [False, True])
def test_a_backend_is_told_which_results_become_gradients(added: bool) -> None:
    given: list[tuple[list[int], Any]] = []

    def step(module: nn.Linear, x: Tensor) -> Any:
        hidden = module(x)
        if not added:
            module.zero_grad()
        hidden.square().sum().backward()
        return x * 2, hidden.detach().sum(), module.bias

    def telling(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            given.append((graph.meta["gradients"], graph(*args)))
            assert takes_gradients(graph) is added
            return given[-1][1]

        return run

    telling.takes_gradients = graph_backend.takes_gradients  # type: ignore[attr-defined]
    module = layer()
    if added:
        module(torch.ones(3)).sum().backward()
    with torch.enable_grad():
        fast, _ = compiled(step, backend=telling, fullgraph=True)
        for _ in range(3):
            fast(module, torch.ones(2, 3))
            places, results = given[-1]
            found = [any(results[k] is p.grad for k in places) for p in module.parameters()]
            assert len(places) == 2 * (not added) and found == [not added] * 2
