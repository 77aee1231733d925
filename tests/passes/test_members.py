"""Lists of tensors: kernels that are equal but for their sizes are one kernel, launched once for all of them."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pytest
import torch
from torch import Tensor

import intarsia
from intarsia.ir.dialects import buffer, loop
from intarsia.ir.text import parse_module
from intarsia.passes.core import clauses
from intarsia.passes.schedule import members


def step(params: list[Tensor], grads: list[Tensor], means: list[Tensor], squares: list[Tensor], lr: float) -> None:
    """AdamW, written out."""
    torch._foreach_mul_(params, 1 - lr * 0.01)
    torch._foreach_lerp_(means, grads, 0.1)
    torch._foreach_mul_(squares, 0.99)
    torch._foreach_addcmul_(squares, grads, grads, 0.01)
    root = torch._foreach_add(torch._foreach_sqrt(squares), 1e-8)
    torch._foreach_addcdiv_(params, means, root, -lr)


def lists(shapes: list[tuple[int, ...]]) -> tuple[list[Tensor], ...]:
    return tuple([torch.rand(shape) for shape in shapes] for _ in range(4))


SHAPES = [(40, 30), (7,), (3, 2, 5), (), (7,), (9000,), (1,), (64, 64)]


def lowered(function: Any, *args: Any, target: str = "cpp") -> tuple[list[buffer.Launch], dict[str, loop.Kernel], str]:
    found = intarsia.lower(function, *args, target=target)
    module = parse_module(found.as_text("buffer"))
    kernels = {op["sym_name"]: op for op in module.walk() if isinstance(op, loop.Kernel)}
    launches = [op for op in module.walk() if isinstance(op, buffer.Launch)]
    return launches, kernels, found.as_text("triton" if target != "cpp" else "cpp")


@pytest.mark.parametrize("target", ["cpp", "triton:sm_90"])
def test_a_step_is_one_launch(target: str) -> None:
    """Each parameter and state is read and written where it is: four addresses a tensor, no memory beside."""
    with torch.no_grad():
        (launch,), kernels, text = lowered(step, *lists(SHAPES), 0.1, target=target)
    kernel = kernels[launch["kernel"]]
    assert kernel.members == (1200, 7, 30, 1, 7, 9000, 1, 4096) and len(launch.operands) == 4 * len(SHAPES)
    assert kernel["inputs"] == 1 and "buffer.alloc" not in str(launch.parent_op())
    assert text.count("parallel for") == (target == "cpp") and text.count("_member(") == 2 * (target != "cpp")


def test_numbers_of_all_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for ten addresses is room for two numbers and two addresses each of four tensors."""

    def scaled(params: list[Tensor], grads: list[Tensor], rate: Tensor, decay: Tensor) -> None:
        torch._foreach_mul_(params, decay)
        torch._foreach_add_(params, torch._foreach_mul(grads, rate))

    monkeypatch.setattr(members, "GRID_VALUES", 10)
    params, grads, *_ = lists(SHAPES[:3] + SHAPES[4:] + [(5, 5)])
    with torch.no_grad():
        launches, *_ = lowered(scaled, params, grads, torch.tensor(0.1), torch.tensor(0.9), target="triton:sm_90")
        assert [len(op.operands) for op in launches] == [10, 10]
        monkeypatch.setattr(members, "GRID_VALUES", 13)
        own = [torch.tensor(0.1 * k) for k in range(len(params))]

        def scaled_each(params: list[Tensor], grads: list[Tensor], rates: list[Tensor], decay: Tensor) -> None:
            for p, g, rate in zip(params, grads, rates, strict=True):
                scaled([p], [g], rate, decay)

        launches, *_ = lowered(scaled_each, params, grads, own, torch.tensor(0.9), target="triton:sm_90")
        assert [len(op.operands) for op in launches] == [13, 13]


def test_values_of_a_schedule() -> None:
    """Learning rates that change are no recompile, on both sides of a parallel region."""
    ours, eager = lists(SHAPES), lists([])
    eager = tuple([x.clone() for x in part] for part in ours)
    run = intarsia.compile(step)
    with torch.no_grad():
        before = intarsia.counters()["captures"]
        for k in range(5):
            run(*ours, 0.1 / (k + 1))
            step(*eager, 0.1 / (k + 1))
        assert intarsia.counters()["captures"] - before == 2
    for a, b in zip(sum(ours, []), sum(eager, []), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def test_who_waits_for_whom(monkeypatch: pytest.MonkeyPatch) -> None:
    """What reads a result closes the group that makes it; two formulas are two groups; a launch has room for so many values."""

    def chain(xs: list[Tensor]) -> list[Tensor]:
        ys = [x.exp() for x in xs]
        return [*ys, *(y.sort()[0].sin() for y in ys)]

    launches, kernels, _ = lowered(chain, [torch.rand(n) for n in range(2, 8)])
    assert [kernels[op["kernel"]].members for op in launches] == [tuple(range(2, 8))] * 2
    launches, kernels, _ = lowered(
        lambda xs, ys: [*(x.exp() for x in xs), *(y.sin() for y in ys)],
        *([torch.rand(n) for n in range(a, a + 5)] for a in (2, 9)),
        target="triton:sm_90",
    )
    assert [kernels[op["kernel"]].members for op in launches] == [(2, 3, 4, 5, 6), (9, 10, 11, 12, 13)]
    monkeypatch.setattr(members, "CPU_VALUES", 12)
    many = [torch.rand(3) for _ in range(10)]
    launches, _, _ = lowered(lambda xs: [x.exp() for x in xs], many)
    assert len(launches) == 2 and all(len(op.operands) <= members.CPU_VALUES for op in launches)


def _member(rng: random.Random, kind: str) -> tuple[Tensor, Tensor]:
    """A tensor and what it is multiplied by: what the clauses ask, but for what `kind` says."""
    shape = tuple(rng.randrange(1, 5) for _ in range(rng.randrange(4)))
    x, y = torch.rand(shape), torch.rand(shape)
    match kind:
        case "number":
            y = torch.rand(())
        case "empty":
            x = y = torch.rand(0, 3)
        case "row":
            x, y = torch.rand(3, 4), torch.rand(4)
        case "turned":
            x, y = torch.rand(3, 4).t(), torch.rand(4, 3)
        case "both turned":
            x, y = torch.rand(3, 4).t(), torch.rand(3, 4).t()
        case "apart":
            x, y = torch.rand(3, 8)[:, ::2], torch.rand(3, 8)[:, ::2]
        case "double":
            x, y = x.double(), y.double()
    return x, y


KINDS = ("plain", "plain", "plain", "number", "empty", "row", "turned", "both turned", "apart", "double", "sum")


def _formula(pairs: list[tuple[Tensor, Tensor]], sums: list[bool]) -> list[Any]:
    made: list[Any] = []
    for (x, y), total in zip(pairs, sums, strict=True):
        z = x * y + 0.5
        made += [z, z.sum()] if total else [z]
    return made


def test_both_sides_of_each_clause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random lists, against eager: what a kernel does not take for a member runs beside those that it takes."""
    seen: dict[str, set[bool]] = defaultdict(set)

    def broken(found: clauses.Clauses) -> str | None:
        for holds, what in found:
            seen[what].add(holds)
            if not holds:
                return what
        return None

    monkeypatch.setattr(members, "broken", broken)
    for seed in range(2):
        rng = random.Random(seed)
        torch.manual_seed(seed)
        kinds = [rng.choice(KINDS) for _ in range(20)]
        pairs = [_member(rng, kind) for kind in kinds]
        sums = [kind == "sum" for kind in kinds]
        expected = _formula(pairs, sums)
        found = intarsia.compile(_formula, options={"verify_each": True})(pairs, sums)
        for a, b in zip(expected, found, strict=True):
            assert a.stride() == b.stride()
            torch.testing.assert_close(a, b)
    unknown = [torch.ones(3 + k) for k in range(5)]
    for x in unknown:
        intarsia.mark_dynamic(x, 0)
    assert len(lowered(lambda xs: [x + 1 for x in xs], unknown)[0]) == 5
    always = {
        "no memory lies between its elements",
        "only numbers are repeated",
        "its dtypes have loops",
        "its memory is on one device",
        "all its results have one shape",
        "a kernel with results, that is no contraction",
    }
    assert {what for what, sides in seen.items() if len(sides) < 2} <= always


@pytest.mark.parametrize("target", ["cpp", "triton:sm_90"])
def test_launches_that_read_what_others_give(target: str) -> None:
    """Kernels of one launch take what an earlier one gives, whatever became of the kernels that gave it."""

    def function(xs: list[Tensor]) -> list[Tensor]:
        first = [x.sin().tanh().exp().log1p().erf() + 1 for x in xs]
        ordered = [x.sort()[0] for x in first]  # between the two, so that they are not one kernel
        return [f * s.exp() for f, s in zip(first, ordered, strict=True)] + first

    launches, *_ = lowered(function, [torch.rand(n) for n in range(2, 8)], target=target)
    assert len(launches) <= 2 + 6 and all(operand.owner is not None for op in launches for operand in op.operands)
    xs = [torch.rand(n) for n in range(2, 8)]
    torch.testing.assert_close(intarsia.compile(function)(xs), function(xs))
