"""Sizes that a tensor's values decide (`nonzero`, masks, `unique`): one graph, eager's results for all values, also for no element at all."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import intarsia
from intarsia.ir.interpreter.run import run_user
from intarsia.ir.text import parse_module, print_module

WEIGHT = torch.randn(8, 5, generator=torch.Generator().manual_seed(1))


def some(rows: int, of: int = 6) -> Tensor:
    """A matrix of which so many rows begin with a positive number."""
    made = torch.randn(of, 8, generator=torch.Generator().manual_seed(rows))
    made[:, 0] = -1
    made[:rows, 0] = 0.5
    return made


def rows(x: Tensor) -> Tensor:
    return x[x[:, 0] > 0]


def elementwise(x: Tensor) -> Any:
    y = rows(x)
    return y.sin() * 2, y.sum(0), y.sum(1), y.mean(), y.softmax(0), F.layer_norm(y, (8,)), (y > 0).all(), y / y.shape[0]


def products(x: Tensor) -> Any:
    y = rows(x)
    return (y @ WEIGHT).relu(), y @ y.t(), y.t() @ y, torch.bmm(y.view(-1, 2, 4), y.view(-1, 4, 2))


def moved(x: Tensor) -> Any:
    y = rows(x)
    return (
        torch.cat([y, x]),
        y.reshape(-1) + 1,
        y[:, 1:5] * 2,
        y.flip(0),
        F.pad(y, (1, 2)),
        y[:, None] - y[None],
        y.cumsum(0),
    )


def made(x: Tensor) -> Any:
    n = rows(x).shape[0]
    return torch.zeros(n, 3) + x.mean(), torch.arange(n), torch.full((2,), n) + 1, n, n * 2 + 1


def operators(x: Tensor) -> Any:
    keep = x[:, 0] > 0
    found, where, count = torch.unique((x * 2).int(), return_inverse=True, return_counts=True)
    picked = keep.nonzero()[:, 0]
    return (
        *(keep.nonzero().sum(0) * 2, torch.masked_select(x, x > 0).exp(), found * 2, where, count.sum()),
        *(
            x.repeat_interleave(keep.long() + 1, 0).sin(),
            x[picked] * 2,
            x.new_zeros(found.shape[0]).index_add(0, where[0], x[0]),
        ),
    )


def written(x: Tensor) -> Any:
    y = x * 1
    y[y > 0.5] += 1
    y[y < 0] = y[y < 0] * 2
    return y


PROGRAMS = [elementwise, products, moved, made, operators, written]


def graphs_of(function: Callable[..., Any], *args: Any) -> tuple[int, list[str]]:
    report = intarsia.explain(function)(*args)
    return len(report.graphs), [str(b) for b in report.breaks]


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What went to eager."""
    return [r.getMessage() for r in caplog.records if r.name == "intarsia"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_one_graph(program: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    compiled = intarsia.compile(program)
    for x in (some(3), some(0), some(1), some(6), some(2, 9), some(0, 9)):
        torch.testing.assert_close(compiled(x), program(x), equal_nan=True)
    assert not warned(caplog)
    assert graphs_of(program, some(3)) == (1, [])


def losses(x: Tensor, w: Tensor) -> Tensor:
    y = x @ w
    kept = y[x[:, 0] > 0]
    return kept.exp().sum() + (x.repeat_interleave((x[:, 0] > 0).long(), 0) @ w).sin().sum() + rows(x).t().sum()


def results(x: Tensor, w: Tensor) -> Tensor:
    return F.linear(rows(x), w.t()).relu()


@pytest.mark.parametrize("program, dynamic", [(losses, None), (results, True)])
def test_gradients(program: Callable[..., Tensor], dynamic: bool | None, caplog: pytest.LogCaptureFixture) -> None:
    compiled = intarsia.compile(program, dynamic=dynamic)
    with torch.enable_grad():
        for x in (some(3), some(0), some(1), some(2, 9)):
            found = []
            for function in (program, compiled):
                given = x.clone().requires_grad_(), WEIGHT.clone().requires_grad_()
                value = function(*given)
                found.append((value, torch.autograd.grad(value.sum(), given)))
            torch.testing.assert_close(*found)
        assert graphs_of(program, some(3).requires_grad_(), WEIGHT) == (1, [])
    assert not warned(caplog)


def largest(x: Tensor) -> Tensor:
    return rows(x).max() + 1


def sums(x: Tensor) -> Tensor:
    return rows(x) + x[x[:, 1] > 0]


def squeezed(x: Tensor) -> Tensor:
    return rows(x).squeeze() * 2


@pytest.mark.parametrize("program", [largest, sums, squeezed])
def test_what_was_assumed(program: Callable[..., Tensor]) -> None:
    """Where it does not hold, eager gives the result, or its own error."""
    compiled = intarsia.compile(program)
    for x in (some(3), some(0), some(1), some(4)):
        try:
            wanted = program(x)
        except RuntimeError as error:
            with pytest.raises(type(error)) as raised:
                compiled(x)
            assert str(raised.value) == str(error)
            assert program.__name__ in [entry.name for entry in traceback.extract_tb(raised.tb)]
        else:
            torch.testing.assert_close(compiled(x), wanted)


def decided(x: Tensor) -> Tensor:
    y = rows(x) * 2
    if y.shape[0] > 2:
        return y + 1
    return y.sum()


def chosen(x: Tensor) -> Tensor:
    y = rows(x) * 2
    return y + 1 if y.shape[0] > 2 else y - 1


def test_decisions_break_the_graph() -> None:
    compiled = intarsia.compile(decided)
    for x in (some(3), some(0), some(1), some(4)):
        torch.testing.assert_close(compiled(x), decided(x))
    count, breaks = graphs_of(decided, some(3))
    assert count == 2
    assert "if y.shape[0] > 2:" in breaks[0]
    with pytest.raises(Exception, match="y.shape"):
        intarsia.compile(decided, fullgraph=True)(some(3))
    fast = intarsia.compile(chosen, fullgraph=True)
    for x in (some(3), some(0), some(1), some(4), some(2)):
        torch.testing.assert_close(fast(x), chosen(x))


TEXT = """builtin.module {
  prim.func @main() {symbols = []} ({
  ^bb0(%x: !prim.tensor<[4], bool>):
    %1 = kernel.extern<aten.nonzero.default>(%x) {operands = ["self"], binds = [["u0", 0, 0]], assumes = [["le", u0, 4]], effect = true} : !prim.tensor<[u0, 1], i64>
    %2 = kernel.extern<aten.neg.default>(%1) {operands = ["self"]} : !prim.tensor<[u0, 1], i64>
    prim.return(%2)
  })
}
"""


def test_text() -> None:
    """A library call binds a name for all that comes behind it; the interpreter checks what is assumed."""
    module = parse_module(TEXT)
    module.verify()
    text = print_module(module)
    assert print_module(parse_module(text)) == text
    (found,) = run_user(module, [torch.tensor([True, False, True, True])])
    assert found.tolist() == [[0], [-2], [-3]]
    with pytest.raises(Exception, match="3 <= 2 does not hold"):
        run_user(parse_module(TEXT.replace("u0, 4]", "u0, 2]")), [torch.tensor([True, False, True, True])])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("0, 0]]", "0, 7]]", "is not \\[name, result, dimension\\]"),
        ('"le"', '"lt"', "is not \\[relation, expression, expression\\]"),
        (", effect = true", "", "has an effect"),
        ('"u0", 0', '"u1", 0', "the symbol 'u0' is bound by no"),
    ],
)
def test_wrong_text(old: str, new: str, message: str) -> None:
    with pytest.raises(Exception, match=message):
        parse_module(TEXT.replace(old, new)).verify()


@torch.enable_grad()
def test_images_of_nothing() -> None:
    """What resizes them raises, where torch's operators for tracing would not; with gradients the graph breaks there."""

    def resized(x: Tensor) -> Tensor:
        return F.interpolate(rows(x)[None], size=4)

    compiled = intarsia.compile(resized)
    for wanted, graphs in ((False, 1), (True, 3)):
        for count in (3, 2, 0):
            x = some(count).requires_grad_(wanted)
            if count:
                torch.testing.assert_close(compiled(x), resized(x))
                continue
            for call in (resized, compiled):
                with pytest.raises(RuntimeError, match="Non-empty 3D data tensor"):
                    call(x)
        assert intarsia.counters()["captures"] <= graphs
