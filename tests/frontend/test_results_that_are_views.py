"""What leaves a graph is what eager would give: attached or not, a leaf or not, a view of what."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import intarsia


def look(value: Tensor) -> Tensor:
    """Not compiled: a graph breaks at a call of it."""
    return value


look._torchdynamo_disable = True  # type: ignore[attr-defined]


def facts(values: list[Tensor]) -> list[Any]:
    """Of each: what autograd says, and which of the others it is a view of, or shares its memory with."""
    return [
        (
            v.requires_grad,
            v.is_leaf,
            v.grad_fn is None,
            [o is v._base for o in values],
            [o.untyped_storage()._cdata == v.untyped_storage()._cdata for o in values],
            v.stride(),
            v.storage_offset(),
        )
        for v in values
    ]


def detached(x: Tensor) -> list[Tensor]:
    d = x.detach()
    look(d)
    return [d, d + 1]


def seen_without_gradients(x: Tensor) -> list[Tensor]:
    with torch.no_grad():
        d = x.view(-1)
        look(d)
    return [d, (d * x.view(-1)).sum()]


def logged(x: Tensor) -> list[Tensor]:
    return [x * float(x.detach().cpu().numpy().max())]


def of_an_intermediate(x: Tensor) -> list[Tensor]:
    y = x * 2
    with torch.no_grad():
        still = y.t()
    return [y, y.detach(), y[0], *y.chunk(2), still]


def without_its_base(x: Tensor) -> list[Tensor]:
    y = x * 2
    return [*y.unbind()[:2], y.detach().view(-1)]


def of_a_written_input(x: Tensor) -> list[Tensor]:
    y = x + 0
    first = y[0]
    y.mul_(2)
    return [y, first, y.expand_as(y)]


def of_the_argument(x: Tensor) -> list[Tensor]:
    return [x.t(), x[..., 1:], x.unsqueeze(0).detach(), x.view_as(x), x.data, x]


def reshaped_in_place(x: Tensor) -> list[Tensor]:
    y = x * 2
    row = y[0]
    y.t_()
    return [y, row]


PROGRAMS: list[Callable[[Tensor], list[Tensor]]] = [
    detached,
    seen_without_gradients,
    logged,
    of_an_intermediate,
    without_its_base,
    of_a_written_input,
    of_the_argument,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("requires_grad", [True, False])
def test_results(program: Callable[[Tensor], list[Tensor]], dynamic: bool | None, requires_grad: bool) -> None:
    fast = intarsia.compile(program, backend="aot_eager", dynamic=dynamic)
    gradients = []
    for function in (program, fast, program, fast):
        x = torch.arange(16.0).view(4, 4).requires_grad_(requires_grad)
        results = function(x)
        tracked = [r for r in results if r.requires_grad and r.grad_fn is not None]
        if tracked:
            torch.autograd.backward(tracked, [torch.ones_like(r) for r in tracked])
        gradients.append((facts([*results, x]), [r.tolist() for r in results], x.grad))
    for found in gradients[1:]:
        assert found[:2] == gradients[0][:2]
        assert (found[2] is None) == (gradients[0][2] is None)
        assert found[2] is None or torch.equal(found[2], gradients[0][2])


def test_a_tensor_that_is_reshaped_in_place() -> None:
    x = torch.arange(16.0).view(4, 4)
    for a, b in zip(reshaped_in_place(x), intarsia.compile(reshaped_in_place, backend="eager")(x), strict=True):
        assert torch.equal(a, b) and a.stride() == b.stride()


@pytest.mark.parametrize("dynamic", [None, True])
def test_an_operator_that_gives_back_its_argument(dynamic: bool | None) -> None:
    def function(x: Tensor, p: float) -> tuple[Tensor, Tensor]:
        return F.dropout(x, p, False), x.to(torch.float32)

    fast = intarsia.compile(function, backend="aot_eager", dynamic=dynamic)
    for size in (3, 5):
        x = torch.randn(size, 4)
        assert all(result is x for result in fast(x, 0.3))


def test_a_view_costs_no_graph() -> None:
    def function(x: Tensor) -> Tensor:
        return x.detach()[0]

    intarsia.reset()
    fast = intarsia.compile(function)
    x = torch.ones(3, 2, requires_grad=True)
    assert fast(x)._base is not None and not fast(x).requires_grad
    assert intarsia.counters()["graphs"] == 0


def test_gradients_switched_off_around_a_break() -> None:
    def function(x: Tensor) -> Tensor:
        with torch.set_grad_enabled(False):
            look(x)
        return x * 2

    x = torch.ones(3, requires_grad=True)
    assert intarsia.compile(function, backend="eager")(x).requires_grad
    with torch.no_grad():
        assert not intarsia.compile(function, backend="eager")(x).requires_grad


def test_a_view_that_is_written_to_unseen_after_a_break() -> None:
    def function(y: Tensor) -> Tensor:
        row = look(y[0])
        with torch.no_grad():
            row.mul_(2)
        return row.expand(2, 4)

    gradients = []
    for call in (function, intarsia.compile(function)):
        leaf = torch.ones(3, 4, requires_grad=True)
        y = leaf + 0
        (call(y).sum() + y.sum()).backward()
        gradients.append(leaf.grad)
    assert torch.equal(gradients[0], gradients[1])  # type: ignore[arg-type]


def written_in_front(w: Tensor) -> list[Tensor]:
    turned = w.t()
    turned.add_(1)
    look(turned)
    turned.mul_(2)
    return [w]


def written_behind(w: Tensor) -> list[Tensor]:
    turned = w.t()
    look(turned)
    turned.mul_(2)
    look(turned)
    turned.mul_(2)
    return [w]


def written_in_one_graph(w: Tensor) -> list[Tensor]:
    turned = w.t()
    turned.mul_(2)
    look(w)
    return [w * 1]


@pytest.mark.parametrize("program", [written_in_front, written_behind, written_in_one_graph])
def test_views_of_a_leaf_that_are_written_to_without_gradients(program: Callable[[Tensor], list[Tensor]]) -> None:
    """Autograd refuses to say of such a view what it is made of: nothing asks it."""
    weights = [torch.ones(3, 3, requires_grad=True) for _ in range(2)]
    fast = intarsia.compile(program, options={"on_error": "warn", "verify_each": False})
    with torch.enable_grad(), torch.no_grad():
        for _ in range(2):
            (mine,), (eager,) = fast(weights[0]), program(weights[1])
            assert torch.equal(mine, eager)
            assert torch.equal(*weights)
