"""Where graphs of data-parallel training are cut: the parts together are the graph, and no part begins where it may not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import intarsia
from intarsia.buckets import Part, compile_parts, split

pytestmark = pytest.mark.usefixtures("with_gradients")
LAYER = 8 * 8 * 4 + 8 * 4  # bytes of a layer's gradients


@pytest.fixture
def with_gradients() -> Any:
    with torch.enable_grad():
        yield


class Net(nn.Module):
    """Layers with what `between` does to the values between them."""

    def __init__(self, between: Callable[[Tensor], Tensor], tied: bool = False) -> None:
        super().__init__()
        self.layers, self.between = nn.ModuleList(nn.Linear(8, 8) for _ in range(5)), between
        if tied:
            self.layers[4].weight = self.layers[0].weight

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.between(layer(x))
        return x


def captured(net: nn.Module, x: Tensor) -> tuple[fx.GraphModule, list[Any]]:
    """The graph of a call, and its arguments."""
    found: list[Any] = []

    def backend(gm: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        def run(*args: Any) -> Any:
            found[:] = [gm, list(args)]
            return gm(*args)

        return run

    intarsia.compile(net, backend=backend, fullgraph=True)(x)
    return found[0], found[1]


def shifted(x: Tensor) -> Tensor:
    with torch.no_grad():
        shift = x.mean() + 1
    return x * shift


def written(x: Tensor) -> Tensor:
    y = x + 1
    y.mul_(0.5)
    return y


def cast(x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        y = x @ torch.ones(8, 8)
    return y.float()


def residual(x: Tensor) -> Tensor:
    return x.split(4, -1)[0].repeat(1, 2) + x


@pytest.mark.parametrize("between", [torch.tanh, shifted, written, cast, residual])
@pytest.mark.parametrize("tied", [False, True])
def test_the_parts_together_are_the_graph(between: Callable[[Tensor], Tensor], tied: bool) -> None:
    gm, args = captured(Net(between, tied), torch.randn(3, 8))
    parts = split(gm, LAYER)
    assert len(parts) >= 3
    for part in parts:
        for value in part.examples():
            assert isinstance(value, Tensor)
    run = compile_parts(gm, parts, lambda module, examples: module)
    (whole,), (cut,) = gm(*args), run(*args)
    assert torch.equal(whole, cut)
    whole.sum().backward()
    wanted = [a.grad.clone() if a.grad is not None else None for a in args]
    for a in args:
        a.grad = None
    cut.sum().backward()
    for a, gradient in zip(args, wanted, strict=True):
        assert (a.grad is None) == (gradient is None)
        assert gradient is None or torch.equal(a.grad, gradient)


def test_parts_begin_where_a_bucket_is_full() -> None:
    gm, _ = captured(Net(torch.tanh), torch.randn(3, 8))
    assert len(split(gm, LAYER)) == 5
    assert len(split(gm, 2 * LAYER)) == 3
    assert split(gm, 100 * LAYER) == []


def test_no_part_begins_between_a_tensor_and_a_write_to_it() -> None:
    def late(x: Tensor) -> Tensor:
        return x

    class Late(Net):
        def forward(self, x: Tensor) -> Tensor:
            first = self.layers[0](x).tanh()
            second = self.layers[1](first)
            first.mul_(2)
            return self.layers[2](second) + first

    gm, _ = captured(Late(late), torch.randn(3, 8))
    parts = split(gm, LAYER)
    assert _part_of(parts, "mul_") == _part_of(parts, "tanh")


def test_no_part_begins_where_gradients_are_off() -> None:
    class Off(Net):
        def forward(self, x: Tensor) -> Tensor:
            x = self.layers[0](x)
            with torch.no_grad():
                y = self.layers[1](self.layers[2](x))
            return self.layers[3](x) + y

    gm, _ = captured(Off(torch.tanh), torch.randn(3, 8))
    for part in split(gm, LAYER):
        first = next(n for n in part.module.graph.nodes if n.op != "placeholder")
        assert first.meta["example_value"].requires_grad


def _part_of(parts: list[Part], name: str) -> int:
    return next(i for i, p in enumerate(parts) for n in p.module.graph.nodes if n.name.startswith(name))
