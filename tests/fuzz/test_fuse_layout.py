"""Random programs give the same values before and after `fuse` and `layout`."""

from __future__ import annotations

import pytest
import torch
from prim_graphs import RandomProgram

from intarsia.ir.dialects import kernel, prim
from intarsia.ir.interpreter import run
from intarsia.ir.text import parse_module, print_module
from intarsia.passes.context import CompileContext
from intarsia.passes.fuse import Fuse
from intarsia.passes.layout import Layout
from intarsia.passes.strides import is_view, view_of


def check_kernel_level(module) -> None:
    """What `schedule` and `plan-buffers` rely on."""
    for op in next(op for op in module.ops if isinstance(op, prim.Func)).block_body.ops:
        assert isinstance(op, kernel.Fused | kernel.Extern | prim.Return) or is_view(op), op.name
        for value in op.operands:
            assert view_of(value) is not None


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and torch.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("start", range(0, 200, 20))
def test_same_values(start: int) -> None:
    for seed in range(start, start + 20):
        program = RandomProgram(seed, length=8 + seed % 25)
        module = program.module()
        before = run(module, program.args)
        text = print_module(module)
        for step in (Fuse(), Layout()):
            step.apply(CompileContext(), module)
            module.verify()
            after = run(module, program.args)
            assert all(same(x, y) for x, y in zip(before, after, strict=True)), (seed, step.name, text)
        check_kernel_level(module)
        printed = print_module(module)
        assert print_module(parse_module(printed)) == printed
