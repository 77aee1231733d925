"""Modules: parameters, buffers, hooks, training mode, attributes changed in forward; and what invalidates them."""

import copy

import pytest
import torch
import torch.nn.functional as F
from harness import compiled
from torch import nn

X = torch.randn(4, 8)


@pytest.fixture(autouse=True)
def _inference(caplog):
    with torch.no_grad():
        yield
    assert "in eager" not in caplog.text


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
        self.norm = nn.LayerNorm(8)
        self.drop = nn.Dropout(0.5)
        self.scale = 2.0
        self.table = {"relu": nn.ReLU()}
        self.register_buffer("offset", torch.ones(8))

    def forward(self, x, act="relu"):
        for layer in self.layers:
            x = self.drop(self.table[act](layer(x)))
        if self.training:
            x = x + 100
        return self.norm(x) * self.scale + self.offset


def test_parameters_are_static_placeholders():
    net = Net().eval()
    fast, log = compiled(net, fullgraph=True)
    torch.testing.assert_close(fast(X), net(X))
    graph = log.captures[0].graph_module.graph
    static = {str(n.meta["source"]) for n in graph.nodes if n.op == "placeholder" and n.meta["static_input"]}
    assert static == {
        *(f"self.layers.{i}.{n}" for i in (0, 1) for n in ("weight", "bias")),
        "self.norm.weight",
        "self.norm.bias",
        "self.offset",
    }
    for node in graph.nodes:
        if node.op.startswith("call"):
            assert isinstance(node.meta["example_value"], torch.Tensor)
            assert "in forward" in node.meta["stack_trace"]


@pytest.mark.parametrize(
    "change",
    [
        lambda net: net.train(),
        lambda net: setattr(net, "scale", 3.0),
        lambda net: net.layers.append(nn.Linear(8, 8)),
        lambda net: net.layers.__setitem__(0, nn.Linear(8, 8)),
        lambda net: setattr(net.norm, "weight", nn.Parameter(torch.zeros(8))),
        lambda net: net.norm.register_forward_hook(lambda m, a, out: out + 1),
        lambda net: net.norm.register_forward_pre_hook(lambda m, a: (a[0] * 2,)),
        lambda net: setattr(net.norm, "forward", lambda x: x),
        lambda net: net.double(),
        lambda net: net.register_buffer("offset", torch.zeros(8)),
        lambda net: net.table.update(relu=nn.Sigmoid()),
        lambda net: setattr(net, "training", True),
    ],
)
def test_changes_are_seen(change):
    net = Net().eval()
    fast, log = compiled(net, fullgraph=True)
    fast(X)
    change(net)
    x = X.to(net.norm.weight.dtype)
    torch.manual_seed(1)
    want = net(x)
    torch.manual_seed(1)
    torch.testing.assert_close(fast(x), want)
    assert len(log.captures) == 2 and log.recompiles, "a change must be named"


def test_weights_changed_in_place_need_no_recompile():
    net = Net().eval()
    fast, log = compiled(net, fullgraph=True)
    fast(X)
    net.norm.weight.fill_(0.5)
    net.load_state_dict(copy.deepcopy(net.state_dict()))
    torch.testing.assert_close(fast(X), net(X))
    assert len(log.captures) == 1


def test_global_hooks():
    net = nn.Linear(8, 8)
    fast, _ = compiled(net, fullgraph=True)
    fast(X)
    handle = nn.modules.module.register_module_forward_hook(lambda m, a, out: out * 0)
    try:
        assert fast(X).abs().sum() == 0
    finally:
        handle.remove()
    assert fast(X).abs().sum() > 0


def test_batch_norm_in_training():
    def run(net, call):
        return [call(X) for _ in range(3)], net.state_dict()

    net = nn.BatchNorm1d(8)
    twin = copy.deepcopy(net)
    fast, log = compiled(net, fullgraph=True)
    got, want = run(net, fast), run(twin, twin)
    torch.testing.assert_close(got, want)
    assert len(log.captures) == 1 and net.num_batches_tracked == 3


def test_attributes_changed_in_forward():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = []
            self.register_buffer("state", torch.zeros(8))
            self.last = None

        def forward(self, x):
            self.calls.append(len(self.calls))
            self.state = self.state + x.sum(0)
            self.last = x * 2
            self.state.mul_(2)
            return x + self.state

    mine, theirs = Counter(), Counter()
    fast, _ = compiled(mine, fullgraph=True)
    for _ in range(3):
        torch.testing.assert_close(fast(X), theirs(X))
        torch.testing.assert_close(mine.state, theirs.state)
        torch.testing.assert_close(mine.last, theirs.last)
        assert mine.calls == theirs.calls


def test_wrapper_shows_the_module():
    net = Net().eval()
    fast, _ = compiled(net)
    assert fast._orig_mod is net and fast.scale == 2.0 and fast.layers is net.layers
    assert isinstance(fast, nn.Module) and len(list(fast.parameters())) == len(list(net.parameters()))
    fast.scale = 5.0
    assert net.scale == 5.0
    fast.train()
    assert net.training
    fast.eval()
    assert not net.training


def test_hooks_and_copies_of_the_wrapper():
    net = Net().eval()
    fast, _ = compiled(net, fullgraph=True)
    before = fast(X)
    handle = fast.register_forward_hook(lambda module, args, out: out * 0)
    assert fast(X).abs().sum() == 0
    handle.remove()
    twin = copy.deepcopy(fast)
    twin.scale = 4.0
    torch.testing.assert_close(fast(X), before)
    torch.testing.assert_close(twin(X), (before - 1) * 2 + 1)


def test_compiled_module_inside_another():
    inner, _ = compiled(nn.Linear(8, 8))
    fast, log = compiled(lambda x: inner(x).relu(), fullgraph=True)
    torch.testing.assert_close(fast(X), inner(X).relu())
    assert len(log.captures) == 1


def test_containers_of_modules():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.seq = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Identity())
            self.by_name = nn.ModuleDict({"a": nn.Linear(8, 4), "b": nn.Softmax(-1)})
            self.weights = nn.ParameterList([torch.ones(4), torch.zeros(4)])

        def forward(self, x):
            x = self.seq(x)
            for name, module in self.by_name.items():
                x = module(x) if name != "zz" else x
            for w in self.weights:
                x = x + w
            return x, sum(p.numel() for p in self.parameters()), next(self.parameters()).dtype, len(self.seq)

    net = Mixed()
    fast, _ = compiled(net, fullgraph=True)
    got, want = fast(X), net(X)
    torch.testing.assert_close(got[0], want[0])
    assert got[1:] == want[1:]


def test_shared_parameters():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(8, 8)
            self.b = nn.Linear(8, 8)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.b(self.a(x))

    net = Tied()
    fast, log = compiled(net, fullgraph=True)
    torch.testing.assert_close(fast(X), net(X))
    assert sum(n.op == "placeholder" for n in log.captures[0].graph_module.graph.nodes) == 4
    net.b.weight = nn.Parameter(torch.zeros(8, 8))
    torch.testing.assert_close(fast(X), net(X))


@pytest.mark.parametrize(
    "module",
    [
        nn.MultiheadAttention(8, 2, batch_first=True),
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
        nn.LSTM(8, 4),
        nn.GRU(8, 4),
        nn.EmbeddingBag(10, 4),
    ],
    ids=lambda m: type(m).__name__,
)
def test_larger_modules(module):
    module.eval()
    x = torch.randn(2, 3, 8)
    args = {"MultiheadAttention": (x, x, x), "EmbeddingBag": (torch.randint(0, 10, (2, 3)),)}.get(
        type(module).__name__, (x,)
    )
    fast, log = compiled(module, fullgraph=True)
    torch.testing.assert_close(fast(*args), module(*args))
    assert len(log.captures) == 1


def test_weight_norm_and_parametrizations():
    net = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
    fast, _ = compiled(net, fullgraph=True)
    torch.testing.assert_close(fast(X), net(X))


def test_convolutions_and_pooling():
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding="same"), nn.BatchNorm2d(4), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    ).eval()
    x = torch.randn(1, 3, 8, 8)
    fast, _ = compiled(net, fullgraph=True)
    torch.testing.assert_close(fast(x), net(x))
    fast2, _ = compiled(lambda x: F.interpolate(x, scale_factor=2, mode="nearest"), fullgraph=True)
    torch.testing.assert_close(fast2(x), F.interpolate(x, scale_factor=2, mode="nearest"))
