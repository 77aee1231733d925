"""Backends by name, by function, through torch; and this compiler as a backend of torch.compile."""

import os
import subprocess
import sys
import textwrap

import pytest
import torch
import torch._inductor.config

import intarsia
from intarsia.backends import MissingBackend

X = torch.randn(3, 4)
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*torch.jit:DeprecationWarning", "ignore:The TorchScript type system:UserWarning"
)


@pytest.fixture(autouse=True)
def fresh():
    intarsia.reset()
    torch._dynamo.reset()
    yield


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))


@pytest.mark.parametrize(
    "backend",
    [
        "intarsia",
        "auto",
        "eager",
        "aot_eager",
        "eager_noexcept",
        "aot_eager_default_partitioner",
        "aot_ts",
        "ts",
        "cudagraphs",
    ],
)
def test_named_backends_run(backend):
    model = net()
    fast = intarsia.compile(model, backend=backend)
    for x in (X, torch.randn(5, 4)):
        torch.testing.assert_close(fast(x), model(x))
        expected = torch.autograd.grad(model(x).sum(), model[0].weight)[0]
        torch.testing.assert_close(torch.autograd.grad(fast(x).sum(), model[0].weight)[0], expected)


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


def test_inductor_trains_with_sizes_that_change(monkeypatch):
    """The one run of Inductor among the tests, which takes 10 s to set itself up: a mode, sizes as symbols, gradients."""
    monkeypatch.setattr(torch._inductor.config, "compile_threads", 1)  # no pool of processes for four graphs
    model = net()
    fast = intarsia.compile(model, backend="inductor", mode="default")
    for n in (3, 5, 7):
        x = torch.randn(n, 4)
        torch.testing.assert_close(fast(x), model(x))
        expected = torch.autograd.grad(model(x).sum(), model[0].weight)[0]
        torch.testing.assert_close(torch.autograd.grad(fast(x).sum(), model[0].weight)[0], expected)
    assert intarsia.counters()["captures"] == 2
    with pytest.raises(
        ValueError, match="unknown option 'epilogue_fusin' of the backend 'inductor'; did you mean 'epilogue_fusion'"
    ):
        intarsia.compile(model, backend="inductor", options={"epilogue_fusin": True})


def test_a_backend_gets_what_torch_compile_gives():
    """Real tensors, so that torch.jit.trace can be a backend; fake ones where sizes are symbols."""
    seen = []

    def spy(gm, example_inputs):
        seen.append(example_inputs)
        return gm.forward

    def f(x, n):
        return x.sin() * n

    fast = intarsia.compile(f, backend=spy)
    fast(X, 2)
    assert type(seen[0]) is list and seen[0][0] is X
    fast(torch.randn(7, 4), 5)
    size = seen[1][0].shape[0]
    assert isinstance(size, torch.SymInt)
    traced = intarsia.compile(f, backend=lambda gm, inputs: torch.jit.trace(gm, tuple(inputs)))
    torch.testing.assert_close(traced(X, 2), f(X, 2))


def test_the_example_of_the_documents(capsys):
    """One graph with a branch that depends on data: both sides are in it, and it is compiled once."""

    def my_compiler(gm, example_inputs):
        print("my_compiler() called with FX graph:")
        print(gm.code)
        return gm.forward

    @intarsia.compile(backend=my_compiler)
    def bar(a, b):
        x = a / (torch.abs(a) + 1)
        if b.sum() < 0:
            b = b * -1
        return x * b

    for b in (torch.ones(10), -torch.ones(10), torch.ones(10)):
        a = torch.randn(10)
        torch.testing.assert_close(bar(a, b), a / (torch.abs(a) + 1) * b.abs())
    assert capsys.readouterr().out.count("my_compiler() called") == 1


RESULTS = {
    "nothing": (lambda *a: None, "gives one NoneType, the graph 2"),
    "one tensor": (lambda *a: X, "gives one Tensor, the graph 2"),
    "too few": (lambda *a: (X,), "gives 1 results, the graph 2"),
    "too many": (lambda *a: (X, X, X), "gives 3 results, the graph 2"),
    "no tensors": (lambda *a: ("a", X), "gives str as result 0"),
}


@pytest.mark.parametrize("kind", RESULTS)
def test_wrong_results_of_a_backend(kind):
    result, message = RESULTS[kind]

    def wrong(gm, example_inputs):
        return result

    def two(x):
        return x + 1, x * 2

    with pytest.raises(intarsia.BackendError, match=f"'wrong' compiled {message}"):
        intarsia.compile(two, backend=wrong)(X)
    torch.testing.assert_close(two(X)[0], X + 1)


def test_settings_of_backends_without_any(caplog):
    fast = intarsia.compile(lambda x: x + 1, backend="eager", mode="reduce-overhead", options={"a": 1})
    torch.testing.assert_close(fast(X), X + 1)
    assert "'eager' has no settings; left out: mode, options" in caplog.text


PLUGINS = """
def ours(gm, example_inputs):
    print("ours", len(list(gm.graph.nodes)))
    return gm.forward

def torchs(gm, example_inputs):
    print("torchs")
    return gm.forward

def broken(gm, example_inputs):
    import no_such_package
"""


def test_backends_of_other_packages(tmp_path):
    """Entry points of both groups; a package that is imported registers its backend with torch."""
    (tmp_path / "plugged.py").write_text(PLUGINS)
    info = tmp_path / "plugged-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 1.0\n")
    groups = "[intarsia.backends]\nfirst = plugged:ours\nbroken = plugged:broken\n"
    (info / "entry_points.txt").write_text(f"{groups}[torch_dynamo_backends]\nsecond = plugged:torchs\n")
    (tmp_path / "torch_tensorrt.py").write_text(
        "import torch\ntorch._dynamo.register_backend(lambda gm, inputs: gm.forward, name='tensorrt')\n"
    )
    program = textwrap.dedent(
        """
        import torch, intarsia
        assert {"first", "second"} <= set(intarsia.list_backends())
        for name in ("first", "second", "tensorrt"):
            assert torch.equal(intarsia.compile(lambda x: x + 1, backend=name)(torch.ones(2)), torch.ones(2) + 1)
        try:
            intarsia.compile(lambda x: x + 1, backend="broken")(torch.ones(2))
        except ImportError as error:
            print(error)
        """
    )
    (tmp_path / "program.py").write_text(program)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "program.py"], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:2] == ["ours 3", "torchs"]
    assert "the backend 'broken' needs a package that is not installed: no_such_package" in done.stdout


def test_backend_of_torch_compile_with_floats():
    """With dynamic=True torch makes inputs of floats; here they are constants again, and all is compiled."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU()).eval()
    fast = torch.compile(model, backend="intarsia", dynamic=True)
    scaled = torch.compile(lambda x, k: (x * k).softmax(-1), backend="intarsia", dynamic=True)
    with torch.no_grad():
        for n in (3, 5, 7):
            x = torch.randn(n, 4)
            torch.testing.assert_close(fast(x), model(x))
            torch.testing.assert_close(scaled(x, 0.5), (x * 0.5).softmax(-1))
        torch.testing.assert_close(scaled(x, 1.5), (x * 1.5).softmax(-1))
    assert intarsia.counters()["fallbacks"] == 0
