"""The number of a loop's round that stays on the GPU: values before and after the pass, and what it leaves to the host."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import intarsia
from intarsia.ir.dialects.prim import Func
from intarsia.ir.interpreter.run import run
from intarsia.ir.text import parse_module
from intarsia.passes.analysis.counters import counters
from intarsia.passes.analysis.machine import Machine
from intarsia.passes.core.context import CompileContext
from intarsia.passes.graph.device_counters import READ, DeviceCounters

X = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))


def rows(x: Tensor, most: float) -> Any:
    total = torch.zeros(3)
    for t in range(8):
        total = total + x[t]
        if total.abs().sum() > most:
            break
    return total, t


def written(x: Tensor, most: float) -> Any:
    out, n = torch.zeros(8, 3), 0
    h = x[0]
    while n < 8 and h.abs().sum() < most:
        h = h + x[n]
        out[n] = h
        n += 1
    return out, h, n


def backwards(x: Tensor, most: float) -> Any:
    total, n = x[0], 0
    while n < 8 and total.abs().sum() < most:
        total = total + x[7 - n]
        n += 1
    return total, n


def compared(x: Tensor, most: float) -> Any:
    total, n, steps = x[0], 0, torch.arange(8)
    while n < 8 and total.abs().sum() < most:
        total = total + torch.where((steps <= n)[:, None], x, 0.0).sum(0) * n + (steps * n).sum()
        n += 1
    return total, n


def cut_off(x: Tensor, most: float) -> Any:
    """A slice that may be shorter than it says has a size of its own."""
    total, n = x[0], 0
    while n <= 6 and total.abs().sum() < most:
        total = total + x[n : n + 2].sum(0)
        n += 2
    return total, n


def downwards(x: Tensor, most: float) -> Any:
    """A number that grows less."""
    total, n = x[0], 7
    while n > 0 and total.abs().sum() < most:
        total = total + x[n]
        n -= 1
    return total, n


def beyond(x: Tensor, most: float) -> Any:
    """A bound that is not inside of what is indexed: the read says where eager raises."""
    total, n = x[0], 0
    while n < 9 and total.abs().sum() < most:
        total = total + x[n]
        n += 1
    return total, n


def either(x: Tensor, most: float) -> Any:
    """A condition that holds beyond the bound, too."""
    total, n = x[0], 0
    while n < 4 or total.abs().sum() < most:
        total = total + x[min(n, 7)] if n < 0 else total * 1.5
        n += 1
    return total, n


STAY = [rows, written, backwards, compared]


def lowered(fn: Callable[..., Any], *args: Any) -> Any:
    """The module as it was captured, for a GPU; numbers stand in the code."""
    with torch.no_grad():
        return intarsia.lower(fn, *args, target="triton:sm_90")


def reads(module: Any) -> int:
    """How many numbers the host reads in loops."""
    return sum(op.name == READ for op in module.walk() if isinstance(op.parent_op(), Func))


@pytest.mark.parametrize("fn", STAY, ids=lambda fn: fn.__name__)
def test_values_are_those_before_the_pass(fn: Callable[..., Any]):
    low = lowered(fn, X, 5.0)
    before, after = parse_module(low.stages["aten"]), parse_module(low.stages["device-counters"])
    assert reads(before) and not reads(after)
    for seed in range(4):
        x = torch.randn(8, 3, generator=torch.Generator().manual_seed(seed)) * random.Random(seed).choice((0.1, 1, 9))
        with torch.no_grad():
            given = low.inputs(x, 5.0)
        for a, b in zip(run(before, given), run(after, given), strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("fn", STAY, ids=lambda fn: fn.__name__)
def test_a_loop_without_reads_can_be_recorded(fn: Callable[..., Any]):
    assert "reads" not in lowered(fn, X, 5.0)._generated.host.not_recorded


@pytest.mark.parametrize("fn", [downwards, beyond, cut_off], ids=lambda fn: fn.__name__)
def test_what_is_not_proved_is_read(fn: Callable[..., Any]):
    low = lowered(fn, X, 5.0)
    assert reads(parse_module(low.stages["device-counters"]))
    assert "the host reads" in low._generated.host.not_recorded


LOOP = """
builtin.module {{
  prim.func @main() {{symbols = []}} ({{
  ^bb0(%x: !prim.tensor<[], f32, "cuda:0">):
    %n = aten.full.default() {{operands = [], size = [], fill_value = {first}, dtype = torch.int64, device = "cuda:0", pin_memory = false}} : !prim.tensor<[], i64, "cuda:0">
    %t = aten.gt.Scalar(%x) {{operands = ["self"], other = 0.0}} : !prim.tensor<[], bool, "cuda:0">
    %1, %2 = aten.ops.intarsia.while_loop.default(%n, %t, %x) {{operands = ["carried.0", "carried.1", "operands.0"], condition = "c", body = "b", effect = true}} : !prim.tensor<[], i64, "cuda:0">, !prim.tensor<[], bool, "cuda:0">
    prim.return(%1)
  }})
  prim.func @c() {{symbols = []}} ({{
  ^bb0(%n: !prim.tensor<[], i64, "cuda:0">, %t: !prim.tensor<[], bool, "cuda:0">, %x: !prim.tensor<[], f32, "cuda:0">):
    %1 = {condition} : !prim.tensor<[], bool, "cuda:0">
    %2 = aten.{both}.default(%1, %t) {{operands = ["self", "other"]}} : !prim.tensor<[], bool, "cuda:0">
    prim.return(%2)
  }})
  prim.func @b() {{symbols = []}} ({{
  ^bb0(%n: !prim.tensor<[], i64, "cuda:0">, %t: !prim.tensor<[], bool, "cuda:0">, %x: !prim.tensor<[], f32, "cuda:0">):
    %1 = aten.{step}.Tensor(%n) {{operands = ["self"], other = {by}, alpha = 1}} : !prim.tensor<[], i64, "cuda:0">
    %2 = aten.{ends}.Scalar(%{of}) {{operands = ["self"], other = 9}} : !prim.tensor<[], bool, "cuda:0">
    prim.return(%1, %2)
  }})
}}
"""
PLAIN = {
    "first": 2,
    "condition": 'aten.lt.Scalar(%n) {operands = ["self"], other = 20}',
    "both": "logical_and",
    "step": "add",
    "by": 1,
    "ends": "eq",
    "of": 1,
}


@pytest.mark.parametrize(
    ("change", "bounds"),
    [
        ({}, (2, 19)),
        ({"condition": 'aten.le.Scalar(%n) {operands = ["self"], other = 20}'}, (2, 20)),
        ({"condition": 'aten.gt.Scalar(%n) {operands = ["self"], other = 20}'}, None),
        ({"both": "logical_or"}, None),
        ({"both": "logical_xor"}, None),
        ({"first": 20}, None),  # no round runs; nothing is said of one
        ({"first": 19}, (19, 19)),
        ({"first": 2.5}, None),
        ({"by": 3}, (2, 19)),
        ({"by": 0}, (2, 19)),
        ({"by": -1}, None),
        ({"step": "sub"}, None),
        ({"ends": "lt"}, (2, 8)),  # the truth that is carried says more
        ({"ends": "le"}, (2, 9)),
        ({"ends": "lt", "of": "n"}, (2, 19)),  # of the number before: it may be one more
        ({"ends": "ge"}, (2, 19)),
        ({"ends": "lt", "first": 12}, (12, 19)),  # the first round runs beyond it
    ],
    ids=str,
)
def test_bounds(change: dict[str, Any], bounds: tuple[int, int] | None):
    module = parse_module(LOOP.format(**{**PLAIN, **change}))
    (loop,) = (op for op in module.walk() if "while_loop" in op.name)
    found = counters(loop).get(0)
    assert (None if found is None else (found.least, found.most)) == bounds


def test_the_road_of_a_cpu_does_not_have_it():
    with torch.no_grad():
        low = intarsia.lower(rows, X, 5.0)
    assert "device-counters" not in low.stages
    module = parse_module(low.stages["aten"])
    DeviceCounters().apply(CompileContext(Machine()), module)
    given = [X]
    for a, b in zip(run(parse_module(low.stages["aten"]), given), run(module, given), strict=True):
        torch.testing.assert_close(a, b)
