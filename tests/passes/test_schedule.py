"""`schedule` keeps every kernel's answer, in every order of the independent iterations."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from kernel_zoo import CASES, Case
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Region

from intarsia.ir.dialects import loop, prim
from intarsia.ir.interpreter.run import run
from intarsia.ir.retarget import retarget
from intarsia.ir.symbols import substitute, symbol
from intarsia.ir.text import parse_module, print_module
from intarsia.passes.analysis.size_names import replace_sizes
from intarsia.passes.core.context import CompileContext
from intarsia.passes.schedule.emit_loops import write
from intarsia.passes.schedule.lower import Lower, deep_recursion
from intarsia.passes.schedule.read import read
from tests.ladder import schedule


def arguments(case: Case, seed: int = 0) -> list[torch.Tensor]:
    """Random inputs in the layouts that the case asks for."""
    torch.manual_seed(seed)
    sizes = {symbol(k): v for k, v in case.sizes.items()}
    found = []
    for k, t in enumerate(case.types):
        shape = [int(substitute(s, sizes)) for s in t.shape]
        if t.dtype.is_float:
            x = torch.randn(shape).to(t.dtype.torch)
        elif t.dtype.kind == "bool":
            x = torch.rand(shape) > 0.5
        else:
            x = torch.randint(0, case.high, shape, dtype=t.dtype.torch)
        strides = case.arg_strides[k] if case.arg_strides else None
        found.append(x if strides is None else torch.empty_strided(shape, strides, dtype=x.dtype).copy_(x))
    return found


def agrees(module: ModuleOp, args: list[Any], expected: list[Any]) -> None:
    """The module keeps its text, and gives these results, with loops in either order."""
    text = print_module(module)
    assert print_module(parse_module(text)) == text
    for reverse in (False, True):
        found = run(module, args, reverse=reverse)
        for a, b in zip(expected, found, strict=True):
            assert a.stride() == b.stride()
            torch.testing.assert_close(b, a, rtol=2e-5, atol=2e-5, equal_nan=True)


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    case = CASES[name]
    module, args = case.module(), arguments(case)
    module.verify()
    expected = run(module, args)
    schedule(module)
    module.verify()
    agrees(module, args, expected)


@pytest.mark.parametrize("name", CASES)
def test_no_reduction_is_computed_twice(name: str) -> None:
    module = CASES[name].module()
    wanted = sum(isinstance(op, (*prim.JOINS, prim.Scan)) for op in module.walk())
    Lower().apply(CompileContext(), module)
    assert sum(isinstance(op, loop.Accumulate) for op in module.walk()) <= wanted


def test_the_recursion_limit_comes_back_from_threads_side_by_side():
    before = sys.getrecursionlimit()
    first, second = deep_recursion(), deep_recursion()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert sys.getrecursionlimit() >= 50_000
    second.__exit__(None, None, None)
    assert sys.getrecursionlimit() == before
    with deep_recursion():
        sys.setrecursionlimit(before + 7)  # a program's own
    assert sys.getrecursionlimit() == before + 7
    sys.setrecursionlimit(before)


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
@pytest.mark.parametrize("name", CASES)
def test_plain_loops_keep_the_answer_and_are_read_back(name: str, device: str) -> None:
    case = CASES[name]
    module, args = case.module(), arguments(case)
    expected = run(module, args)
    if device != "cpu":
        retarget(module, device)
    Lower().apply(CompileContext(), module)
    module.verify()
    agrees(module, args, expected)
    for kernel in [op for op in module.body.block.ops if isinstance(op, loop.Kernel)]:
        again = loop.Kernel.make([], [], kernel.literals, [Region(write(read(kernel)))])
        assert kernel_text(again) == kernel_text(kernel)


def kernel_text(kernel: loop.Kernel) -> str:
    """The text of a kernel with its variables numbered as they come."""
    copy = kernel.clone()
    variables = [symbol(str(op["var"])) for op in copy.walk() if isinstance(op, loop.For | loop.Bind)]
    replace_sizes(copy, {v: symbol(f"v{k:03}") for k, v in enumerate(variables)})
    return print_module(ModuleOp([copy]))
