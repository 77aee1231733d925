"""`explain(fn, timed=True)`: each step is timed, nothing else changes, and bytes and operations are what they have to be."""

import pytest
import torch
import torch.nn.functional as F

import intarsia
from intarsia.explaining.kernel_facts import kernel_facts
from intarsia.ir.dtypes import BF16
from intarsia.ir.text import parse_module, print_module
from intarsia.targets.measure.limits import Limits
from intarsia.targets.run import timed
from tests.ladder import schedule


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    """Known limits, in a cache of their own: measuring them takes a second."""
    monkeypatch.setenv("INTARSIA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(timed, "MOST_ROUNDS", 3)
    monkeypatch.setattr(Limits, "copies", lambda self: 1e10)
    monkeypatch.setattr(Limits, "products", lambda self, dtype: 1e11)
    intarsia.reset()
    with torch.no_grad():
        yield


def steps(e):
    return {step.name.split()[0]: step for graph in e.graphs for times in graph.times for step in times.steps}


def test_bytes_operations_and_shares():
    x, w = torch.randn(64, 32), torch.randn(32, 48)

    def f(x, w):
        return torch.mm(x, w), x * 2 + 1

    e = intarsia.explain(f, timed=True)(x, w)
    torch.testing.assert_close(e.result, f(x, w))
    (times,) = e.graphs[0].times
    found = steps(e)
    product = found.pop("aten.mm")
    assert product.name == "aten.mm 64x32 32x48" and product.lines[0].endswith(f":{f.__code__.co_firstlineno + 1}")
    assert product.bytes == 4 * (64 * 32 + 32 * 48 + 64 * 48) and product.operations == 2 * 64 * 32 * 48
    (kernel,) = found.values()
    assert kernel.name == e.kernels[0].name and kernel.bytes == 2 * 4 * 64 * 32 and kernel.operations == 2 * 64 * 32
    for step, least in ((product, product.bytes / 1e10), (kernel, kernel.bytes / 1e10)):
        assert step.limit == "copy" and step.seconds > 0 and step.share == pytest.approx(least / step.seconds)
    assert times.copy == 1e10 and times.products == (("float32", 1e11),)
    assert times.seconds == pytest.approx(product.seconds + kernel.seconds)
    assert times.seconds >= times.at_the_limits > 0


def test_products_are_bound_by_the_product_rate():
    x = torch.randn(128, 128)
    step = steps(intarsia.explain(lambda x: torch.mm(x, x), timed=True)(x))["aten.mm"]
    assert step.limit == "product" and step.share == pytest.approx(2 * 128**3 / 1e11 / step.seconds)


def test_a_graph_keeps_its_times_without_the_explanation():
    graph = intarsia.explain(lambda x: torch.mm(x, x), timed=True)(torch.randn(64, 64)).graphs[0]
    assert len(graph.times) == 1


def test_equal_steps_are_one():
    x, w = torch.randn(16, 16), torch.randn(16, 16)

    def f(x, w):
        for _ in range(5):
            x = torch.mm(x.sin(), w)
        return x

    found = steps(intarsia.explain(f, timed=True)(x, w))
    assert sorted(step.calls for step in found.values()) == [5, 5]
    assert found["aten.mm"].operations == 5 * 2 * 16**3


def test_convolution_attention_and_gathers():
    image, weight = torch.randn(2, 8, 10, 10), torch.randn(16, 4, 3, 3)
    q, table, rows = torch.randn(1, 2, 64, 16), torch.randn(1000, 8), torch.tensor([3, 5])

    def f(image, weight, q, table, rows):
        y = F.conv2d(image, weight, groups=2)
        return y, F.scaled_dot_product_attention(q, q, q), F.embedding_bag(rows[None], table)

    found = steps(intarsia.explain(f, timed=True, options={"packing": False})(image, weight, q, table, rows))
    assert found["aten.convolution"].operations == 2 * (2 * 16 * 8 * 8) * (4 * 3 * 3)
    (attention,) = (step for name, step in found.items() if "attention" in name)
    assert attention.operations == 4 * 2 * 64 * 64 * 16
    assert all(step.bytes < table.nbytes for step in found.values())


def test_nothing_else_changes():
    def f(x, state):
        state.add_(1)
        return F.dropout(x, 0.5) + state

    x, state = torch.randn(100), torch.zeros(100)
    torch.manual_seed(3)
    ours = intarsia.explain(f, timed=True)(x, state).result
    after = torch.rand(1)
    assert torch.equal(state, torch.ones(100))
    torch.manual_seed(3)
    torch.testing.assert_close(ours, f(x, torch.zeros(100)))
    assert torch.equal(after, torch.rand(1))


def test_arguments_that_are_parts_of_tensors_are_written_to_once():
    def f(state):
        state.add_(1)
        return state * 2

    whole = torch.zeros(40, 50)
    ours = intarsia.explain(f, timed=True)(whole[3:9, ::7]).result
    assert torch.equal(ours, torch.full((6, 8), 2.0)) and whole.sum() == 48


def test_compiled_functions_breaks_and_sizes():
    def f(x):
        y = x.sin() * 2
        intarsia.graph_break()
        return y.softmax(-1) + 1

    compiled = intarsia.compile(f, dynamic=True)
    compiled(torch.randn(5, 7))
    x = torch.randn(30, 40)
    e = intarsia.explain(compiled, timed=True)(x)
    torch.testing.assert_close(e.result, f(x))
    assert [len(g.times) for g in e.graphs] == [1, 1]
    assert all(step.bytes == 2 * 4 * 1200 for step in steps(e).values())
    assert not any(g.times for g in intarsia.explain(compiled)(x).graphs)


def test_modules_with_gradients():
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU())
    with torch.enable_grad():
        e = intarsia.explain(intarsia.compile(model), timed=True)(torch.randn(8, 16))
        assert [{step.half for step in times.steps} for times in e.graphs[0].times] == [{"forward"}]
        e.result.sum().backward()
    assert model[0].weight.grad is not None
    assert [{step.half for step in times.steps} for times in e.graphs[0].times] == [{"forward"}, {"backward"}]
    assert "backward: " in str(e)


def test_the_text_is_a_table():
    x, w = torch.randn(256, 256), torch.randn(256, 256)

    def f(x, w):
        h = F.gelu(torch.mm(x, w))
        h = F.layer_norm(h, (256,))
        return torch.mm(h, w).softmax(-1)

    text = str(intarsia.explain(f, timed=True)(x, w))
    table = text.split("Time of each kernel and library call\n")[1].split("\n\n")[0].splitlines()
    assert max(map(len, table)) <= 100
    assert "copies 10 GB/s, products 100 Gop/s in float32" in table[0]
    assert table[1].split() == ["us", "calls", "bytes", "ops", "of", "its", "limit", "step"]
    assert "67.1 M" in text and "in all; " in table[-1] and "reached its limit" in table[-1] and "(lines" in text
    numbers = [float(row[:12].replace(",", "")) for row in table[2:-1] if row[:12].strip()]
    assert len(numbers) == 3 and numbers == sorted(numbers, reverse=True)


def test_programs_with_operators_of_others_are_not_run_again():
    calls = []
    library = torch.library.Library("roofline_test", "DEF")
    library.define("noted(Tensor x) -> Tensor")
    library.impl("noted", lambda x: calls.append(1) or x + 1, "CPU")
    library.impl("noted", lambda x: torch.empty_like(x), "Meta")
    e = intarsia.explain(lambda x: torch.ops.roofline_test.noted(x * 2), timed=True)(torch.ones(3))
    assert len(calls) == 1 and "may have effects" in str(e) and torch.equal(e.result, torch.full((3,), 3.0))


def test_an_index_that_is_out_of_range_is_the_calls_own_error():
    with pytest.raises(IndexError):
        intarsia.explain(lambda t, i: t[i] * 2, timed=True)(torch.randn(4), torch.tensor([9]))


def test_operations_of_kernels_on_a_gpu():
    low = intarsia.lower(lambda x: (x * 2 + 1, x.sum(1)), torch.randn(64, 96), target="triton:sm_90")
    facts = kernel_facts(low.ir("buffer"))
    assert sum(f.operations for f in facts.values()) == 3 * 64 * 96


PRODUCT = """
builtin.module {
  prim.func @main() {arg_names = ["x", "w"]} ({
  ^bb0(%x: !prim.tensor<[48, 64], bf16, "cuda:0">, %w: !prim.tensor<[64, 96], bf16, "cuda:0">):
    %y = kernel.contract(%x, %w) {choice = "tile 32x32x32x4x3x1"} ({
    ^bb0(%a: !prim.tensor<[48, 64], bf16, "cuda:0">, %b: !prim.tensor<[64, 96], bf16, "cuda:0">):
      %0 = prim.contract(%a, %b) {maps = [[d0, d2], [d2, d1]], reduced = [64]} : !prim.tensor<[48, 96], f32, "cuda:0">
      %1 = prim.neg(%0) : !prim.tensor<[48, 96], f32, "cuda:0">
      %2 = prim.cast(%1) : !prim.tensor<[48, 96], bf16, "cuda:0">
      kernel.yield(%2)
    }) : !prim.tensor<[48, 96], bf16, "cuda:0">
    prim.return(%y)
  })
}
"""


def test_products_in_kernels_on_a_gpu():
    module = parse_module(PRODUCT)
    schedule(module)
    (facts,) = kernel_facts(print_module(module)).values()
    assert facts.products == 2 * 48 * 64 * 96 and facts.product_type == BF16 and facts.operations == 48 * 96
    assert (facts.read, facts.written) == (2 * (48 * 64 + 64 * 96), 2 * 48 * 96)
