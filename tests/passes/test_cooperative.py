"""Rows that several programs of a GPU share keep their answers, and only those are shared for which it pays."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from kernel_zoo import CASES, SMALL_GPU
from test_schedule import arguments

from intarsia.ir.dialects import loop
from intarsia.ir.interpreter.run import run
from intarsia.ir.retarget import retarget
from intarsia.ir.text import parse_module, print_module
from intarsia.passes.analysis.machine import Machine, gpu_facts
from intarsia.passes.core.context import CompileContext
from intarsia.passes.memory.plan_buffers import PlanBuffers
from intarsia.passes.schedule.gpu import cooperative
from intarsia.targets.triton.emit import emit_module
from intarsia.targets.triton.grid import program_count
from tests.ladder import schedule

NAMES = [name for name in CASES if name.endswith("shared_rows")]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that holds a few hundred elements."""
    for name, value in SMALL_GPU.items():
        monkeypatch.setattr(cooperative, name, value)


def scheduled(name: str) -> tuple[object, list[loop.Kernel]]:
    module = CASES[name].module()
    retarget(module, "cuda:0")
    schedule(module)
    module.verify()
    return module, [op for op in module.body.block.ops if isinstance(op, loop.Kernel)]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", NAMES)
def test_values(name: str) -> None:
    case = CASES[name]
    args = arguments(case)
    expected = run(case.module(), args)
    module, (zeros, kernel) = scheduled(name)
    for reverse in (False, True):
        for a, b in zip(expected, run(module, args, reverse=reverse), strict=True):
            torch.testing.assert_close(b, a, rtol=2e-5, atol=2e-5)
    (op,) = [op for op in kernel.block_body.walk() if isinstance(op, loop.Exchange)]
    blocks = {"softmax_columns_shared_rows": 2, "column_variance_shared_rows": 3, "mean_var_shared_rows": 20}
    assert program_count(kernel) == blocks.get(name, 16) * op["count"] and 2 <= op["count"] <= cooperative.SHARERS
    PlanBuffers().apply(CompileContext(), module)
    assert print_module(parse_module(print_module(module))) == print_module(module)
    assert "tl.store(out0 + i0, " in emit_module([zeros])  # the counters


@pytest.mark.usefixtures("small")
def test_a_shared_row_is_read_once() -> None:
    _, (_, kernel) = scheduled("softmax_shared_rows")
    text = emit_module([kernel])
    assert text.count("tl.load(in0") == 1 and "meet(" in text


@pytest.mark.parametrize("name", NAMES)
def test_short_rows_are_not_shared(name: str) -> None:
    _, kernels = scheduled(name)
    assert not any(isinstance(op, loop.Exchange) for kernel in kernels for op in kernel.block_body.walk())


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("multiprocessors", "most"), [(14, 0), (20, 10), (132, 64)])
def test_no_more_programs_wait_for_each_other_than_a_gpu_surely_runs(multiprocessors: int, most: int) -> None:
    for name in NAMES:
        module = CASES[name].module()
        retarget(module, "cuda:0")
        facts = replace(gpu_facts("sm_90"), multiprocessors=multiprocessors)
        schedule(module, CompileContext(Machine(gpu=facts)))
        shared = [op["stop"] for op in module.walk() if isinstance(op, loop.For) and op.get("cooperative")]
        assert bool(shared) == bool(most)
        assert all(stop <= most for stop in shared)
