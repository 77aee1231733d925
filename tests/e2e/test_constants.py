"""What depends on parameters alone is kept, and made again when a parameter changes, in whatever way."""

import threading

import pytest
import torch
from torch import nn

import intarsia


class Net(nn.Module):
    """A cast weight for a library call, and a table that is read at fixed places."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(48, 48))
        self.table = nn.Embedding(64, 48)
        self.register_buffer("places", torch.arange(64).flip(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(64, 48) -> (64, 48)."""
        y = (x.double() @ self.weight.double()).float()
        return y + self.table(self.places).sin()


X = torch.randn(64, 48)


def fresh():
    torch.manual_seed(0)
    net = Net().eval()
    return net, intarsia.compile(net, fullgraph=True)


def agree(fast, net):
    torch.testing.assert_close(fast(X), net(X), rtol=1e-5, atol=1e-5)


def _step(net):
    optimizer = torch.optim.SGD(net.parameters(), 0.5)
    with torch.enable_grad():
        net(X).square().sum().backward()
    optimizer.step()


CHANGES = {
    "in place": lambda net: net.weight.mul_(2),
    "one element": lambda net: net.weight.__setitem__((3, 4), 100.0),
    "table": lambda net: net.table.weight.add_(1),
    "buffer": lambda net: net.places.copy_(torch.arange(64)),
    "load_state_dict": lambda net: net.load_state_dict(Net().state_dict()),
    "optimizer": _step,
    "assignment": lambda net: setattr(net, "weight", nn.Parameter(torch.randn(48, 48))),
    "data": lambda net: setattr(net.weight, "data", torch.randn(48, 48)),
    "through data": lambda net: net.weight.data.mul_(3),
    "numpy": lambda net: net.weight.detach().numpy().__imul__(2),
}


@torch.no_grad()
@pytest.mark.parametrize("change", CHANGES)
def test_changed(change):
    net, fast = fresh()
    agree(fast, net)
    agree(fast, net)
    for _ in range(2):
        CHANGES[change](net)
        agree(fast, net)
        agree(fast, net)


@torch.no_grad()
def test_kept_between_calls(monkeypatch):
    net, _ = fresh()
    low = intarsia.lower(net, X)
    assert "def make_constants" in low.host()
    main, constants = low.ir("prim").split("prim.func @constants")
    assert "prim.sin" in constants and "prim.sin" not in main
    monkeypatch.setenv("INTARSIA_PACKING", "0")
    assert "@constants" not in intarsia.lower(net, X).ir("prim")


@torch.no_grad()
def test_results_are_the_callers_own():
    net = Net().eval()
    fast = intarsia.compile(lambda x: (x + 1, net.table(net.places).sin()))
    first = fast(X)[1]
    want = first.clone()
    first.zero_()
    torch.testing.assert_close(fast(X)[1], want)


@torch.no_grad()
def test_numbers_alone():
    def f(x):
        angles = torch.arange(64.0).unsqueeze(1) * torch.arange(48.0)
        return x * angles.cos() + angles.sin()

    fast = intarsia.compile(f)
    for _ in range(3):
        torch.testing.assert_close(fast(X), f(X), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_two_threads_and_a_third_that_changes_the_weight():
    net, fast = fresh()
    agree(fast, net)
    values = [torch.randn(48, 48) for _ in range(4)]
    allowed = []
    for value in values:
        net.weight.copy_(value)
        allowed.append(net(X))
    wrong, stop = [], threading.Event()

    def call():
        with torch.no_grad():
            while not stop.is_set():
                got = fast(X)
                if not any(torch.allclose(got, want, rtol=1e-4, atol=1e-4) for want in allowed):
                    wrong.append(got)

    net.weight.copy_(values[0])
    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(50):
        fast(X)
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
    for value, want in zip(values, allowed, strict=True):
        net.weight.copy_(value)
        torch.testing.assert_close(fast(X), want, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_autocast_casts_weights_once():
    model = nn.Sequential(nn.Linear(48, 48), nn.GELU(), nn.Linear(48, 48)).eval()

    def f(x):
        with torch.autocast("cpu", torch.bfloat16):
            return model(x)

    low = intarsia.lower(f, X)
    main, constants = low.ir("prim").split("prim.func @constants")
    assert constants.count("prim.cast") == 4
    assert main.count("tensor<[48, 48], bf16>") <= 6  # as arguments and where they are used
    fast = intarsia.compile(f)
    for _ in range(2):
        torch.testing.assert_close(fast(X), f(X), rtol=2e-2, atol=2e-2)
        model[0].weight.mul_(1.5)
