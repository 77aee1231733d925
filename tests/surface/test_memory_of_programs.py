"""What was compiled goes with the compiled function: weights, programs, libraries; arguments go after the call, models when replaced."""

import gc
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

import intarsia


@pytest.fixture(autouse=True)
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def libraries():
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("no /proc")
    return {line.split()[-1] for line in maps.read_text().splitlines() if line.endswith(".so") and "intarsia" in line}


def network(width):
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3 * width))


@pytest.mark.parametrize("training", [False, True])
def test_programs_weights_and_libraries_go_with_the_function(training):
    before, packed = libraries(), intarsia.counters()["packed_bytes"]
    model = network(81 if training else 83)
    fast = intarsia.compile(model)
    x = torch.randn(5, model[0].in_features)
    with torch.set_grad_enabled(training):
        result = fast(x)
        if training:
            result.sum().backward()
    assert libraries() > before
    runtime = weakref.ref(fast._runtime)
    del fast, result
    assert runtime() is None and libraries() == before and intarsia.counters()["packed_bytes"] == packed


def test_a_backward_pass_outlives_the_compiled_function():
    model = network(85)
    x = torch.randn(5, 85)
    wanted = torch.autograd.grad(model(x).sum(), list(model.parameters()))
    for early in (False, True):
        fast = intarsia.compile(model)
        if early:  # backward is compiled
            fast(x).sum().backward()
        loss = fast(x).sum()
        del fast
        for a, b in zip(torch.autograd.grad(loss, list(model.parameters())), wanted, strict=True):
            torch.testing.assert_close(a, b)


def test_rounds_of_compile_and_del_do_not_grow():
    """torch's graphs and autograd classes are cycles: what a dead function left goes before the next compile."""
    counts = []
    for _ in range(20):
        fast = intarsia.compile(network(8), backend="aot_eager")
        fast(torch.randn(2, 8)).sum().backward()
        del fast
        counts.append(len(gc.get_objects()))
    assert (
        max(counts[10:]) < max(counts[3:10]) + 2500
    )  # torch.fx keeps a line of source text for each graph, some 120 objects a round


def test_pieces_after_breaks_go_too():
    @intarsia.compile(backend="eager")
    def f(x):
        for _ in range(3):
            x = x * 2
            intarsia.graph_break()
        return x

    f(torch.ones(2))
    pieces = [weakref.ref(r) for r in f._intarsia_runtime.pieces.values()]
    assert pieces
    del f
    assert all(p() is None for p in pieces)


class Box:
    n = 3


def break_late(x, box):
    y = x * box.n
    intarsia.graph_break()
    return y + 1


def fails(x, box):
    return torch.quantize_per_tensor(x * box.n, 0.1, 0, torch.quint8)


def raises(x, box):
    raise ValueError(box.n + x.shape[0])


@pytest.mark.parametrize("function", [lambda x, box: x * box.n, break_late, fails, raises])
@pytest.mark.filterwarnings("ignore")
def test_arguments_of_a_call_are_not_kept(function):
    fast = intarsia.compile(function, backend="eager")
    x, box = torch.ones(3), Box()
    seen = [weakref.ref(x), weakref.ref(box)]
    try:
        fast(x, box)
    except ValueError:
        assert function is raises
    del x, box
    assert [ref() for ref in seen] == [None, None]


def test_a_replaced_model_is_let_go_of():
    class Holder:
        pass

    holder, x = Holder(), torch.ones(2, 3)
    holder.model, other = nn.Sequential(nn.Linear(3, 3)), nn.Linear(3, 3)
    attribute = intarsia.compile(lambda x: holder.model(x), backend="eager")
    argument = intarsia.compile(lambda model, x: model(x), backend="eager")
    attribute(x)
    argument(holder.model, x)
    argument(other, x)
    kept = (other, nn.Linear(3, 3))  # a tuple of the program's
    seen = [weakref.ref(holder.model), weakref.ref(holder.model[0].weight)]
    holder.model = nn.Linear(3, 3)
    attribute(x)
    assert len(argument._intarsia_runtime.entries) == 2  # `other` is needed
    argument(nn.Linear(3, 3), x)
    gc.collect()
    del kept
    assert [ref() for ref in seen] == [None, None]
    runtime = argument._intarsia_runtime
    assert len(runtime.entries) == len(runtime.guards) == len(runtime.captures) == 2
    torch.testing.assert_close(argument(other, x), other(x))


def test_models_in_variables_are_compiled_once():
    """Nothing but the variables of a running function refers to them."""
    first, second, x = nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3)), torch.ones(2, 3)
    fast = intarsia.compile(lambda model, x: model(x), backend="eager")
    before = intarsia.counters()["captures"]
    for _ in range(3):
        for model in (first, second):
            torch.testing.assert_close(fast(model, x), model(x))
    assert intarsia.counters()["captures"] == before + 2
