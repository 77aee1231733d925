"""How long each step of a program takes: its host program once more, with a clock around the steps.

On a GPU the clock is a pair of events around each step, and the stream is kept busy while the host starts the steps, so that what
is measured is the work and not the host. The caches are as the program leaves them: a kernel may find its inputs there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Protocol

import torch

from ...ir.interpreter.loops import find_function
from ...ir.syntax import Op
from ...ir.text import parse_module
from ..build.program import Program
from ..host.kernels import is_step
from ..host.render import timed
from ..torch_private import gpu_sleep
from .gpu import moved
from .load import load_program

LEAST_ROUNDS, MOST_ROUNDS = 3, 30
BATCH = 64  # steps that are started while the stream sleeps
_KNOWN = ("aten", "prims", "intarsia")  # whose operators have no effects beside their results
CYCLES = 5_000_000  # that it sleeps: about 2.5 ms, in which the host starts that many steps


@dataclass(frozen=True)
class StepTime:
    """A step of a program: its operation at the `buffer` level, and the least time of many, in seconds."""

    op: Op
    seconds: float


class NotTimed(RuntimeError):
    """A program that is not run again for a measurement."""


class _Clock(Protocol):
    def begin(self, step: int) -> None: ...
    def end(self, step: int) -> None: ...
    def read(self) -> list[float]: ...


class _HostClock:
    """Seconds of each step, on the processor."""

    def __init__(self, steps: int) -> None:
        self.seconds, self.start = [0.0] * steps, 0.0

    def begin(self, step: int) -> None:
        self.start = perf_counter()

    def end(self, step: int) -> None:
        self.seconds[step] = perf_counter() - self.start

    def read(self) -> list[float]:
        return list(self.seconds)


class _DeviceClock:
    """Seconds of each step, on the GPU."""

    def __init__(self, steps: int, gpu: int) -> None:
        self.gpu = gpu
        self.events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(steps)]

    def begin(self, step: int) -> None:
        if step % BATCH == 0:
            gpu_sleep(CYCLES)
        self.events[step][0].record()

    def end(self, step: int) -> None:
        self.events[step][1].record()

    def read(self) -> list[float]:
        torch.cuda.synchronize(self.gpu)
        return [a.elapsed_time(b) / 1000 for a, b in self.events]


def time_steps(program: Program, args: Sequence[Any], seconds: float = 0.5) -> list[StepTime]:
    """Run the program for about so many seconds with these arguments; nothing that a caller can see changes.

    Raises:
        NotTimed: it calls operators that are not torch's own, which may do anything.
    """
    for target in program.generated.host.operators.values():
        library = target.removeprefix("aten.ops.").partition(".")[0] if target.startswith("aten.ops.") else "aten"
        if library not in _KNOWN:
            raise NotTimed(f"it calls {target.removeprefix('aten.ops.')}, which may have effects")
    source = program.generated.host
    main = find_function(parse_module(program.generated.ir), "main")
    assert main is not None
    steps = [op for op in main.block_body.ops if isinstance(op, Op) and is_step(op)]
    gpu = device_of(args, source.gpu)
    clock: _Clock = _HostClock(len(steps)) if gpu is None else _DeviceClock(len(steps), gpu)
    functions = {**program.functions, "begin": clock.begin, "end": clock.end}
    source = replace(source, program=timed(source.program), not_recorded="it is timed")
    run = load_program(source, functions, program.library, "timed")
    written = {argument for argument, _ in main.get("mutations", ())}
    given = [moved(x.detach()) if k in written and isinstance(x, torch.Tensor) else x for k, x in enumerate(args)]
    best = [float("inf")] * len(steps)
    with torch.no_grad(), _same_random_numbers():
        run(*given)  # libraries choose and pack in the first call
        end, rounds = perf_counter() + seconds, 0
        while rounds < LEAST_ROUNDS or (rounds < MOST_ROUNDS and perf_counter() < end):
            run(*given)
            best = list(map(min, best, clock.read()))
            rounds += 1
    return [StepTime(op, least) for op, least in zip(steps, best, strict=True)]


def device_of(args: Sequence[Any], gpu: int | None) -> int | None:
    """The number of the GPU that a program works on: that of its kernels, else of its arguments; None for a CPU's."""
    if gpu is not None:
        return gpu
    return next((x.device.index for x in args if isinstance(x, torch.Tensor) and x.is_cuda), None)


def symbol_values(program_ir: Op, args: Sequence[Any]) -> dict[str, int]:
    """What the size symbols of a function are for these arguments."""
    found: dict[str, int] = {}
    for name, i, d, *_ in program_ir.get("symbols", ()):
        found[name] = int(args[i] if d == -1 else args[i].shape[d] if d >= 0 else args[i].stride(-2 - d))
    return found


@contextmanager
def _same_random_numbers() -> Iterator[None]:
    """The generators are afterwards as they were."""
    gpus = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(gpus):
        yield
