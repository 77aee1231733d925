"""One process of a benchmark: `worker.py '{"suite": ..., "case": ..., "job": "first" | "measure", ...}'` writes JSON to the file `result`.

The job "first" times the first call of one system, from the import of the compiler to the result. The job "measure" times all systems in
turn and checks the answers. Caches are where the environment says; the caller makes them.
"""

from __future__ import annotations

import copy
import ctypes
import gc
import json
import logging
import statistics
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import suites
import torch
from models import Case

ROUND = 0.02  # seconds of one timed round of one system; shorter calls are repeated
ROUNDS = (5, 40)  # at least and at most

Call = Callable[[], Any]


def eager(case: Case, dynamic: bool | None) -> Any:
    """As it is."""
    return case.model


def inductor(case: Case, dynamic: bool | None) -> Any:
    """torch.compile in its default mode."""
    return torch.compile(case.model, dynamic=dynamic)


def freezing(case: Case, dynamic: bool | None) -> Any:
    """torch.compile with the weights taken as constants, on a copy of the model."""
    return torch.compile(copy.deepcopy(case.model), dynamic=dynamic, options={"freezing": True})


def intarsia(case: Case, dynamic: bool | None) -> Any:
    """intarsia.compile in its default mode; imported here, so that its import counts in the first call."""
    import intarsia

    return intarsia.compile(case.model, dynamic=dynamic)


SYSTEMS: dict[str, Callable[[Case, bool | None], Any]] = {
    "eager": eager,
    "inductor": inductor,
    "freezing": freezing,
    "intarsia": intarsia,
}


def first(case: Case, system: str, dynamic: bool | None) -> tuple[Any, dict[str, Any]]:
    """The first call: the compiled function; its seconds; for intarsia what was counted meanwhile."""
    case.model(*case.args, **case.kwargs)  # the libraries behind eager are loaded before the clock starts
    start = perf_counter()
    said, handler = [], logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("intarsia").addHandler(handler)
    try:
        compiled = SYSTEMS[system](case, dynamic)
        compiled(*case.args, **case.kwargs)
    finally:
        logging.getLogger("intarsia").removeHandler(handler)
    return compiled, {"seconds": perf_counter() - start, **(_counts(said) if system == "intarsia" else {})}


def _counts(said: list[str]) -> dict[str, Any]:
    from intarsia import counters

    counted = counters()
    mine = [text.strip().splitlines() for text in said]
    whole = counted["graphs"] == 1 and not counted["breaks"] and not counted["fallbacks"]
    return {
        "graphs": counted["graphs"],
        "one_graph": whole,
        "compiler_calls": counted["compiler_calls"],
        "kernels": counted["kernels"],
        "externs": counted["externs"],
        "phases": counted["seconds"],
        "warnings": [" ".join(lines[:3])[:300] for lines in mine],
    }


def measure(case: Case, systems: list[str], seconds: float, second: bool, dynamic: bool | None) -> dict[str, Any]:
    """Every system's time, memory and verdict; an error in its place where one fails."""
    found: dict[str, Any] = {"eager": {}}
    ready: dict[str, Any] = {"eager": case.model}
    for system in systems:
        try:
            ready[system], found[system] = first(case, system, dynamic)
        except Exception as error:
            found[system] = {"error": _short(error)}
    if dynamic and case.second is not None:
        case = case._replace(args=case.second, second=case.args)
        for fn in ready.values():
            fn(*case.args, **case.kwargs)
    calls = {system: _call(fn, case) for system, fn in ready.items()}
    for system, times in _times(calls, seconds).items():
        found[system] |= {"min": min(times), "median": statistics.median(times), "rounds": len(times)}
        found[system]["peak_mib"] = _peak(calls[system])
    if case.bytes_moved:
        found["copy"] = {"min": _copy_time(case.bytes_moved), "bytes": case.bytes_moved}
    for system in ready:
        if system != "eager":
            found[system]["verdict"] = verdict(case, case.args, ready[system])
            if second and case.second is not None:
                found[system]["second"] = verdict(case, case.second, ready[system])
    return found


def _copy_time(moved: int) -> float:
    """Seconds of a copy that reads half of so many bytes and writes the other half: the limit of a memory-bound kernel."""
    source = torch.ones(max(moved // 8, 1))
    target = torch.empty_like(source)
    return min(_times({"eager": lambda: target.copy_(source)}, 0.3)["eager"])


def verdict(case: Case, args: tuple[Any, ...], compiled: Any) -> str:
    """ "ok" or what is wrong, by the accuracy rule of `intarsia.testing`."""
    from intarsia.testing import check

    try:
        check(case.model, args, case.kwargs, compiled=compiled, calls=1)
    except Exception as error:
        return _short(error)
    return "ok"


def _call(fn: Any, case: Case) -> Call:
    args, kwargs = case.args, case.kwargs
    if kwargs:
        return lambda: fn(*args, **kwargs)
    if len(args) == 1:
        (arg,) = args
        return lambda: fn(arg)
    return lambda: fn(*args)


def _times(calls: dict[str, Call], seconds: float) -> dict[str, list[float]]:
    """Seconds a call of each system in every round; the systems take turns, so that a busy machine hurts all alike."""
    counts = {}
    for system, call in calls.items():
        once = _round(call, 1)
        if once < ROUND:
            once = min(_round(call, 1), _round(call, 1))
        counts[system] = max(1, round(ROUND / max(once, 1e-7)))
    times: dict[str, list[float]] = {system: [] for system in calls}
    end = perf_counter() + seconds * len(calls)
    while (done := len(times["eager"])) < ROUNDS[0] or (done < ROUNDS[1] and perf_counter() < end):
        for system, call in calls.items():
            times[system].append(_round(call, counts[system]) / counts[system])
    return times


def _round(call: Call, count: int) -> float:
    start = perf_counter()
    for _ in range(count):
        call()
    return perf_counter() - start


def _peak(call: Call) -> float | None:
    """MiB that one call needs at its peak beyond what the process holds; None where the system does not say."""
    try:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS")
        call()
        return (_status("VmHWM") - before) / 1024
    except (OSError, AttributeError):
        return None


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))


def _short(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' | '.join(lines[:4])}"[:500]


def main() -> None:
    """Do the job that the first argument describes."""
    job = json.loads(sys.argv[1])
    if job["threads"]:
        torch.set_num_threads(job["threads"])
    result: dict[str, Any]
    dynamic = True if job["dynamic"] else None
    try:
        case = suites.make(job["suite"], job["case"])
        with torch.no_grad():
            if job["job"] == "first":
                result = first(case, job["system"], dynamic)[1]
            else:
                result = measure(case, job["systems"], job["seconds"], job["second"], dynamic)
    except Exception as error:
        traceback.print_exc()
        result = {"error": _short(error)}
    Path(job["result"]).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
