"""The topics of logging that are about one compiled program: its text, its memory, what its steps cost."""

from __future__ import annotations

from ..ir.interpreter.loops import main_function
from ..ir.syntax import Op, line_of
from ..ir.text import parse_module
from ..targets.build.program import Generated
from ..targets.triton.program import KERNELS
from .cost import cost_of
from .plan import memory_plan
from .topics import detailed, enabled, tell


def generated(program: Generated) -> None:
    """The program that a graph became, out of the cache or not."""
    for topic in ("code", "kernels"):
        if enabled(topic):
            if program.gpu is not None:
                tell(topic, f"{KERNELS}, for Triton", [program.gpu.text])
            for unit in program.units:
                tell(topic, f"{unit.name}.cpp", [unit.text])
    for topic in ("code", "host"):
        tell(topic, "the host program", [program.host.text])
    if program.host.gpu is not None and program.host.not_recorded:
        for topic in ("code", "cudagraphs"):
            tell(topic, f"not recorded as a CUDA graph: {program.host.not_recorded}")
    if program.ir and any(map(enabled, ("memory", "cost", "calls"))):
        _planned(program.ir)


def _planned(ir: str) -> None:
    module = parse_module(ir)
    main = main_function(module)
    sizes = {str(name): int(value) for name, value in main.get("size_hints", ())}
    plan = memory_plan(module, sizes)
    with_sizes = f" with {', '.join(f'{k}={v}' for k, v in sizes.items())}" if sizes else ""
    rows = [
        f"{b.name}: {b.bytes:,} bytes, {b.pool}{'' if b.offset is None else f' at {b.offset:,}'}, "
        f"steps {b.begin} to {b.end}{', in place' if b.in_place else ''}{f'    # {b.line}' if b.line else ''}"
        for b in plan.buffers
    ]
    head = (
        f"{plan.peak:,} bytes in use at once, {plan.arena:,} of them kept between calls; {len(rows)} values{with_sizes}"
    )
    tell("memory", head, rows if detailed("memory") else ())
    cost = cost_of(module, sizes, plan.peak, None)
    each = [f"{step.name}: {step.bytes:,} bytes, {step.operations:,} operations" for step in cost.steps]
    head = f"{cost.bytes:,} bytes moved, {cost.operations:,} operations in {len(cost.steps)} steps{with_sizes}"
    tell("cost", head, each if detailed("cost") else ())
    calls = [op for op in main.block_body.ops if isinstance(op, Op) and op.name in ("buffer.extern", "buffer.contract")]
    words = [f"{op.get('target') or op.name}{f'    # {line_of(op)}' if line_of(op) else ''}" for op in calls]
    tell("calls", f"{len(calls)} library call{'' if len(calls) == 1 else 's'}", words)
