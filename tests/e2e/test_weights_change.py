"""A weight that changes between two calls, in every way that programs know, for every kind of layer that keeps something of its weights."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intarsia


class Hoisted(nn.Module):
    """A table that is read at fixed places, and a weight that is normed: both are computed once for a state of the parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(48, 48))
        self.table = nn.Embedding(64, 48)
        self.register_buffer("places", torch.arange(64).flip(0))

    def forward(self, x: Tensor) -> Tensor:
        """(64, 48) -> (64, 48)."""
        return F.linear(x, F.normalize(self.weight, dim=1)) + self.table(self.places).sin()


class Tied(nn.Module):
    """The embedding's weight is the last layer's, as in language models."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(64, 48)
        self.head = nn.Linear(48, 64, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        """(rows, 48) -> (rows, 64)."""
        places = (x[:, 0].abs() * 20).long().clamp(max=63)
        return self.head(self.table(places) + x)


def _norm(channels: int) -> nn.Module:
    norm = nn.BatchNorm2d(channels)
    nn.init.normal_(norm.weight)
    norm.running_mean.normal_()  # type: ignore[union-attr]
    return norm


IMAGE, ROWS = (2, 16, 9, 9), (64, 48)
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(48, 64), nn.GELU(), nn.Linear(64, 48)), ROWS),
    "convolution": (lambda: nn.Sequential(nn.Conv2d(16, 24, 3), nn.ReLU(), nn.Conv2d(24, 16, 1)), IMAGE),
    "grouped": (lambda: nn.Conv2d(16, 32, 3, groups=4), IMAGE),
    "depthwise": (lambda: nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, groups=16), _norm(16), nn.SiLU()), IMAGE),
    "folded": (lambda: nn.Sequential(nn.Conv2d(16, 24, 3, bias=False), _norm(24), nn.ReLU()), IMAGE),
    "embedding": (lambda: nn.Sequential(Hoisted(), nn.LayerNorm(48)), ROWS),
    "tied": (Tied, ROWS),
}


def _other(parameter: Tensor) -> Tensor:
    return torch.randn_like(parameter) * 0.3


def _in_place(net: nn.Module) -> None:
    for p in net.parameters():
        p.mul_(1.5).add_(0.1)


def _one_element(net: nn.Module) -> None:
    next(net.parameters()).view(-1)[-1] = 7.0


def _load(net: nn.Module) -> None:
    changed = {k: v + 0.25 if v.is_floating_point() else v for k, v in net.state_dict().items()}
    net.load_state_dict(changed)


def _load_assigning(net: nn.Module) -> None:
    changed = {k: v * 1.25 if v.is_floating_point() else v.clone() for k, v in net.state_dict().items()}
    net.load_state_dict(changed, assign=True)


def _optimizer(net: nn.Module) -> None:
    optimizer = torch.optim.AdamW(net.parameters(), 0.1)
    for p in set(net.parameters()):
        p.grad = _other(p)
    optimizer.step()


def _assignment(net: nn.Module) -> None:
    owner = next(m for m in net.modules() if "weight" in m._parameters)
    owner.weight = nn.Parameter(_other(owner.weight))


def _data(net: nn.Module) -> None:
    for p in net.parameters():
        p.data = _other(p)


def _through_data(net: nn.Module) -> None:
    for p in net.parameters():
        p.data.mul_(0.5)


def _submodule(net: nn.Module) -> None:
    name, child = next(((n, c) for n, c in net.named_children()), ("", None))
    if child is not None:
        setattr(net, name, copy.deepcopy(child))
        _in_place(net)


def _vector(net: nn.Module) -> None:
    vector = nn.utils.parameters_to_vector(net.parameters())
    nn.utils.vector_to_parameters(torch.randn_like(vector) * 0.3, net.parameters())


def _swap(net: nn.Module) -> None:
    for p in list(net.parameters()):
        p.copy_(_other(p))
    net.float()


CHANGES = {
    f.__name__[1:]: f
    for f in (
        _in_place,
        _one_element,
        _load,
        _load_assigning,
        _optimizer,
        _assignment,
        _data,
        _through_data,
        _submodule,
        _vector,
        _swap,
    )
}


def near(compiled: Callable[..., Tensor], net: nn.Module, x: Tensor, loose: bool = False) -> None:
    want = net(x)
    scale = max(1.0, float(want.abs().max()))
    tolerance = (3e-2 if loose else 2e-5) * scale
    torch.testing.assert_close(compiled(x), want, rtol=0.0, atol=tolerance)


@pytest.fixture(scope="module")
def prepared() -> Iterator[dict[str, nn.Module]]:
    """Nets by name: each test starts from a copy, the compiled code comes from the cache."""
    torch.manual_seed(0)
    yield {name: make().eval() for name, (make, _) in LAYERS.items()}


@pytest.mark.parametrize("layer", LAYERS)
def test_every_change(prepared: dict[str, nn.Module], layer: str) -> None:
    net, x = copy.deepcopy(prepared[layer]), torch.randn(LAYERS[layer][1])
    compiled = intarsia.compile(net)
    near(compiled, net, x)
    for change in CHANGES.values():
        before = net(x)
        change(net)
        assert not torch.equal(before, net(x)) or layer == "grouped" and change is _submodule, change
        for _ in range(2):
            near(compiled, net, x)


@pytest.mark.parametrize("layer", ["linear", "convolution", "tied"])
@pytest.mark.parametrize("how", ["bfloat16", "autocast"])
def test_half_types(prepared: dict[str, nn.Module], layer: str, how: str) -> None:
    net, x = copy.deepcopy(prepared[layer]), torch.randn(LAYERS[layer][1])
    if how == "bfloat16":
        net, x = net.bfloat16(), x.bfloat16()
        compiled, eager = intarsia.compile(net), net
    else:

        class Cast(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.net = net

            def forward(self, x: Tensor) -> Tensor:
                with torch.autocast("cpu", torch.bfloat16):
                    return self.net(x)

        eager = Cast()
        compiled = intarsia.compile(eager)
    near(compiled, eager, x, loose=True)
    for name in ("in_place", "load", "optimizer", "assignment", "data", "through_data", "vector"):
        before = eager(x)
        CHANGES[name](net)
        assert not torch.equal(before, eager(x)), name
        for _ in range(2):
            near(compiled, eager, x, loose=True)


def test_running_statistics_of_a_training_step(prepared: dict[str, nn.Module]) -> None:
    net, x = copy.deepcopy(prepared["folded"]), torch.randn(IMAGE)
    compiled = intarsia.compile(net)
    for round_ in range(3):
        near(compiled, net, x)
        net.train()
        before = net[1].running_mean.clone()
        (net if round_ % 2 else compiled)(x + round_)  # either of them makes the step
        assert not torch.equal(before, net[1].running_mean)
        net.eval()
        near(compiled, net, x)
        near(compiled, net, x)


def test_a_whole_training_step_between_two_calls(prepared: dict[str, nn.Module]) -> None:
    net, x = copy.deepcopy(prepared["folded"]), torch.randn(IMAGE)
    compiled = intarsia.compile(net)
    optimizer = torch.optim.SGD(net.parameters(), 0.2)
    for _ in range(3):
        near(compiled, net, x)
        net.train()
        with torch.enable_grad():
            compiled(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        net.eval()
        near(compiled, net, x)


def test_two_programs_of_one_weight(prepared: dict[str, nn.Module]) -> None:
    net, x = copy.deepcopy(prepared["linear"]), torch.randn(ROWS)
    one, two = intarsia.compile(net), intarsia.compile(lambda x: net(x) + 1)
    for _ in range(3):
        near(one, net, x)
        torch.testing.assert_close(two(x), net(x) + 1, rtol=1e-4, atol=1e-4)
        _in_place(net)


@pytest.mark.parametrize("layer", ["linear", "folded", "depthwise", "embedding"])
def test_two_threads_call_and_a_third_changes(prepared: dict[str, nn.Module], layer: str) -> None:
    net, inputs = copy.deepcopy(prepared[layer]), [torch.randn(LAYERS[layer][1]) for _ in range(2)]
    compiled = intarsia.compile(net)
    rounds, barrier = 12, threading.Barrier(3, timeout=60)
    changes = ["in_place", "one_element", "load", "optimizer", "assignment", "through_data"]
    wrong: list[str] = []

    def call(x: Tensor) -> None:
        with torch.no_grad():
            for number in range(rounds):
                barrier.wait()  # the weights are as they are
                for _ in range(3):
                    try:
                        near(compiled, net, x)
                    except Exception as error:
                        wrong.append(f"round {number}: {error}")
                barrier.wait()  # both have called

    threads = [threading.Thread(target=call, args=(x,)) for x in inputs]
    with torch.no_grad():
        near(compiled, net, inputs[0])
        for thread in threads:
            thread.start()
        for number in range(rounds):
            barrier.wait()
            barrier.wait()
            CHANGES[changes[number % len(changes)]](net)
    for thread in threads:
        thread.join()
    assert not wrong, wrong[0]
