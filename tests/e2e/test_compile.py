"""intarsia.compile from outside: results, aliasing, mutation, guards, options."""

from __future__ import annotations

import pytest
import torch
from threads import agree_in_threads
from torch import nn

import intarsia


def agree(fn, *args, compiled=None, **kwargs):
    """Eager and compiled give the same values, dtypes and strides."""
    compiled = compiled or intarsia.compile(fn, fullgraph=True)
    expected, found = fn(*args, **kwargs), compiled(*args, **kwargs)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    if isinstance(expected, torch.Tensor):
        assert found.stride() == expected.stride()
    return compiled


def test_pointwise():
    agree(lambda x, y: torch.sin(x) + torch.cos(y) * 2, torch.randn(33, 7), torch.randn(7))


def test_softmax_is_one_kernel():
    agree(lambda x: torch.softmax(x * 2 + 1, -1), torch.randn(8, 100))
    assert intarsia.counters()["kernels"] == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_float_dtypes(dtype):
    x = torch.randn(16, 40).to(dtype)
    compiled = intarsia.compile(lambda x: torch.nn.functional.gelu(x).softmax(-1), fullgraph=True)
    expected = torch.nn.functional.gelu(x).softmax(-1)
    torch.testing.assert_close(compiled(x), expected, rtol=2e-2, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
def test_integer_dtypes_wrap(dtype):
    x = torch.randint(0, 100, (50,)).to(dtype)
    agree(lambda x: (x * x + 3) - (x == 5).to(x.dtype), x)


def test_complex_falls_back_to_the_library():
    x = torch.randn(8, dtype=torch.complex64)
    agree(lambda x: (x * x).abs() + 1, x)


def test_zero_and_one_sized():
    for shape in [(0, 3), (1, 1), (3, 0)]:
        agree(lambda x: x.exp().sum(0) + 1, torch.randn(shape))


def test_layouts_are_eagers():
    x = torch.randn(2, 8, 6, 6).to(memory_format=torch.channels_last)
    agree(lambda x: torch.relu(x + 1), x)
    agree(lambda x: torch.relu(x + 1), torch.randn(6, 4).t())


def test_views_of_inputs_stay_views():
    compiled = intarsia.compile(lambda x: (x.t(), x[1:], x + 1), fullgraph=True)
    x = torch.randn(4, 5)
    t, tail, fresh = compiled(x)
    x.fill_(7)
    assert (t == 7).all() and (tail == 7).all() and not (fresh == 7).all()


def test_input_returned_is_the_same_object():
    x = torch.randn(3)
    assert intarsia.compile(lambda x: x, fullgraph=True)(x) is x


def test_mutation_of_inputs():
    def fn(x, y):
        x.add_(y)
        x[0] = 5
        return x * 2

    a, b, y = torch.randn(4), None, torch.randn(4)
    b = a.clone()
    expected, found = fn(a, y), intarsia.compile(fn, fullgraph=True)(b, y)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(b, a)


def test_batch_norm_in_training_updates_buffers():
    one, two = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
    x = torch.randn(4, 3, 5, 5)
    expected, found = one(x), intarsia.compile(two, fullgraph=True)(x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    for name, buffer in one.named_buffers():
        torch.testing.assert_close(dict(two.named_buffers())[name], buffer, msg=name)


def test_random_numbers_follow_eagers_generator():
    def fn(x):
        return torch.nn.functional.dropout(x, 0.5, training=True) + torch.rand(4)

    x = torch.ones(4)
    torch.manual_seed(3)
    expected = fn(x)
    compiled = intarsia.compile(fn)
    torch.manual_seed(3)
    torch.testing.assert_close(compiled(x), expected)


def test_new_shape_is_compiled_again():
    compiled = agree(lambda x: x.softmax(-1), torch.randn(4, 5))
    agree(lambda x: x.softmax(-1), torch.randn(6, 5), compiled=compiled)
    agree(lambda x: x.softmax(-1), torch.randn(7, 9), compiled=compiled)


def test_dynamic_sizes_compile_once():
    def fn(x):
        return (x.view(-1, 4) * 2).softmax(-1).sum(0)

    compiled = intarsia.compile(fn, dynamic=True, fullgraph=True)
    for n in (3, 5, 8, 100):
        agree(fn, torch.randn(n, 8), compiled=compiled)
    assert intarsia.counters()["graphs"] == 1


def test_parameters_may_change_in_every_way():
    model = nn.Sequential(nn.Linear(64, 48), nn.GELU(), nn.Linear(48, 32))
    compiled = intarsia.compile(model, fullgraph=True)
    x = torch.randn(16, 64)
    agree(model, x, compiled=compiled)
    model[0].weight.mul_(2)
    agree(model, x, compiled=compiled)
    model[0].weight.data = torch.randn(48, 64)
    agree(model, x, compiled=compiled)
    model[2].weight = nn.Parameter(torch.randn(32, 48))
    agree(model, x, compiled=compiled)
    model.load_state_dict({k: torch.randn_like(v) for k, v in model.state_dict().items()})
    agree(model, x, compiled=compiled)
    model[0].weight.data.mul_(3)
    agree(model, x, compiled=compiled)
    model[0].weight.data[7] = 0
    agree(model, x, compiled=compiled)
    model[0].weight.data[:, 63] = 0
    agree(model, x, compiled=compiled)


def test_without_packing_every_write_counts():
    model = nn.Linear(512, 512)
    compiled = intarsia.compile(model, fullgraph=True, options={"packing": False})
    x = torch.randn(8, 512)
    agree(model, x, compiled=compiled)
    model.weight.data[3, 5] = 100
    agree(model, x, compiled=compiled)


def test_explicit_rounding_is_kept():
    agree(lambda x: x.bfloat16().float() * 3, torch.randn(64))


def test_convolution_with_changed_weight():
    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)).eval()
    compiled = intarsia.compile(model, fullgraph=True)
    x = torch.randn(2, 3, 16, 16)
    agree(model, x, compiled=compiled)
    model[0].weight.add_(0.5)
    agree(model, x, compiled=compiled)
    model[0].weight.data.mul_(-2)
    agree(model, x, compiled=compiled)


def test_index_out_of_range_raises():
    compiled = intarsia.compile(lambda w, i: torch.nn.functional.embedding(i, w) + 1, fullgraph=True)
    w = torch.randn(10, 4)
    compiled(w, torch.tensor([1, 2, 9]))
    with pytest.raises(IndexError, match="out of range"):
        compiled(w, torch.tensor([1, 2, 10]))


def test_index_is_checked_where_the_source_repeats():
    compiled = intarsia.compile(lambda w, i: w.expand(10, 4)[i] + 1, fullgraph=True)
    w = torch.randn(1, 4)
    torch.testing.assert_close(compiled(w, torch.tensor([1, 2, 9])), (w + 1).expand(3, 4))
    with pytest.raises(IndexError, match="out of (range|bounds)"):
        compiled(w, torch.tensor([1, 2, 10]))


def test_two_threads():
    model = nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32), nn.Linear(32, 32))
    compiled = intarsia.compile(model, fullgraph=True)
    agree_in_threads(compiled, model, [torch.randn(8, 32) for _ in range(4)], calls=50, warm=False)


def test_decorator_with_arguments():
    @intarsia.compile(fullgraph=True)
    def fn(x):
        return x * 2

    assert torch.equal(fn(torch.ones(3)), torch.full((3,), 2.0))


def test_fx_backend():
    gm = torch.fx.symbolic_trace(lambda x: torch.sin(x) + 1)
    x = torch.randn(5)
    torch.testing.assert_close(intarsia.default_backend(gm, [x])(x), torch.sin(x) + 1)


def test_custom_backend_sees_the_graph():
    seen = []

    def backend(gm, example_inputs):
        seen.append((gm, example_inputs))
        return gm.forward

    agree(
        lambda x: x.sin() + 1,
        torch.randn(3),
        compiled=intarsia.compile(lambda x: x.sin() + 1, backend=backend),
    )
    assert isinstance(seen[0][0], torch.fx.GraphModule) and len(seen[0][1]) == 1


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"backend": "intarsa"}, "did you mean 'intarsia'"),
        ({"mode": "max-autotunee"}, "did you mean 'max-autotune'"),
        ({"options": {"debugg": "x"}}, "did you mean 'debug'"),
        ({"options": {"threads": "many"}}, "takes a number of threads"),
        ({"options": {"cache": "perhaps"}}, "true or false"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        intarsia.compile(lambda x: x, **arguments)


def test_not_callable():
    with pytest.raises(TypeError, match="function or an nn.Module"):
        intarsia.compile(3)
