"""The GPU beside eager and torch.compile's modes: `python benchmarks/run.py --device cuda` is this file.

    python benchmarks/gpu.py --suite kernels,products,models,dynamic --json results.json
    python benchmarks/gpu.py --suite models --prepare     # torch.compile's code of all cases first, by one process for each

Kernels and products are timed on the device (events around each call, other data in the L2 cache), beside the copy rate of the same run and a
copy of as many bytes. Models are timed as a caller sees them, many calls and then one wait. First calls are those of this process, with
empty caches: imports are not in them. With --prepare those of torch.compile are not cold, and not reported. The suite `start` asks fresh processes: a first call
with empty caches, and one with what that left there.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import datetime
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

_CACHES = tempfile.TemporaryDirectory(prefix="intarsia-gpu-bench-")
for _name, _folder in (("TORCHINDUCTOR", "inductor"), ("TRITON", "triton"), ("INTARSIA", "intarsia")):
    os.environ.setdefault(f"{_name}_CACHE_DIR", f"{_CACHES.name}/{_folder}")

import torch  # noqa: E402  (after the caches are named)
from gpu_cases import KERNELS, MODELS, PRODUCTS, TRAINING  # noqa: E402
from torch import Tensor  # noqa: E402

import intarsia  # noqa: E402
from intarsia.testing import same  # noqa: E402

Row = dict[str, Any]
SUITES = ("kernels", "products", "models", "dynamic", "training", "start")
MODES = {
    "inductor": {},
    "reduce-overhead": {"mode": "reduce-overhead"},
    "max-autotune": {"mode": "max-autotune"},
}
STARTS = ("bert_base 1x128", "resnet50 b32", "gpt2 8x512")
TRIES = 5  # calls in front of a timing


# -- time


def device_seconds(call: Callable[[], Any], seconds: float) -> float:
    """The median time of one call on the device, the L2 cache filled with other data in front of each.

    The other data is read: had it been written, the call would pay for taking the written lines back to memory. Reading takes
    longer than a call takes on the host, so the device does not wait for it.
    """
    other = torch.empty(1 << 28, device="cuda")
    call()
    times = []
    end = perf_counter() + seconds
    while len(times) < 10 or (perf_counter() < end and len(times) < 100):
        other.sum()
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        call()
        b.record()
        b.synchronize()
        times.append(a.elapsed_time(b) / 1000)
    return sorted(times)[len(times) // 2]


def caller_seconds(calls: dict[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """The least time of one call as a caller sees it, of many rounds that all systems take in turn."""
    best = dict.fromkeys(calls, math.inf)
    end = perf_counter() + seconds * len(calls)
    rounds = 0
    while rounds < 3 or perf_counter() < end:
        for name, call in calls.items():
            torch.cuda.synchronize()
            start = perf_counter()
            for _ in range(10):
                call()
            torch.cuda.synchronize()
            best[name] = min(best[name], (perf_counter() - start) / 10)
        rounds += 1
    return best


def copy_seconds(moved: int, seconds: float = 0.2) -> float:
    """A device copy that reads and writes `moved` bytes in all."""
    source = torch.empty(max(1, moved // 2), dtype=torch.int8, device="cuda")
    target = torch.empty_like(source)
    return device_seconds(lambda: target.copy_(source), seconds)


# -- one case


def systems(fn: Any, names: list[str], **options: Any) -> Iterator[tuple[str, Any]]:
    """Each system's compiled function."""
    for name in names:
        compiler = intarsia.compile if name == "intarsia" else torch.compile
        yield name, compiler(fn, **options, **MODES.get(name, {}))


def run_case(name: str, fn: Any, args: list[Tensor], names: list[str], seconds: float, on_device: bool) -> Row:
    """All systems on one case: first calls, times, verdict."""
    row: Row = {"case": name, "first": {}, "seconds": {}}
    calls: dict[str, Callable[[], Any]] = {"eager": lambda: fn(*args)}
    fn(*args)
    for system, compiled in systems(fn, names):
        try:
            row["first"][system] = _first(compiled, args)
            for _ in range(TRIES):
                compiled(*args)
            calls[system] = lambda compiled=compiled: compiled(*args)
        except Exception as error:
            row.setdefault("errors", {})[system] = f"{type(error).__name__}: {error}"[:300]
    if on_device:
        row["seconds"] = {system: device_seconds(call, seconds) for system, call in calls.items()}
    else:
        row["seconds"] = caller_seconds(calls, seconds)
    if "intarsia" in calls:
        row["verdict"] = _verdict(fn, args, calls["intarsia"]())
        if on_device:
            row["bytes"] = _moved(args, list(_tensors(fn(*args))), name)
            row["copy"] = copy_seconds(row["bytes"])
    torch._dynamo.reset()
    return row


def _first(compiled: Any, args: list[Tensor]) -> float:
    torch.cuda.synchronize()
    start = perf_counter()
    compiled(*args)
    torch.cuda.synchronize()
    return perf_counter() - start


def run_dynamic(name: str, fn: Any, args: list[Tensor], names: list[str], seconds: float) -> Row:
    """One compilation for all batch sizes: right at each, timed at the case's own."""
    row: Row = {"case": name, "first": {}, "seconds": {}, "verdict": "ok"}
    calls: dict[str, Callable[[], Any]] = {"eager": lambda: fn(*args)}
    batch = args[0].shape[0]
    for system, compiled in systems(fn, names, dynamic=True):
        try:
            row["first"][system] = _first(compiled, args)
            for size in sorted({max(2, batch // 2), batch + 3, 2 * batch}):
                index = torch.arange(size, device="cuda") % batch
                resized = [a[index] for a in args]
                result = compiled(*resized)
                if system == "intarsia":
                    verdict = _verdict(fn, resized, result)
                    row["verdict"] = verdict if row["verdict"] == "ok" else row["verdict"]
            for _ in range(TRIES):
                compiled(*args)
            calls[system] = lambda compiled=compiled: compiled(*args)
        except Exception as error:
            row.setdefault("errors", {})[system] = f"{type(error).__name__}: {error}"[:300]
    row["seconds"] = caller_seconds(calls, seconds)
    row["recompiled"] = intarsia.counters()["recompiles"]
    torch._dynamo.reset()
    return row


@torch.enable_grad()
def run_training(name: str, fn: Any, args: list[Tensor], names: list[str], seconds: float) -> Row:
    """Forward and backward of one batch, gradients set to None before: times, peak memory, and the loss and gradients against float64."""
    row: Row = {"case": name, "first": {}, "seconds": {}, "peak_bytes": {}}

    def step(compiled: Any) -> Tensor:
        fn.zero_grad(set_to_none=True)
        loss = compiled(*args)
        loss.backward()
        return loss

    calls: dict[str, Callable[[], Any]] = {}
    for system, compiled in [("eager", fn), *systems(fn, names)]:
        try:
            start = perf_counter()
            step(compiled)
            torch.cuda.synchronize()
            row["first"][system] = perf_counter() - start
            for _ in range(TRIES):
                step(compiled)
            torch.cuda.reset_peak_memory_stats()
            step(compiled)
            row["peak_bytes"][system] = torch.cuda.max_memory_allocated()
            calls[system] = lambda compiled=compiled: step(compiled)
        except Exception as error:
            row.setdefault("errors", {})[system] = f"{type(error).__name__}: {error}"[:300]
    row["seconds"] = caller_seconds(calls, seconds)
    if "intarsia" in calls and "dropout" not in name:
        row["verdict"] = _gradients_verdict(fn, args, calls)
    torch._dynamo.reset()
    return row


def _gradients_verdict(fn: Any, args: list[Tensor], calls: dict[str, Callable[[], Any]]) -> str:
    """All gradients of one step by the accuracy rule, the loss within a hundredth; batch statistics move on, which changes no step in training."""
    found = {}
    for system in ("eager", "intarsia"):
        loss = calls[system]().item()
        found[system] = loss, torch.cat([p.grad.flatten() for p in fn.parameters()])
    wide = copy.deepcopy(fn).double()
    wide.amp = False
    wide.zero_grad(set_to_none=True)
    wide(*(a.double() if a.is_floating_point() else a for a in args)).backward()
    gold = torch.cat([p.grad.flatten() for p in wide.parameters()])
    (loss, eager), (our_loss, ours) = found["eager"], found["intarsia"]
    if not math.isclose(loss, our_loss, rel_tol=0.01):
        return f"the loss is {our_loss}, eager's {loss}"
    verdict = same([eager], [ours], [gold])
    return "ok" if verdict else str(verdict)[:300]


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _moved(args: list[Tensor], results: list[Tensor], name: str) -> int:
    """What must be read and written at least; of an embedding's table only the rows that are used."""
    read = [args[0], *args[2:]] if name.startswith("embedding") else args
    extra = results if name.startswith("embedding") else []
    return sum(t.numel() * t.element_size() for t in (*read, *extra, *results))


def _verdict(fn: Any, args: list[Tensor], ours: Any) -> str:
    """By the accuracy rule; models in float64 take their weights from the same numbers."""
    wide = [a.double() if a.is_floating_point() else a for a in args]
    try:
        gold = (copy.deepcopy(fn).double() if isinstance(fn, torch.nn.Module) else fn)(*wide)
        verdict = same(list(_tensors(fn(*args))), list(_tensors(ours)), list(_tensors(gold)))
        return "ok" if verdict else str(verdict)[:300]
    except torch.OutOfMemoryError:
        return "not checked: float64 does not fit"


# -- processes of their own


def start_seconds(name: str, system: str) -> None:
    """Print how long a model's first call takes in this process, imports not counted."""
    torch.manual_seed(0)
    fn, args = MODELS[name]()
    fn(*args)
    _, compiled = next(systems(fn, [system]))
    print(f"first call: {_first(compiled, args)}")


def run_start(name: str, names: list[str]) -> Row:
    """Seconds of a first call with empty caches, and in the next process."""
    row: Row = {"case": name, "first": {}, "second": {}}
    for system in names:
        with tempfile.TemporaryDirectory() as folder:
            caches = {f"{n}_CACHE_DIR": f"{folder}/{n}" for n in ("TORCHINDUCTOR", "TRITON", "INTARSIA")}
            for which in ("first", "second"):
                found = _process(["--start", name, "--systems", system], caches)
                text = found.stdout.partition("first call: ")[2]
                if text:
                    row[which][system] = float(text)
                else:
                    row.setdefault("errors", {})[system] = found.stderr[-300:]
    return row


def _process(arguments: list[str], caches: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, __file__, *arguments]
    return subprocess.run(command, env=os.environ | caches, capture_output=True, text=True)


def prepare(cases: list[tuple[str, str]], names: list[str], at_once: int = 14) -> None:
    """Fill torch.compile's caches for these cases, by processes side by side."""
    others = ",".join(n for n in names if n != "intarsia")
    waiting, running = list(cases) if others else [], list[subprocess.Popen[bytes]]()
    while waiting or running:
        running = [p for p in running if p.poll() is None]
        while waiting and len(running) < at_once:
            suite, name = waiting.pop(0)
            command = [sys.executable, __file__, "--suite", suite, "--only", name, "--systems", others]
            command += ["--seconds", "0"]
            running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        if running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                running[0].wait(0.2)


# -- the command


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line names; 1 where a verdict is not ok."""
    options = _options(arguments)
    names = [n for n in options.systems.split(",") if n]
    if not torch.cuda.is_available():
        print("benchmarks/gpu.py needs a GPU that torch can use (torch.cuda.is_available() says no)", file=sys.stderr)
        return 2
    if options.start:
        start_seconds(options.start, names[0])
        return 0
    cases = [
        (suite, name)
        for suite in options.suite.split(",")
        for name in _cases(suite)
        if not options.only or name in options.only.split(",")
    ]
    if options.prepare:
        prepare([case for case in cases if case[0] != "start"], names)
    rows = []
    with torch.no_grad():
        rate = (1 << 31) / copy_seconds(1 << 31, 1.0)
        print(f"{torch.cuda.get_device_name()}, copy {rate / 1e9:.0f} GB/s, torch {torch.__version__}")
        for suite, name in cases:
            intarsia.reset()
            torch.manual_seed(0)
            row = _run(suite, name, names, options.seconds) | {"suite": suite}
            if options.prepare and "first" in row:  # only intarsia's caches were empty
                row["first"] = {k: v for k, v in row["first"].items() if k == "intarsia"}
            rows.append(row)
            print(_line(row, rate), flush=True)
            if options.json:
                Path(options.json).write_text(json.dumps({"about": _about(rate), "rows": rows}, indent=1) + "\n")
    for suite in SUITES:
        _summary(suite, [r for r in rows if r["suite"] == suite])
    return int(any(r.get("verdict", "ok") != "ok" and not r["verdict"].startswith("not") for r in rows))


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", default="kernels,products,models", help=f"of {','.join(SUITES)}")
    parser.add_argument("--only", default="", help="these cases, with commas")
    parser.add_argument("--systems", default="inductor,reduce-overhead,intarsia", help=f"intarsia,{','.join(MODES)}")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each timing")
    parser.add_argument("--prepare", action="store_true", help="fill torch.compile's caches first, in parallel")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--start", metavar="CASE", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    unknown = set(options.suite.split(",")) - set(SUITES)
    if unknown:
        parser.error(f"there is no suite {unknown.pop()!r}; there are {', '.join(SUITES)}")
    unknown = set(filter(None, options.systems.split(","))) - {"intarsia", *MODES}
    if unknown:
        parser.error(f"there is no system {unknown.pop()!r}; there are intarsia, {', '.join(MODES)}")
    return options


def _cases(suite: str) -> list[str]:
    return {
        "kernels": list(KERNELS),
        "products": list(PRODUCTS),
        "start": list(STARTS),
        "training": list(TRAINING),
    }.get(suite, list(MODELS))


def _run(suite: str, name: str, names: list[str], seconds: float) -> Row:
    if suite == "start":
        return run_start(name, [n for n in names if n in ("inductor", "intarsia")])
    if suite in ("kernels", "products"):
        fn, make = (KERNELS if suite == "kernels" else PRODUCTS)[name]
        # Kernels are timed on the device: a recording would only add torch.compile's copies of the arguments.
        chosen = [n for n in names if n != "reduce-overhead"]
        return run_case(name, fn, make(), chosen, seconds, True)
    fn, args = (TRAINING if suite == "training" else MODELS)[name]()
    if suite == "training":
        return run_training(name, fn, args, names, seconds)
    if suite == "dynamic":
        return run_dynamic(name, fn, args, [n for n in names if n in ("inductor", "intarsia")], seconds)
    return run_case(name, fn, args, names, seconds, False)


def _line(row: Row, rate: float) -> str:
    times = "  ".join(f"{system} {seconds * 1e6:9.1f} us" for system, seconds in row.get("seconds", {}).items())
    starts = "".join(
        f"  {which} s: {' '.join(f'{system} {seconds:.1f}' for system, seconds in row[which].items())}"
        for which in ("first", "second")
        if row.get(which)
    )
    ours = row.get("seconds", {}).get("intarsia")
    share = ""
    if ours and row["suite"] == "kernels":
        share = f"  {row['bytes'] / ours / rate:4.0%} of copy, {row['copy'] / ours:4.0%} of as large a copy"
    peaks = row.get("peak_bytes", {})
    if peaks:
        share += f"  peak MiB: {' '.join(f'{system} {size >> 20}' for system, size in peaks.items())}"
    return f"{row['case']:28} {times}{share}{starts}  {row.get('verdict', '')} {row.get('errors', '')}"


def _summary(suite: str, rows: list[Row]) -> None:
    timed = [r["seconds"] for r in rows if "intarsia" in r.get("seconds", {})]
    for what in ("eager", *MODES, "best"):
        ratios = []
        for times in timed:
            modes = [times[s] for s in MODES if s in times]
            theirs = min(modes, default=None) if what == "best" else times.get(what)
            if theirs:
                ratios.append(theirs / times["intarsia"])
        if ratios:
            name = "the best mode of torch.compile" if what == "best" else what
            print(f"{suite}: intarsia over {name} {_mean(ratios):.2f}x (least {min(ratios):.2f} of {len(ratios)})")
    for which in ("first", "second"):
        found = [r[which] for r in rows if {"inductor", "intarsia"} <= r.get(which, {}).keys()]
        if found:
            mean = _mean([f["inductor"] / f["intarsia"] for f in found])
            words = "first calls" if which == "first" else "first calls of a second process"
            print(f"{suite}: {words} of torch.compile take {mean:.1f} times as long ({len(found)} cases)")


def _mean(ratios: list[float]) -> float:
    """The geometric mean."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def _about(rate: float) -> dict[str, Any]:
    git = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent)
    return {
        "command": " ".join(["python", "benchmarks/gpu.py", *sys.argv[1:]]),
        "commit": git.stdout.strip(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name(),
        "copy_bytes_per_second": rate,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


if __name__ == "__main__":
    sys.exit(main())
