"""The checks are checked: mistakes planted in passes, kernels and guards, each of which the soak has to find within a minute.

    python -m tests.soak.plants [NAME ...]

A program counts only if it is right without the mistake.
"""

from __future__ import annotations

import dataclasses
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("INTARSIA_CACHE", "0")

import torch

from intarsia.frontend.guards import guards
from intarsia.ir import scalars
from intarsia.ir.dialects import prim
from intarsia.ir.symbols import dim
from intarsia.passes.analysis import aliases, indexing
from intarsia.passes.graph import cse
from intarsia.passes.graph.canonicalize import Canonicalize
from intarsia.passes.layout import layout
from intarsia.passes.memory import plan_buffers
from intarsia.passes.memory.plan_buffers import PlanBuffers
from intarsia.passes.schedule import emit_loops
from intarsia.targets.build import toolchain as build
from intarsia.targets.cpp import emit

from . import GENERATORS, generate
from .judge import Failure, judge
from .pool import in_child, run_tasks
from .script import Invalid

SECONDS = 60.0  # of processor time of each of CORES cores: how busy the machine is otherwise says nothing
CORES = 2


@dataclasses.dataclass(frozen=True)
class Plant:
    """A mistake, and the generators and the stage that have to find it."""

    make: Callable[[], None]
    generators: Sequence[str] = ("tensors", "operators", "modules")
    stage: str = "interpreter"


def alias_ignored() -> None:
    """plan-buffers takes the memory of a value over while a view of it lives."""
    aliases.Aliases.sharing = lambda self, values, root: 1  # type: ignore[method-assign]
    aliases.shared_operands = lambda op, result: ()


def in_place_everywhere() -> None:
    """A kernel writes over an operand that it reads at other places later."""
    plan_buffers._elementwise_pair = lambda body, source, target: True


def cast_dropped() -> None:
    """cast(cast(x)) -> cast(x), whatever the one in the middle loses."""

    def apply(self: Any, ctx: Any, module: Any, before: Any = Canonicalize.apply) -> None:
        before(self, ctx, module)
        for op in module.walk():
            inner = op.operands[0].owner if isinstance(op, prim.Cast) else None
            if isinstance(inner, prim.Cast):
                op.operands[0] = inner.operands[0]

    Canonicalize.apply = apply  # type: ignore[method-assign]


def wrong_identity() -> None:
    """A maximum starts at 0."""

    def identity(kind: str, dtype: Any, before: Any = scalars.identity) -> Any:
        return type(before(kind, dtype))(0) if kind in ("max", "argmax") else before(kind, dtype)

    emit_loops.identity = identity


def start_forgotten() -> None:
    """A slice begins at 0."""
    indexing._MAPS[prim.Slice] = lambda op, at, ranges: [
        tuple(dim(i * s) for i, s in zip(at, op["steps"], strict=True))
    ]


def stride_off() -> None:
    """What is returned lies in C order, whatever eager's strides are."""

    layout.dense_like = lambda shape, strides: layout.contiguous_strides(shape)  # type: ignore[attr-defined]
    layout.fits_memory = lambda shape, strides: False  # type: ignore[attr-defined]


def write_forgotten() -> None:
    """What a program writes into an argument is not copied back."""

    def apply(self: Any, ctx: Any, module: Any, before: Any = PlanBuffers.apply) -> None:
        for op in module.walk():
            if op.name == "prim.func" and op.get("mutations"):
                op["mutations"] = []
        before(self, ctx, module)

    PlanBuffers.apply = apply  # type: ignore[method-assign]


def attributes_ignored() -> None:
    """cse takes operations for equal that differ in their attributes."""

    def key(op: Any, before: Any = cse._key) -> Any:
        name, operands, _, types = before(op)
        return name, operands, (), types if operands else before(op)

    cse._key = key


def nan_lost() -> None:
    """A maximum prefers the number to NaN, in the C++."""
    emit._SCALAR_TEXT.update(
        {name: "({0} > {1} ? {0} : {1})" for name in emit._SCALAR_TEXT if name.endswith(("max", "relu"))}
    )


def guard_dropped() -> None:
    """Values of numbers, strings and flags that a program read are not asked again."""

    def add(self: Any, kind: str, source: Any, expected: Any = None, before: Any = guards.GuardSet.add) -> None:
        if kind != "equals":
            before(self, kind, source, expected)

    guards.GuardSet.add = add  # type: ignore[method-assign]


def answer_frozen() -> None:
    """What a function said of the state of the process during capture holds for ever."""

    def add(self: Any, kind: str, source: Any, expected: Any = None, before: Any = guards.GuardSet.add) -> None:
        if type(source).__name__ != "Answer":
            before(self, kind, source, expected)

    guards.GuardSet.add = add  # type: ignore[method-assign]


def last_factor_forgotten() -> None:
    """The kernel for products of few rows leaves the last of its factors out where they do not fill a vector."""
    _header("intarsia_rows.h", "for (int64_t k = i; k < inner; ++k) out", "for (int64_t k = i; k + 1 < inner; ++k) out")


def padding_counted() -> None:
    """The kernel for attention counts the keys that only fill its vectors."""
    fill = "for (int64_t j = count; j < padded; ++j) scores[j] = "
    _header("intarsia_attention.h", fill + "-__builtin_inff();", fill + "0.0f;")


def _header(name: str, text: str, instead: str) -> None:
    """Use a copy of our headers in which a text is another."""
    folder = Path(os.environ.get("INTARSIA_CACHE_DIR") or tempfile.mkdtemp(prefix="soak-")) / f"headers-{os.getpid()}"
    shutil.copytree(build.HEADER_DIR, folder)
    path = folder / name
    before = path.read_text()
    assert text in before, f"{name} has changed: {text}"
    path.write_text(before.replace(text, instead))
    build.HEADER_DIR = folder


PLANTS: dict[str, Plant] = {
    "alias_ignored": Plant(alias_ignored),
    "in_place_everywhere": Plant(in_place_everywhere, ("tensors",), "compiled"),
    "cast_dropped": Plant(cast_dropped),
    "wrong_identity": Plant(wrong_identity),
    "start_forgotten": Plant(start_forgotten),
    "stride_off": Plant(stride_off),
    "write_forgotten": Plant(write_forgotten, ("tensors",)),
    "attributes_ignored": Plant(attributes_ignored),
    "nan_lost": Plant(nan_lost, ("tensors",), "compiled"),
    "last_factor_forgotten": Plant(last_factor_forgotten, ("modules",), "compiled"),
    "padding_counted": Plant(padding_counted, ("modules",), "compiled"),
    "guard_dropped": Plant(guard_dropped, ("python",), "graph"),
    "answer_frozen": Plant(answer_frozen, ("python",), "graph"),
}


@dataclasses.dataclass(frozen=True)
class Program:
    """One that is tried."""

    generator: str
    seed: int
    limit: float = 200.0


def _spent() -> float:
    """Seconds of processor time of this process and of the compilers that it ran."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def seek(plant: Plant, seconds: float = SECONDS) -> tuple[str, float, int]:
    """The first program that is wrong with the mistake and right without, the processor time of each core, and how many were tried.

    "" when there is none within `seconds` of CORES cores.
    """
    planted, folder = False, tempfile.mkdtemp(prefix="soak-plants-")
    os.environ["INTARSIA_CACHE_DIR"] = f"{folder}/right"

    def look(program: Program) -> tuple[str, float]:
        nonlocal planted
        start = _spent()
        if not planted:
            torch.set_num_threads(1)
            os.environ["INTARSIA_CACHE_DIR"] = (
                f"{folder}/wrong"  # what was compiled with the mistake is not used without
            )
            plant.make()
            planted = True
        try:
            text = generate(program.generator, program.seed)
        except Invalid:
            return "", _spent() - start
        return text if isinstance(judge(text, plant.stage), Failure) else "", _spent() - start

    try:
        return _first(plant, look, seconds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _first(plant: Plant, look: Callable[[Program], tuple[str, float]], seconds: float) -> tuple[str, float, int]:
    programs = (Program(name, seed) for seed in range(10**9) for name in plant.generators)
    spent, count = 0.0, 0
    for program, answer in run_tasks(programs, look, CORES, time.monotonic() + 20 * seconds):
        if answer[0] == "crash":
            text, cost = generate(program.generator, program.seed), 0.0
        else:
            text, cost = answer if isinstance(answer[1], float) else ("", 0.0)
        spent, count = spent + cost, count + 1
        if text and in_child(lambda text=text: str(judge(text, plant.stage)), 300) == "ok":
            return text, spent / CORES, count
        if spent > seconds * CORES:
            break
    return "", spent / CORES, count


def main() -> int:
    torch.set_num_threads(1)
    build.OPTIMIZE = ("-O1", *build.OPTIMIZE[1:])
    for name in GENERATORS:
        generate(name, 0)  # what it imports is there before the processes are
    missed = 0
    for name in sys.argv[1:] or PLANTS:
        found, seconds, count = seek(PLANTS[name])
        missed += not found
        print(f"{name:22} {'found' if found else 'MISSED'} after {seconds:.0f} s, {count} programs", flush=True)
    return missed


if __name__ == "__main__":
    sys.exit(main())
