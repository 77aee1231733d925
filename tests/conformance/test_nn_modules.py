"""Modules: containers, attributes, buffers, state, copies, parametrizations, lazy modules, the wrapper."""

import copy
import io
import pickle

import torch
import torch.nn.functional as F
from cases import case, scenario, t
from torch import nn
from torch.nn.utils import parametrizations, parametrize


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


# ---- containers ----


@scenario
def test_sequential(compile):
    net = nn.Sequential(linear(4, 4), nn.ReLU(), linear(4, 4))
    fast = compile(net)
    out = [fast(t(2, 4))]
    net.append(nn.Tanh())
    out.append(fast(t(2, 4)))
    net[1] = nn.Sigmoid()
    out.append(fast(t(2, 4)))
    del net[0]
    return [*out, fast(t(2, 4))]


class Sliced(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(linear(4, 4), nn.ReLU(), linear(4, 4), nn.Tanh())
        self.many = nn.ModuleList([linear(4, 4), linear(4, 4), linear(4, 4)])

    def forward(self, x):
        y = self.body[:2](x)
        for layer in self.many[1:]:
            y = layer(y)
        return y + self.body[-1](x), len(self.many), len(self.body[1:3]), self.many[-1] is self.many[2]


@scenario
def test_slices_of_containers(compile):
    fast = compile(Sliced())
    return [fast(t(2, 4)) for _ in range(2)]


@scenario
def test_module_list_changed_between_calls(compile):
    net = Mlp()
    fast = compile(net)
    out = [fast(t(2, 4))]
    net.layers.append(linear(4, 4))
    out.append(fast(t(2, 4)))
    net.layers.insert(0, nn.Identity())
    out.append(fast(t(2, 4)))
    net.layers[0] = nn.Tanh()
    out.append(fast(t(2, 4)))
    del net.layers[1]
    out.append(fast(t(2, 4)))
    net.layers = net.layers[:1]
    return [*out, fast(t(2, 4))]


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.kinds = nn.ModuleDict({"a": linear(4, 4), "b": nn.Tanh()})
        self.weights = nn.ParameterDict({"u": torch.ones(4), "v": torch.full((4,), 2.0)})
        self.list = nn.ParameterList([torch.ones(4), torch.ones(4) * 3])

    def forward(self, x, which="a"):
        y = self.kinds[which](x)
        for name, child in self.kinds.items():
            if name != which:
                y = child(y)
        for key in self.weights:
            y = y * self.weights[key]
        for i, w in enumerate(self.list):
            y = y + w * i
        return y, "a" in self.kinds, list(self.kinds.keys()), len(self.list), list(self.weights), self.list[-1].sum()


@scenario
def test_dict_containers(compile):
    net = Named()
    fast = compile(net)
    out = [fast(t(2, 4)), fast(t(2, 4), "b"), fast(t(2, 4), which="a")]
    net.kinds["c"] = nn.ReLU()
    net.weights["w"] = nn.Parameter(torch.zeros(4))
    net.list.append(nn.Parameter(torch.ones(4)))
    return [*out, fast(t(2, 4))]


@scenario
def test_nested_sequential_with_names(compile):
    from collections import OrderedDict

    net = nn.Sequential(OrderedDict([("in", linear(4, 4)), ("mid", nn.Sequential(nn.GELU(), linear(4, 4)))]))
    fast = compile(net)
    return fast(t(2, 4)), fast(t(3, 4)), [n for n, _ in fast.named_modules()]


# ---- attributes and modes ----


@scenario
def test_attributes_change_between_calls(compile):
    net = Mlp()
    fast = compile(net)
    out = []
    for value in (1.0, 2.0, 3, 1.0, torch.tensor(4.0), "no"):
        net.scale = value
        try:
            out.append(fast(t(2, 4)))
        except TypeError as error:
            out.append(type(error).__name__)
    return out


@scenario
def test_train_and_eval(compile):
    net = Mlp()
    fast = compile(net)
    out = [fast(t(2, 4))]
    fast.eval()
    out.append(fast(t(2, 4)))
    net.train()
    out.append(fast(t(2, 4)))
    net.layers[0].eval()
    return [*out, fast(t(2, 4)), fast.training, net.training]


@scenario
def test_parameters_replaced_and_frozen(compile):
    net = Mlp()
    fast = compile(net)
    out = [fast(t(2, 4))]
    net.head.weight = nn.Parameter(torch.ones(2, 4))
    out.append(fast(t(2, 4)))
    net.head.bias = None
    out.append(fast(t(2, 4)))
    net.requires_grad_(False)
    out.append(fast(t(2, 4)))
    net.head.weight.data = torch.zeros(2, 4)
    out.append(fast(t(2, 4)))
    net.head.weight.data.fill_(2)
    return [*out, fast(t(2, 4))]


@scenario
def test_dtype_changes(compile):
    net = Mlp()
    fast = compile(net)
    out = [fast(t(2, 4))]
    net.double()
    out.append(fast(t(2, 4).double()))
    net.bfloat16()
    out.append(fast(t(2, 4).bfloat16()))
    net.float()
    return [*out, fast(t(2, 4)), next(fast.parameters()).dtype]


@scenario(expect="breaks")
def test_submodule_replaced(compile):
    net = Mlp()
    fast = compile(net)
    out = [fast(t(2, 4))]
    net.head = nn.Sequential(linear(4, 4), nn.ReLU())
    out.append(fast(t(2, 4)))
    net.head = None
    try:
        fast(t(2, 4))
    except TypeError as error:
        out.append(str(error))
    return out


@scenario
def test_state_dict_round_trip(compile):
    net, other = Mlp(), Mlp()
    with torch.no_grad():
        for p in other.parameters():
            p.add_(1)
    fast = compile(net)
    out = [fast(t(2, 4))]
    keys = list(fast.state_dict())
    net.load_state_dict(other.state_dict())
    out.append(fast(t(2, 4)))
    net.load_state_dict(other.state_dict(), assign=True)
    return [*out, fast(t(2, 4))], keys


@scenario
def test_state_dict_through_the_wrapper(compile):
    net = Mlp()
    fast = compile(net)
    fast(t(2, 4))
    state = {k: torch.zeros_like(v) for k, v in net.state_dict().items()}
    missing = fast.load_state_dict(state)
    return fast(t(2, 4)), [float(p.sum()) for p in net.parameters()], list(missing.missing_keys)


@scenario
def test_deepcopy_of_the_wrapper(compile):
    net = Mlp()
    fast = compile(net)
    out = [fast(t(2, 4))]
    twin = copy.deepcopy(fast)
    with torch.no_grad():
        twin.head.weight.zero_()
    return [*out, twin(t(2, 4)), fast(t(2, 4))]


@scenario
def test_pickle_of_the_original(compile):
    net = Mlp()
    fast = compile(net)
    out = [fast(t(2, 4))]
    back = pickle.loads(pickle.dumps(net))
    return [*out, back(t(2, 4)), type(back).__name__]


@scenario
def test_pickle_through_the_wrapper(compile):
    net = Mlp()
    fast = compile(net)
    fast(t(2, 4))
    back = pickle.loads(pickle.dumps(fast))
    return back(t(2, 4)), list(back.state_dict())


@scenario
def test_save_and_load(compile):
    net = Mlp()
    fast = compile(net)
    fast(t(2, 4))
    file = io.BytesIO()
    torch.save(fast.state_dict(), file)
    file.seek(0)
    other = Mlp()
    other.load_state_dict(torch.load(file))
    whole = io.BytesIO()
    torch.save(net, whole)
    whole.seek(0)
    return other(t(2, 4)), torch.load(whole, weights_only=False)(t(2, 4))


# ---- what forward looks at and changes ----


class Walker(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = linear(4, 4), nn.Sequential(linear(4, 4), nn.ReLU())
        self.register_buffer("offset", torch.ones(4))
        self.register_buffer("hidden", torch.zeros(4), persistent=False)

    def forward(self, x):
        total = sum(p.sum() for p in self.parameters())
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                x = x + module.bias * len(name)
        for child in self.children():
            x = child(x)
        names = [n for n, p in self.named_parameters() if p.dim() > 1]
        return (
            x * total + self.offset,
            names,
            dict(self.named_buffers()).keys() == {"offset", "hidden"},
            self.get_submodule("b.0").weight.sum(),
            self.get_parameter("a.bias").shape,
            len(list(self.modules())),
            [type(m).__name__ for m in self.children()],
            self.training,
            "a" in self._modules,
            hasattr(self, "zzz"),
        )


@scenario
def test_walking_over_modules_in_forward(compile):
    fast = compile(Walker())
    return [fast(t(2, 4)) for _ in range(2)]


class Running(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("steps", torch.tensor(0))
        self.history = []
        self.last = None
        self.n = 0

    def forward(self, x):
        self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        self.steps += 1
        self.n += 1
        self.history.append(self.n)
        self.last = x.detach() + self.n
        self.mean = self.mean + 0
        return x - self.mean


@scenario
def test_buffers_and_attributes_updated(compile):
    net = Running()
    fast = compile(net)
    out = [fast(t(2, 4)) for _ in range(4)]
    return out, net.mean, net.steps, net.history, net.last, net.n


class Registers(nn.Module):
    def forward(self, x):
        if not hasattr(self, "cache"):
            self.register_buffer("cache", torch.zeros(x.shape[-1]))
        self.cache += x.sum(0)
        return x + self.cache


@scenario
def test_buffer_registered_in_forward(compile):
    net = Registers()
    fast = compile(net)
    return [fast(t(2, 4)) for _ in range(3)], dict(net.named_buffers())


class MakesParameter(nn.Module):
    def forward(self, x):
        if not hasattr(self, "weight"):
            self.weight = nn.Parameter(torch.ones(4, x.shape[-1]))
        return F.linear(x, self.weight)


@scenario
def test_parameter_assigned_in_forward(compile):
    net = MakesParameter()
    fast = compile(net)
    out = [fast(t(2, 4)).detach() for _ in range(3)]
    return out, [n for n, _ in net.named_parameters()]


class MakesSubmodule(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = None

    def forward(self, x):
        if self.inner is None:
            self.inner = nn.Linear(x.shape[-1], 2)
        return self.inner(x)


@scenario
def test_submodule_assigned_in_forward(compile):
    torch.manual_seed(4)
    net = MakesSubmodule()
    fast = compile(net)
    return [fast(t(2, 4)).detach() for _ in range(3)], len(list(net.parameters()))


@case(lambda: (t(2, 4),), lambda: (t(3, 4),))
def test_modules_made_inside(x):
    return nn.ReLU()(x), nn.Softmax(dim=-1)(x), nn.Sequential(nn.Tanh(), nn.Flatten())(x), nn.Dropout(0.5).eval()(x)


@case(lambda: (t(2, 4),))
def test_modules_with_parameters_made_inside(x):
    layer = nn.Linear(4, 3)
    norm = nn.LayerNorm(4)
    return layer(norm(x)).detach(), layer.weight.shape


@case(lambda: (t(2, 4),))
def test_losses_made_inside(x):
    return nn.MSELoss()(x, x * 2), nn.CrossEntropyLoss(reduction="sum")(x, torch.tensor([0, 1])), nn.L1Loss()(x, x + 1)


class Optimised(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(4))

    def forward(self, x):
        with torch.no_grad():
            self.w.mul_(0.5)
            self.w[0] = 3.0
        return x * self.w


@scenario
def test_parameter_changed_in_place(compile):
    net = Optimised()
    fast = compile(net)
    return [fast(t(2, 4)).detach().clone() for _ in range(3)], net.w.detach()


# ---- parametrizations, lazy modules ----


@scenario
def test_weight_norm(compile):
    net = parametrizations.weight_norm(linear(4, 4))
    fast = compile(net)
    out = [fast(t(2, 4))]
    parametrize.remove_parametrizations(net, "weight")
    return [*out, fast(t(2, 4))]


@scenario
def test_old_weight_norm(compile):
    net = nn.utils.weight_norm(linear(4, 4))
    fast = compile(net)
    return [fast(t(2, 4)) for _ in range(2)], sorted(n for n, _ in net.named_parameters())


@scenario
def test_spectral_norm(compile):
    torch.manual_seed(2)
    net = parametrizations.spectral_norm(linear(4, 4))
    fast = compile(net)
    out = [fast(t(2, 4)) for _ in range(3)]
    net.eval()
    return [*out, fast(t(2, 4)), fast(t(2, 4))], {k: v for k, v in net.state_dict().items()}


@scenario
def test_orthogonal(compile):
    net = parametrizations.orthogonal(linear(4, 4))
    fast = compile(net)
    return [fast(t(2, 4)) for _ in range(2)]


class Symmetric(nn.Module):
    def forward(self, w):
        return w.triu() + w.triu(1).T


@scenario(expect="breaks")
def test_own_parametrization(compile):
    net = linear(4, 4)
    fast = compile(net)
    out = [fast(t(2, 4))]
    parametrize.register_parametrization(net, "weight", Symmetric())
    out.append(fast(t(2, 4)))
    with parametrize.cached():
        out.append(fast(t(2, 4)))
    return out


@scenario(expect="breaks")
def test_lazy_modules(compile):
    torch.manual_seed(3)
    net = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(2))
    fast = compile(net)
    out = [fast(t(2, 3)).detach() for _ in range(3)]
    return out, type(net[0]).__name__, net[0].weight.shape


@scenario(expect="breaks")
def test_lazy_batch_norm_and_conv(compile):
    torch.manual_seed(3)
    net = nn.Sequential(nn.LazyConv1d(2, 1), nn.LazyBatchNorm1d())
    fast = compile(net)
    return [fast(t(2, 3, 4)).detach() for _ in range(2)], net[1].running_mean


@scenario
def test_pruning(compile):
    from torch.nn.utils import prune

    net = linear(4, 4)
    fast = compile(net)
    out = [fast(t(2, 4))]
    prune.l1_unstructured(net, "weight", amount=0.5)
    out.append(fast(t(2, 4)))
    prune.remove(net, "weight")
    return [*out, fast(t(2, 4))]


# ---- the wrapper ----


@scenario
def test_wrapper_behaves_like_the_module(compile):
    net = Mlp()
    fast = compile(net)
    fast.scale = 3.0
    out = [fast(t(2, 4)), net.scale, isinstance(fast, nn.Module), len(list(fast.parameters()))]
    fast.extra = 1
    fast.requires_grad_(False)
    fast.double()
    return out, net.extra, net.head.weight.requires_grad, fast(t(2, 4).double()), fast.head is net.head


@scenario
def test_compiled_inside_a_plain_module(compile):
    inner = compile(linear(4, 4))
    outer = nn.Sequential(inner, nn.ReLU())
    out = [outer(t(2, 4))]
    fast = compile(outer)
    return [*out, fast(t(2, 4)), fast(t(2, 4))]


@scenario
def test_module_compiled_in_place(compile):
    net = nn.Sequential(linear(4, 4), nn.ReLU())
    net[0].forward = compile(net[0].forward)
    fast = compile(net)
    return net(t(2, 4)), fast(t(2, 4))


@scenario
def test_modules_in_python_containers(compile):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.plain = [linear(4, 4), nn.ReLU()]
            self.table = {"x": linear(4, 4)}
            self.pair = (nn.Tanh(), torch.sigmoid)

        def forward(self, x):
            for m in self.plain:
                x = m(x)
            return self.pair[1](self.pair[0](self.table["x"](x)))

    net = Odd()
    fast = compile(net)
    out = [fast(t(2, 4))]
    net.plain[1] = nn.Sigmoid()
    net.table["x"] = nn.Identity()
    return [*out, fast(t(2, 4))]
