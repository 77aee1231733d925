"""The GPU beside eager and torch.compile's modes: `python benchmarks/run.py --device cuda` is this file.

    python benchmarks/gpu.py --suite kernels,products,models,dynamic --json results.json
    python benchmarks/gpu.py --suite models --prepare     # torch.compile's code of all cases first, by one process for each

Kernels and products are timed on the device (events around each call, other data in the L2 cache), beside the copy rate of the same run and a
copy of as many bytes. Models are timed as a caller sees them, many calls and then one wait. In both all systems take turns, so that clocks
which drift are the same for all. First calls are those of this process, with
empty caches: imports are not in them. With --prepare those of torch.compile are not cold, and not reported; while it tunes, the processes
measure one at a time. The suite `start` asks fresh processes: a first call
with empty caches, and one with what that left there.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import datetime
import fcntl
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
from gpu_wide import WIDE, WIDE_TRAINING  # noqa: E402
from torch import Tensor  # noqa: E402

import intarsia  # noqa: E402
from intarsia.testing import same  # noqa: E402

Row = dict[str, Any]
SUITES = ("kernels", "products", "models", "wide", "dynamic", "training", "wide-training", "start")
MODES = {
    "inductor": {},
    "reduce-overhead": {"mode": "reduce-overhead"},
    "max-autotune": {"mode": "max-autotune"},
}
# On the device a recording would only add torch.compile's copies of the arguments.
DEVICE_MODES = {"inductor": {}, "max-autotune": {"mode": "max-autotune-no-cudagraphs"}}
STARTS = ("bert_base 1x128", "resnet50 b32", "gpt2 8x512")
TRIES = 5  # calls in front of a timing
FEW = 16  # numbers of a parameter whose rounding errors say something of a system
CREDIBLE = 0.6  # gradients in float64 that are further from eager's than this part of their size say nothing of ours


# -- time


def device_seconds(calls: dict[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """The median time of one call on the device, the L2 cache filled with other data in front of each.

    All systems take turns, forwards and backwards, for `seconds` each. The other data is read: had it been written, the call would pay
    for taking the written lines back to memory. Reading takes longer than a call takes on the host, so the device does not wait for it.
    """
    other = torch.empty(1 << 28, device="cuda")
    for call in calls.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    end = perf_counter() + seconds * len(calls)
    rounds = 0
    while rounds < 10 or (perf_counter() < end and rounds < 100):
        events = []
        for name in sorted(calls, reverse=bool(rounds % 2)):
            other.sum()
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            a.record()
            calls[name]()
            b.record()
            events.append((name, a, b))
        torch.cuda.synchronize()
        for name, a, b in events:
            times[name].append(a.elapsed_time(b) / 1000)
        rounds += 1
    return {name: sorted(found)[len(found) // 2] for name, found in times.items()}


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


def copy_of(moved: int) -> Callable[[], Any]:
    """A device copy that reads and writes `moved` bytes in all."""
    source = torch.empty(max(1, moved // 2), dtype=torch.int8, device="cuda")
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


# -- one case


def systems(fn: Any, names: list[str], modes: Row = MODES, **options: Any) -> Iterator[tuple[str, Any]]:
    """Each system's compiled function."""
    for name in names:
        compiler = intarsia.compile if name == "intarsia" else torch.compile
        yield name, compiler(fn, **options, **modes.get(name, {}))


def run_case(name: str, fn: Any, args: list[Tensor], names: list[str], seconds: float, on_device: bool) -> Row:
    """All systems on one case: first calls, and where `seconds` are given times and verdict."""
    row: Row = {"case": name, "first": {}, "seconds": {}}
    calls: dict[str, Callable[[], Any]] = {"eager": lambda: fn(*args)}
    fn(*args)
    for system, compiled in systems(fn, names, DEVICE_MODES if on_device else MODES):
        try:
            row["first"][system] = _first(compiled, args)
            for _ in range(TRIES):
                compiled(*args)
            calls[system] = lambda compiled=compiled: compiled(*args)
        except Exception as error:
            row.setdefault("errors", {})[system] = f"{type(error).__name__}: {error}"[:300]
    if seconds:
        if on_device:
            row["bytes"] = _moved(args, list(_tensors(fn(*args))), name)
            row["seconds"] = device_seconds(calls | {"copy": copy_of(row["bytes"])}, seconds)
            row["copy"] = row["seconds"].pop("copy")
        else:
            row["seconds"] = caller_seconds(calls, seconds)
        if "intarsia" in calls:
            row["verdict"] = _verdict(fn, args, calls["intarsia"]())
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
    row["seconds"] = caller_seconds(calls, seconds) if seconds else {}
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
    row["seconds"] = caller_seconds(calls, seconds) if seconds else {}
    if seconds and "intarsia" in calls and "dropout" not in name:
        row["verdict"] = _gradients_verdict(fn, args, calls, row)
    torch._dynamo.reset()
    return row


def _gradients_verdict(fn: Any, args: list[Tensor], calls: dict[str, Callable[[], Any]], row: Row) -> str:
    """The loss within a hundredth, and each gradient of `_lengths` at most twice as far from float64's as eager's is.

    row["gradient_errors"]: how far all of them are, as a part of their size. Batch statistics move on, which changes no step in training.
    """
    losses, found = {}, {}
    for system in ("eager", "intarsia"):
        losses[system] = calls[system]().item()
        found[system] = _gradients(fn)
    wide = copy.deepcopy(fn).double()
    wide.amp = False
    wide.zero_grad(set_to_none=True)
    wide(*(a.double() if a.is_floating_point() else a for a in args)).backward()
    gold = _gradients(wide)
    if not math.isclose(losses["eager"], losses["intarsia"], rel_tol=0.01):
        return f"the loss is {losses['intarsia']}, eager's {losses['eager']}"
    if not found["eager"].keys() == found["intarsia"].keys() == gold.keys():
        return "other parameters have gradients"
    off = {system: _lengths({n: g - gold[n] for n, g in gradients.items()}) for system, gradients in found.items()}
    sizes = _lengths(gold)
    size = math.hypot(*sizes.values())
    row["gradient_errors"] = {system: math.hypot(*errors.values()) / size for system, errors in off.items()}
    eager = row["gradient_errors"]["eager"]
    if eager > CREDIBLE:
        return f"not checked: eager's own gradients are {eager:.2f} of their size away from float64's"
    for n, ours in off["intarsia"].items():
        if not ours <= 2 * off["eager"][n] + 1e-4 * sizes[n] + 1e-5 * size:
            theirs = off["eager"][n]
            return f"the gradient of {n} is {ours:.3g} away from float64's, eager's {theirs:.3g}; its size is {sizes[n]:.3g}"
    return "ok"


def _lengths(gradients: dict[str, Tensor]) -> dict[str, float]:
    """The length of each gradient; those of a few numbers have one together, as the error of one rounded number may be next to nothing."""
    few = [n for n, g in gradients.items() if g.numel() < FEW]
    lengths = {n: g.norm().item() for n, g in gradients.items()}
    together = math.hypot(*(lengths.pop(n) for n in few))
    return lengths | ({f"the {len(few)} parameters of less than {FEW} numbers": together} if few else {})


def _gradients(module: Any) -> dict[str, Tensor]:
    return {n: p.grad.double() for n, p in module.named_parameters() if p.grad is not None}


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
    """By the accuracy rule."""
    try:
        verdict = same(list(_tensors(fn(*args))), list(_tensors(ours)), _gold(fn, args))
        return "ok" if verdict else str(verdict)[:300]
    except torch.OutOfMemoryError:
        return "not checked: float64 does not fit"


def _gold(fn: Any, args: list[Tensor]) -> list[Tensor] | None:
    """The results in float64, a model's weights the same numbers; of half types with an operator that has no float64 in float32; else None."""
    state = [*args, *(fn.state_dict().values() if isinstance(fn, torch.nn.Module) else ())]
    half = all(t.itemsize <= 2 for t in state if t.is_floating_point())
    for dtype in (torch.float64, torch.float32)[: 1 + half]:
        try:
            wide = copy.deepcopy(fn).to(dtype) if isinstance(fn, torch.nn.Module) else fn
            found = wide(*(a.to(dtype) if a.is_floating_point() else a for a in args))
            return [t.double() if t.is_floating_point() else t for t in _tensors(found)]
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            print(f"  {dtype}: {str(error).splitlines()[0][:200]}")
    return None


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
    """Fill torch.compile's caches for these cases, by processes side by side; what they measure they measure one at a time."""
    others = ",".join(n for n in names if n != "intarsia")
    turn = tempfile.NamedTemporaryFile(prefix="intarsia-gpu-turn-")  # noqa: SIM115  (as long as the processes)
    waiting, running = list(cases) if others else [], list[subprocess.Popen[bytes]]()
    while waiting or running:
        running = [p for p in running if p.poll() is None]
        while waiting and len(running) < at_once:
            suite, name = waiting.pop(0)
            command = [sys.executable, __file__, "--suite", suite, "--only", name, "--systems", others]
            command += ["--seconds", "0", "--turn", turn.name]
            running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        if running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                running[0].wait(0.2)


def measure_in_turn(path: str) -> None:
    """Let torch.compile's own measurements in this process wait for those of others that have the same file."""
    from torch._inductor.runtime.benchmarking import benchmarker

    plain: Any = benchmarker.benchmark_gpu

    def in_turn(*args: Any, **options: Any) -> Any:
        with open(path) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            return plain(*args, **options)

    benchmarker.benchmark_gpu = in_turn  # type: ignore[method-assign]


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
    if options.turn:
        measure_in_turn(options.turn)
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
        rate = (1 << 31) / device_seconds({"copy": copy_of(1 << 31)}, min(1.0, 4 * options.seconds))["copy"]
        print(f"{torch.cuda.get_device_name()}, copy {rate / 1e9:.0f} GB/s, torch {torch.__version__}")
        for suite, name in cases:
            intarsia.reset()
            torch.manual_seed(0)
            try:
                row = _run(suite, name, names, options.seconds)
            except Exception as error:  # of a library that is missing, or of eager: the other cases go on
                row = {"case": name, "errors": {"eager": f"{type(error).__name__}: {error}"[:300]}}
            row["suite"] = suite
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
    parser.add_argument("--seconds", type=float, default=0.3, help="for each timing; 0: first calls only")
    parser.add_argument("--prepare", action="store_true", help="fill torch.compile's caches first, in parallel")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--start", metavar="CASE", help=argparse.SUPPRESS)
    parser.add_argument("--turn", metavar="FILE", help=argparse.SUPPRESS)
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
        "wide": list(WIDE),
        "wide-training": list(WIDE_TRAINING),
    }.get(suite, list(MODELS))


def _run(suite: str, name: str, names: list[str], seconds: float) -> Row:
    if suite == "start":
        return run_start(name, [n for n in names if n in ("inductor", "intarsia")])
    if suite in ("kernels", "products"):
        fn, make = (KERNELS if suite == "kernels" else PRODUCTS)[name]
        chosen = [n for n in names if n == "intarsia" or n in DEVICE_MODES]
        return run_case(name, fn, make(), chosen, seconds, True)
    fn, args = {"training": TRAINING, "wide": WIDE, "wide-training": WIDE_TRAINING}.get(suite, MODELS)[name]()
    if suite.endswith("training"):
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
    errors = row.get("gradient_errors", {})
    if errors:
        share += f"  off float64: {' '.join(f'{system} {error:.2g}' for system, error in errors.items())}"
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
