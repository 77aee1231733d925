"""How near each step of a program is to what the machine can do: times, bytes and operations beside the measured limits."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from xdsl.dialects.builtin import ModuleOp

from ..ir.dialects import prim
from ..reports.record import own_work
from ..targets.build.program import Program
from ..targets.measure.limits import Limits
from ..targets.run.timed import NotTimed, device_of, symbol_values, time_steps
from .cost import works


@dataclass(frozen=True)
class StepInfo:
    """What one step of a program does and takes; equal ones (the layers of a model) are one, with `calls` of them.

    Attributes:
        name: of the kernel, or of the library's operator with the sizes of its operands.
        lines: the user's lines that it computes (`file:line`).
        calls: how many there are.
        seconds: of all of them, the least of many measurements; on a GPU on the device, without the host's time.
        bytes: of memory that all of them have to read and write, each element once.
        operations: of all of them: two for each number that is multiplied in products of matrices, else about one for each simple instruction.
        limit: what bounds it: "copy" (the rate of large copies), "product" (that of large products of matrices), or "" for neither.
        share: of that limit that it reaches, 1.0 for all of it; above, where what it reads is still in a cache.
        half: "forward" or "backward" of a graph with gradients, else "".
    """

    name: str
    lines: tuple[str, ...]
    calls: int
    seconds: float
    bytes: int
    operations: int
    limit: str = ""
    share: float = 0.0
    half: str = ""


@dataclass(frozen=True)
class Times:
    """A measured program.

    Attributes:
        device: its name.
        steps: those that took longest first.
        copy: the machine's rate of large copies, bytes a second, both directions counted; 0 where it is not known.
        products: its rate of large products of matrices, operations a second, by type, of the types that occur.
        reason: why nothing was measured, or "".
    """

    device: str
    steps: tuple[StepInfo, ...] = ()
    copy: float = 0.0
    products: tuple[tuple[str, float], ...] = ()
    reason: str = ""

    @property
    def seconds(self) -> float:
        """What all steps take."""
        return sum(step.seconds for step in self.steps)

    @property
    def at_the_limits(self) -> float:
        """What they would take if each reached its limit."""
        return sum(step.seconds * min(step.share, 1.0) if step.limit else step.seconds for step in self.steps)


Watch = Callable[[Program], Callable[..., Any]]
WATCH: ContextVar[Watch | None] = ContextVar("WATCH", default=None)  # told of programs that are compiled meanwhile


@contextmanager
def watching(watch: Watch | None) -> Iterator[None]:
    """Programs that are compiled inside go through `watch`, which gives what runs in their place; None: nobody watches."""
    token = WATCH.set(watch)
    try:
        yield
    finally:
        WATCH.reset(token)


def measured(found: dict[int, Times], folder: Path | None) -> Watch:
    """A watch that measures each program in its first call, with the arguments of that call; `found` receives it under the program's id."""

    def watch(program: Program) -> Callable[..., Any]:
        run = program.run

        def call(*args: Any) -> Any:
            if id(program) not in found:
                with own_work():
                    found[id(program)] = measure(program, args, folder)
            return run(*args)

        return call

    return watch


def measure(program: Program, args: Sequence[Any], folder: Path | None = None) -> Times:
    """Time the steps of a program with these arguments, which stay as they are.

    Args:
        folder: where the machine's limits are kept between processes.
    """
    gpu = device_of(args, program.generated.host.gpu)
    limits = Limits("cpu" if gpu is None else f"cuda:{gpu}", folder)
    try:
        timed = time_steps(program, args)
    except NotTimed as error:
        return Times(limits.name, reason=str(error))
    except (RuntimeError, IndexError) as error:  # no memory, an index out of range: the call itself says so
        return Times(limits.name, reason=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
    if not timed:
        return Times(limits.name)
    main = timed[0].op.parent_op()
    assert isinstance(main, prim.Func)
    module = main.parent_op()
    assert isinstance(module, ModuleOp)
    steps, products = dict[Any, StepInfo](), dict[str, float]()
    for step, work in zip(timed, works(module, symbol_values(main, args)), strict=True):
        rate = limits.products(work.dtype) if work.dtype is not None else 0.0
        if rate:
            products[str(work.dtype).removeprefix("torch.")] = rate
        info = StepInfo(work.name, work.lines, 1, step.seconds, work.bytes, work.operations)
        _add(steps, info, work.least(limits.copies(), rate))
    whole = [replace(s, bytes=s.calls * s.bytes, operations=s.calls * s.operations) for s in steps.values()]
    found = sorted(whole, key=lambda s: -s.seconds)
    return Times(limits.name, tuple(found), limits.copies(), tuple(sorted(products.items())))


def _add(steps: dict[Any, StepInfo], step: StepInfo, least: dict[str, float]) -> None:
    """Put a step beside its equals; `least` seconds by what bounds it."""
    limit = max(least, key=lambda name: least[name], default="")
    limit = limit if limit and least[limit] > 0 else ""
    key = step.name, step.bytes, step.operations, limit
    share = least[limit] / step.seconds if limit and step.seconds else 0.0
    before = steps.get(key)
    if before is not None:
        seconds = before.seconds + step.seconds
        share = (before.share * before.seconds + share * step.seconds) / seconds if seconds else 0.0
        lines = tuple(dict.fromkeys([*before.lines, *step.lines]))
        step = replace(step, lines=lines, calls=before.calls + 1, seconds=seconds)
    steps[key] = replace(step, limit=limit, share=share)


# ---- as text --------------------------------------------------------------------------------------------------------

SHOWN = 24  # steps
_HEAD = f"{'us':>10} {'':>4} {'calls':>5} {'bytes':>9} {'ops':>7}  {'of its limit':<13} step"
_INDENT = " " * _HEAD.index("step")


def table(times: Times, width: int, places: Callable[[tuple[str, ...]], str]) -> list[str]:
    """The steps of one program, the longest first; `places` writes the user's lines."""
    if times.reason:
        return [f"not measured: {times.reason}"]
    if not times.steps:
        return []
    rates = [f"copies {rate_of(times.copy, 'B/s')}"] if times.copy else []
    rates += [f"products {rate_of(rate, 'op/s')} in {dtype}" for dtype, rate in times.products]
    rows = [f"{times.device}: {', '.join(rates)}" if rates else times.device, _HEAD]
    for step in times.steps[:SHOWN]:
        rows += _row(step, times.seconds, width, places(step.lines))
    rest = times.steps[SHOWN:]
    if rest:
        calls = sum(step.calls for step in rest)
        rows.append(f"{_microseconds(sum(s.seconds for s in rest))} {'':>4} {calls:>5} {'':>33}and {len(rest)} others")
    whole, best = times.seconds, times.at_the_limits
    share = f"; {best * 1e6:,.1f} ({best / whole:.0%}) if each step reached its limit" if whole else ""
    rows.append(f"{_microseconds(whole)} in all{share}")
    return rows


def _row(step: StepInfo, whole: float, width: int, places: str) -> list[str]:
    part = f"{step.seconds / whole:.0%}" if whole else ""
    operations = f"{short_number(step.operations)}" if step.operations else ""
    limit = f"{step.share:>4.0%} {step.limit}" if step.limit else ""
    head = f"{_microseconds(step.seconds)} {part:>4} {step.calls:>5} {size_of(step.bytes):>9} {operations:>7}  {limit:<13} "
    name = f"{step.half}: {step.name}" if step.half else step.name
    return wrapped(f"{name}{places}", width, head, _INDENT + "  ")


def wrapped(text: str, width: int, head: str, rest: str) -> list[str]:
    """A text in lines, words whole; `head` begins the first line, `rest` the others."""
    wrapper = textwrap.TextWrapper(width, head, rest, break_long_words=False, break_on_hyphens=False)
    return wrapper.wrap(text)


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:>10,.1f}"


def short_number(value: float) -> str:
    """1.2 M."""
    for unit, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:.3g} {letter}"
    return f"{value:.3g}"


def rate_of(value: float, unit: str) -> str:
    """4.26 TB/s."""
    number = short_number(value)
    return f"{number}{unit}" if number[-1].isalpha() else f"{number} {unit}"


def size_of(count: int) -> str:
    """12 MiB."""
    for unit, letter in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return f"{count / unit:.3g} {letter}"
    return f"{count} B"
