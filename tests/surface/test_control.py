"""Marks and switches: disable, allow_in_graph, assume_constant_result, graph_break, stances, what a recompile does."""

import pytest
import torch

import intarsia

X = torch.arange(4.0)


@pytest.fixture(autouse=True)
def fresh():
    intarsia.reset()
    with torch.no_grad():
        yield
    intarsia.set_stance("default")


def graphs():
    """A backend that keeps the graphs it is given."""
    seen = []

    def backend(gm, example_inputs):
        seen.append(gm)
        return gm.forward

    return backend, seen


def targets(gm):
    return [n.target for n in gm.graph.nodes if n.op == "call_function"]


@pytest.mark.parametrize("disable", [intarsia.disable, torch.compiler.disable, torch._dynamo.disable])
def test_disabled_functions_are_called_as_they_are(disable, caplog):
    ran = []

    @disable
    def secret(x):
        ran.append(torch.compiler.is_compiling())
        return x + 1

    backend, seen = graphs()

    @intarsia.compile(backend=backend)
    def f(x):
        return secret(x * 2) * 3

    assert torch.equal(f(X), (X * 2 + 1) * 3) and torch.equal(f(X), (X * 2 + 1) * 3)
    assert ran == [False, False] and len(seen) == 2
    assert "secret" in caplog.text and "marked" in caplog.text


def test_disable_takes_a_reason_and_modules(caplog):
    inner = intarsia.disable(torch.nn.ReLU(), reason="it is slow to trace")
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), inner, torch.nn.Linear(4, 4))
    torch.testing.assert_close(intarsia.compile(net)(X), net(X))
    assert "it is slow to trace" in caplog.text and isinstance(inner, torch.nn.ReLU)
    with pytest.raises(TypeError, match="takes a function or a module, not int"):
        intarsia.disable(3)


@pytest.mark.parametrize("allow", [intarsia.allow_in_graph, torch.compiler.allow_in_graph])
def test_allowed_functions_are_one_node(allow):
    def double(x):
        return x * 2

    allowed = allow(double)
    backend, seen = graphs()

    @intarsia.compile(backend=backend, fullgraph=True)
    def f(x):
        return allowed(x) + 1

    assert torch.equal(f(X), X * 2 + 1)
    assert allowed in targets(seen[0])


@pytest.mark.parametrize("mark", [intarsia.assume_constant_result, torch.compiler.assume_constant_result])
def test_constant_results_are_asked_for_once(mark):
    calls = []

    def number():
        calls.append(1)
        return len(calls)

    constant = mark(number)

    @intarsia.compile(backend="eager", fullgraph=True)
    def f(x):
        return x + constant()

    assert torch.equal(f(X), X + 1) and torch.equal(f(X), X + 1) and calls == [1]


@pytest.mark.parametrize("split", [intarsia.graph_break, torch._dynamo.graph_break])
def test_graph_break(split):
    backend, seen = graphs()

    def f(x):
        y = x + 1
        split()
        return y * 2

    assert torch.equal(intarsia.compile(f, backend=backend)(X), f(X)) and len(seen) == 2
    with pytest.raises(intarsia.GraphBreak, match="graph_break"):
        intarsia.compile(f, backend=backend, fullgraph=True)(X)


def test_is_compiling():
    assert not intarsia.is_compiling()
    f = intarsia.compile(lambda x: x + 1 if intarsia.is_compiling() else x - 1, backend="eager", fullgraph=True)
    assert torch.equal(f(X), X + 1)


def test_force_eager_and_back():
    backend, seen = graphs()

    @intarsia.compile(backend=backend)
    def f(x):
        return x + 1 if intarsia.is_compiling() else x - 1

    assert torch.equal(f(X), X + 1)
    with intarsia.set_stance("force_eager"):
        assert torch.equal(f(X), X - 1) and torch.equal(f(X[:2]), X[:2] - 1)
    assert torch.equal(f(X), X + 1) and len(seen) == 1

    @intarsia.set_stance("force_eager")
    def eagerly():
        return f(X)

    assert torch.equal(f(X), X + 1) and torch.equal(eagerly(), X - 1) and torch.equal(f(X), X + 1)


def test_recompiles_can_fail_or_run_in_eager():
    f = intarsia.compile(lambda x, k: x + len(k), backend="eager")
    f(X, "a")
    with intarsia.set_stance("fail_on_recompile"):
        f(X, "a")
        with pytest.raises(RuntimeError, match="expected 'a', got 'bb'"):
            f(X, "bb")
    with intarsia.set_stance("eager_on_recompile"):
        assert torch.equal(f(X, "ccc"), X + 3)
    assert intarsia.counters()["captures"] == 1
    with pytest.raises(ValueError, match="did you mean 'force_eager'"):
        intarsia.set_stance("force-eager")


def test_on_recompile(caplog):
    fails = intarsia.compile(lambda x, k: x + len(k), options={"on_recompile": "error"})
    fails(X, "a")
    with pytest.raises(RuntimeError, match="expected 'a', got 'bb'"):
        fails(X, "bb")
    assert torch.equal(fails(X, "a"), X + 1)
    eager = intarsia.compile(lambda x, k: x + len(k), options={"on_recompile": "eager"})
    eager(X, "a")
    assert torch.equal(eager(X, "bb"), X + 2)
    assert "such calls run in eager" in caplog.text
    with pytest.raises(ValueError, match="takes one of compile, eager, error, not 'eagre'; did you mean 'eager'"):
        intarsia.compile(lambda x: x, options={"on_recompile": "eagre"})


def test_recompile_limit_keeps_what_was_compiled(caplog):
    f = intarsia.compile(lambda x, k: x + len(k), backend="eager")
    for n in range(12):
        assert torch.equal(f(X, "a" * n), X + n)
    assert "recompile_limit" in caplog.text
    before = intarsia.counters()["captures"]
    assert torch.equal(f(X, "aa"), X + 2) and intarsia.counters()["captures"] == before == 8


def test_the_stance_of_torch():
    f = intarsia.compile(lambda x: x + (1 if torch.compiler.is_compiling() else -1), backend="eager")
    with torch.compiler.set_stance("force_eager"):
        assert torch.equal(f(X), X - 1)
    assert torch.equal(f(X), X + 1)
    with torch.compiler.set_stance("fail_on_recompile"):
        assert torch.equal(f(X), X + 1)
        with pytest.raises(RuntimeError, match="fail_on_recompile.*dtype"):
            f(X.double())
    with torch.compiler.set_stance("eager_on_recompile"):
        assert torch.equal(f(X.double()), X.double() - 1)


def test_nonstrict_trace_is_one_node():
    @torch._dynamo.nonstrict_trace
    def inner(x):
        return x * 2 + 1

    backend, seen = graphs()
    f = intarsia.compile(lambda x: inner(x) + 1, backend=backend, fullgraph=True)
    assert torch.equal(f(X), X * 2 + 2) and len(targets(seen[0])) == 2
    assert torch.equal(intarsia.compile(lambda x: inner(x) + 1, fullgraph=True)(X), X * 2 + 2)


@torch.library.custom_op("intarsia_tests::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.numpy() * 2)


@doubled.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("intarsia_tests::grow", mutates_args=("x",))
def grow(x: torch.Tensor) -> None:
    x.add_(1)


@pytest.mark.parametrize("how", [doubled, torch.ops.intarsia_tests.doubled, torch.ops.intarsia_tests.doubled.default])
def test_custom_operators_are_one_node(how):
    backend, seen = graphs()

    def f(x):
        return how(x) + 1

    assert torch.equal(intarsia.compile(f, backend=backend, fullgraph=True)(X), X * 2 + 1)
    assert len(targets(seen[0])) == 2
    assert torch.equal(intarsia.compile(f, fullgraph=True)(X), X * 2 + 1)


def test_custom_operators_that_write():
    def f(x):
        y = x.clone()
        grow(y)
        grow(x)
        return x * y

    for backend in ("eager", "intarsia"):
        x, expected = X.clone(), X.clone()
        assert torch.equal(intarsia.compile(f, backend=backend, fullgraph=True)(x), f(expected))
        assert torch.equal(x, expected)


def test_wrapped_numpy():
    @torch.compiler.wrap_numpy
    def through_numpy(a):
        return a[::-1] * 2

    f = intarsia.compile(lambda x: through_numpy(x) + 1)
    assert torch.equal(f(X), X.flip(0) * 2 + 1)


def test_marked_methods():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.ran = []

        @torch.compiler.disable
        def first(self, x):
            self.ran.append("first")
            return x + 1

        @intarsia.disable
        def second(self, x):
            self.ran.append("second")
            return x + 2

        @torch._dynamo.disable(recursive=False)
        def third(self, x):
            self.ran.append("third")
            return x + 3

        @intarsia.assume_constant_result
        def number(self):
            return 4

        def forward(self, x):
            return self.third(self.second(self.first(x * 2)) * 2) * self.number()

    net, backend = Net(), graphs()[0]
    fast = intarsia.compile(net, backend=backend)
    for _ in range(2):
        assert torch.equal(fast(X), ((X * 2 + 3) * 2 + 3) * 4)
    assert net.ran == ["first", "second", "third"] * 2


def test_compiled_by_both():
    inner = torch.compile(lambda x: x * 2, backend="eager")
    f = intarsia.compile(lambda x: inner(x) + 1, backend="eager")
    assert torch.equal(f(X), X * 2 + 1)
    own = intarsia.compile(lambda x: x * 2, backend="eager")
    g = torch.compile(lambda x: own(x) + 1, backend="eager")
    assert torch.equal(g(X), X * 2 + 1) and torch.equal(g(X + 1), (X + 1) * 2 + 1)


def test_constant_tensors_and_errors():
    @intarsia.assume_constant_result
    def table():
        return torch.ones(4) * 3

    @intarsia.assume_constant_result
    def missing():
        raise KeyError("no")

    @intarsia.assume_constant_result
    def total(x):
        return float(x.sum())

    def caught(x):
        try:
            return x + missing()
        except KeyError:
            return x - 1

    assert torch.equal(intarsia.compile(lambda x: x + table(), fullgraph=True)(X), X + 3)
    assert torch.equal(intarsia.compile(caught)(X), X - 1)
    f = intarsia.compile(lambda x: x + total(x))
    assert torch.equal(f(X), X + 6) and torch.equal(f(X + 1), X + 1 + 10)  # a tensor has no constant result
    with pytest.raises(intarsia.GraphBreak, match="total, whose result is assumed constant, is called with a tensor"):
        intarsia.compile(lambda x: x + total(x), fullgraph=True)(X)


def test_what_cannot_be_one_node_breaks():
    linear = torch.nn.Linear(4, 4)

    @intarsia.allow_in_graph
    def closed(x):
        return linear(x)

    @intarsia.allow_in_graph
    def named(x):
        return {"a": x + 1}

    f = intarsia.compile(lambda x: closed(x) + 1)
    torch.testing.assert_close(f(X), linear(X) + 1)
    with torch.enable_grad():
        weight = torch.autograd.grad(f(X).sum(), linear.weight)[0]
    torch.testing.assert_close(weight, X.expand(4, 4))
    assert torch.equal(intarsia.compile(lambda x: named(x * 2)["a"] * 2)(X), (X * 2 + 1) * 2)
    for function, reason in ((closed, "a tensor that is not among its arguments"), (named, "returns dict")):
        with pytest.raises(intarsia.GraphBreak, match=reason):
            intarsia.compile(lambda x, function=function: function(x), fullgraph=True)(X)


@pytest.mark.parametrize("disable", [intarsia.disable, torch.compiler.disable])
def test_disabled_classes_stay_classes(disable):
    class Adds:
        def __init__(self, n):
            self.n = n

        def __call__(self, x):
            assert not torch.compiler.is_compiling()
            return x + self.n

        def twice(self, x):
            return x * 2 if torch.compiler.is_compiling() else x

    marked = disable(Adds)
    assert marked is Adds
    f = intarsia.compile(lambda x: Adds(3)(x * 2) * 3)
    assert torch.equal(f(X), (X * 2 + 3) * 3)
    assert torch.equal(intarsia.compile(lambda x, a: a.twice(x + 1))(X, Adds(1)), (X + 1) * 2)
