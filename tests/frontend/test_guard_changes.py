"""Everything that capture can rely on, changed between two calls: the result is eager's each time."""

from __future__ import annotations

import contextlib
import types
from typing import Any

import pytest
import torch
from harness import compiled, same
from torch import nn

X = torch.randn(3, 4)
SCALE = 2.0
TABLE = {"a": 1.0, "b": 2.0}
ITEMS = [1.0, 2.0]


@pytest.fixture(autouse=True)
def _inference():
    with torch.no_grad():
        yield


class Net(nn.Module):
    factor = 3.0

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.act: nn.Module = nn.ReLU()
        self.drop = nn.Dropout(0.5)
        self.bias = 1.0
        self.sizes = [1, 2]
        self.register_buffer("offset", torch.ones(4))

    def helper(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def forward(self, x: torch.Tensor) -> Any:
        y = self.act(self.linear(x)) * self.factor + self.bias + self.offset
        return self.helper(self.drop(y)) + len(self.sizes), y.requires_grad


def _new_weight(m: Net) -> None:
    m.linear.weight = nn.Parameter(torch.randn(4, 4))


def _in_place(m: Net) -> None:
    m.linear.weight.data.mul_(3.0)


def _data(m: Net) -> None:
    m.linear.weight.data = torch.randn(4, 4)


def _swap_submodule(m: Net) -> None:
    m.act = nn.Tanh()


def _instance_method(m: Net) -> None:
    m.helper = types.MethodType(lambda self, x: x - 5, m)  # type: ignore[method-assign]


def _instance_forward(m: Net) -> None:
    m.forward = types.MethodType(lambda self, x: (x - 7, False), m)  # type: ignore[method-assign]


def _hook(m: Net) -> None:
    m.linear.register_forward_hook(lambda mod, args, out: out * 10)


def _pre_hook(m: Net) -> None:
    m.act.register_forward_pre_hook(lambda mod, args: (args[0] - 1,))


def _buffer(m: Net) -> None:
    m.offset = torch.full((4,), 9.0)


def _submodule_dict(m: Net) -> None:
    m._modules["act"] = nn.Sigmoid()


CHANGES = {
    "parameter replaced": _new_weight,
    "parameter changed in place": _in_place,
    "parameter's data replaced": _data,
    "parameter's dtype": lambda m: m.double(),
    "submodule replaced": _swap_submodule,
    "submodule replaced through _modules": _submodule_dict,
    "buffer replaced": _buffer,
    "attribute": lambda m: setattr(m, "bias", 5.0),
    "attribute of another type": lambda m: setattr(m, "bias", 5),
    "attribute becomes a tensor": lambda m: setattr(m, "bias", torch.ones(4)),
    "list in an attribute": lambda m: m.sizes.append(3),
    "instance attribute hides the class's": lambda m: setattr(m, "factor", 7.0),
    "method on the instance": _instance_method,
    "forward on the instance": _instance_forward,
    "forward hook": _hook,
    "forward pre-hook": _pre_hook,
    "train mode of a child": lambda m: m.drop.train(),
    "train mode": lambda m: m.train(),
    "requires_grad": lambda m: m.linear.weight.requires_grad_(False),
}


@pytest.mark.parametrize("name", CHANGES)
def test_modules(name):
    module = Net().eval()
    fast, _ = compiled(module)
    assert same(fast(X), module(X))
    CHANGES[name](module)
    x = X.double() if name == "parameter's dtype" else X
    for _ in range(2):
        torch.manual_seed(0)
        want = module(x)
        torch.manual_seed(0)
        assert same(fast(x), want)


def test_class_attributes_and_methods(monkeypatch):
    module = Net().eval()
    fast, _ = compiled(module)
    fast(X)
    for name, value in (("factor", 11.0), ("helper", lambda self, x: x * 2), ("forward", lambda self, x: x - 3)):
        monkeypatch.setattr(Net, name, value)
        assert same(fast(X), module(X)), name


def test_a_method_of_a_library_class(monkeypatch):
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    fast, _ = compiled(module)
    fast(X)
    monkeypatch.setattr(nn.ReLU, "forward", lambda self, x: x - 1)
    assert same(fast(X), module(X))


def test_global_hooks():
    module = Net().eval()
    fast, _ = compiled(module)
    fast(X)
    handle = nn.modules.module.register_module_forward_hook(
        lambda m, a, out: out * 2 if isinstance(m, nn.Linear) else None
    )
    try:
        assert same(fast(X), module(X))
    finally:
        handle.remove()
    assert same(fast(X), module(X))


def test_globals(monkeypatch):
    def helper(x):
        return x * SCALE + TABLE["b"] + sum(ITEMS)

    fast, _ = compiled(lambda x: helper(x) + len(TABLE))
    want = lambda: helper(X) + len(TABLE)  # noqa: E731
    assert same(fast(X), want())
    monkeypatch.setitem(globals(), "SCALE", 5.0)
    assert same(fast(X), want())
    monkeypatch.setitem(TABLE, "b", 7.0)
    assert same(fast(X), want())
    monkeypatch.setitem(TABLE, "c", 0.0)
    assert same(fast(X), want())
    monkeypatch.setattr("test_guard_changes.ITEMS", [1.0, 2.0, 3.0])
    assert same(fast(X), want())


def test_closures():
    scale, inner = 2.0, lambda x: x + 1

    def change(new, function):
        nonlocal scale, inner
        scale, inner = new, function

    def f(x):
        return inner(x) * scale

    fast, _ = compiled(f)
    for new, function in ((2.0, inner), (3.0, inner), (3.0, lambda x: x - 1), ("no", None), (4, torch.relu)):
        change(new, function)
        try:
            want = f(X)
        except TypeError:
            with pytest.raises(TypeError):
                fast(X)
            continue
        assert same(fast(X), want)


def test_functions():
    def g(x, k=2.0, *, m=1.0):
        return x * k + m

    def h(x, k=3.0, *, m=1.0):
        return x - k - m

    def f(x):
        return g(x)

    fast, _ = compiled(f)
    assert same(fast(X), f(X))
    g.__defaults__ = (5.0,)
    assert same(fast(X), f(X))
    g.__kwdefaults__ = {"m": 8.0}
    assert same(fast(X), f(X))
    g.__code__ = h.__code__
    assert same(fast(X), f(X))


def test_order_of_keys_and_types():
    def f(x, d):
        return [(k, x * v) for k, v in d.items()]

    fast, _ = compiled(f)
    for d in ({"a": 1.0, "b": 2.0}, {"b": 2.0, "a": 1.0}, {"a": 1, "b": 2.0}, {"a": True, "b": 2.0}, {}):
        assert same(fast(X, d), f(X, d))


class Config:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


def test_defaults_that_come_and_go():
    def f(x, unused, *, scale=2.0):
        return x * scale

    fast, _ = compiled(f)
    assert same(fast(X, 1), X * 2)
    f.__defaults__, f.__kwdefaults__ = (5,), {"scale": 3.0}
    assert same(fast(X), X * 3)
    f.__defaults__, f.__kwdefaults__ = (7, 8), None
    for call in (lambda g: g(X), lambda g: g(unused=1), lambda g: g()):
        for function in (f, fast):
            with pytest.raises(TypeError) as raised:
                call(function)
            function.message = str(raised.value)
        assert f.message == fast.message
    f.__defaults__ = None
    with pytest.raises(TypeError, match="missing 2 required positional arguments: 'x' and 'unused'"):
        fast()


def test_calls_of_modules(monkeypatch):
    class Plain(nn.Module):
        def forward(self, x):
            return x + 1

    class Own(Plain):
        def __call__(self, x, scale=2.0):
            return self.forward(x) * scale

    plain, own = Plain(), Own()
    (fast, _), (fast_own, _), (outer, _) = compiled(plain), compiled(own), compiled(lambda x: plain(x))
    for call in (None, lambda self, x: x * 7, None, lambda self, x: nn.Module.__call__(self, x) * 3):
        if call is None:
            with contextlib.suppress(AttributeError):
                del Plain.__call__
        else:
            Plain.__call__ = call
        assert same(fast(X), plain(X)) and same(outer(X), plain(X)) and same(fast_own(X, 5.0), own(X, 5.0))
    del Plain.__call__, Own.__call__
    assert same(fast_own(X), X + 1)
    everywhere = nn.Module.__call__
    monkeypatch.setattr(nn.Module, "__call__", lambda self, x: everywhere(self, x) * 10)
    assert same(fast(X), (X + 1) * 10) and same(outer(X), (X + 1) * 10) and same(fast_own(X), (X + 1) * 10)


def test_objects():
    def f(x, c):
        return x * c.a if hasattr(c, "b") else x - c.a

    fast, _ = compiled(f)
    for c in (Config(a=1.0), Config(a=1.0, b=1), types.SimpleNamespace(a=1.0), Config(a=torch.ones(4)), Config(a=2)):
        assert same(fast(X, c), f(X, c))


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(X.double(), id="double"),
        pytest.param(X.half(), id="half"),
        pytest.param(X[:2], id="fewer-rows"),
        pytest.param(X[:, :3], id="fewer-columns"),
        pytest.param(X[0], id="a-row"),
        pytest.param(X.t().contiguous().t(), id="column-major"),
        pytest.param(X.clone().requires_grad_(), id="requires-grad"),
        pytest.param(nn.Parameter(X), id="parameter"),
        pytest.param(X.to(torch.complex64), id="complex"),
        pytest.param(X.conj(), id="conjugate"),
        pytest.param(torch.ones(3, 4, dtype=torch.bool), id="bool"),
        pytest.param(torch.ones(3, 4, dtype=torch.int64), id="int64"),
        pytest.param(X[:0], id="empty"),
        pytest.param(X[:1].expand(3, 4), id="expanded"),
    ],
)
def test_tensors(other):
    def f(x):
        return x + 1, x.dtype, x.requires_grad, x.stride()

    fast, _ = compiled(f)
    for x in (X, other, X, other):
        got, want = fast(x), f(x)
        assert got[1:] == want[1:]
        assert same(got[0], want[0])


def test_inputs_of_a_meta_device():
    fast, _ = compiled(lambda x: x + 1)
    fast(X)
    assert fast(X.to("meta")).device.type == "meta"


def _state_of(x):
    y = x @ x.t()
    return (
        y,
        torch.zeros(2).dtype,
        torch.is_grad_enabled(),
        (x.int() / 2).dtype,
        torch.are_deterministic_algorithms_enabled(),
    )


@pytest.mark.parametrize("body", [lambda x: x * 2 + 1, _state_of], ids=["arithmetic", "all"])
def test_thread_state(body):
    fast, _ = compiled(body)

    def agrees():
        got, want = fast(X), body(X)
        assert same(got, want)
        first = (got, want) if isinstance(got, torch.Tensor) else (got[0], want[0])
        assert first[0].requires_grad == first[1].requires_grad and first[0].is_inference() == first[1].is_inference()

    agrees()
    for context in (torch.enable_grad(), torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16)):
        with context:
            agrees()
        agrees()
    for change, back in (
        (lambda: torch.set_default_dtype(torch.float64), lambda: torch.set_default_dtype(torch.float32)),
        (lambda: torch.use_deterministic_algorithms(True), lambda: torch.use_deterministic_algorithms(False)),
        (lambda: torch.set_default_device("meta"), lambda: torch.set_default_device(None)),
    ):
        change()
        try:
            agrees() if back is not None else None
        finally:
            back()
        agrees()


def test_arithmetic_relies_on_no_thread_state():
    fast, log = compiled(lambda x: x * 2 + 1)
    fast(X)
    with torch.enable_grad():
        fast(X)
    assert len(log.captures) == 1


def test_what_is_not_read_is_not_guarded():
    def f(x, unused, c):
        return x * c.scale

    fast, log = compiled(f)
    for n in range(6):
        c = types.SimpleNamespace(scale=1.0, other=n, name=str(n))
        assert same(fast(X, torch.randn(n) if n % 2 else str(n), c), f(X, n, c))
    assert len(log.captures) == 1, log.recompiles


def test_the_last_used_entry_is_tried_first():
    fast, log = compiled(lambda x, flag: x + 1 if flag else x - 1)
    for flag in (True, False, False, True, True):
        assert same(fast(X, flag), X + 1 if flag else X - 1)
        entries = fast._intarsia_runtime.entries
        if len(log.captures) == 2 and fast(X, flag) is not None:
            assert same(entries[0](X, flag), X + 1 if flag else X - 1)
    assert len(log.captures) == 2


def test_arguments_are_not_kept_alive():
    import gc
    import weakref

    fast, _ = compiled(lambda x: x * 2)
    x = torch.randn(3)
    kept = weakref.ref(x)
    fast(x)
    del x
    gc.collect()
    assert kept() is None
