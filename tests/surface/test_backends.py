"""Backends by name, by function, through torch; and this compiler as a backend of torch.compile."""

import pytest
import torch

import intarsia
from intarsia.backends import MissingBackend

X = torch.randn(3, 4)


@pytest.fixture(autouse=True)
def fresh():
    intarsia.reset()
    torch._dynamo.reset()
    yield


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))


@pytest.mark.parametrize("backend", ["intarsia", "auto", "eager", "aot_eager", "eager_noexcept"])
def test_named_backends_run(backend):
    model = net()
    fast = intarsia.compile(model, backend=backend)
    for x in (X, torch.randn(5, 4)):
        torch.testing.assert_close(fast(x), model(x))
        expected = torch.autograd.grad(model(x).sum(), model[0].weight)[0]
        torch.testing.assert_close(torch.autograd.grad(fast(x).sum(), model[0].weight)[0], expected)


def test_inductor_runs():
    fast = intarsia.compile(lambda x: (x.sin() + 1).sum(-1), backend="inductor", mode="default")
    with torch.no_grad():
        torch.testing.assert_close(fast(X), (X.sin() + 1).sum(-1))


def test_lists():
    shown, every = intarsia.list_backends(), intarsia.list_backends(())
    assert "intarsia" in shown and "inductor" in shown and "eager" not in shown
    assert set(shown) < set(every) and {"eager", "aot_eager"} <= set(every)


def test_registered_backends():
    seen = []

    @intarsia.register_backend(name="spy")
    def my_backend(gm, example_inputs, **options):
        seen.append((gm, example_inputs, options))
        return gm.forward

    def f(x, y):
        return x + y

    assert "spy" in intarsia.list_backends()
    fast = intarsia.compile(f, backend="spy", mode="max-autotune", options={"level": 3})
    torch.testing.assert_close(fast(X, X), X + X)
    gm, example_inputs, options = seen[0]
    assert isinstance(gm, torch.fx.GraphModule) and len(example_inputs) == 1  # x and y are one tensor
    assert options == {"mode": "max-autotune", "options": {"level": 3}}
    with pytest.raises(ValueError, match="exists already"):
        intarsia.register_backend(lambda gm, inputs: gm, name="spy")
    with pytest.raises(TypeError, match="takes a function"):
        intarsia.register_backend(3)


def test_unknown_and_missing_backends():
    with pytest.raises(ValueError, match="unknown backend 'induktor'; did you mean 'inductor'"):
        intarsia.compile(net(), backend="induktor")
    with pytest.raises(MissingBackend, match="install"):
        intarsia.compile(net(), backend="onnxrt")
        raise AssertionError
    for name in ("tvm", "tensorrt", "ipex"):
        with pytest.raises(MissingBackend, match="install|not installed"):
            intarsia.compile(lambda x: x + 1, backend=name)(X)


def test_backends_that_fail():
    def raises(gm, example_inputs):
        raise KeyError("no such kernel")

    def gives_nothing(gm, example_inputs):
        return None

    def f(x):
        return x + 1

    with pytest.raises(intarsia.BackendError, match="'raises' raised KeyError: 'no such kernel'"):
        intarsia.compile(f, backend=raises)(X)
    with pytest.raises(intarsia.BackendError, match="'gives_nothing' returned NoneType"):
        intarsia.compile(f, backend=gives_nothing)(X)
    torch.testing.assert_close(f(X), X + 1)


def test_backend_of_torch_compile():
    model = net()
    fast = torch.compile(model, backend="intarsia")
    with torch.no_grad():
        torch.testing.assert_close(fast(X), model(X))
    assert intarsia.counters()["graphs"] == 1 and intarsia.counters()["fallbacks"] == 0
    x = X.clone().requires_grad_()
    fast(x).sum().backward()
    found = x.grad.clone()
    x.grad = None
    model(x).sum().backward()
    torch.testing.assert_close(found, x.grad)
    dynamic = torch.compile(lambda x: x.softmax(-1) * x.shape[0], backend="intarsia", dynamic=True)
    for n in (3, 5, 7):
        y = torch.randn(n, 4)
        torch.testing.assert_close(dynamic(y), y.softmax(-1) * n)
    assert intarsia.counters()["fallbacks"] == 0
