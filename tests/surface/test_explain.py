"""What `explain` tells, of one graph and of many, in inference and with gradients, of fresh and of compiled functions."""

import linecache
import os

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import intarsia
from intarsia.targets.build.toolchain import CompilerNotFound

X = torch.randn(3, 4)
NOTES = []


@pytest.fixture(autouse=True)
def fresh():
    intarsia.reset()
    NOTES.clear()
    with torch.no_grad():
        yield


def bar(a, b):
    x = a / (torch.abs(a) + 1)
    if b.sum() < 0:
        b = b.double() * -1
    return x * b


def text_at(line):
    return linecache.getline(__file__, line).strip()


def test_one_break():
    a, b = torch.randn(10), torch.ones(10)
    e = intarsia.explain(bar)(a, b)
    torch.testing.assert_close(e.result, bar(a, b))
    assert (e.graph_count, e.graph_break_count, e.op_count, e.ops_per_graph) == (2, 1, 6, [5, 1])
    assert [op.name for op in e.graphs[0].ops] == ["abs", "add", "truediv", "sum", "lt"]
    assert all(op.place.text == text_at(op.place.lineno) for g in e.graphs for op in g.ops)
    (broken,) = e.break_reasons
    assert broken.file == __file__ and broken.text == "if b.sum() < 0:" and broken.function == "bar"
    assert "tensor" in broken.reason and broken.remedy
    assert {text_at(line) for _, line in broken.goes_on} == {"b = b.double() * -1", "return x * b"}
    assert e.graphs[0].broken == broken and e.graphs[1].broken is None
    first = text_at(int(e.graphs[0].kernels[0].lines[0].rpartition(":")[2]))
    assert first in ("x = a / (torch.abs(a) + 1)", "if b.sum() < 0:")
    assert len(e.kernels) == 3 and not e.fallbacks and not e.recompiles
    spoken = {g.text for g in e.out_guards}
    assert any(t.startswith("a: float32(10,)") for t in spoken)
    assert any(g.place and g.place.text == "if b.sum() < 0:" for g in e.guards)
    assert e.compile_seconds > 0 and e.seconds["capture"] > 0


def test_text():
    text = str(intarsia.explain(bar)(torch.randn(10), torch.ones(10)))
    assert text.startswith("bar: 2 graphs, 6 operations, 1 graph break, 3 kernels; compiled in ")
    assert "in bar: if b.sum() < 0:" in text and "why        control flow depends on" in text
    assert "0x" not in text and "FakeTensor" not in text
    assert max(map(len, text.splitlines())) <= 100 + len(__file__)


def test_many_graphs_are_short():
    source = "def many(x, g):\n" + "".join(f"    x = x + {i}\n    g()\n" for i in range(30)) + "    return x\n"
    linecache.cache["many.py"] = (len(source), None, source.splitlines(True), "many.py")
    namespace = {}
    exec(compile(source, "many.py", "exec"), namespace)
    e = intarsia.explain(namespace["many"], backend="eager")(X, intarsia.graph_break)
    torch.testing.assert_close(e.result, X + sum(range(30)))
    assert e.graph_count == 30 and e.graph_break_count == 30
    text = str(e).split("Graph breaks")[0]
    assert len(text.splitlines()) < 36 and "ends at the break in line" in text


def test_effects_happen_once():
    def f(x, notes):
        notes.append(1)
        print(end="")
        notes.append(2)
        return x + 1

    e = intarsia.explain(f)(X, NOTES)
    assert NOTES == [1, 2]
    torch.testing.assert_close(e.result, X + 1)


def test_a_compiled_function_is_explained_as_it_stands():
    f = intarsia.compile(bar)
    f(torch.ones(10), torch.ones(10))
    f(torch.ones(10), -torch.ones(10))
    e = intarsia.explain(f)(torch.ones(10), torch.ones(10))
    assert e.graph_count == 3 and not e.recompiles  # nothing was compiled for this call
    assert all(g.kernels for g in e.graphs) and "capture" not in e.seconds
    e = intarsia.explain(f)(torch.ones(12), torch.ones(12))
    assert e.graph_count == 5
    again = e.recompiles[0]
    assert (again.function, again.part, again.expected, again.got) == ("bar", "a.shape", "(10,)", "(12,)")
    assert again.place.text == "x = a / (torch.abs(a) + 1)" and "mark_dynamic(a, 0)" in again.remedy
    assert "a.shape was (12,), expected (10,)" in str(e)


def test_other_functions_are_not_mixed_in():
    f, g = intarsia.compile(bar), intarsia.compile(lambda x: x + 1)
    f(torch.ones(10), torch.ones(10))
    e = intarsia.explain(g)(X)
    assert e.graph_count == 1 and not e.breaks and e.op_count == 1


def test_reset_forgets():
    f = intarsia.compile(bar)
    f(torch.ones(10), torch.ones(10))
    intarsia.reset()
    assert intarsia.explain(f)(torch.ones(9), torch.ones(9)).graph_count == 2


def test_modules_and_gradients():
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
    with torch.enable_grad():
        fast = intarsia.compile(model)
        intarsia.explain(fast)(X).result.sum().backward()
        e = intarsia.explain(fast)(X)
    assert e.name == "Sequential" and e.graph_count == 1
    assert model[0].weight.grad is not None
    halves = {k.half for k in e.kernels}
    assert "forward" in halves and e.graphs[0].library
    assert "that functions, modules and their parts are those that were captured" in str(e)


class Watching(TorchDispatchMode):
    """A mode around the call, which capture does not see through."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_what_runs_in_eager():
    with Watching():
        e = intarsia.explain(bar)(X, X)
    (fallback,) = e.fallbacks
    assert e.graph_count == 0 and "dispatch mode" in fallback.reason and fallback.what == "a call of bar"
    assert "Runs in eager" in str(e) and "dispatch mode" in str(e)


def test_graphs_that_run_in_eager(monkeypatch):
    def no_compiler():
        raise CompilerNotFound("no C++ compiler was found")

    monkeypatch.setattr("intarsia.graph_compiler.find_toolchain", no_compiler)
    e = intarsia.explain(lambda x: x + 1)(X)
    torch.testing.assert_close(e.result, X + 1)
    (fallback,) = e.fallbacks
    assert fallback.what == "graph 1" and "no C++ compiler" in e.graphs[0].eager and "no C++ compiler" in str(e)


def test_backend_and_dynamic():
    seen = []

    def backend(gm, inputs):
        seen.append(gm)
        return gm.forward

    e = intarsia.explain(lambda x: (x + 1).view(-1), backend=backend, dynamic=True)(X)
    assert [g.graph_module for g in e.graphs] == seen and not e.kernels
    assert any("x.shape[0]" in g.text for g in e.guards)


def test_the_program_raises():
    def f(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        intarsia.explain(f)(X)


@pytest.mark.parametrize("wrong", [3, "f", None])
def test_not_a_function(wrong):
    with pytest.raises(TypeError, match=r"intarsia\.explain takes a function"):
        intarsia.explain(wrong)


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = torch.nn.functional.conv1d(torch.relu(layer(x)).unsqueeze(0), layer.weight.unsqueeze(-1))[0].T
        return twice(x)


def test_launches_lines_and_modules_without_timing():
    e = intarsia.explain(Layers())(torch.randn(4, 4))
    (g,) = e.graphs
    assert {op.module for op in g.ops} == {"", "layers.0", "layers.1", "layers.2"}
    made = {m for k in g.kernels for m in k.modules} | {m for c in g.library_calls for m in c.modules}
    assert made == {"layers.0", "layers.1", "layers.2"}
    called = sum(g.library.values())
    assert sum(c.calls for c in g.library_calls) == called and max(k.calls for k in g.kernels) > 1
    files = {place.rpartition(":")[0] for k in g.kernels for place in k.lines}
    assert len(files) == 2  # `twice` stands in a file of its own
    text = str(e)
    assert "files      " in text and " x " in text and "of layers.0" in text
    assert f"{os.path.basename(__file__)}:" in text.partition("kernels    ")[2]


_space = {}
exec(compile("def twice(x):\n    return x * 2 + 1\n", "twice.py", "exec"), _space)
twice = _space["twice"]
