"""CPython's own tests of the language under capture: `python benchmarks/language.py [--only NAMES] [--most N | --sample N] [--seed N] [--save PATH]`.

Each test function of the running interpreter's `test` package is called inside a compiled function, with tensors around it (`x + 1` before, `* 2`
behind). `--most` takes so many tests of each module, `--sample` draws from all of them alike: a module comes as often as it has tests. A row says of a module how many tests eager passes, how many of these are captured without a break, how many do the same as in eager, how
many break first at what speaks of the interpreter itself (`of_interpreter`: tracing, its call stack, its collector, finalizers, other processes), and
how many end in an error of the process or take too long. Behind the table stand the reasons of breaks, by how many tests have them. A module is a
process of its own, and a new one goes on where one ends. Modules or tests that the installation lacks, and tests that eager skips, are named.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import importlib
import io
import json
import logging
import platform
import random
import signal
import subprocess
import sys
import unittest
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

MODULES = """
generators contextlib dict set list tuple functools itertools dataclasses enum descr property iter unpack collections operator string
fstring exceptions with scope math int float bool range slice class super decorators compare call extcall keywordonlyarg grammar patma
listcomps dictviews deque heapq bisect copy augassign binop long richcmp enumerate sort userdict userlist defaultdict ordered_dict
""".split()  # noqa: SIM905
# First reasons of breaks at what is no computation: the interpreter's own tracing, call stack, collector, what it runs when it drops an object, processes.
INTERPRETER = (
    *(
        f"a C function that capture does not know is called: {name}"
        for name in ("sys.settrace", "sys.setprofile", "sys._getframe", "sys.getrefcount", "gc.")
    ),
    *(
        "another process is started",
        "the call stack is inspected",
        "a generator is dropped half-way",
        "sys.getrefcount",
    ),
)
FINALIZER = ", whose finalizer runs when CPython drops it"
SECONDS = 20  # of the processor's, for one test, eager or captured
STOPS = 3  # processes that a module may lose


class TooLong(BaseException):
    """A test takes longer than SECONDS."""


class Told:
    """What the runtime reports of one test."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def on_break(self, broken: Any) -> None:
        """The graph broke."""
        self.reasons.append(broken.reason)

    def on_fallback(self, file: str, line: int, text: str, reason: str) -> None:
        """A call runs in eager."""
        self.reasons.append(reason)


def tests_of(module: Any) -> list[unittest.TestCase]:
    """The test functions of a module, in order; doctests are none."""
    found: list[unittest.TestCase] = []

    def walk(suite: Any) -> None:
        for item in suite:
            if isinstance(item, unittest.TestSuite):
                walk(item)
            elif hasattr(item, "_testMethodName") and type(item).__module__ == module.__name__:
                found.append(item)

    loader = unittest.TestLoader()
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, unittest.TestCase):
            walk(loader.loadTestsFromTestCase(value))
    return list({test.id(): test for test in found}.values())


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """TooLong after SECONDS of the processor's; what is printed is dropped."""

    def stop(*_: Any) -> None:
        raise TooLong

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def outcome(test: unittest.TestCase, compile: Any) -> str:
    """What a test comes to: "passes", "skipped", or what it raises; a wrong tensor behind it is "another result"."""

    def around(x: torch.Tensor, body: Any) -> torch.Tensor:
        y = x + 1
        body()
        return y * 2

    x = torch.arange(4.0)
    try:
        with limited():
            test.setUp()
            try:
                made = compile(around)(x, getattr(test, test._testMethodName))
            finally:
                test.tearDown()
                test.doCleanups()
    except unittest.SkipTest:
        return "skipped"
    except BaseException as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
    return "passes" if torch.equal(made, (x + 1) * 2) else "another result"


def as_it_is(gm: torch.fx.GraphModule, _: Any) -> Any:
    """A backend that runs the graph as it is."""
    return gm.forward


as_it_is.takes_floats = as_it_is.takes_gradients = True  # type: ignore[attr-defined]  # as Intarsia's own


def draw(names: list[str], count: int, seed: int) -> dict[str, list[str]]:
    """`count` tests of all those of some modules, each as likely as any other, by module; what cannot be imported has none."""
    every: list[str] = []
    for name in names:
        with contextlib.suppress(ImportError, unittest.SkipTest):
            every += [test.id() for test in tests_of(importlib.import_module(f"test.test_{name}"))]
    drawn: dict[str, list[str]] = {}
    for one in random.Random(seed).sample(every, min(count, len(every))):
        drawn.setdefault(one.split(".")[1].removeprefix("test_"), []).append(one)
    return drawn


def run_module(name: str, most: int, seed: int, first: int, only: str = "") -> None:
    """Print one line of JSON for each test from the place `first` on; of `only`, separated by commas, if any are named."""
    from intarsia.frontend.runtime.callable import compile_callable

    logging.disable(logging.CRITICAL)
    sys.setrecursionlimit(2000)
    module = importlib.import_module(f"test.test_{name}")
    tests = tests_of(module)
    chosen = tests if len(tests) <= most else random.Random(seed).sample(tests, most)
    if only:
        there = {test.id(): test for test in tests}
        chosen = [there[one] for one in only.split(",")]
    print(json.dumps({"all": len(tests), "chosen": len(chosen)}), flush=True)
    getattr(module, "setUpModule", lambda: None)()
    classes: set[type] = set()
    for at, test in enumerate(chosen):
        if at < first:
            continue
        print(json.dumps({"at": at, "test": test.id()}), flush=True)
        if type(test) not in classes:
            classes.add(type(test))
            type(test).setUpClass()
        skipped = getattr(getattr(test, test._testMethodName), "__unittest_skip__", False)
        eager = "skipped" if skipped else outcome(test, lambda f: f)
        told, ours = Told(), ""
        if eager == "passes":
            compiled = functools.partial(compile_callable, backend=as_it_is, observer=told)
            ours = outcome(type(test)(test._testMethodName), compiled)
        print(json.dumps({"test": test.id(), "eager": eager, "ours": ours, "reasons": told.reasons}), flush=True)


def measure(name: str, most: int, seed: int, only: tuple[str, ...] = ()) -> dict[str, Any]:
    """The rows of one module; a process that dies costs the test at which it was."""
    rows: list[dict[str, Any]] = []
    facts: dict[str, Any] = {}
    first = said = ""
    for _ in range(STOPS):
        command = [sys.executable, __file__, "--worker", name, "--most", str(most), "--seed", str(seed)]
        command += ["--first", first or "0", "--tests", ",".join(only)]
        done = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            text, errors = done.communicate(timeout=5 * SECONDS + min(len(only) or most, 500) * 2)
        except subprocess.TimeoutExpired:
            done.kill()
            text, errors = done.communicate()
        lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        facts |= next((line for line in lines if "all" in line), {})
        rows += [line for line in lines if "eager" in line]
        at = [line for line in lines if "at" in line]
        if done.returncode == 0:
            break
        said = (errors.strip().splitlines() or ["no word"])[-1][:200]
        if not at:
            return {"module": name, "missing": said}
        if rows and rows[-1]["test"] == at[-1]["test"]:
            break
        rows.append({"test": at[-1]["test"], "eager": "passes", "ours": f"the process ends: {said}", "reasons": []})
        first = str(at[-1]["at"] + 1)
    return {"module": name, **facts, "rows": rows}


def of_interpreter(row: dict[str, Any]) -> bool:
    """Whether the first break of a test is at what speaks of the interpreter itself; a test that comes out otherwise than in eager never is."""
    first = row["reasons"][0].split("\n")[0] if row["reasons"] else ""
    return row["ours"] == "passes" and (first.startswith(INTERPRETER) or first.endswith(FINALIZER))


def counts(found: dict[str, Any]) -> dict[str, int]:
    """The numbers of a module's row."""
    rows = [row for row in found["rows"] if row["eager"] == "passes"]
    ended = [row for row in rows if row["ours"].startswith(("the process ends", "TooLong"))]
    return {
        "tests": found["all"],
        "run": len(found["rows"]),
        "eager passes": len(rows),
        "no break": sum(row["ours"] == "passes" and not row["reasons"] for row in rows),
        "interpreter": sum(map(of_interpreter, rows)),
        "right": sum(row["ours"] == "passes" for row in rows),
        "error": len(ended),
    }


def table(all_found: list[dict[str, Any]]) -> str:
    """The table, the reasons, what is wrong, and what is missing."""
    heads = ("tests", "run", "eager passes", "no break", "interpreter", "right", "error")
    lines = [f"| module | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    total: collections.Counter[str] = collections.Counter()
    for found in all_found:
        if "missing" in found:
            continue
        numbers = counts(found)
        total.update(numbers)
        lines.append(f"| {found['module']} | {' | '.join(str(numbers[h]) for h in heads)} |")
    lines.append(f"| **all** | {' | '.join(str(total[h]) for h in heads)} |")
    share = 100 / max(1, total["eager passes"])
    lines += ["", f"Without a break: {total['no break'] * share:.1f} %. Right: {total['right'] * share:.1f} %.", ""]
    others = max(1, total["eager passes"] - total["interpreter"])
    lines += [
        f"Without the {total['interpreter']} that speak of the interpreter itself: {total['no break'] * 100 / others:.1f} %.",
        "",
    ]
    reasons: collections.Counter[str] = collections.Counter()
    for found in all_found:
        for row in found.get("rows", []):
            mark = " (interpreter)" if of_interpreter(row) else ""
            reasons.update({reason.split("\n")[0][:110] + mark for reason in row["reasons"][:1]})
    lines += ["First reasons of breaks, by tests:", "", *(f"- {n}: {reason}" for reason, n in reasons.most_common(30))]
    wrong = [row for found in all_found for row in found.get("rows", []) if row["ours"] not in ("", "passes")]
    lines += ["", "Not as in eager:", "", *(f"- {row['test']}: {row['ours']}" for row in wrong)]
    missing = [f"{found['module']} ({found['missing']})" for found in all_found if "missing" in found]
    return "\n".join([*lines, "", *([f"Not there: {', '.join(missing)}"] if missing else [])])


def report(found: list[dict[str, Any]]) -> str:
    """The versions and the table."""
    there = sorted(found, key=lambda one: one["module"])
    return f"Python {platform.python_version()}, torch {torch.__version__}\n\n{table(there)}"


def main() -> None:
    """The table on the terminal, and in a file if one is named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="modules, without 'test_', separated by commas")
    parser.add_argument("--most", type=int, default=10_000, help="tests of one module, chosen at random if it has more")
    parser.add_argument("--sample", type=int, default=0, help="tests drawn from those of all modules together")
    parser.add_argument("--seed", type=int, default=0, help="which ones are chosen")
    parser.add_argument("--side-by-side", type=int, default=1, help="modules at a time")
    parser.add_argument("--save", type=Path)
    parser.add_argument("--worker", default="")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--tests", default="")
    options = parser.parse_args()
    if options.worker:
        run_module(options.worker, options.most, options.seed, options.first, options.tests)
        return
    found: list[dict[str, Any]] = []
    names = [n for n in options.only.split(",") if n] or MODULES
    drawn = draw(names, options.sample, options.seed) if options.sample else dict.fromkeys(names, [])

    def one(name: str) -> None:
        found.append(measure(name, options.most, options.seed, tuple(drawn[name])))
        print(name, found[-1].get("missing") or counts(found[-1]), file=sys.stderr, flush=True)

    with ThreadPoolExecutor(options.side_by_side) as pool:
        for _ in pool.map(one, drawn):
            if options.save:
                options.save.write_text(report(found) + "\n")
    print(report(found))


if __name__ == "__main__":
    main()
