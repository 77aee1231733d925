"""Modules with odd definitions: own `__call__` and `__getattr__`, forward replaced, shared parts, functional calls."""

import torch
import torch.nn.functional as F
from cases import scenario, t
from torch import nn
from torch.func import functional_call


def linear(*sizes):
    torch.manual_seed(1)
    return nn.Linear(*sizes)


class Mlp(nn.Module):
    def __init__(self, depth=2):
        super().__init__()
        self.layers = nn.ModuleList(linear(4, 4) for _ in range(depth))
        self.head = linear(4, 2)
        self.scale = 1.0

    def forward(self, x):
        for layer in self.layers:
            x = F.relu(layer(x))
        if self.training:
            x = x * 2
        return self.head(x) * self.scale


class Delegating(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)

    def forward(self, x):
        return self.inner(x) + self.bias + self.in_features


@scenario
def test_getattr_override(compile):
    fast = compile(Delegating(linear(4, 4)))
    return [fast(t(2, 4)) for _ in range(2)]


class OwnCall(nn.Module):
    def __call__(self, x, *rest):
        return super().__call__(x + 1, *rest) * 2

    def forward(self, x, y=0):
        return x * 3 + y


class OwnCallPlain(nn.Module):
    def __call__(self, x):
        return x + 10


@scenario
def test_user_call(compile):
    outer = nn.Sequential(OwnCall(), OwnCallPlain())
    fast, direct = compile(outer), compile(OwnCall())
    return fast(t(2)), direct(t(2)), direct(t(2), 5)


@scenario
def test_forward_replaced_on_the_instance(compile):
    net = Mlp()
    fast = compile(net)
    out = [fast(t(2, 4))]
    net.head.forward = lambda x: x * 100
    out.append(fast(t(2, 4)))
    del net.head.forward
    out.append(fast(t(2, 4)))
    net.forward = lambda x: x + 1
    out.append(fast(t(2, 4)))
    return out


@scenario
def test_forward_replaced_on_the_class(compile):
    class Local(nn.Module):
        def forward(self, x):
            return x + 1

    net = nn.Sequential(Local())
    fast = compile(net)
    out = [fast(t(2))]
    Local.forward = lambda self, x: x * 5
    return [*out, fast(t(2))]


class WithProperty(nn.Module):
    def __init__(self):
        super().__init__()
        self._gain = 2.0
        self.w = nn.Parameter(torch.ones(4))

    @property
    def gain(self):
        return self._gain * 2

    @gain.setter
    def gain(self, value):
        self._gain = value

    @property
    def total(self):
        return self.w.sum()

    @staticmethod
    def twice(x):
        return x * 2

    @classmethod
    def named(cls, x):
        return x + len(cls.__name__)

    def forward(self, x):
        y = self.twice(x) * self.gain + self.total
        self.gain = self._gain + 1
        return self.named(y)


@scenario
def test_properties_and_class_methods(compile):
    net = WithProperty()
    fast = compile(net)
    return [fast(t(2, 4)).detach() for _ in range(3)], net.gain


@scenario
def test_shared_submodules(compile):
    shared = linear(4, 4)
    net = nn.Sequential(shared, nn.ReLU(), shared)
    fast = compile(net)
    out = [fast(t(2, 4))]
    with torch.no_grad():
        shared.weight.mul_(2)
    out.append(fast(t(2, 4)))
    net[2] = linear(4, 4)
    return [*out, fast(t(2, 4)), len(list(fast.parameters()))]


@scenario
def test_tied_weights(compile):
    a, b = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
    b.weight = a.weight
    net = nn.Sequential(a, b)
    fast = compile(net)
    out = [fast(torch.tensor([1, 2]))]
    with torch.no_grad():
        a.weight.fill_(1)
    return [*out, fast(torch.tensor([1, 2]))]


@scenario
def test_two_instances_of_one_class(compile):
    nets = [Mlp(), Mlp(3)]

    def run(net, x):
        return net(x)

    fast = compile(run)
    return [fast(net, t(2, 4)) for net in (*nets, *nets)]


@scenario
def test_method_of_a_module(compile):
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(4))

        def encode(self, x):
            return x * self.w

        def forward(self, x):
            return self.encode(x) + 1

    net = Both()
    encode = compile(net.encode)
    net.encode(t(2, 4))
    return encode(t(2, 4)), net(t(2, 4))


@scenario
def test_forward_with_all_kinds_of_arguments(compile):
    class Wide(nn.Module):
        def forward(self, x, /, y, *more, scale=1, **named):
            for m in more:
                x = x + m
            return x * y * scale + sum(named.values())

    fast = compile(Wide())
    out = [fast(t(2), 2), fast(t(2), 2, 3, 4), fast(t(2), y=2, scale=3, extra=t(2))]
    for bad in ((), (1,)):
        try:
            fast(*bad)
        except TypeError as error:
            out.append(type(error).__name__)
    return out


@scenario
def test_functional_call(compile):
    net = linear(4, 4)
    fast = compile(lambda params, x: functional_call(net, params, (x,)))
    params = {k: v.detach() * 2 for k, v in net.named_parameters()}
    return fast(params, t(2, 4)), fast({k: v * 3 for k, v in params.items()}, t(2, 4)), net(t(2, 4)).detach()


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count = self.count + 1
        return x * self.weight + self.count


@scenario
def test_functional_call_of_a_module_that_assigns_members(compile):
    net = Counting()
    fast = compile(lambda params, x: functional_call(net, params, (x * 2,)) + 1)
    out = []
    for names in (("weight",), ("weight", "count"), ("count",), ()):
        params = {n: dict(net.state_dict())[n].clone() + 5 for n in names}
        out += [fast(params, t(3)).detach(), params, fast(params, t(3)).detach(), params, net.count.clone()]
        several = ({n: v} for n, v in params.items())
        out += [fast(tuple(several), t(3)).detach(), net.count.clone()]
    return out


@scenario
def test_stateless_ensemble(compile):
    nets = [linear(4, 2), linear(4, 2)]
    params, _ = torch.func.stack_module_state(nets)

    def run(params, x):
        return torch.vmap(lambda p: functional_call(nets[0], p, (x,)))(params)

    return compile(run)(params, t(3, 4)).detach()
