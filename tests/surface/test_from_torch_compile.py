"""What users of torch.compile look for: torch's names inside captured code, and our own counterparts."""

from __future__ import annotations

import copy
import gc
import inspect
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import intarsia

X = torch.ones(3, 4)


class Counting(nn.Module):
    """A layer with a buffer that it writes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls.add_(1)
        return self.layer(x) * self.calls


@torch.compiler.assume_constant_result
def _three():
    return 3


def test_questions_inside():
    def f(x):
        return x * 2, torch.compiler.is_compiling(), torch.compiler.is_dynamo_compiling(), intarsia.is_compiling()

    assert f(X)[1:] == (False, False, False)
    assert intarsia.compile(f, fullgraph=True)(X)[1:] == (True, True, True)


def test_exporting_is_told():
    def f(x):
        return x * (2 if torch.compiler.is_exporting() else 3) * _three() + intarsia.is_exporting()

    assert torch.equal(intarsia.compile(f, fullgraph=True)(X), X * 9)
    assert torch.equal(intarsia.export(f)(X).graph_module(X), X * 6 + 1)


def test_marks_inside_captured_code():
    def f(x):
        torch.compiler.cudagraph_mark_step_begin()
        intarsia.cudagraph_mark_step_begin()
        return torch.compiler.allow_in_graph(lambda y: y + 1)(x)

    assert torch.equal(intarsia.compile(f, fullgraph=True)(X), X + 1)


def test_reason_of_disable_is_said():
    @intarsia.disable(reason="it talks to a printer")
    def part(x):
        return x + 1

    with pytest.raises(intarsia.GraphBreak, match="it talks to a printer"):
        intarsia.compile(lambda x: part(x) * 2, fullgraph=True)(X)


def _breaking(x):
    torch._dynamo.graph_break()
    return x * 2


def test_breaks_that_are_errors():
    switch = torch._dynamo.error_on_graph_break

    def inside(x, inner, again):
        x = _breaking(x)
        with switch(True):
            x = x + 1
            with switch(False):
                x = _breaking(x) if inner else x
            return _breaking(x.sin()) if again else x

    for inner, again in ((False, False), (True, False), (False, True), (True, True)):
        fast = intarsia.compile(inside)
        if again:
            with pytest.raises(intarsia.GraphBreak, match=r"error_on_graph_break\(False\)"):
                fast(X, inner, again)
        else:
            assert torch.equal(fast(X, inner, again), inside(X, inner, again))
    with pytest.raises(intarsia.GraphBreak, match="is called"):
        switch(True)(intarsia.compile(_breaking))(X)
    assert torch.equal(intarsia.compile(_breaking)(X), X * 2)
    with pytest.raises(intarsia.GraphBreak):  # fullgraph is stronger
        intarsia.compile(switch(False)(_breaking), fullgraph=True)(X)


FACTOR = [2]


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = 3

    def forward(self, x):
        return x * self.scale * FACTOR[0]


@pytest.mark.parametrize(
    "name, seen",
    [("", [6, 12, 20]), ("skip_guard_on_globals_unsafe", [6, 6, 20]), ("skip_all_guards_unsafe", [6, 6, 6])]
    + [("skip_guard_on_all_nn_modules_unsafe", [6, 12, 12]), ("keep_tensor_guards_unsafe", [6, 6, 6])],
)
def test_guards_that_the_user_chooses(name, seen):
    entries = []
    keep = getattr(torch.compiler, name) if name else lambda given: entries.extend(given) or [True] * len(given)
    module = Scaled()
    for compiled in (
        intarsia.compile(module, options={"guard_filter_fn": keep}),
        torch.compile(module, backend="eager", options={"guard_filter_fn": keep}),
    ):
        torch._dynamo.reset()
        FACTOR[0], module.scale = 2, 3
        found = [compiled(X)[0, 0].item()]
        FACTOR[0] = 4
        found.append(compiled(X)[0, 0].item())
        module.scale = 5
        assert [*found, compiled(X)[0, 0].item()] == seen
        assert compiled(torch.ones(7)).shape == (7,)  # sizes are no matter of choice
    assert name or {e.guard_type for e in entries} >= {"EQUALS_MATCH"}


@pytest.mark.parametrize("keep", [lambda given: [True], lambda given: 1 / 0, lambda given: [1] * len(given)])
def test_filters_that_go_wrong(keep):
    with pytest.raises(Exception, match="guard_filter_fn"):
        intarsia.compile(Scaled(), options={"guard_filter_fn": keep})(X)
    with pytest.raises(TypeError, match="guard_filter_fn takes a function"):
        intarsia.compile(Scaled(), options={"guard_filter_fn": 3})


@pytest.mark.parametrize("stance", [intarsia.set_stance, torch.compiler.set_stance])
def test_the_first_call_in_eager(stance):
    def f(x):
        return x + torch.compiler.is_compiling()

    compiled, before = intarsia.compile(f), intarsia.compile(f)
    assert before(X)[0, 0] == 2
    with stance("eager_then_compile"):
        found = [compiled(torch.zeros(n))[0].item() for n in (3, 3, 4)]
        assert before(torch.ones(5))[0] == 2
    assert [*found, compiled(torch.zeros(3))[0].item()] == [0, 1, 1, 1]


def test_substitutes():
    @intarsia.substitute_in_graph(math.sumprod if hasattr(math, "sumprod") else math.dist, skip_signature_check=True)
    def distance(p, q):
        total = 0
        for a, b in zip(p, q, strict=True):
            total = total + (a - b) ** 2
        return total**0.5

    @torch.compiler.substitute_in_graph(gc.isenabled)
    def enabled():
        return True

    function = math.sumprod if hasattr(math, "sumprod") else math.dist
    assert torch.equal(intarsia.compile(lambda x: x * function((1.0,), (4.0,)), fullgraph=True)(X), X * 3)
    assert torch.equal(intarsia.compile(lambda x: x * gc.isenabled(), fullgraph=True)(X), X)
    with pytest.raises(TypeError, match="its parameters differ"):
        intarsia.substitute_in_graph(math.gcd)(lambda a: a)
    with pytest.raises(TypeError, match="takes a function"):
        intarsia.substitute_in_graph(3)


def test_cache_artifacts(tmp_path, monkeypatch):
    monkeypatch.setenv("INTARSIA_CACHE_DIR", str(tmp_path / "one"))
    assert intarsia.save_cache_artifacts() is None
    intarsia.compile(lambda x: (x * 1.25).sin().sum())(X)
    data, info = intarsia.save_cache_artifacts()
    assert info.entries > 0
    assert info.bytes > 0
    monkeypatch.setenv("INTARSIA_CACHE_DIR", str(tmp_path / "two"))
    assert intarsia.load_cache_artifacts(data) == info
    found = {p.name for p in (tmp_path / "two").rglob("meta.json")}
    assert found == {"meta.json"}
    assert intarsia.save_cache_artifacts()[1] == info
    for wrong in (b"", b"abc", data[:-40]):
        with pytest.raises(ValueError, match="nothing that save_cache_artifacts gave"):
            intarsia.load_cache_artifacts(wrong)


def test_in_place():
    torch.manual_seed(0)
    plain = Counting()
    module = intarsia.compile_in_place(copy.deepcopy(plain), fullgraph=True)
    torch.testing.assert_close(module(X), plain(X))
    outer = intarsia.compile(lambda x: module(x) + 1, fullgraph=True)
    torch.testing.assert_close(outer(X), plain(X) + 1)
    assert copy.deepcopy(module)._compiled_call_impl is None
    assert module.state_dict().keys() == plain.state_dict().keys()
    seen = []
    module.register_forward_hook(lambda m, args, out: seen.append(out.shape))
    module(X)
    assert seen == [X.shape]
    with pytest.raises(TypeError, match="takes an nn.Module"):
        intarsia.compile_in_place(len)


def test_exported_programs(tmp_path):
    torch.manual_seed(0)
    module = Counting()
    batch = Dim("batch", min=2, max=64)
    program = torch.export.export(copy.deepcopy(module), (X,), dynamic_shapes={"x": {0: batch}})
    torch.export.save(program, tmp_path / "program.pt2")
    loaded = torch.export.load(tmp_path / "program.pt2")
    for given in (program.module(), loaded):
        plain = given if isinstance(given, nn.Module) else given.module()
        eager, compiled = copy.deepcopy(plain), intarsia.compile(given, fullgraph=True)
        for rows in (3, 5):
            torch.testing.assert_close(compiled(torch.ones(rows, 4)), eager(torch.ones(rows, 4)))
        with pytest.raises((AssertionError, RuntimeError, ValueError)) as refused:
            eager(torch.ones(100, 4))
        with pytest.raises(type(refused.value), match=re.escape(str(refused.value))):
            intarsia.compile(given)(torch.ones(100, 4))
    again = torch.export.export(intarsia.export(loaded)(X).graph_module, (X,))
    wanted = copy.deepcopy(loaded.module())(X)  # the buffer is one
    torch.testing.assert_close(again.module()(X), wanted)


class Two(nn.Module):
    def forward(self, x, y, k=2):
        return {"a": x + y.sum(0), "n": x.shape[0] * k}


@pytest.mark.parametrize("strict", [True, False])
def test_export_by_names(strict):
    shapes: Any = {"x": {0: Dim("b", min=3, max=50)}, "y": {1: "b"}}
    graph = intarsia.export(Two(), dynamic_shapes=shapes, strict=strict)(torch.ones(4), torch.ones(2, 4)).graph_module
    made = graph(torch.ones(5), torch.ones(2, 5))
    assert made["n"] == 10
    assert torch.equal(made["a"], torch.full((5,), 3.0))
    for sizes in (51, 2):
        with pytest.raises(ValueError, match="50|3"):
            graph(torch.ones(sizes), torch.ones(2, sizes))
    program = torch.export.export(graph, (torch.ones(4), torch.ones(2, 4)))
    assert torch.equal(program.module()(torch.ones(4), torch.ones(2, 4))["a"], torch.full((4,), 3.0))


def test_export_of_unrelated_sizes_with_one_name():
    graph = intarsia.export(lambda x, y: (x + 1, y + 1), dynamic_shapes=[["n"], {0: "n"}])(
        torch.ones(4), torch.ones(4)
    ).graph_module
    assert graph(torch.ones(6), torch.ones(6))[1].shape == (6,)
    with pytest.raises(ValueError, match="n is 6 in x.shape.0. and 7 in y.shape.0."):
        graph(torch.ones(6), torch.ones(7))


@pytest.mark.parametrize(
    "shapes, said",
    [
        ({"z": {0: "n"}}, "'z', which is no argument"),
        ({"x": {3: "n"}}, "no dimension 3"),
        ({"x": {0: 5}}, "is 4, not 5"),
        ({"x": {0: Dim("n", min=8)}}, "outside the range of n"),
        ({"x": {0: "n"}, "y": {0: "n"}}, "these sizes have one name"),
        ({"x": {0: 2.5}}, "no torch.export.Dim, name or size"),
        ({"k": {0: "n"}}, "does not fit"),
    ],
)
def test_dynamic_shapes_that_do_not_fit(shapes, said):
    with pytest.raises(ValueError, match=said):
        intarsia.export(Two(), dynamic_shapes=shapes)(torch.ones(4), torch.ones(2, 4))
    graph = intarsia.export(Two(), dynamic_shapes={"x": {0: Dim.AUTO}, "y": (None, Dim.AUTO)})(
        torch.ones(4), torch.ones(2, 4)
    )
    assert graph.graph_module(torch.ones(5), torch.ones(2, 5))["n"] == 10


def test_size_that_the_program_needs():
    with pytest.raises(intarsia.ConstraintError, match="x.shape.0. is marked dynamic"):
        intarsia.export(lambda x: x if x.shape[0] == 4 else x + 1, dynamic_shapes={"x": {0: "n"}})(torch.ones(4))
    with pytest.raises(TypeError, match="in a call of their own"):
        intarsia.export(Two(), (torch.ones(4), torch.ones(2, 4)))  # type: ignore[arg-type]


def test_what_is_disabled():
    def f(x):
        return x + 1

    layer = nn.Linear(4, 2)
    assert intarsia.compile(f, disable=True) is f and intarsia.compile(disable=True)(layer) is layer
    with pytest.raises(TypeError):
        intarsia.compile(3, disable=True)
    assert intarsia.compile(f, disable=False) is not f


@pytest.mark.skipif(torch.__version__ >= (2, 14), reason="newer releases have more")
def test_names_that_are_said_not_to_be_here():
    """A word in docs/from-torch-compile.md for each name of torch.compiler and each setting of torch.compile."""
    text = (Path(__file__).parents[2] / "docs" / "from-torch-compile.md").read_text()
    names = [n for n in torch.compiler.__all__ if "guard" not in n or n == "set_enable_guard_collectives"]
    settings = list(inspect.signature(torch.compile).parameters)[1:]
    missing = [n for n in (*names, *settings) if f"{n}`" not in text and f"{n}=" not in text and f"{n}(" not in text]
    assert set(missing) <= {"compile", "config"}, missing
