"""`torch.cond`: both sides are captured, one operation of the program, in one graph."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import intarsia
from intarsia.ir.interpreter.loops import main_function
from intarsia.ir.interpreter.run import run_user
from intarsia.ir.text import parse_module, print_module


def _tensors(value):
    return torch.utils._pytree.tree_leaves(value)


def eager(pred, true_fn, false_fn, operands=()):
    return true_fn(*operands) if pred else false_fn(*operands)


lin = nn.Linear(8, 8).requires_grad_(False)


def both(x):
    return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))


SCALE = torch.tensor([2.0] * 8)


def closures(x):
    y = x * 2
    return torch.cond(x.sum() > 0, lambda a: lin(a) + y, lambda a: (a + y) * SCALE, (x,)) + y


def nested(x):
    inner = lambda a: torch.cond(a.max() > 40, lambda a: a * 2, lambda a: a - 1, (a,))  # noqa: E731
    return torch.cond(x.sum() > 0, inner, lambda a: a.exp(), (x,))


def structures(x):
    return torch.cond(
        x.sum() > 0,
        lambda d: {"a": d["x"] @ d["x"].t(), "b": (d["x"].sum(),)},
        lambda d: {"a": d["x"] @ (d["x"] + 1).t(), "b": (d["x"].max(),)},
        ({"x": x},),
    )


def the_same_tensor(x):
    return torch.cond(x.sum() > 0, lambda a: (a, a), lambda a: (a + 1, a[:, :].clone()), (x,))


def views(x):
    return torch.cond(x.sum() > 0, lambda a: (a + 1)[1], lambda a: (a * 2).view(-1)[:8], (x,))


def constants(x):
    return torch.cond(x.sum() > 0, lambda: torch.tensor([1.0, 2.0]), lambda: torch.zeros(2))


def several(x):
    a = torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))
    return torch.cond(a[0, 0] > 0.9, lambda a: a + x, lambda a: a - x, (a,))


def without_operations_around(p, x):
    return torch.cond(p, lambda x: x + 1, lambda x: x - 1, (x,))


def inside_writes(x):
    def side(a):
        b = torch.zeros_like(a)
        b[0] = a[1]
        b += 1
        return b

    return torch.cond(x.sum() > 0, side, lambda a: a * 3, (x,))


def half(x):
    with torch.autocast("cpu", torch.bfloat16):
        return torch.cond(x.sum() > 0, lambda a: a @ a.t(), lambda a: (a + 1) @ a.t(), (x,))


def wide_numbers(x):
    return torch.cond(x.sum() > 0, lambda a: a.double().sum(0), lambda a: a.double().mean(0), (x,))


@pytest.mark.parametrize(
    "f",
    [both, closures, nested, structures, the_same_tensor, views, constants, several, inside_writes, half, wide_numbers],
)
def test_programs(f) -> None:
    real, module = torch.cond, globals()
    assert module["torch"].cond is real
    compiled = intarsia.compile(f, fullgraph=True)
    for sign in (1.0, -1.0, 2.0):
        x = sign * torch.arange(1.0, 33.0).reshape(4, 8)
        found = compiled(x)
        torch.cond = eager
        try:
            wanted = f(x)
        finally:
            torch.cond = real
        torch.testing.assert_close(found, wanted)
        assert [t.stride() for t in _tensors(found)] == [t.stride() for t in _tensors(wanted)]
        assert all(t.data_ptr() != x.data_ptr() for t in _tensors(found))
    report = intarsia.explain(f)(x)
    assert len(report.graphs) == 1 and not report.breaks and "runs in eager" not in str(report)


STAGES = ["aten", "prim", "kernel", "loop", "buffer"]


@pytest.mark.parametrize("f", [closures, nested, constants])
def test_every_stage_prints_parses_and_runs(f) -> None:
    for sign in (1.0, -1.0):
        x = sign * torch.arange(1.0, 33.0).reshape(4, 8)
        lowered, wanted = intarsia.lower(f, x), intarsia.compile(f)(x)
        for stage in STAGES:
            text = lowered.as_text(stage)
            module = parse_module(text)
            module.verify()
            assert print_module(module) == text
            own = [] if len(main_function(module).block_body.args) == 1 else None
            if own is not None:
                (found,) = run_user(module, [x])
                torch.testing.assert_close(found, wanted)


def test_a_pass_that_changes_something_in_a_body_is_verified() -> None:
    compiled = intarsia.compile(nested, options={"verify_each": True})
    x = torch.arange(1.0, 33.0).reshape(4, 8)
    torch.testing.assert_close(compiled(x), x - 1 if x.max() <= 40 else x * 2)


def test_random_numbers_are_drawn_by_the_side_that_runs() -> None:
    def f(x):
        return torch.cond(x.sum() > 0, lambda x: torch.dropout(x, 0.5, True), lambda x: x * 2, (x,)) + torch.rand(8)

    compiled = intarsia.compile(f, fullgraph=True)
    for sign in (1.0, -1.0):
        x = sign * torch.ones(4, 8)
        torch.manual_seed(3)
        found = compiled(x)
        torch.manual_seed(3)
        torch.testing.assert_close(found, f(x))


def test_another_process_finds_the_program_in_the_cache() -> None:
    x = torch.ones(4, 8)
    first = intarsia.compile(nested)(x)
    intarsia.reset()
    report = intarsia.explain(nested)(x)
    assert "from the cache" in str(report)
    torch.testing.assert_close(intarsia.compile(nested)(x), first)


def test_an_index_outside_is_an_error_of_the_side_that_runs() -> None:
    def f(x, i):
        return torch.cond(x.sum() > 0, lambda x, i: x[i], lambda x, i: x[i * 0], (x, i))

    compiled = intarsia.compile(f, fullgraph=True)
    far = torch.tensor([9])
    torch.testing.assert_close(compiled(-torch.ones(4, 8), far), -torch.ones(1, 8))
    with pytest.raises(IndexError):
        compiled(torch.ones(4, 8), far)


LIST: list[int] = []


def other_dtypes(x):
    return torch.cond(x.sum() > 0, lambda x: x.double(), lambda x: x + 1, (x,))


def other_sizes(x):
    return torch.cond(x.sum() > 0, lambda x: x[1:] + 1, lambda x: x + 1, (x,))


def other_structures(x):
    return torch.cond(x.sum() > 0, lambda x: (x + 1, x), lambda x: x + 1, (x,))


def an_effect(x):
    return torch.cond(x.sum() > 0, lambda x: (LIST.append(1), x + 1)[1], lambda x: x + 1, (x,))


def a_write(x):
    return torch.cond(x.sum() > 0, lambda x: x.add_(1), lambda x: x + 1, (x,))


def a_number(x):
    return torch.cond(x.sum() > 0, lambda x: 3, lambda x: 4, (x,))


def gaps(x):
    return torch.cond(x.sum() > 0, lambda x: x[:, 0] + 0 * x[:, 1], lambda x: (x + 1)[:, 0], (x,))


def an_error(x):
    return torch.cond(x.sum() > 0, lambda x: x + 1 / 0, lambda x: x, (x,))


@pytest.mark.parametrize(
    ("f", "words"),
    [
        (other_dtypes, "result 0 has the dtypes torch.float64 and torch.float32"),
        (other_sizes, r"result 0 has the sizes \[3, 8\] and \[4, 8\]"),
        (other_structures, "do not give the same"),
        (an_effect, "changes something that the program sees"),
        (a_write, "writes to a tensor that it did not make"),
        (a_number, "something else than tensors"),
        (gaps, "gaps between its elements"),
        (an_error, "cannot be captured.*division by zero"),
    ],
)
def test_what_cannot_be_one_operation_breaks_the_graph(f, words) -> None:
    """The message names what differs, and the user's line."""
    with pytest.raises(intarsia.GraphBreak, match=f"(?s){words}") as caught:
        intarsia.compile(f, fullgraph=True)(torch.ones(4, 8))
    assert "test_conditionals.py" in str(caught.value) and "torch.cond(x.sum() > 0" in str(caught.value)
    LIST.clear()


def test_a_condition_on_sizes_is_a_guard() -> None:
    def f(x):
        return torch.cond(x.shape[0] > 3, lambda x: x + 1, lambda x: x - 1, (x,))

    compiled = intarsia.compile(f, dynamic=True, fullgraph=True)
    for rows in (2, 5, 3, 7):
        torch.testing.assert_close(compiled(torch.ones(rows, 8)), f(torch.ones(rows, 8)))


def test_around_it_gradients_are_taken() -> None:
    weight = torch.ones(8, 8, requires_grad=True)

    def f(x):
        with torch.no_grad():
            factor = torch.cond(x.sum() > 0, lambda y: y @ weight, lambda y: y - 1, (x,))
        return ((x @ weight) * factor).sum()

    with torch.enable_grad():
        compiled = intarsia.compile(f, fullgraph=True)
        for sign in (1.0, -1.0):
            x, found = sign * torch.ones(4, 8), []
            for run in (compiled, f):
                run(x).backward()
                found.append(weight.grad)
                weight.grad = None
            torch.testing.assert_close(*found)


WEIGHT, SCALES = torch.randn(8, 8, requires_grad=True), torch.randn(8, requires_grad=True)
TRAINED = {
    "closures": lambda x: torch.cond(x.sum() > 0, lambda y: y @ WEIGHT, lambda y: (y - 1) * SCALES, (x,)).sum(),
    "around": lambda x: torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.tanh() * SCALES, (x @ WEIGHT,)).sum(),
    "unused": lambda x: torch.cond(x.sum() > 0, lambda y, z: y + 1, lambda y, z: z * 2, (x * SCALES, x @ WEIGHT)).sum(),
    "nested": lambda x: torch.cond(
        x.sum() > 0,
        lambda y: torch.cond(y.max() > 3, lambda y: y * 2, lambda y: y.sin(), (y,)),
        lambda y: y * 3,
        (x @ WEIGHT,),
    ).sum(),
}


@pytest.mark.parametrize("name", TRAINED)
def test_gradients(name) -> None:
    """Backward is one of two functions again."""
    f = TRAINED[name]
    with torch.enable_grad():
        compiled = intarsia.compile(f, fullgraph=True)
        for sign in (1.0, -1.0):
            x, found = torch.full((4, 8), sign) + 0.1 * torch.arange(8), []
            for run in (compiled, f):
                WEIGHT.grad = SCALES.grad = None
                run(x).backward()
                found.append([p.grad for p in (WEIGHT, SCALES)])
            torch.testing.assert_close(*found, atol=1e-4, rtol=1e-4)
        report = intarsia.explain(f)(x)
    assert len(report.graphs) == 1 and "runs in eager" not in str(report)


def test_sizes_that_are_computed() -> None:
    """Symbols that no operand has by itself come with an argument that has."""

    def f(x):
        y = x.reshape(-1)[:-1] * 2
        inner = lambda y: torch.cond(y.max() > 4, lambda y: y.sin(), lambda y: y + x.shape[0], (y,))  # noqa: E731
        return torch.cond(x.sum() > 0, inner, lambda y: y - 1, (y,))

    compiled, fallbacks = intarsia.compile(f, dynamic=True, fullgraph=True), intarsia.counters()["fallbacks"]
    for rows, sign in ((3, 1.0), (5, -1.0), (7, 3.0), (4, 1.0)):
        x = sign * torch.ones(rows, rows + 2)
        torch.testing.assert_close(compiled(x), f(x))
    assert intarsia.counters()["fallbacks"] == fallbacks
