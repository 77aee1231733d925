"""Random programs give the same values before and after `schedule`, whatever the order of independent iterations."""

from __future__ import annotations

import pytest
import torch
from prim_graphs import RandomProgram

from intarsia.ir.interpreter.run import run
from intarsia.ir.text import parse_module, print_module
from intarsia.passes.core.context import CompileContext
from intarsia.passes.fusion.fuse import Fuse
from intarsia.passes.layout.layout import Layout
from tests.ladder import schedule


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.stride() == b.stride() and torch.allclose(a, b, 1e-4, 1e-5, equal_nan=True)


@pytest.mark.parametrize("start", range(0, 120, 20))
def test_same_values(start: int) -> None:
    for seed in range(start, start + 20):
        program = RandomProgram(seed, length=8 + seed % 25)
        module = program.module()
        for step in (Fuse(), Layout()):
            step.apply(CompileContext(), module)
        before, text = run(module, program.args), print_module(module)
        schedule(module)
        module.verify()
        printed = print_module(module)
        assert print_module(parse_module(printed)) == printed
        for reverse in (False, True):
            after = run(module, program.args, reverse=reverse)
            assert all(same(x, y) for x, y in zip(before, after, strict=True)), (seed, reverse, text)
