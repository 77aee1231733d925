"""Backward graphs with operators whose arguments are unusual: None among indices, memory seen with strides, sizes that become floats."""

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intarsia


@pytest.fixture(autouse=True)
def _gradients() -> Iterator[None]:
    with torch.enable_grad():
        yield


def agrees(function: Callable[..., Tensor], *inputs: Tensor) -> None:
    """Values and gradients of two calls, and no graph in eager."""
    fast = intarsia.compile(function)
    for _ in range(2):
        found = []
        for call in (function, fast):
            given = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
            result = call(*given)
            result.square().sum().backward()
            found.append([result.detach(), *(x.grad for x in given)])
        for wanted, got in zip(*found, strict=True):
            assert (wanted is None) == (got is None)
            if wanted is not None:
                torch.testing.assert_close(got, wanted)
    assert intarsia.counters()["fallbacks"] == 0


def test_indices_that_leave_dimensions_out() -> None:
    index = torch.tensor([0, 2, 2])
    agrees(lambda x: x[:, index].sin(), torch.randn(3, 4, 5))
    agrees(lambda x: x[:, index, :, index] * 2, torch.randn(3, 4, 5, 6))


def test_a_lookup_that_writes_to_its_weight() -> None:
    index = torch.tensor([0, 2, 2])
    agrees(
        lambda w: F.embedding(index, w, max_norm=0.5) + F.embedding_bag(index[None], w, max_norm=0.4), torch.randn(5, 4)
    )


def windows(x: Tensor) -> Tensor:
    """Overlapping pieces, as in attention over windows."""
    return x.as_strided((5, 8), (4, 1)) @ x[:24].view(8, 3)


def test_strided_memory_of_an_intermediate() -> None:
    agrees(lambda x: windows(x * 2), torch.randn(24, dtype=torch.float64))
    agrees(lambda x: (x * 2)[4:].as_strided((4, 3), (3, 1), 6).t() @ x[:8].view(4, 2), torch.randn(24))


def test_strided_memory_after_other_memory() -> None:
    def function(index: Tensor, source: Tensor, weight: Tensor) -> Tensor:
        places = index.t().reshape(-1)
        y = torch.zeros(768).index_add(0, places, source)
        return y.as_strided((8, 3, 4, 8), (8, 256, 64, 1), 0).reshape(24, 32).t() @ weight

    index = torch.randint(0, 768, (40, 32), generator=torch.Generator().manual_seed(0))
    fast = intarsia.compile(function)
    source, weight = torch.randn(1280), torch.randn(24, 32)
    torch.testing.assert_close(fast(index, source, weight), function(index, source, weight))


class Upsampled(nn.Module):
    """Sizes of the interpolation are products of sizes and a float."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(2, 3, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """(n, 2, h, w) -> (n, 3, h, w)"""
        return F.interpolate(self.layer(x), scale_factor=2.0)


def test_sizes_that_become_floats() -> None:
    module = Upsampled()
    fast = intarsia.compile(module)
    for size in (8, 12, 10):
        x = torch.randn(2, 2, size, size)
        gradients = []
        for call in (module, fast):
            module.zero_grad()
            call(x).square().sum().backward()
            gradients.append([p.grad for p in module.parameters()])
        torch.testing.assert_close(gradients[1], gradients[0])
    assert intarsia.counters()["fallbacks"] == 0


def test_the_graph_is_kept_after_an_ordinary_backward() -> None:
    fast = intarsia.compile(nn.Sequential(nn.Linear(2, 3), nn.Tanh()))
    x = torch.randn(5, 2)
    fast(x).sum().backward()
    result = fast(x).sum()
    result.backward(retain_graph=True)
    result.backward()


@pytest.mark.parametrize("used", [0, 1])
def test_no_gradient_where_none_arrives(used: int) -> None:
    fast = intarsia.compile(lambda x, y: (x.sin(), y * 2))
    for _ in range(2):
        inputs = [torch.randn(3, requires_grad=True) for _ in range(2)]
        fast(*inputs)[used].sum().backward()
        assert inputs[used].grad is not None and inputs[1 - used].grad is None


def test_no_gradient_of_a_leaf_that_is_written_to_unseen() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            y.clamp_(min=0)
        return x.cumsum(-1)

    x, y = (torch.randn(3, requires_grad=True) for _ in range(2))
    intarsia.compile(function)(x, y).sum().backward()
    assert x.grad is not None and y.grad is None and y.min() >= 0


def test_the_first_call_runs_no_operator_below_a_mode():
    def program(x):
        return torch.linalg.pinv(x)

    x = torch.randn(3, 2, dtype=torch.complex64, requires_grad=True)
    compiled = intarsia.compile(program)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), program(x))


def twice(run, m, x):
    loss = run(m, x).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    loss.backward()


def of_positions(run, m, x):
    run(m, x).argmax().backward()


def of_several(run, m, x):
    run(m, x).backward()


def without_gradients(run, m, x):
    with torch.no_grad():
        y = run(m, x)
    y.sum().backward()


def input_written_to(run, m, x):
    y = run(m, x)
    x.mul_(2)
    y.sum().backward()


def result_written_to(run, m, x):
    run(m, x).mul_(2).sum().backward()


def weight_written_to(run, m, x):
    y = run(m, x)
    with torch.no_grad():
        m[2].weight.mul_(2)
    y.sum().backward()


def saved_value_written_to(run, m, x):
    run(lambda x: m(x).exp().add_(1), x).sum().backward()


MISUSES = [twice, of_positions, of_several, without_gradients]
MISUSES += [input_written_to, result_written_to, weight_written_to, saved_value_written_to]


@pytest.mark.parametrize("misuse", MISUSES)
def test_misuse_is_eagers_error(misuse, recwarn):
    def call(function, *args):
        return function(*args)

    raised, gradients = [], []
    for run in (call, intarsia.compile(call)):
        torch.manual_seed(0)
        module = torch.nn.Sequential(
            torch.nn.Linear(3, 4), torch.nn.Sigmoid(), torch.nn.Linear(4, 2), torch.nn.Sigmoid()
        )
        with pytest.raises(RuntimeError) as error:
            misuse(run, module, torch.randn(5, 3))
        raised.append(str(error.value).partition(", which is")[0].partition(" [")[0])
        gradients.append([None if p.grad is None else p.grad.clone() for p in module.parameters()])
    assert raised[0] == raised[1] and not [w for w in recwarn if "Error detected" in str(w.message)]
    if misuse is twice:
        torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("budget", [1.0, 0.3])
def test_a_check_in_backward(budget):
    """Backward solves a system, and what it is given beside for the order of checks stands behind all else."""

    def function(x):
        values, vectors = torch.linalg.eig(x)
        return values.abs(), vectors.abs()

    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    found = []
    for run in (function, intarsia.compile(function, options={"memory_budget": budget, "on_error": "raise"})):
        values, vectors = run(x)
        found.append(torch.autograd.grad(values.sum() + vectors.square().square().sum(), x)[0])
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-4)


def roots(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return x.sqrt() * w, x * 2 + w.exp()


def joined(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    y = x * 3
    return torch.cat([y.sqrt() * w, y]).sum(), y.softmax(-1), (y * w).log()


class _Pair(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1, x * 2

    @staticmethod
    def backward(ctx, a, b):
        return a + 1 + b * 2


def pair(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    a, b = _Pair.apply(x)
    return a * w, b


@pytest.mark.parametrize("function", [roots, joined, pair])
def test_results_that_no_gradient_arrives_for(function: Callable[..., tuple[Tensor, ...]]) -> None:
    """They are nothing in backward, as in eager: zeros times infinity would be no number. One graph for each set of those that do."""
    compiled = intarsia.compile(function, options={"on_error": "raise"})
    for wanted in ([1], [1, 0], [1], [0], [-1]):
        found = []
        for call in (function, compiled):
            x, w = torch.tensor([0.0, 1.0, 4.0], requires_grad=True), torch.tensor(2.0, requires_grad=True)
            results = call(x, w)
            sum(results[k].sum() for k in wanted).backward()
            found.append([x.grad, w.grad])
        for a, b in zip(*found, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(b, a, equal_nan=True)
