"""A loop pass of your own: innermost loops that run element after element, such as those of running sums, take two at a time."""

from dataclasses import dataclass

import torch

import intarsia
from intarsia.extend import (
    CompileContext,
    CpuLoopPass,
    dim,
    innermost_loops,
    loop,
    registered,
    replace_sizes,
    symbol,
)


@dataclass(frozen=True)
class UnrollByTwo(CpuLoopPass):
    """Unroll innermost loops without vector lanes by two."""

    name = "unroll-by-two"
    after = ("vectorize",)
    before = ("parallelize",)

    def change(self, ctx: CompileContext, kernel: loop.Kernel) -> None:
        for op in innermost_loops(kernel.block_body):
            trips, var = dim(op["stop"] - op.get("start", 0)), symbol(str(op["var"]))
            binds = any(isinstance(inner, loop.Bind) for inner in op.block_body.ops)  # a name cannot be bound twice
            if op.get("vector") or op.get("step", 1) != 1 or binds or not isinstance(trips, int) or trips % 2:
                continue
            copies = {}
            for inner in list(op.block_body.ops):
                copy = inner.clone(copies)
                replace_sizes(copy, {var: var + 1})
                op.block_body.add_op(copy)
            op["step"] = 2


def running(x: torch.Tensor) -> torch.Tensor:
    """Sums along rows."""
    return torch.cumsum(x.sin(), 1)


with torch.no_grad():
    x = torch.randn(64, 32)
    print("close:", torch.allclose(intarsia.compile(running, passes=[UnrollByTwo()])(x), running(x), atol=1e-5))
    with registered(UnrollByTwo):
        print(intarsia.lower(running, x).stages["unroll-by-two"])
