"""Eager, torch.compile and intarsia side by side: one row a case.

python benchmarks/run.py --device cpu --suite kernels,models --json results.json --chart results.png

First calls run in fresh processes with empty caches. Then one more process loads intarsia's code from the cache that the first one filled
(the "second process"), and there all systems are timed in turn. Times are the least of many rounds; the JSON has medians too.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import math
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from report import Table, chart
from suites import SUITES

HERE = Path(__file__).resolve().parent
SYSTEMS = ("inductor", "freezing", "intarsia")
COLD = ("inductor", "intarsia")  # those whose first call is timed in a process of its own
TIMEOUT = 600  # seconds that one process may take


def main() -> int:
    """Run the benchmarks of the command line; 1 when a case failed or a verdict was not ok."""
    if "cuda" in sys.argv:
        import gpu

        return gpu.main([a for a in sys.argv[1:] if a not in ("--device", "cuda")])
    options = _options()
    cases = [
        (suite, name) for suite in options.suite for name in SUITES[suite] if not options.only or name in options.only
    ]
    skipped = set(options.skip) | (set() if options.freezing else {"freezing"})
    systems = [system for system in SYSTEMS if system not in skipped]
    rows = []
    with Table(systems, width=max((len(name) for _, name in cases), default=4)) as table:
        for suite, name in cases:
            table.working(name)
            row = {"suite": suite, "case": name} | run_case(suite, name, systems, options)
            row["derived"] = derive(row)
            rows.append(row)
            table.add(row)
        summary = summarise(rows)
        table.finish(summary)
    if options.json:
        Path(options.json).write_text(
            json.dumps({"about": about(options), "summary": summary, "rows": rows}, indent=1) + "\n"
        )
    if options.chart:
        chart(rows, options.chart)
    return int(any(not row["derived"]["ok"] for row in rows))


def run_case(suite: str, name: str, systems: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """First calls with cold caches, each in a process of its own; then all systems in turn in one more."""
    with _caches(options.cache, suite, name) as folder:
        job = {
            "suite": suite,
            "case": name,
            "threads": options.threads,
            "systems": systems,
            "seconds": options.seconds,
            "dynamic": options.dynamic,
            "second": suite == "wide" or options.second,
        }
        firsts = {
            system: run_job(job | {"job": "first", "system": system}, Path(folder))
            for system in systems
            if system in COLD and not options.cache
        }
        return {"first": firsts, "measured": run_job(job | {"job": "measure"}, Path(folder))}


def _caches(kept: str | None, suite: str, name: str) -> contextlib.AbstractContextManager[str]:
    """The folder of a case's caches: gone afterwards, unless the user names one to keep."""
    if kept is None:
        return tempfile.TemporaryDirectory(prefix="intarsia-bench-")
    folder = Path(kept).resolve() / suite / name
    folder.mkdir(parents=True, exist_ok=True)
    return contextlib.nullcontext(str(folder))


def run_job(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What the worker process found; {"error": ...} when it ended badly."""
    result = folder / "result.json"
    result.unlink(missing_ok=True)
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "INTARSIA_CACHE_DIR": str(folder / "intarsia")}
    threads = {"OMP_NUM_THREADS": str(job["threads"])} if job["threads"] else {}
    quiet = {"TRANSFORMERS_VERBOSITY": "error", "INTARSIA_PROGRESS": "0", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(HERE / "worker.py"), json.dumps(job | {"result": str(result)})]
    try:
        done = subprocess.run(
            command, env=os.environ | caches | threads | quiet, capture_output=True, text=True, timeout=TIMEOUT
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {TIMEOUT} s"}
    if result.exists():
        return dict(json.loads(result.read_text()))
    last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    return {"error": f"the process ended with code {done.returncode}: {last[:300]}"}


def derive(row: dict[str, Any]) -> dict[str, Any]:
    """What the table shows: ratios (above 1: intarsia is faster), whether all is well, and what went wrong."""
    measured, firsts = row["measured"], row["first"]
    ours, eager, theirs, frozen = (measured.get(s, {}) for s in ("intarsia", "eager", "inductor", "freezing"))
    errors = [
        f"{kind}: {found['error']}"
        for kind, found in [*firsts.items(), *measured.items()]
        if isinstance(found, dict) and "error" in found
    ]
    if "error" in measured:
        errors.append(measured["error"])
    verdicts = [
        f"{text}" for found in (ours,) for key in ("verdict", "second") if (text := found.get(key, "ok")) != "ok"
    ]
    checked = not firsts.get("intarsia") or "verdict" in ours
    copied = measured.get("copy", {}).get("min")
    return {
        "over_eager": _ratio(eager.get("min"), ours.get("min")),
        "over_inductor": _ratio(theirs.get("min"), ours.get("min")),
        "over_freezing": _ratio(frozen.get("min"), ours.get("min")),
        "freezing_over_eager": _ratio(eager.get("min"), frozen.get("min")),
        "inductor_over_eager": _ratio(eager.get("min"), theirs.get("min")),
        "of_copy": _ratio(copied, ours.get("min")),
        "first_call": _ratio(firsts.get("inductor", {}).get("seconds"), firsts.get("intarsia", {}).get("seconds")),
        "errors": list(dict.fromkeys(errors)),
        "verdict": "; ".join(dict.fromkeys(verdicts)) or "ok",
        "ok": not errors and not verdicts and checked,
    }


def _ratio(a: float | None, b: float | None) -> float | None:
    return a / b if a and b else None


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Geometric means of the ratios over all cases that have them."""
    means = {}
    for what in ("over_eager", "over_inductor", "over_freezing", "inductor_over_eager", "first_call"):
        values = [row["derived"][what] for row in rows if row["derived"][what]]
        means[what] = math.exp(sum(map(math.log, values)) / len(values)) if values else None
    return {"geomean": means, "cases": len(rows), "ok": sum(row["derived"]["ok"] for row in rows)}


def about(options: argparse.Namespace) -> dict[str, Any]:
    """What a reader needs to run it again."""
    git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=HERE, capture_output=True, text=True)
    packages = ("intarsia", "torch", "xdsl", "transformers", "timm", "torchvision")
    return {
        "command": shlex.join(["python", "benchmarks/run.py", *sys.argv[1:]]),
        "commit": git.stdout.strip(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in packages},
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": options.threads or "torch's default",
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="cuda: see benchmarks/gpu.py")
    parser.add_argument(
        "--suite",
        type=_names,
        default=["calls", "kernels", "models"],
        help=f"of {', '.join(SUITES)}; several with commas",
    )
    parser.add_argument("--only", type=_names, default=[], help="these cases only, with commas")
    parser.add_argument("--skip", type=_names, default=[], help="leave out inductor or intarsia")
    parser.add_argument("--threads", type=int, default=0, help="default: torch's own choice")
    parser.add_argument("--seconds", type=float, default=1.0, help="for timing one system on one case")
    parser.add_argument(
        "--second", action="store_true", help="check another batch size too, as the suite 'wide' always does"
    )
    parser.add_argument(
        "--freezing", action="store_true", help="torch.compile with the weights taken as constants, as one more system"
    )
    parser.add_argument(
        "--dynamic", action="store_true", help="compile with dynamic=True and time the other batch size, met second"
    )
    parser.add_argument(
        "--cache",
        metavar="DIR",
        help="keep the caches here and time no first calls: quick when repeated, for work on kernels",
    )
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--chart", metavar="FILE.png")
    options = parser.parse_args()
    known = {name for suite in options.suite for name in SUITES.get(suite, ())}
    for what, given, choices in (
        ("suite", options.suite, SUITES),
        ("case", options.only, known),
        ("system", options.skip, SYSTEMS),
    ):
        if unknown := [name for name in given if name not in choices]:
            parser.error(f"unknown {what} {unknown[0]!r}; known: {', '.join(choices)}")
    return options


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


if __name__ == "__main__":
    sys.exit(main())
