"""Programs of `one_graph.py`: each is one graph, with eager's results, gradients and messages, also when values change."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from harness import compiled, leaves, number_backend, same
from one_graph import PROGRAMS
from torch import Tensor, nn
from torch.utils import _pytree as pytree


def _copied(value: Any) -> Any:
    def one(leaf: Any) -> Any:
        if isinstance(leaf, torch.Generator):
            return leaf.clone_state()
        if type(leaf) is Tensor:
            return leaf.detach().clone().requires_grad_(leaf.requires_grad)
        return leaf

    return pytree.tree_map(one, value)


def _account(function: Any, args: tuple[Any, ...], module: Any) -> tuple[Any, ...]:
    """What a call gives, raises, and the gradients of its arguments and parameters."""
    torch.manual_seed(0)
    given = [a for a in args if isinstance(a, Tensor) and a.requires_grad]
    weights = list(module.parameters()) if isinstance(module, nn.Module) else []
    try:
        result = function(*args)
    except Exception as error:
        return type(error), str(error)
    made = [v for v in leaves(result) if v.requires_grad]
    gradients = []
    if made and (given or weights):
        loss = sum(v.sin().sum() for v in made)
        gradients = list(torch.autograd.grad(loss, given + weights, allow_unused=True))
    return result, [v.requires_grad for v in leaves(result)], gradients, torch.get_rng_state()


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph(name):
    program = PROGRAMS[name]
    eager = program.make()
    fast, log = compiled(eager, number_backend)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for args in program.calls:
            want = _account(eager, _copied(args), eager)
            got = _account(fast, _copied(args), eager)
            assert same(got, want), f"compiled {got!r}, eager {want!r}"
    found = [*(b.reason for b in log.breaks), *(why for *_, why in log.fallbacks)]
    assert program.breaks in found[0] if program.breaks else not found, found
    assert len(log.captures) <= 2 or program.breaks, log.recompiles
    assert not torch.overrides._get_current_function_mode_stack()


def test_streams_are_asked_whether_they_are_recorded() -> None:
    """On a machine without the device the question raises, as in eager."""

    def answers(x: torch.Tensor) -> list[object]:
        found: list[object] = [x + 1]
        for ask in (torch.cuda.is_current_stream_capturing, torch.xpu.graphs.is_current_stream_capturing):
            try:
                found.append(ask())
            except RuntimeError as error:
                found.append(str(error).splitlines()[0])
        return found

    fast, log = compiled(answers, number_backend, on_error="raise")
    assert str(fast(torch.ones(2))) == str(answers(torch.ones(2)))
    assert not log.breaks and not log.fallbacks
