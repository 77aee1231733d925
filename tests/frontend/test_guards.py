"""Guards: what invalidates an entry, how a miss is explained, and that a hit is cheap."""

import types

import pytest
import torch
from harness import compiled

from intarsia.frontend.entry.capture import capture
from intarsia.frontend.graph.fake_dispatch import new_fake_mode
from intarsia.frontend.guards import checks

X = torch.randn(4, 8)


@pytest.fixture(autouse=True)
def _inference():
    with torch.no_grad():
        yield


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((X,), (X.double(),), "x.dtype: expected torch.float32, got torch.float64"),
        ((X,), (X[:2],), "x.shape: expected (4, 8), got (2, 8)"),
        ((X,), (X.t().contiguous().t(),), "x.stride(): expected (8, 1), got (1, 4)"),
        ((X,), (X.clone().requires_grad_(),), "x.requires_grad: expected False, got True"),
        ((X,), (torch.nn.Parameter(X),), "type(x): expected Tensor, got Parameter"),
        ((X, 1), (X, 2), "k: expected 1, got 2"),
        ((X, 1), (X, 1.0), "k: expected 1, got 1.0"),
        ((X, 1), (X, True), "k: expected 1, got True"),
        ((X, 0.0), (X, -0.0), "k: expected 0.0, got -0.0"),
        ((X, "a"), (X, None), "k: expected 'a', got None"),
        ((X, [1, 2]), (X, [1, 2, 3]), "k: expected length 2, got length 3"),
        ((X, {"a": 1}), (X, {"b": 1}), "k: expected keys ['a'], got keys ['b']"),
        ((X, (1, X)), (X, [1, X]), "k: expected type builtins.tuple, got type builtins.list"),
        ((X, types.SimpleNamespace(a=1)), (X, types.SimpleNamespace(a=2)), "k.a: expected 1, got 2"),
    ],
)
def test_a_miss_names_the_part(first, second, expected):
    def f(x, k=None):
        return (x + 1, getattr(k, "a", None))

    fast, log = compiled(f, fullgraph=True)
    fast(*first)
    fast(*second)
    fast(*first)
    fast(*second)
    assert [reason.split(" (needed by")[0].split("; to avoid")[0] for reason in log.recompiles] == [expected]


@pytest.mark.parametrize(
    "context",
    [
        torch.enable_grad,
        lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        torch.inference_mode,
    ],
)
def test_thread_state(context):
    fast, log = compiled(lambda x: x @ x.t())
    fast(X)
    with context():
        assert fast(X).dtype == (X @ X.t()).dtype
    assert len(log.captures) == 2


def test_default_dtype():
    fast, _ = compiled(lambda x: torch.zeros(2))
    assert fast(X).dtype is torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert fast(X).dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


CONFIG = types.SimpleNamespace(scale=2.0, layers=[1, 2])


def test_globals():
    fast, log = compiled(lambda x: x * CONFIG.scale + len(CONFIG.layers), fullgraph=True)
    fast(X)
    CONFIG.scale = 3.0
    torch.testing.assert_close(fast(X), X * 3.0 + 2)
    CONFIG.layers.append(1)
    torch.testing.assert_close(fast(X), X * 3.0 + 3)
    assert ".scale: expected 2.0, got 3.0" in log.recompiles[0]


def helper(x):
    return x + 1


def test_replaced_function_and_method(monkeypatch):
    class Thing:
        def go(self, x):
            return x * 2

    thing = Thing()
    fast, log = compiled(lambda x: helper(thing.go(x)), fullgraph=True)
    fast(X)
    monkeypatch.setitem(globals(), "helper", lambda x: x - 1)
    torch.testing.assert_close(fast(X), X * 2 - 1)
    monkeypatch.setattr(Thing, "go", lambda self, x: x * 5)
    torch.testing.assert_close(fast(X), X * 5 - 1)
    thing.go = lambda x: x
    torch.testing.assert_close(fast(X), X - 1)
    assert len(log.captures) == 4


def test_closures_are_guarded():
    n = 1
    fast, log = compiled(lambda x: x + n, fullgraph=True)
    fast(X)
    n = 2
    torch.testing.assert_close(fast(X), X + 2)
    assert len(log.captures) == 2


def test_fresh_lambdas_of_the_same_code_hit():
    fast, log = compiled(lambda x, f: f(x), fullgraph=True)
    for k in (1, 1, 2):
        torch.testing.assert_close(fast(X, lambda v, k=k: v * k), X * k)
    assert len(log.captures) == 2


def test_aliases():
    def f(x, y):
        x.add_(1)
        return x + y, x is y

    fast, log = compiled(f, fullgraph=True)
    for args in ((X.clone(), X.clone()), 2 * (X.clone(),)):
        mine = [a.clone() for a in args] if args[0] is not args[1] else 2 * [args[0].clone()]
        torch.testing.assert_close(fast(*mine)[0], f(*args)[0])
    assert len(log.captures) == 2
    base = X.clone()
    with pytest.raises(Exception, match="shares its memory"):
        fast(base[0], base[0:2])


def test_capture_is_printable():
    made = capture(lambda x, k: x * k, (X, 3), {})
    assert "k: 3" in str(made.guards)
    assert "return MISS" in made.guards.code and "# x_: float32(4, 8)" in made.guards.code
    assert made.entry.text().startswith("def entry(x_, k_):")
    assert made.guards.explain({"x": X, "k": 3}) is None


def test_recompile_limit(caplog):
    fast, log = compiled(lambda x, k: x + k, recompile_limit=3, dynamic=False)
    for k in range(2, 9):
        torch.testing.assert_close(fast(X, k), X + k)
    assert len(log.captures) == 3
    assert len([text for text in caplog.messages if "recompile_limit" in text]) == 1


def test_dynamic_sizes():
    def f(x, y):
        if x.shape[0] > 3:
            return x.reshape(-1) * 2, x.shape[0] * 2, torch.zeros(x.shape[0], 2)
        return x, y.shape[0], torch.ones(1)

    fast, log = compiled(f, fullgraph=True, dynamic=True)
    for n in (4, 5, 9):
        x = torch.randn(n, 6)
        got, want = fast(x, x.clone()), f(x, x)
        torch.testing.assert_close(got[0], want[0])
        assert got[1] == want[1] and got[2].shape == want[2].shape
    assert len(log.captures) == 1
    x = torch.randn(2, 6)
    assert fast(x, x.clone())[1] == 2
    assert len(log.captures) == 2 and "x.shape[0]: expected 4 <= x.shape[0], got x.shape[0] = 2" in log.recompiles[0]


def test_dynamic_int_arguments():
    fast, log = compiled(lambda x, n: (x[:n] * n, n + 1), fullgraph=True, dynamic=True)
    for n in (3, 2, 4):
        got = fast(X, n)
        torch.testing.assert_close(got[0], X[:n] * n)
        assert got[1] == n + 1
    assert len(log.captures) <= 3


def test_arguments_named_as_the_locals_of_generated_code():
    def f(x, v0, v1, v2, k):
        print(k)
        v1 = (lambda t: t + k)(v1)
        return x, v0 * v1, v2

    fast, _ = compiled(f)
    for k in range(3):
        args = (*(torch.full((2,), float(n)) for n in range(4)), k)
        torch.testing.assert_close(fast(*args), f(*args))


def test_another_current_gpu_is_another_program(monkeypatch):
    """Where a machine has several, "cuda" means the current one."""
    current = [0]
    monkeypatch.setattr(checks, "current_gpu", lambda used=False: current[0])
    monkeypatch.setattr(checks, "current_gpu_raw", lambda: lambda: current[0])

    def asks(x):
        return x + 1 if torch.is_grad_enabled() else x + 2

    for function, captures in ((asks, 2), (lambda x: x * 2, 1)):
        fast, log = compiled(function)
        for number in (0, 0, 1, 1):
            current[0] = number
            torch.testing.assert_close(fast(X), function(X))
        assert len(log.captures) == captures
        assert captures == 1 or "torch.cuda.current_device(): expected 0, got 1" in log.recompiles[0]


def test_the_first_use_of_a_gpu_is_guarded(monkeypatch):
    """A process that has used no GPU yet asks for the current one when a graph is going to make tensors there."""
    for name, value in (("is_initialized", False), ("device_count", 2), ("current_device", 1)):
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    assert checks.current_gpu() is None
    assert checks.current_gpu(used=True) == 1


def test_what_may_come_to_the_current_gpu():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    found = types.SimpleNamespace(graph=graph)
    with new_fake_mode(None):
        x.meta["example_value"] = torch.empty(3, device="cuda")
        graph.call_function(torch.exp, (x,)).meta["example_value"] = torch.empty(3, device="cuda")
        assert not checks.makes_gpu_tensors(found)
        graph.call_function(torch.ones, (3,), {"device": "cuda"}).meta["example_value"] = torch.ones(3, device="cuda")
        assert checks.makes_gpu_tensors(found)


def test_methods_of_pybind11():
    """Python sees their `__self__` as an object that knows nothing of them."""
    check = torch.testing.FileCheck()

    def work(x):
        y = x.sin()
        check.check("a")
        return y.cos()

    fast, log = compiled(work)
    for _ in range(2):
        torch.testing.assert_close(fast(X), X.sin().cos())
    check.run("a a")
    assert not log.fallbacks
