"""A compiled module stands where the original stood: its special methods, its `forward`, and what frameworks do with it."""

import copy
import functools
import inspect
import pickle
from collections import OrderedDict

import pytest
import torch
from torch import nn

import intarsia

X = torch.ones(2, 3)


def compiled(module):
    return intarsia.compile(module, backend="eager")


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def test_sequential():
    m = compiled(nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)))
    inner = m._orig_mod
    assert len(m) == 3 and list(m) == list(inner) and m[0] is inner[0] and m[-1] is inner[2]
    assert isinstance(m[:2], nn.Sequential) and inner[1] in m and m
    m.append(nn.ReLU())
    m.insert(0, nn.Identity())
    del m[1]
    m[0] = nn.Linear(3, 3)
    assert len(m) == 4 and m(X).shape == (2, 2)
    torch.testing.assert_close(m(X), inner(X))
    assert isinstance(m + nn.Sequential(nn.Tanh()), nn.Sequential) and m.pop(3) is not None


def test_module_list_and_dict():
    m = compiled(nn.ModuleList([nn.ReLU(), nn.Tanh()]))
    assert [type(x) for x in m] == [nn.ReLU, nn.Tanh] and len(m[::-1]) == 2
    before = m
    m += [nn.Sigmoid()]
    assert m is before and len(m) == 3
    d = compiled(nn.ModuleDict(OrderedDict(a=nn.ReLU(), b=nn.Tanh())))
    assert "a" in d and list(d) == ["a", "b"] and list(d.items())[1][0] == "b"
    d["c"] = nn.Identity()
    del d["a"]
    assert list(d.keys()) == ["b", "c"]


def test_special_methods_of_a_class():
    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.rows = {"a": 1}

        def __getitem__(self, key):
            return self.rows[key]

        def __contains__(self, key):
            return key in self.rows

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.rows["left"] = True

        def __bool__(self):
            return False

        def __matmul__(self, other):
            return ("matmul", other)

        def __eq__(self, other):
            return isinstance(other, Table) or other is self

        __hash__ = None

        def forward(self, x):
            return x + self["a"]

    m = compiled(Table())
    assert m["a"] == 1 and "b" not in m and not m and m @ 3 == ("matmul", 3)
    with m as entered:
        assert entered is m
    assert m["left"] and m == Table() and torch.equal(m(X), X + 1)
    with pytest.raises(TypeError):
        hash(m)


def test_modules_without_special_methods_have_none():
    m = compiled(nn.Linear(3, 3))
    for use in (len, iter, lambda m: m[0], lambda m: 1 in m):
        with pytest.raises(TypeError):
            use(m)
    assert bool(m) and "weight" in dir(m) and "forward" in dir(m)


def test_modules_that_compare_equal_are_told_apart():
    class Equal(nn.Module):
        def __init__(self, by):
            super().__init__()
            self.by = by

        def __eq__(self, other):
            return isinstance(other, Equal)

        def __hash__(self):
            return 1

        def forward(self, x):
            return x * self.by

    class Other(Equal):
        def forward(self, x):
            return x + self.by

    m = compiled(nn.Sequential(Equal(2.0), Equal(3.0)))
    assert torch.equal(m(X), X * 6)
    m[1].__class__ = Other
    assert torch.equal(m(X), X * 2 + 3)


def test_an_assigned_forward_runs_in_place_of_the_compiled_call():
    m = compiled(nn.Linear(3, 3))
    plain, original = m.forward, m._orig_mod.forward
    m.forward = lambda x: plain(x).double()
    assert m(X).dtype is torch.float64 and m._orig_mod.forward == original
    seen = []
    hook = m.register_forward_hook(lambda module, args, out: seen.append(out.dtype))
    assert m(X).dtype is torch.float64 and seen == [torch.float64]
    hook.remove()
    del m.forward
    assert m(X).dtype is torch.float32 and m.forward is plain


def test_as_accelerate_wraps_a_forward():
    m = compiled(nn.Linear(3, 3))
    m._original_forward = m.forward
    function = m.forward.__func__
    cast = torch.autocast("cpu", torch.bfloat16)(function)
    m.forward = cast.__get__(m, type(m))
    assert m(X).dtype is torch.bfloat16
    m.forward = m._original_forward
    assert m(X).dtype is torch.float32


def test_the_signature_of_forward_is_the_originals():
    class Net(nn.Module):
        def forward(self, input_ids, labels=None, *, scale=1.0):
            return input_ids * scale

    m = compiled(Net())
    assert list(inspect.signature(m.forward).parameters) == ["input_ids", "labels", "scale"]
    assert torch.equal(m(X, scale=2.0), X * 2)


def test_frameworks_know_it_as_torch_compiles_own():
    from torch._dynamo.eval_frame import OptimizedModule

    m = compiled(nn.Linear(3, 3))
    assert isinstance(m, OptimizedModule) and isinstance(m, nn.Module) and isinstance(m._orig_mod, nn.Linear)
    m.train()
    assert m._orig_mod.training and m.training
    m.eval()
    assert not m._orig_mod.training
    assert list(m.state_dict()) == ["weight", "bias"] and [n for n, _ in m.named_modules()] == [""]


def test_as_lightning_compiles_the_steps_of_a_module():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            return self.layer(x)

        def training_step(self, batch, number):
            return self(batch).sum() + number

    m = compiled(Net())
    inner = m._orig_mod
    wanted = inner.training_step(X, 2)
    inner.forward, inner.training_step = m.dynamo_ctx(inner.forward), m.dynamo_ctx(inner.training_step)
    torch.testing.assert_close(inner.training_step(X, 2), wanted)
    assert inner.training_step._intarsia_runtime.entries


def test_copies_and_pickles():
    m = compiled(nn.Sequential(nn.Linear(3, 3)))
    for other in (copy.copy(m), copy.deepcopy(m)):
        assert len(other) == 1 and type(other) is type(m) and torch.equal(other(X), m(X))
    assert type(pickle.loads(pickle.dumps(m))) is nn.Sequential


def test_inside_another_compiled_function():
    m = compiled(nn.Linear(3, 3))
    f = intarsia.compile(lambda x: m(x) + 1, backend="eager")
    torch.testing.assert_close(f(X), m._orig_mod(X) + 1)
    plain = m.forward
    m.forward = lambda x: plain(x) * 2
    torch.testing.assert_close(f(X), m._orig_mod(X) * 2 + 1)


def test_a_layer_that_is_cast_inside():
    """As T5's and Switch Transformers' routers do it in every call."""

    class Router(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.dtype = nn.Linear(3, 3), torch.float32

        def forward(self, x):
            self.layer = self.layer.to(self.dtype)
            return self.layer(x.to(self.dtype)).relu()

    net = Router()
    m = compiled(net)
    with torch.enable_grad():
        for _ in range(2):
            torch.testing.assert_close(m(X), net(X))
            m(X).sum().backward()
        net.dtype = torch.bfloat16
        assert m(X).dtype is torch.bfloat16 and net.layer.weight.dtype is torch.bfloat16
        torch.testing.assert_close(m(X), net(X))


def test_no_tensor_is_a_fake_one():
    from torch._subclasses.fake_tensor import FakeTensor

    f = intarsia.compile(lambda x: x + isinstance(x, FakeTensor) + isinstance(x, (int, FakeTensor)), backend="eager")
    assert torch.equal(f(X), X)


def test_the_original_is_put_back_or_replaced() -> None:
    """accelerate takes `_orig_mod` out, wraps it if need be, and assigns it: the original must not become a part of itself."""
    inner, other = nn.Linear(3, 3), nn.Linear(3, 3)
    m = intarsia.compile(inner)
    m._orig_mod = inner
    assert list(inner.named_children()) == [] and m._orig_mod is inner
    torch.testing.assert_close(m(X), inner(X))
    m._orig_mod = other
    assert m._orig_mod is other and m.weight is other.weight and list(other.children()) == []
    torch.testing.assert_close(m(X), other(X))


class Decorated(nn.Module):
    def _plain(self, x, y=2):
        return x * y

    @functools.wraps(_plain)
    def forward(self, *args, **kwargs):
        return self._plain(*args, **kwargs)


def test_the_signature_of_a_decorated_forward() -> None:
    """Trainer gives a model the columns of the data that its forward names."""
    module = Decorated()
    assert list(inspect.signature(module.forward).parameters) == ["x", "y"]
    for forward in (compiled(module).forward, intarsia.compile(module.forward, backend="eager")):
        assert inspect.signature(forward) == inspect.signature(module.forward)
        assert torch.equal(forward(X, y=3), X * 3)
