"""Layers of a loop that breaks: the pieces behind the break serve all layers of a class, and each layer's own state counts."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from harness import compiled
from torch import Tensor, nn


class Layer(nn.Module):
    """Breaks in its middle; has parameters, buffers, a counter and a mode of its own."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)
        self.calls, self.number = 0, number
        self.register_buffer("last", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x))
        torch._dynamo.graph_break()
        self.calls += 1
        self.last = x.detach()[0] + self.number
        self.last.add_(1)
        return torch.relu(self.second(x)) * (2 if self.training else 3)


class Net(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Layer(k) for k in range(count))

    def forward(self, x: Tensor, seen: dict[nn.Module, int]) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
            torch._dynamo.graph_break()
            x = x + (1 if layer is self.layers[2] else 5) + seen.get(layer, 0)
            seen[layer] = layer.calls
        return x


class Other(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return x * 0.5


def _halves(module: nn.Module, args: Any, result: Tensor) -> Tensor:
    return result * 2


def _shares(net: Any) -> None:
    net.layers[3].second.weight = net.layers[0].second.weight
    net.layers[4] = net.layers[1]


def _changes_class(net: Any) -> None:
    net.layers[2].__class__ = Other


# What happens between two calls, one after another.
CHANGES = {
    "nothing": lambda net: None,
    "again": lambda net: None,
    "one_in_eval_mode": lambda net: net.layers[1].eval(),
    "a_plain_attribute": lambda net: setattr(net.layers[4], "number", 70),
    "shared_weights_and_layers": _shares,
    "a_hook_on_one": lambda net: net.layers[2].second.register_forward_hook(_halves),
    "a_method_of_its_own": lambda net: setattr(net.layers[1], "forward", lambda x: x * 7),
    "a_frozen_weight": lambda net: net.layers[0].second.weight.requires_grad_(False),
    "another_class": _changes_class,
    "a_part_is_replaced": lambda net: setattr(net.layers[3], "second", nn.Identity()),
    "a_hook_in_front_of_another": lambda net: net.layers[5].second.register_forward_pre_hook(
        lambda m, args: (args[0] + 1,)
    ),
}


def _state(net: Any) -> list[Any]:
    tensors = [*net.parameters(), *net.buffers()]
    return [t.detach().clone() for t in tensors] + [layer.calls for layer in net.layers]


def _gradients(net: nn.Module) -> list[Tensor]:
    return [torch.zeros(0) if p.grad is None else p.grad.clone() for p in net.parameters()]


@pytest.mark.parametrize("dynamic", [None, False])
def test_each_layer_keeps_its_own_state(dynamic: bool | None) -> None:
    mine, theirs = Net(6), Net(6)
    fast, log = compiled(mine, dynamic=dynamic)
    seen_mine: dict[nn.Module, int] = {}
    seen_theirs: dict[nn.Module, int] = {}
    for number, (what, change) in enumerate(CHANGES.items()):
        for net in (mine, theirs):
            change(net)
            net.zero_grad()
        x = torch.randn(4 + number % 2, 8)
        found, wanted = fast(x, seen_mine), theirs(x, seen_theirs)
        found.sum().backward()
        wanted.sum().backward()
        torch.testing.assert_close(found, wanted, msg=lambda m, what=what: f"{what}: {m}")
        torch.testing.assert_close(_state(mine), _state(theirs), msg=lambda m, what=what: f"{what}: {m}")
        torch.testing.assert_close(_gradients(mine), _gradients(theirs), msg=lambda m, what=what: f"{what}: {m}")
        assert list(seen_mine.values()) == list(seen_theirs.values()), what


def test_the_number_of_graphs_does_not_grow_with_the_layers() -> None:
    def graphs(count: int) -> int:
        torch.manual_seed(0)
        net = nn.Sequential(*(Layer(0) for _ in range(count)))
        wanted = copy.deepcopy(net)
        fast, log = compiled(net)
        for _ in range(2):
            x = torch.randn(3, 8)
            torch.testing.assert_close(fast(x), wanted(x))
        return len(log.captures)

    assert graphs(16) == graphs(8)  # the first places of the iterator have graphs of their own
