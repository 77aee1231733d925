"""Idioms of libraries that read as constants, questions of classes and sizes: one graph each."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, distributions, nn

import intarsia


def divergence(x: Tensor) -> Tensor:
    return distributions.kl_divergence(distributions.Normal(x, x.exp()), distributions.Normal(0.0, 1.0))


def rounded_constant(x: Tensor) -> Tensor:
    return x * 2 ** float(torch.tensor(0.25).log2().round()) + int(torch.ceil(torch.tensor(x.shape[0] / 2)))


def written_constant(x: Tensor) -> Tensor:
    count = torch.tensor(1.0)
    count += 2
    count.mul_(torch.tensor(3))
    return x * int(count)


def scripted_question(x: Tensor) -> Tensor:
    return x + 1 if torch.jit.isinstance([x], list[Tensor]) and not torch.jit.isinstance("a", int) else x


def most_of_a_size(x: Tensor) -> Tensor:
    kept = x[x > 0]
    return kept.topk(min(3, kept.size(0)))[0].sum() + max(kept.size(0), 2)


class Child(nn.Module):
    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x) + 1

    def forward(self, x: Tensor) -> Tensor:
        return x * 3


CHILD = Child()


def parent_of_a_side(x: Tensor) -> Tensor:
    return CHILD(x) if x.sum() > 0 else x * 2


def dropped_layers(x: Tensor, rate: float = 0.0) -> Tensor:
    for _ in range(3):
        if torch.rand([]) < rate:
            continue
        x = CHILD(x)
    return x


PROGRAMS = [
    dropped_layers,
    divergence,
    rounded_constant,
    written_constant,
    scripted_question,
    most_of_a_size,
    parent_of_a_side,
]


def values() -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(9), -torch.rand(9), torch.tensor([1.0, -1.0, 2.0]), torch.rand(9)]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_one_graph(program: Callable[..., Any]) -> None:
    intarsia.reset()
    program(values()[0])  # what a library remembers in its first call
    made = intarsia.compile(program)
    for x in values():
        torch.testing.assert_close(made(x), program(x))
    counted = intarsia.counters()
    assert counted["breaks"] == 0 and counted["fallbacks"] == 0


class Metric:
    def __init__(self) -> None:
        self.asked, self.total = inspect.signature(self.update), 0.0

    def update(self, x: Tensor, times: int = 3, *, way: str = "sum") -> None:
        self.total = self.total + x.sum() * times


def keeps_a_signature(x: Tensor) -> tuple[Tensor, Any]:
    metric = Metric()
    metric.update(x)
    torch._dynamo.graph_break()
    return metric.total * len(metric.asked.parameters), metric.asked


def test_a_signature_outlives_the_graph() -> None:
    intarsia.reset()
    made, x = intarsia.compile(keeps_a_signature), torch.randn(4)
    (one, first), (_, second) = made(x), made(x)
    torch.testing.assert_close(one, keeps_a_signature(x)[0])
    assert first == second == inspect.signature(Metric().update) and first is not second
    assert intarsia.counters()["fallbacks"] == 0


def test_a_signature_with_a_tensor_is_no_constant() -> None:
    def program(x: Tensor) -> Any:
        def inner(a: Any, scale: Any = x * 2) -> None: ...

        return inspect.signature(inner)

    made = intarsia.compile(program)
    for value in (1.0, 2.0):
        assert made(torch.tensor(value)).parameters["scale"].default.item() == 2 * value


def test_questions_of_numbers_that_change_are_answered_by_eager() -> None:
    def program(x: Tensor, n: int) -> Tensor:
        return x + 1 if torch.jit.isinstance(n, int) else x - 1

    intarsia.reset()
    made, x = intarsia.compile(program), torch.ones(2)
    for n in (3, 4, 5, 6):
        torch.testing.assert_close(made(x, n), program(x, n))


def test_the_smaller_of_sizes_and_other_numbers() -> None:
    def program(x: Tensor, k: Any) -> list[Any]:
        kept = x[x > 0]
        return [min(kept.size(0), k), max(k, kept.size(0)), min(kept.size(0), 2.5), max(kept.size(0), True, 7)]

    intarsia.reset()
    made = intarsia.compile(program)
    for x in values():
        for k in (0, 2, 100):
            assert [(type(v), v) for v in made(x, k)] == [(type(v), v) for v in program(x, k)]


@pytest.mark.parametrize("bound", [-0.5, 0.0, 0.5, 1.0, 1.5, float("nan")])
@pytest.mark.parametrize("compare", [operator.lt, operator.le, operator.gt, operator.ge])
def test_drawn_numbers_beside_bounds(compare: Any, bound: float) -> None:
    """A number that is drawn of [0, 1) is compared with one inside, at the ends and outside; the draw stays."""

    def program(x: Tensor) -> Tensor:
        if compare(torch.rand(()), bound):
            return x.sin().log()
        return x.cos().exp()

    intarsia.reset()
    made, x = intarsia.compile(program), torch.rand(4)
    for seed in range(3):
        torch.manual_seed(seed)
        expected, after = program(x), torch.rand(2)
        torch.manual_seed(seed)
        torch.testing.assert_close(made(x), expected)
        assert torch.equal(torch.rand(2), after)


def test_drawn_numbers_that_are_written_to_are_not_known() -> None:
    def program(x: Tensor) -> Tensor:
        drawn = torch.rand(())
        drawn.sub_(2.0)
        return x.sin().log() if drawn < 0.0 else x.cos().exp()

    x = torch.rand(4)
    torch.testing.assert_close(intarsia.compile(program)(x), program(x))
