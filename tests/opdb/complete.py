"""All of torch's operator database against eager: every sample, also with gaps in memory, in six dtypes, forward and gradients.

    python -m tests.opdb.complete [--stage compiled|interpreter] [--only NAME] [--dtypes float32,...] [--first N] [--part K/N] [--jobs 2] [--seconds S]

The samples of an operator in one dtype are one function; where that is wrong or raises, its halves are tried, down to one sample. Prints a
line for each wrong sample, and what became of all.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("INTARSIA_RANDOM", "eager")

import torch
import torch.utils._pytree as pytree

import intarsia
from intarsia.targets.build import toolchain as build
from intarsia.testing import same
from tests.soak.judge import STAGES, listening, staged
from tests.soak.pool import run_tasks

from .database import common_methods_invocations, op_db
from .harness import UNDEFINED, _call, matches, name_of

DTYPES = ("float32", "float64", "bfloat16", "int64", "bool", "complex64")
GROUP = 16  # samples of one function


@dataclass(frozen=True)
class Task:
    """An operator in a dtype."""

    number: int
    dtype: str
    stage: str
    device: str
    limit: float = 400.0

    @property
    def name(self) -> str:
        return f"{name_of(op_db[self.number])}@{self.dtype}"


@dataclass(frozen=True)
class Call:
    """One sample: the arguments, and whether its gradients are asked for."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    gradients: bool
    label: str


def calls_of(info: Any, dtype: torch.dtype, device: str) -> list[Call]:
    """All samples, as they come and with gaps in memory, for the results and (where there are any) for gradients."""
    types = info.dtypes if device == "cpu" else info.dtypesIfCUDA
    if dtype not in types or name_of(info) in UNDEFINED:
        return []
    found = []
    backward = info.supports_autograd and dtype in info.supported_backward_dtypes(device)
    for gradients in (False, True)[: 1 + backward]:
        for number, sample in enumerate(info.sample_inputs(device, dtype, requires_grad=gradients)):
            for gaps in (False, True):
                try:
                    taken = sample.noncontiguous() if gaps else sample
                except Exception:
                    continue
                word = f"sample {number}{' with gaps' if gaps else ''}{', gradients' if gradients else ''}"
                found.append(Call((taken.input, *taken.args), dict(taken.kwargs), gradients, word))
    return found


def copies(value: Any, dtype: torch.dtype | None = None) -> Any:
    """Copies of all tensors with their strides; in another dtype where one is given."""

    def copy(x: Any) -> Any:
        if isinstance(x, torch.dtype):
            return {torch.float32: torch.float64, torch.bfloat16: torch.float64}.get(x, x) if dtype is not None else x
        if not isinstance(x, torch.Tensor) or x.layout != torch.strided:
            return x.detach().clone().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x
        kind = x.dtype
        if dtype is not None and (x.is_floating_point() or x.is_complex()):
            kind = torch.complex128 if x.is_complex() else dtype
        with torch.no_grad():
            plain = x.detach().resolve_conj().resolve_neg()
            count = plain.untyped_storage().nbytes() // plain.element_size()
            memory = plain.as_strided((count,), (1,), 0).to(kind, copy=True)  # also what lies between the elements
            made = memory.as_strided(plain.shape, plain.stride(), plain.storage_offset())
        return made.requires_grad_(x.requires_grad)

    return pytree.tree_map(copy, value)


def run(program: Any, calls: list[Call], dtype: torch.dtype | None = None) -> tuple[Any, Any]:
    """What the calls give, and the gradients of all they give, weighted at random."""
    given = copies([(c.args, c.kwargs) for c in calls], dtype)
    torch.manual_seed(0)
    gradients = calls[0].gradients
    with torch.set_grad_enabled(gradients):
        results = program(given)
    if not gradients:
        return results, []
    outputs = [
        t for t in pytree.tree_leaves(results) if isinstance(t, torch.Tensor) and t.requires_grad and not t.is_sparse
    ]
    inputs = [t for t in pytree.tree_leaves(given) if isinstance(t, torch.Tensor) and t.requires_grad]
    if not outputs or not inputs:
        return pytree.tree_map(_detached, results), []
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t.device, t.dtype) for t in outputs]
    found = torch.autograd.grad(outputs, inputs, weights, allow_unused=True)
    return pytree.tree_map(_detached, results), [None if g is None else g.to_dense().contiguous() for g in found]


def _is_strided(value: Any) -> bool:
    return not isinstance(value, torch.Tensor) or value.layout is torch.strided


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


class Judge:
    """Judges the calls of one operator."""

    def __init__(self, task: Task) -> None:
        self.task, self.op = task, op_db[task.number].op
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []

    def program(self, given: Any) -> Any:
        return [self.op(*args, **kwargs) for args, kwargs in given]

    def all(self) -> None:
        info, dtype = op_db[self.task.number], getattr(torch, self.task.dtype)
        calls = [c for c in calls_of(info, dtype, self.task.device) if self.dense(c) and self.sound(c)]
        for gradients in (False, True):
            chosen = [c for c in calls if c.gradients == gradients]
            for start in range(0, len(chosen), GROUP):
                self.group(chosen[start : start + GROUP])

    def dense(self, call: Call) -> bool:
        """Whether all tensors are strided ones; graphs have no others, which break them visibly."""
        ok = all(map(_is_strided, pytree.tree_leaves((call.args, call.kwargs))))
        self.counts["not dense"] += not ok
        return ok

    def sound(self, call: Call) -> bool:
        """Whether eager runs it, gives the same again, and strided tensors."""
        try:
            first = run(self.program, [call])
            if not all(map(_is_strided, pytree.tree_leaves(first))):
                self.counts["not dense"] += 1
                return False
            ok = not self.differs(first, run(self.program, [call]))
        except Exception:
            ok = False
        self.counts["skip"] += not ok
        return ok

    def differs(self, want: Any, have: Any) -> str:
        difference = matches(want[0], have[0])
        if difference:
            return f"result: {difference}"
        for k, (x, y) in enumerate(zip(want[1], have[1], strict=True)):
            if (x is None) != (y is None):
                return f"gradient {k}: {'none' if y is None else 'one'} instead of {'none' if x is None else 'one'}"
            difference = "" if x is None else matches(x, y)
            if difference:
                return f"gradient {k}: {difference}"
        return ""

    def group(self, calls: list[Call]) -> None:
        """Judge these calls in one function, then its halves where that is wrong."""
        intarsia.reset()
        with staged(self.task.stage) as compiled, listening() as said:
            try:
                want = run(self.program, calls)
                found = run(compiled(self.program), calls)
                difference = self.differs(want, found)
                if difference:
                    gold = self.gold(calls)
                    verdict = same(want, found, gold, tol=None)
                    difference = "" if verdict.ok else f"{difference} | {' '.join(verdict.message.split())}"
            except Exception as error:
                difference = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        ours = [text for text in said if "an error inside intarsia" in text]
        difference = difference or (" ".join(ours[0].split())[:300] if ours else "")
        counters = intarsia.counters()
        if not difference:
            self.counts["pass"] += len(calls)
            self.counts["in eager"] += len(calls) if counters["breaks"] or counters["fallbacks"] else 0
        elif len(calls) > 1:
            half = len(calls) // 2
            self.group(calls[:half])
            self.group(calls[half:])
        else:
            self.counts["wrong"] += 1
            self.wrong.append(f"{self.task.name} {calls[0].label}: {difference[:500]}")

    def gold(self, calls: list[Call]) -> Any:
        try:
            return run(self.program, calls, torch.float64)
        except Exception:
            return None


def work(task: Task) -> tuple[Counter[str], list[str]]:
    """Judge one operator in one dtype."""
    torch.set_num_threads(1)
    judge = Judge(task)
    with mock.patch.object(common_methods_invocations, "wrapper_set_seed", _call), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            judge.all()
        except Exception as error:
            judge.counts["no samples"] += 1
            judge.wrong += [f"{task.name}: {type(error).__name__}: {str(error)[:200]}"] if judge.counts["pass"] else []
    return judge.counts, judge.wrong


def tasks(options: argparse.Namespace) -> Iterator[Task]:
    k, n = map(int, options.part.split("/"))
    for number, info in list(enumerate(op_db))[options.first :][k::n]:
        if options.only and name_of(info) not in options.only and info.name not in options.only:
            continue
        for dtype in options.dtypes.split(","):
            if getattr(torch, dtype) in (info.dtypes if options.device == "cpu" else info.dtypesIfCUDA):
                yield Task(number, dtype, options.stage, options.device)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append")
    parser.add_argument("--stage", choices=STAGES, default="compiled")
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--first", type=int, default=0, help="the number of the first operator")
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    build.OPTIMIZE = ("-O1", *build.OPTIMIZE[1:])
    start, totals, operators, bad = time.monotonic(), Counter[str](), 0, 0
    with tempfile.TemporaryDirectory() as cache:
        os.environ["INTARSIA_CACHE_DIR"] = cache
        for task, answer in run_tasks(tasks(options), work, options.jobs, start + options.seconds):
            operators += 1
            if isinstance(answer[0], str):  # a crash, a hang
                answer = Counter(wrong=1), [f"{task.name}: {answer[0]} {answer[1]}"]
            totals.update(answer[0])
            bad += len(answer[1])
            for line in answer[1]:
                print(f"wrong  {line}", flush=True)
    print(f"{operators} operators and dtypes, calls: {dict(totals)}, {time.monotonic() - start:.0f} s")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
