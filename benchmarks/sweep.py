"""Many small programs, operator by operator, shape by shape and type by type: is each one right, and is any slower than eager?

`python benchmarks/sweep.py` checks all of them; `--time` times them too, and lists those that take more than 1.1 times eager's time.
`--only softmax,conv` takes the programs whose names contain one of these words, `--slice 2/4` the second quarter.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import torch
from sweep_programs import PROGRAMS

import intarsia
from intarsia.testing import Undecided, check

ROUND = 1e-3  # seconds that one round lasts, at least
SLOWER = 1.1


class Times(NamedTuple):
    """Seconds of one call, the least of many."""

    eager: float
    ours: float

    @property
    def ratio(self) -> float:
        """How many times eager's time ours is."""
        return self.ours / self.eager


def prepare(name: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The function and the arguments of a program, always the same."""
    torch.manual_seed(0)
    return PROGRAMS[name]()


def verdict(name: str) -> str:
    """ "ok", or what is wrong, by the accuracy rule."""
    fn, args = prepare(name)
    try:
        with torch.no_grad():
            report = check(fn, args)
    except Undecided:
        return "ok (eager does not agree with itself)"
    except Exception as error:
        return " | ".join(str(error).splitlines()[:6])[:500] or type(error).__name__
    return "ok" if report.raised is None else f"eager raises {report.raised.__name__}"


def time(name: str, seconds: float) -> Times:
    """Eager and compiled in turn, for so many seconds."""
    fn, args = prepare(name)
    compiled = intarsia.compile(fn)
    with torch.no_grad():
        calls = (lambda: fn(*args), lambda: compiled(*args))
        for call in calls:
            call()
        counts = [max(1, round(ROUND / min(_round(call, 1) for _ in range(3)))) for call in calls]
        best, end, rounds = [float("inf")] * 2, perf_counter() + seconds, 0
        while rounds < 5 or perf_counter() < end:
            rounds += 1
            for i, call in enumerate(calls):
                best[i] = min(best[i], _round(call, counts[i]) / counts[i])
    return Times(*best)


def _round(call: Callable[[], object], count: int) -> float:
    start = perf_counter()
    for _ in range(count):
        call()
    return perf_counter() - start


def main() -> int:
    """Check or time the programs of the command line; 1 when one is wrong."""
    options = _options()
    words = [word for word in options.only.split(",") if word]
    names = [name for name in PROGRAMS if not words or any(word in name for word in words)]
    part, parts = (int(n) for n in options.slice.split("/"))
    names = names[part - 1 :: parts]
    warnings.simplefilter("ignore")
    found: dict[str, Any] = {}
    for name, line in _lines(names, options, found):
        print(f"{name:34} {line}", flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1) + "\n")
    wrong = [name for name, facts in found.items() if not facts.get("verdict", "ok").startswith("ok")]
    slow = [name for name, facts in found.items() if facts.get("ratio", 0) > SLOWER]
    print(f"{len(found)} programs, {len(wrong)} wrong, {len(slow)} slower than {SLOWER} times eager")
    for title, those in (("wrong", wrong), ("slower", slow)):
        for name in those:
            print(f"  {title}: {name}" + (f" {found[name]['ratio']:.2f}" if title == "slower" else ""))
    return int(bool(wrong))


def _lines(names: list[str], options: argparse.Namespace, found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    end = perf_counter() + options.limit
    for name in names:
        if perf_counter() > end:
            print(f"stopped after {options.limit} s, before {name}")
            return
        found[name] = {}
        if not options.no_check:
            text = found[name]["verdict"] = verdict(name)
            if text != "ok" or not options.time:
                yield name, text
        if options.time:
            times = time(name, options.seconds)
            if times.ratio > SLOWER:  # a measurement counts when it is repeated
                again = time(name, 2 * options.seconds)
                times = Times(min(times.eager, again.eager), min(times.ours, again.ours))
            found[name] |= {"eager": times.eager, "ours": times.ours, "ratio": times.ratio}
            mark = "  <- slower" if times.ratio > SLOWER else ""
            yield name, f"{times.eager * 1e6:10.1f} us eager {times.ours * 1e6:10.1f} us ours  {times.ratio:5.2f}{mark}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="programs whose names contain one of these words, with commas")
    parser.add_argument("--slice", default="1/1", metavar="K/N", help="every Nth program, from the Kth on")
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--no-check", action="store_true", help="time only")
    parser.add_argument("--seconds", type=float, default=0.15, help="for timing one program")
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds after which no program is begun")
    parser.add_argument("--json", metavar="FILE")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
