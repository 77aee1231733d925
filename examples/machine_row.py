"""A processor that nobody has: one row of facts, and the loops of a program made for it."""

import torch

import intarsia
from intarsia.extend import (
    CPUS,
    CompileContext,
    Machine,
    Processor,
    default_pipeline,
    parse_module,
    print_module,
    run_pipeline,
)

ROW = Processor("made-up", vector_bytes=32, vector_registers=16, l1_bytes=128 << 10, l2_bytes=4 << 20, threads=8)


def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums of columns, which are held in whole vectors, and a transpose, which is walked in squares."""
    return x.sum(1), y.t().contiguous()


def loops(processor: Processor) -> list[str]:
    """The loops in tiles, and the scratch, of the program's kernels on a processor."""
    module = parse_module(intarsia.lower(program, torch.randn(64, 8, 40), torch.randn(4096, 4096)).ir("aten"))
    run_pipeline(CompileContext(Machine(cpu=processor)), module, default_pipeline(until="tile"))
    lines = [line.strip() for line in print_module(module).splitlines()]
    return [line for line in lines if "step" in line or "loop.local" in line]


for processor in (CPUS["avx512"], ROW):
    print("----", processor.name)
    print("\n".join(loops(processor)))
