"""Exported graphs: called as the function is, giving what it gives, refusing what they were not made for."""

import collections
import copy
import dataclasses
import pickle
import warnings
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import intarsia
from intarsia import ExportError

X, Y = torch.randn(3, 4), torch.randn(3, 4)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
    yield


class Pair(NamedTuple):
    left: torch.Tensor
    right: object


def nested(x, ys, *rest, flag=True, scale=2.5, **kw):
    a = ys["a"] + x
    return {"out": [a * scale, x], "n": x.shape[0], "rest": rest, "flag": flag, "k": kw["k"] - 1}


NESTED = (X, {"a": torch.randn(4)}, torch.ones(2), torch.ones(3)), {"k": torch.ones(1)}


def scaled(x, factor=2.0, *, shift=1):
    return x * factor + shift


def swapped(x, y, /):
    return y, x


def several(p, d):
    return Pair(p.left * 2, [d["z"], d["y"]]), collections.OrderedDict(b=p.right, a=None)


CASES = [
    (nested, *NESTED),
    (scaled, (X,), {}),
    (scaled, (X, 3.0), {"shift": 2}),
    (swapped, (X, Y), {}),
    (several, (Pair(X, Y), {"z": X + 1, "y": Y + 1}), {}),
    (lambda x: x, (X,), {}),
    (lambda x: None, (X,), {}),
    (lambda *xs: sum(xs), (X, Y, X), {}),
    (lambda input, len: input @ len.t(), (X, Y), {}),
    (lambda x, ys: [y + x for y in ys], (X, [Y, [X][0]]), {}),
]


@pytest.mark.parametrize("aten_graph", [False, True])
@pytest.mark.parametrize("fn, args, kwargs", CASES)
def test_same_call_same_result(fn, args, kwargs, aten_graph):
    gm, guards = intarsia.export(fn, aten_graph=aten_graph)(*args, **kwargs)
    expected = fn(*args, **kwargs)
    for made in (gm, copy.deepcopy(gm)):
        result = made(*args, **kwargs)
        assert torch.utils._pytree.tree_structure(result) == torch.utils._pytree.tree_structure(expected)
        assert_close(result, expected)
    assert isinstance(gm, torch.fx.GraphModule) and len(str(guards).splitlines()) >= len(guards) > 0
    if aten_graph:
        calls = [n.target for n in gm.graph.nodes if n.op == "call_function"]
        assert all(isinstance(t, torch._ops.OpOverload) for t in calls)


def test_results_that_are_no_tensors():
    def f(x):
        return "text", torch.float32, x.device, None, 2.5, x.shape, (x.dim(), [])

    gm, _ = intarsia.export(f)(X)
    assert gm(X) == f(X) and type(gm(X)[5]) is torch.Size


def test_defaults_that_have_no_text():
    def f(x, act=torch.relu, dims=(0, 1), dtype=torch.float64, top=float("inf")):
        return act(x).sum(dims, dtype=dtype).clamp(max=top)

    gm, _ = intarsia.export(f)(X)
    assert "act = defaults['act'], dims = (0, 1), dtype = torch.float64, top = defaults['top']" in gm.code
    assert_close(gm(X), f(X))


def test_pickles_of_nested_calls():
    gm = pickle.loads(pickle.dumps(intarsia.export(nested)(*NESTED[0], **NESTED[1])[0]))
    assert_close(gm(*NESTED[0], **NESTED[1]), nested(*NESTED[0], **NESTED[1]))


def test_objects_stay_themselves():
    gm, _ = intarsia.export(swapped)(X, Y)
    y, x = gm(X, Y)
    assert y is Y and x is X


def test_signature_is_the_function_s():
    gm, _ = intarsia.export(scaled)(X)
    assert "def forward(self, x, factor = 2.0, *, shift = 1):" in gm.code
    assert_close(gm(x=X), scaled(X))
    with pytest.raises(TypeError):
        gm(X, 2.0, 1)
    gm.print_readable(print_output=False)
    intarsia.export(swapped)(X, Y)[0].print_readable(print_output=False)
    intarsia.export(nested)(*NESTED[0], **NESTED[1])[0].print_readable(print_output=False)


def test_tabular():
    pytest.importorskip("tabulate")
    intarsia.export(nested)(*NESTED[0], **NESTED[1])[0].graph.print_tabular()


def test_interpreter():
    gm, _ = intarsia.export(lambda x, ys: {"a": x + ys[0]})(X, [Y])
    assert_close(torch.fx.Interpreter(gm).run(X, [Y]), {"a": X + Y})


# ---- modules ----


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.GELU())
        self.tied = self.inner[0]
        self.gain = nn.Parameter(torch.ones(4))
        self.register_buffer("shift", torch.randn(4), persistent=False)
        self.table = torch.randn(4)

    def forward(self, x, *, twice=False):
        y = self.inner(x) * self.gain + self.shift + self.table
        return self.tied(y) if twice else y


@pytest.mark.parametrize("aten_graph", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_modules(aten_graph, training):
    model = Block().train(training)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        gm, _ = intarsia.export(model, aten_graph=aten_graph)(X, twice=True)
        assert dict(model.named_parameters()).items() >= dict(gm.named_parameters()).items()
        assert {"gain", "inner.0.weight", "inner.1.bias"} <= set(dict(gm.named_parameters()))
        assert gm.get_parameter("gain") is model.gain
        assert "inner.1.running_mean" in dict(gm.named_buffers())
        assert all(
            torch.equal(a, b) for a, b in zip(model.state_dict().values(), twin.state_dict().values(), strict=True)
        )
        assert_close(gm(X, twice=True), twin(X, twice=True))
        assert_close(model.state_dict(), twin.state_dict())  # running statistics, once
        model.gain.mul_(2)
        twin.gain.mul_(2)
        assert_close(gm(Y, twice=True), twin(Y, twice=True))
        if not training:
            loaded = pickle.loads(pickle.dumps(gm))
            assert_close(loaded(Y, twice=True), twin(Y, twice=True))


def test_gradients():
    model = Block().eval()
    gm, _ = intarsia.export(model)(X)
    expected = torch.autograd.grad(model(X).sum(), list(model.parameters())[:3])
    assert_close(torch.autograd.grad(gm(X).sum(), list(model.parameters())[:3]), expected)
    gm, _ = intarsia.export(model, aten_graph=True)(X)
    assert_close(torch.autograd.grad(gm(X).sum(), list(model.parameters())[:3]), expected)


def test_an_aten_graph_that_would_lose_a_detach():
    x = X.clone().requires_grad_()
    with pytest.raises(ExportError, match="detach in an ATen graph would not stop gradients") as info:
        intarsia.export(lambda x: x.detach() * x, aten_graph=True)(x)
    assert info.value.lineno > 0
    with torch.no_grad():
        gm, _ = intarsia.export(lambda x: x.detach() * x, aten_graph=True)(x)
        assert_close(gm(x), x * x)


def test_functions_that_use_a_module():
    model = nn.Linear(4, 2)
    scale = torch.randn(2)

    def f(x):
        return model(x) * scale

    gm, _ = intarsia.export(f)(X)
    assert_close(gm(X), f(X))
    assert any(p is model.weight for p in gm.parameters())
    method, _ = intarsia.export(model.forward)(X)
    assert_close(method(X), model(X))
    passed, _ = intarsia.export(lambda m, x: m(x))(model, X)
    assert_close(passed(model, X), model(X))
    with pytest.raises(ValueError, match="exported for other arguments"):
        passed(nn.Linear(4, 2), X)


def test_compiled_functions():
    fast = intarsia.compile(scaled)
    assert_close(intarsia.export(fast)(X)[0](X), scaled(X))
    model = nn.Linear(4, 2)
    gm = intarsia.export(intarsia.compile(model))(X)[0]
    assert gm.weight is model.weight
    again = intarsia.compile(gm)  # and the other way round
    assert_close(again(X), model(X))


# ---- writes and views ----


def writes(x, y):
    x.add_(y)
    y[0] = 7
    return x, x[1:], y.view(-1), x + y


@pytest.mark.parametrize("aten_graph", [False, True])
def test_writes_reach_the_arguments(aten_graph):
    gm, _ = intarsia.export(writes, aten_graph=aten_graph)(X.clone(), Y.clone())
    assert any(n.target is torch.ops.aten.copy_.default for n in gm.graph.nodes) is aten_graph
    for make in (lambda t: t.clone(), lambda t: torch.cat([t, t])[3:]):  # the second begins inside its memory
        ours, theirs = (make(X), make(Y)), (make(X), make(Y))
        result, expected = gm(*ours), writes(*theirs)
        assert_close(result, expected)
        assert_close(ours, theirs)
        assert result[0] is ours[0]
        result[1].zero_()
        assert not ours[0][1:].any()
    with pytest.raises(ValueError, match="different tensors, as one is written to"):
        gm(X, X)
    with pytest.raises(ValueError, match=r"stride\(\): expected \(4, 1\)"):
        gm(torch.randn(4, 3).t(), Y.clone())


def test_decompositions():
    def gelu(x, approximate="none"):
        return x * torch.sigmoid(1.702 * x)

    table = {torch.ops.aten.gelu.default: gelu}
    gm, _ = intarsia.export(nn.GELU(), aten_graph=True, decomposition_table=table)(X)
    assert_close(gm(X), gelu(X))
    assert torch.ops.aten.gelu.default not in {n.target for n in gm.graph.nodes}
    with pytest.raises(ValueError, match="aten_graph=True"):
        intarsia.export(nn.GELU(), decomposition_table=table)


# ---- sizes ----


def sizes(x, n):
    return x.reshape(-1)[: n * 2].sum() / x.shape[0], x.shape[0] * 2 + n, x.shape


@pytest.mark.parametrize("aten_graph", [False, True])
def test_symbolic_sizes(aten_graph):
    gm, guards = intarsia.export(sizes, aten_graph=aten_graph, dynamic=True)(torch.randn(5, 3), 3)
    for shape, n in (((5, 3), 3), ((7, 4), 5), ((2, 2), 1)):
        x = torch.randn(shape)
        assert_close(gm(x, n), sizes(x, n))
    assert "2 <= x.shape[0]" in str(guards)
    with pytest.raises(ValueError, match="x.shape"):
        gm(torch.randn(2, 2), 100)


def test_marked_sizes():
    x = torch.randn(5, 3)
    intarsia.mark_dynamic(x, 0)
    gm, _ = intarsia.export(lambda x: x.sum(0) / x.shape[0])(x)
    assert_close(gm(torch.ones(9, 3)), torch.ones(3))
    with pytest.raises(ValueError, match=r"x.shape: expected \(any, 3\), got \(9, 4\)"):
        gm(torch.ones(9, 4))


@pytest.mark.parametrize(
    "args, message",
    [
        ((X[:2], Y), r"x.shape: expected \(3, 4\), got \(2, 4\)"),
        ((X.double(), Y), "torch.float64"),
        ((3, Y), "x: expected a tensor, got int"),
        (([X], Y), "x"),
    ],
)
def test_other_arguments_are_refused(args, message):
    gm, _ = intarsia.export(lambda x, y: x / x.shape[0] + y)(X, Y)
    with pytest.raises(ValueError, match=message):
        gm(*args)


def test_constants_are_checked_when_they_are_used():
    gm, _ = intarsia.export(lambda x, mode, unused: x + 1 if mode == "up" else x - 1)(X, "up", 5)
    assert_close(gm(X, "up", 6), X + 1)
    with pytest.raises(ValueError, match="mode: expected 'up', got 'down'"):
        gm(X, "down", 5)
    gm, _ = intarsia.export(scaled)(X)
    for copied in (copy.deepcopy(gm), pickle.loads(pickle.dumps(gm))):
        with pytest.raises(ValueError, match=r"factor: expected 2.0, got 3.0"):
            copied(X, 3.0)


def test_arguments_that_were_one_tensor():
    gm, _ = intarsia.export(lambda x, y: x * 2 + y)(X, X)
    assert_close(gm(Y, Y), Y * 3)
    with pytest.raises(ValueError, match="one and the same object"):
        gm(X, Y)


# ---- what has no graph ----


def bar(a, b):
    x = a / (torch.abs(a) + 1)
    if b.sum() < 0:
        b = b.double() * -1
    return x * b


def test_a_break_is_an_error():
    with pytest.raises(ExportError) as info:
        intarsia.export(bar)(torch.ones(10), torch.ones(10))
    first, *rest = str(info.value).splitlines()
    assert first.startswith(__file__) and first.endswith(": if b.sum() < 0:")
    assert "graph break: control flow depends on a tensor's value" in rest[0]
    assert any("what to do:" in line for line in rest) and len(rest) < 15
    assert isinstance(info.value, ValueError) and isinstance(info.value, intarsia.GraphBreak.__base__)


@dataclasses.dataclass
class Box:
    value: object


def keeps(x, box):
    box.value = x + 1
    return x


def appends(x, items):
    items.append(x)
    return x


def makes_an_object(x):
    return Box(x + 1)


@pytest.mark.parametrize(
    "fn, args, message",
    [
        (keeps, (X, Box(1)), r"changes box.value"),
        (appends, (X, []), r"changes items"),
        (makes_an_object, (X,), r"object of type .*Box"),
    ],
)
def test_effects_and_objects_are_errors(fn, args, message):
    before = copy.deepcopy(args)
    with pytest.raises(ExportError, match=message) as info:
        intarsia.export(fn)(*args)
    assert f"def {fn.__name__}" in str(info.value) and "what to do:" in str(info.value)
    assert repr(before) == repr(args)


def test_effects_that_are_undone_are_none():
    box = Box(1)

    def f(x):
        before, box.value = box.value, 2
        try:
            return x * box.value
        finally:
            box.value = before

    gm, _ = intarsia.export(f)(X)
    assert_close(gm(X), X * 2)
    assert box.value == 1


def test_messages_are_left_out(recwarn):
    def f(x):
        warnings.warn("mine", stacklevel=1)
        return x + 1

    gm, _ = intarsia.export(f)(X)
    assert_close(gm(X), X + 1)
    assert not [w for w in recwarn if "mine" in str(w.message)]


def test_the_program_s_own_error():
    def f(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        intarsia.export(f)(X)
    with pytest.raises(TypeError, match="missing"):
        intarsia.export(scaled)()


@pytest.mark.parametrize("wrong", [3, None])
def test_not_a_function(wrong):
    with pytest.raises(TypeError, match=r"intarsia\.export takes a function"):
        intarsia.export(wrong)
