"""Programs that once failed, each reduced to what made it fail."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import intarsia
from intarsia.testing import check


def compiled_in_one_graph(fn, *args):
    """Right, and not by running in eager."""
    report = check(fn, args)
    assert intarsia.counters()["fallbacks"] == 0
    return report


def test_largest_and_smallest_of_booleans():
    def f(x):
        return x.max(), x.min(), x.amax(0), x.amin(1)

    compiled_in_one_graph(f, torch.rand(3, 5) > 0.5)


def test_a_value_without_elements_between_kernels():
    def f(x):
        return F.rrelu(x, training=True) * 2

    compiled_in_one_graph(f, torch.randn(0, 3))


def test_long_running_sums_and_products_do_not_drift():
    def f(x):
        return x.cumsum(0), (1 + x * 1e-5).prod(0)

    x = torch.rand(200_000, 2)
    found, exact = intarsia.compile(f, fullgraph=True)(x), f(x.double())
    for a, b in zip(found, exact, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=5e-5, atol=0)


def test_a_value_is_transposed_in_place():
    def f(x):
        y = x.sin()
        y.transpose_(0, 1).squeeze_(0)
        y.add_(1)
        return y, y.mul(2).t_()

    compiled_in_one_graph(f, torch.randn(3, 1, 4))


def test_inference_mode():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).train()
    compiled = intarsia.compile(lambda x, y: (model(x), y.add_(1).sum()), fullgraph=True)
    with torch.inference_mode():
        x, y = torch.randn(3, 4), torch.zeros(3)
        for _ in range(2):
            found = compiled(x, y)
            assert found[0].is_inference()
        assert y.tolist() == [2, 2, 2] and found[1] == 6
        assert model[1].num_batches_tracked == 2
    assert not compiled(torch.randn(3, 4), torch.zeros(3))[0].is_inference()
    assert intarsia.counters()["fallbacks"] == 0


def test_sizes_are_returned_as_integers():
    compiled = intarsia.compile(lambda x: (x.size(), x.shape[1:], x + 1), fullgraph=True, dynamic=True)
    for shape in ((3, 4), (5, 6)):
        size, rest, _ = compiled(torch.randn(shape))
        assert (size, rest) == (shape, shape[1:]) and type(size) is torch.Size and type(size[0]) is int


def test_negative_integers_are_no_sizes():
    compiled = intarsia.compile(lambda x, n: x[:n] * n, fullgraph=True, dynamic=True)
    x = torch.arange(9)
    for n in (3, 5, -1, -4, 0, 1, 12):
        assert compiled(x, n).tolist() == (x[:n] * n).tolist()


def test_symbolic_sizes_that_are_guarded_to_be_one_or_none():
    def f(x):
        x[1:].zero_()
        return [c + 1 for c in x.chunk(2, 0)]

    compiled = intarsia.compile(f, fullgraph=True, dynamic=True)
    for shape in ((3, 4), (5, 4), (2, 2), (0, 4), (17, 3)):
        check(f, (torch.randn(shape),), compiled=compiled)
    assert intarsia.counters()["fallbacks"] == 0


@pytest.mark.parametrize(
    "fn, args",
    [
        (lambda x: (x**True) + 1, (torch.tensor([True, False]),)),
        (
            lambda x, y: torch.ldexp(x, y) + 1,
            (torch.ones(3, 1, dtype=torch.int32), torch.tensor(2.0, dtype=torch.bfloat16)),
        ),
    ],
    ids=["bool power", "ldexp"],
)
def test_library_result_of_another_dtype_than_its_fake_twin(fn, args, monkeypatch):
    monkeypatch.setenv("INTARSIA_VERIFY_EACH", "0")
    expected, found = fn(*args), intarsia.compile(fn)(*args)
    assert found.dtype == expected.dtype and torch.equal(found, expected)
    assert intarsia.counters()["fallbacks"] >= 1


def test_value_that_leaves_as_its_transpose_is_also_read():
    """The memory is allocated in the transpose's shape; a library call that reads the value must not see that."""

    def fn(x, y):
        value = x + 1
        return value.t(), y @ value @ value.t()

    def written(x, y):
        value = y * 2
        x.copy_(value)
        return value.t()

    for f in (fn, written):
        check(f, (torch.randn(8, 8), torch.randn(8, 8)))


def test_a_rule_that_gives_up_leaves_no_users_behind():
    """Batch norm of a batch of unknown size is a library call; what its rule had made still used the product before it."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU())
    compiled = intarsia.compile(model, dynamic=True, options={"on_error": "raise"})
    for n in (5, 7):
        x = torch.randn(n, 4)
        with torch.enable_grad():
            found = torch.autograd.grad(compiled(x).square().sum(), list(model.parameters()))
            expected = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
        torch.testing.assert_close(found, expected)
    assert intarsia.counters()["fallbacks"] == 0


def test_statistics_of_channels_that_lie_apart_walk_memory_in_its_order():
    """Vectors over channels, whose values are 16 KiB apart: a loop that took gcc minutes and was slow to run."""
    norm = torch.nn.BatchNorm2d(16)
    assert "size = 16" not in intarsia.lower(norm, torch.randn(8, 16, 64, 64)).ir("loop")
    check(norm, (torch.randn(8, 16, 64, 64),))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", [64, 512])
def test_any_and_all_of_many_columns(rows, dtype):
    x = torch.randn(rows, 1024).to(dtype)
    check(lambda x: ((x > -3).all(0), (x > 3).any(0), x.bool().all(0)), [x])
