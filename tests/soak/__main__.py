"""Random programs, compiled and in eager, for some seconds: what differs is made small and told with its class.

    python -m tests.soak [--seconds 600] [--only tensors,modules,...] [--stage graph|interpreter|compiled] [--first SEED] [--count N]
    python -m tests.soak --run FILE [--stage ...]        # judge one script
    python -m tests.soak --show tensors:17               # print a program; of `passes`, a module

Failures are written as scripts under build/soak, which run by themselves: `python build/soak/tensors-17.py`.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("INTARSIA_RANDOM", "eager")

import torch

from intarsia.targets.build import toolchain as build

from . import GENERATORS, generate, passes, plants, script
from .judge import STAGES, Failure, judge
from .pool import in_child, run_tasks
from .script import Invalid
from .shrink import shrink

LIMIT = 40.0  # seconds for one program
SMALLER = 3  # failures of one signature that are made small
KEPT = 30  # that are written down


@dataclass(frozen=True)
class Task:
    """A program to judge; with `signature`, one that failed so, to be made small within `seconds`."""

    generator: str
    seed: int
    stage: str
    device: str = "cpu"
    signature: str = ""
    seconds: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.generator}:{self.seed}"

    @property
    def limit(self) -> float:
        """Seconds after which it counts as hung."""
        return LIMIT + (self.seconds * 2 if self.signature else 0)


@dataclass
class Tally:
    """What became of the programs of one generator at one stage."""

    kinds: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


def work(task: Task) -> tuple[str, str, str, float]:
    """(kind, detail, signature, seconds) of one program; ("small", script, details, seconds) of one to make small."""
    start = time.perf_counter()
    if task.signature:
        text, detail = smaller(task)
        return "small", text, detail, time.perf_counter() - start
    if task.generator == "passes":
        wrong = passes.failure(task.seed)
        return ("pass" if wrong else "ok"), wrong, wrong and "pass", time.perf_counter() - start
    try:
        text = text_of(task)
        if task.device != "cpu" and any(s.error for s in script.run(generate(task.generator, task.seed), None)):
            raise Invalid("an index out of range would end the process")
    except Invalid:
        return "invalid", "", "", time.perf_counter() - start
    found = judge(text, task.stage)
    if "Cannot re-initialize CUDA" in str(found):  # no program is at fault
        raise RuntimeError(found)
    spent = time.perf_counter() - start
    if isinstance(found, Failure):
        return found.kind, found.place + found.detail, found.signature, spent
    if task.device != "cpu" and "CUDA error" in found:
        os._exit(1)  # nothing works in this process any more
    return found.split(":")[0], found, "", spent


def on_device(text: str, device: str) -> str:
    """The same program with its tensors on another device."""
    if device == "cpu":
        return text
    text = text.replace("import intarsia\n", f"import intarsia\ntorch.set_default_device('{device}')\n", 1)
    return text.replace("autocast('cpu'", f"autocast('{device}'")


def text_of(task: Task) -> str:
    """The program's text."""
    return on_device(generate(task.generator, task.seed), task.device)


def eagerly(task: Task) -> str:
    """Whether eager comes to an end with a program; on a CPU, where a process may be forked."""
    script.run(generate(task.generator, task.seed), None)
    return "ran"


def smaller(task: Task) -> tuple[str, str]:
    """A small script with the same failure, and its details; "" where the failure does not come again in a process of its own."""
    text = text_of(task)

    def verdict(candidate: str) -> tuple[str, str]:
        apart = task.device == "cpu"  # CUDA does not live through a fork
        found = in_child(lambda: judge(candidate, task.stage), LIMIT) if apart else judge(candidate, task.stage)
        if isinstance(found, Failure):
            return found.signature, found.place + found.detail
        if isinstance(found, tuple):
            return Failure(*map(str, found)).signature if found[0] == "crash" else str(found[0]), str(found[1])
        return str(found), ""

    if verdict(text)[0] != task.signature:
        return text, ""
    made = shrink(text, lambda candidate: verdict(candidate)[0] == task.signature, task.seconds)
    return made, verdict(made)[1] or "?"


STAGE_OF = {"python": "graph"}


class Soak:
    """One run: what to do next, and what was found."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.names = options.only.split(",") if options.only else list(GENERATORS)
        self.tallies: dict[tuple[str, str], Tally] = defaultdict(Tally)
        self.failures: dict[str, list[tuple[Task, str]]] = defaultdict(list)
        self.waiting: deque[Task] = deque()  # to be made small
        self.folder = Path(options.out)

    def programs(self) -> Iterator[Task]:
        """Failures that wait to be made small, else the next program."""
        first, count = self.options.first, self.options.count
        for seed in range(first, first + count if count else 10**9):
            for name in self.names:
                while self.waiting:
                    yield self.waiting.popleft()
                yield Task(name, seed, self.options.stage or STAGE_OF.get(name, "compiled"), self.options.device)

    def left(self) -> Iterator[Task]:
        while self.waiting:
            yield self.waiting.popleft()

    def run(self) -> int:
        """Run, and print what was found."""
        start, options = time.monotonic(), self.options
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in self.names if options.device == "cpu" else ():  # what it imports is there before the processes are
            if name != "passes":
                generate(name, 0)  # (torch's database of operators starts CUDA, which must not be there before a fork)
        with tempfile.TemporaryDirectory() as cache:
            os.environ["INTARSIA_CACHE_DIR"] = cache
            for task, answer in run_tasks(self.programs(), work, options.jobs, start + options.seconds):
                self.take(task, answer)
                assert not torch.cuda.is_initialized(), f"CUDA was started here at {task.name}: no fork can use it"
                if options.until_found and self.failures:
                    break
            spent = time.monotonic() - start
            for task, answer in run_tasks(self.left(), work, options.jobs, time.monotonic() + 4 * options.shrink):
                self.take(task, answer)
        report(self.tallies, self.failures, spent)
        return 1 if self.failures else 0

    def take(self, task: Task, answer: tuple[Any, ...]) -> None:
        """Count one answer, and write a failure down."""
        kind, detail, signature, spent = answer if len(answer) == 4 else (answer[0], str(answer[1]), "", task.limit)
        if task.signature:
            if kind == "small":
                self.write(task, detail, signature or "not again in a process of its own", "small")
            return
        if kind in ("crash", "hang") and in_child(lambda: eagerly(task), LIMIT) != "ran":
            kind = "invalid"
        tally = self.tallies[task.generator, task.stage]
        tally.kinds[kind] += 1
        tally.seconds += spent
        if kind in ("ok", "invalid", "undecided", "declined"):
            return
        signature = signature or (Failure(kind, detail).signature if kind == "crash" else kind)
        self.failures[signature].append((task, detail))
        if task.generator == "passes":
            print(f"{task.name}: {detail}", flush=True)
            return
        if len(self.failures[signature]) <= KEPT:
            # In a child: a generator may start CUDA, which no fork of this process would live through.
            text = in_child(lambda: text_of(task), LIMIT)
            self.write(task, text if isinstance(text, str) else f"# its text cannot be made: {text}\n", detail, kind)
        if len(self.failures[signature]) <= SMALLER and not self.options.fast:
            self.waiting.append(replace(task, signature=signature, seconds=self.options.shrink))

    def write(self, task: Task, text: str, detail: str, kind: str) -> None:
        """The script, with what is wrong as a comment."""
        path = self.folder / f"{task.generator}-{task.seed}.py"
        notes = "".join(f"# {line}\n" for line in f"{task.name}, {task.stage}: {detail}".splitlines())
        path.write_text(notes + text)
        print(f"{kind:14} {task.name} {task.stage}  {path}\n    {detail[:300]}", flush=True)


def report(tallies: dict[tuple[str, str], Tally], failures: dict[str, list[tuple[Task, str]]], seconds: float) -> None:
    """The table."""
    print(
        f"\n{'generator':12} {'stage':12} {'programs':>8} {'ok':>7} {'undecided':>9} {'invalid':>7} {'declined':>8} {'wrong':>6} {'ms each':>8}"
    )
    total = 0
    for (generator, stage), tally in sorted(tallies.items()):
        kinds = tally.kinds
        count = sum(kinds.values())
        total += count - kinds["invalid"]
        good = [kinds[k] for k in ("ok", "undecided", "invalid", "declined")]
        print(
            f"{generator:12} {stage:12} {count:8} {good[0]:7} {good[1]:9} {good[2]:7} {good[3]:8} {count - sum(good):6} {1000 * tally.seconds / max(count, 1):8.0f}"
        )
    print(f"{total} programs in {seconds:.0f} s")
    for signature, found in sorted(failures.items(), key=lambda item: -len(item[1])):
        print(f"{len(found):5} {signature}: {', '.join(t.name for t, _ in found[:8])}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--only", default="", help=f"of {', '.join(GENERATORS)}, passes")
    parser.add_argument("--stage", choices=STAGES, default="")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", default="build/soak")
    parser.add_argument("--shrink", type=float, default=60, help="seconds to make one failure small")
    parser.add_argument("--level", default="-O1", help="of the C++ compiler")
    parser.add_argument("--fast", action="store_true", help="report failures as they are")
    parser.add_argument("--plant", default="", help="a mistake to plant: see plants.py")
    parser.add_argument("--until-found", action="store_true", help="stop at the first failure")
    parser.add_argument("--run", default="")
    parser.add_argument("--show", default="")
    options = parser.parse_args()
    torch.set_num_threads(1)
    build.OPTIMIZE = (options.level, *build.OPTIMIZE[1:])
    if options.plant:
        plants.PLANTS[options.plant].make()
    if options.show:
        name, seed = options.show.split(":")
        print(text_of(Task(name, int(seed), "", options.device)))
        return 0
    if options.run:
        found = judge(Path(options.run).read_text(), options.stage or "compiled")
        print(found)
        return int(isinstance(found, Failure))
    return Soak(options).run()


if __name__ == "__main__":
    sys.exit(main())
