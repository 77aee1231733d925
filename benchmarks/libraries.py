"""Programs of real libraries: graphs and breaks beside torch.compile's: `python benchmarks/libraries.py [--only NAMES]`.

Each program is what a user of the library writes: a module or a function, and a few calls with other values and other sizes. It runs in
eager, under Intarsia and under torch.compile, each with a module built from the same seed; both compile with a backend that runs the
graph as it is. Where results need gradients, their sum goes backward. A row says how many graphs and breaks each makes over all calls,
and whether results, gradients and buffers are eager's. Programs of libraries that are not installed are skipped.
With `--save PATH` the rows are written as JSON.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import logging
import platform
import random
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

sys.path.insert(0, str(Path(__file__).parent))

import fallen_programs
import library_programs
from library_programs import Program


class Graphs:
    """A backend that counts the graphs it is given, and runs them as they are; an observer that counts breaks and calls in eager."""

    def __init__(self, compiler: Callable[..., Any] | None = None) -> None:
        self.compiler = compiler
        self.count = self.first = self.breaks = self.fallbacks = 0
        self.reasons: dict[str, int] = {}  # and how often each
        self.takes_floats = self.takes_gradients = True  # as our own compiler does

    def __call__(self, gm: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        self.count += 1
        return gm.forward if self.compiler is None else self.compiler(gm, example_inputs)

    def on_break(self, broken: Any) -> None:
        """A graph ends."""
        self.breaks += 1
        self._note(broken.place.filename, broken.place.lineno, broken.place.text, broken.reason)

    def on_fallback(self, file: str, line: int, text: str, reason: str) -> None:
        """A call runs in eager."""
        self.fallbacks += 1
        self._note(file, line, text, f"in eager: {reason}")

    def _note(self, file: str, line: int, text: str, reason: str) -> None:
        """Why, and where in the library."""
        said = f"{file.rpartition('site-packages/')[2]}:{line}: {text.strip()}: {reason}"
        self.reasons[said] = self.reasons.get(said, 0) + 1

    def on_capture(self, seconds: float, capture: Any) -> None:
        """Not counted: a capture may have no graph."""

    def on_recompile(self, reason: str) -> None:
        """Seen by the graphs."""


def run(program: Program, compiler: Callable[[Any], Any], graphs: Graphs | None = None) -> list[Any]:
    """What a user can see of the calls: results, gradients and buffers after each; an exception's type where one comes."""
    seed(0)
    function, calls = program.build()
    modules = [function] if isinstance(function, nn.Module) else list(program.modules(function))
    fast = compiler(function)
    seen: list[Any] = []
    for number, args in enumerate(calls):
        if graphs is not None and number == 1:
            graphs.first = graphs.count
        seed(number)
        try:
            found = fast(*args)
        except Exception as error:
            seen.append(f"{type(error).__name__}: {error}")
            continue
        results = [t for t in pytree.tree_leaves(found) if isinstance(t, Tensor)]
        wanted = [t for t in results if t.requires_grad]
        if wanted:
            sum(t.double().abs().sum() if t.is_complex() else t.double().sum() for t in wanted).backward()
        rest = [x for x in pytree.tree_leaves(found) if isinstance(x, (int, float, str, bool))]
        leaves = [t for t in pytree.tree_leaves(args) if isinstance(t, Tensor) and t.requires_grad]
        leaves += [p for m in modules for p in m.parameters()]
        seen.append(
            [
                [t.detach().clone() for t in results],
                rest,
                [None if p.grad is None else p.grad.clone() for p in leaves],  # sparse ones, too
                [b.detach().clone() for m in modules for b in state_of(m)],
            ]
        )
        for leaf in leaves:
            leaf.grad = None
    return seen


def state_of(module: nn.Module) -> list[Tensor]:
    """Its buffers and parameters; a tensor of a library's class may not be comparable, and only results show what it holds."""
    return [t for t in (*module.buffers(), *module.parameters()) if type(t) in (Tensor, nn.Parameter)]


def seed(number: int) -> None:
    """Set the random state of all that libraries draw from."""
    torch.manual_seed(number)
    random.seed(number)
    numpy.random.seed(number)


def agrees(found: Any, expected: Any) -> bool:
    """Whether two values are equal but for rounding."""
    if isinstance(expected, Tensor):
        return (
            isinstance(found, Tensor)
            and found.shape == expected.shape
            and found.dtype == expected.dtype
            and found.layout == expected.layout
            and torch.allclose(found.to_dense(), expected.to_dense(), equal_nan=True, rtol=1e-3, atol=1e-4)
        )
    if isinstance(expected, float) and isinstance(found, float):
        return abs(found - expected) <= 1e-3 * max(1.0, abs(expected)) or found != found and expected != expected
    if isinstance(expected, list):
        return isinstance(found, list) and len(found) == len(expected) and all(map(agrees, found, expected))
    return bool(found == expected)


def measure(program: Program, compiler: bool = False) -> dict[str, Any]:
    """One row. With `compiler` our graphs go through it; else they run as they are."""
    from intarsia.config import Config
    from intarsia.frontend.runtime.callable import compile_callable
    from intarsia.graph_compiler import backend_for

    expected = run(program, lambda f: f)
    ours, theirs = Graphs(backend_for(Config(), ()) if compiler else None), Graphs()
    start = time.perf_counter()
    found = run(program, lambda f: compile_callable(f, backend=ours, observer=ours), ours)
    our_seconds = time.perf_counter() - start
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    start = time.perf_counter()
    try:
        traced = run(program, lambda f: torch.compile(f, backend=theirs), theirs)
    except Exception as error:
        traced = [f"{type(error).__name__}: {str(error).splitlines()[0]}"]
    their_seconds = time.perf_counter() - start
    breaks = torch._dynamo.utils.counters["graph_break"]
    return {
        "program": program.name,
        "first": ours.first,
        "graphs": ours.count,
        "breaks": ours.breaks,
        "fallbacks": ours.fallbacks,
        "right": agrees(found, expected),
        "seconds": round(our_seconds, 2),
        "reasons": ours.reasons,
        "torch first": theirs.first,
        "torch graphs": theirs.count,
        "torch breaks": sum(breaks.values()),
        "torch right": agrees(traced, expected),
        "torch seconds": round(their_seconds, 2),
        "errors": [x for x in expected if isinstance(x, str)],
        "our errors": [x for x in found if isinstance(x, str)],
    }


def main() -> int:
    """Run and print; 1 when a result is wrong or a program has more graphs or breaks than torch.compile gives it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", help="names of programs, or beginnings of names")
    parser.add_argument("--reasons", action="store_true", help="print why our graphs break, and how often")
    parser.add_argument("--save", type=Path, help="write the rows as JSON")
    parser.add_argument(
        "--suite", choices=("libraries", "fallen"), default="libraries", help="programs of libraries, or of torch alone"
    )
    parser.add_argument(
        "--compiler", action="store_true", help="our graphs are compiled; torch.compile's always run as they are"
    )
    options = parser.parse_args()
    logging.getLogger("intarsia").setLevel(logging.ERROR)
    logging.getLogger("torch._dynamo").setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore")
    rows = []
    for program in library_programs.PROGRAMS if options.suite == "libraries" else fallen_programs.PROGRAMS:
        if options.only and not program.name.startswith(tuple(options.only)):
            continue
        if not all(importlib.util.find_spec(library) for library in program.libraries):
            print(f"{program.name}: not installed: {', '.join(program.libraries)}", file=sys.stderr)
            continue
        try:
            row = measure(program, options.compiler)
        except Exception as error:
            print(f"{program.name}: {type(error).__name__}: {str(error)[:300]}", file=sys.stderr)
            continue
        rows.append(row)
        verdict = "right" if row["right"] else "WRONG"
        more = row["graphs"] > row["torch graphs"] or row["breaks"] > row["torch breaks"]
        print(
            f"{program.name[:40]:40} {row['first']:2} {row['graphs']:3}, {row['breaks']:3} ({row['fallbacks']}) /"
            f" {row['torch first']:2} {row['torch graphs']:3}, {row['torch breaks']:3}"
            f"  {verdict} / {'right' if row['torch right'] else 'wrong'}  {row['seconds']} / {row['torch seconds']} s"
            f"{'  more' if more else ''} {row['errors'] or ''} {row['our errors'] or ''}",
            flush=True,
        )
        for reason, times in row["reasons"].items() if options.reasons else ():
            print(f"    {times} times {reason}")
    wrong = [r["program"] for r in rows if not r["right"]]
    more = [r["program"] for r in rows if r["graphs"] > r["torch graphs"] or r["breaks"] > r["torch breaks"]]
    one = sum(r["first"] == 1 and not r["breaks"] for r in rows)
    theirs = sum(r["torch first"] == 1 and not r["torch breaks"] for r in rows)
    print(f"{len(rows)} programs, {one} without a break (torch.compile: {theirs})")
    print(f"more graphs or breaks than torch.compile: {more or 'none'}; wrong: {wrong or 'none'}")
    if options.save:
        facts = {"torch": torch.__version__, "python": platform.python_version(), "rows": rows}
        options.save.write_text(json.dumps(facts, indent=1) + "\n")
    return 1 if more or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
