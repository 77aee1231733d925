"""Kernels that are laid over a GPU keep their answers: the reference interpreter runs them with tensors on the CPU."""

from __future__ import annotations

import pytest
from kernel_zoo import CASES
from test_schedule import agrees, arguments

from intarsia.ir.dialects import loop
from intarsia.ir.interpreter.run import run
from intarsia.ir.retarget import retarget
from intarsia.ir.text import print_module
from intarsia.passes.core.context import CompileContext
from intarsia.passes.memory.plan_buffers import PlanBuffers
from tests.ladder import ladder, schedule


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    case = CASES[name]
    module, args = case.module(), arguments(case)
    expected = run(module, args)
    retarget(module, "cuda:0")
    before = print_module(module)
    for step in (*ladder(gpu=True), PlanBuffers()):
        step.apply(CompileContext(), module)
        module.verify()
        after = print_module(module)
        if after != before:
            agrees(module, args, expected)
        before = after


@pytest.mark.parametrize("name", CASES)
def test_blocks_are_powers_of_two(name: str) -> None:
    module = CASES[name].module()
    retarget(module, "cuda:0")
    schedule(module)
    kernels = [op for op in module.body.block.ops if isinstance(op, loop.Kernel)]
    assert kernels
    for kernel in kernels:
        assert kernel["warps"] in (1, 2, 4, 8, 16)
        for op in kernel.block_body.walk():
            if isinstance(op, loop.For):
                block = op.get("block", 1)
                assert block & (block - 1) == 0
