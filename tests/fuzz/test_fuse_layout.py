"""Random programs give the same values before and after `fuse` and `layout`."""

from __future__ import annotations

import random

import pytest
import torch
from prim_graphs import RandomProgram

from intarsia.ir.dialects import kernel, prim
from intarsia.ir.interpreter.run import run
from intarsia.ir.text import parse_module, print_module
from intarsia.passes.analysis.strides import is_view, view_of
from intarsia.passes.core.context import CompileContext
from intarsia.passes.fusion.fuse import Fuse
from intarsia.passes.layout.layout import Layout


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


def library_program(seed: int) -> str:
    """Elementwise operations on whole matrices and on their first rows, around library calls; several values are returned."""
    choose = random.Random(seed)
    whole, rows = "!prim.tensor<[8, 4], f64>", "!prim.tensor<[2, 4], f64>"
    values: dict[str, list[str]] = {whole: ["%a"], rows: ["%b"]}
    lines: list[str] = []

    def add(kind: str, text: str) -> str:
        lines.append(f"%v{len(lines)} = {text} : {kind}")
        values[kind].append(f"%v{len(lines) - 1}")
        return values[kind][-1]

    for _ in range(choose.randint(6, 40)):
        kind = choose.choice([whole, rows])
        x, y = choose.choice(values[kind]), choose.choice(values[kind][-6:])
        steps = [f"prim.sin({x})", f"prim.mul({x}, {y})", f"prim.add({y}, {x})"]
        if choose.random() < 0.25:
            add(kind, f'kernel.extern<aten.mm.default>({x}, %w) {{operands = ["self", "mat2"]}}')
        elif kind == rows and choose.random() < 0.4:
            part = add(rows, f"prim.slice({choose.choice(values[whole])}) {{starts = [0, 0], steps = [1, 1]}}")
            add(rows, f"prim.mul({part}, {x})")
        elif kind == whole and choose.random() < 0.3:
            small = choose.choice(values[rows])
            low = f"prim.pad({small}) {{low = [0, 0], high = [6, 0], value = 1.0}}"
            add(whole, f"prim.add({add(whole, low)}, {x})")
        else:
            add(kind, choose.choice(steps))
    results = ", ".join(
        dict.fromkeys([f"%v{len(lines) - 1}", *choose.sample([v for vs in values.values() for v in vs[1:]], 3)])
    )
    body = "\n    ".join([*lines, f"prim.return({results})"])
    return (
        'builtin.module {\n  prim.func @main() {arg_names = ["a", "b", "w"], symbols = []} ({\n'
        f"  ^bb0(%a: {whole}, %b: {rows}, %w: !prim.tensor<[4, 4], f64>):\n    {body}\n  }})\n}}\n"
    )


@pytest.mark.parametrize("start", [200, 240, 400])
def test_kernels_around_library_calls(start: int) -> None:
    """No kernel waits for a library call that waits for the kernel."""
    generator = torch.Generator().manual_seed(0)
    args = [torch.randn(n, 4, dtype=torch.float64, generator=generator) for n in (8, 2, 4)]
    for seed in range(start, start + 40):
        module = parse_module(library_program(seed))
        before = run(module, args)
        Fuse().apply(CompileContext(), module)
        module.verify()
        assert all(same(x, y) for x, y in zip(before, run(module, args), strict=True)), seed
