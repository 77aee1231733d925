"""Whole training steps: forward, backward and optimizer, beside eager and torch.compile.

    python benchmarks/training.py --device cuda --json results.json
    python benchmarks/training.py --device cpu --threads 2 --systems eager,inductor,model,step

Systems: `eager`; torch.compile's modes (`inductor`, `reduce-overhead`, `max-autotune`: the model and `optimizer.step` each
compiled); `model` (the model and `optimizer.step` each compiled by Intarsia); `step` (the whole step is one function compiled
by Intarsia); both also with a part of what is kept for backward: `step@0.5` has that memory_budget.
Each has a copy of the same model and optimizer of its own. Systems take turns, the least time of a step counts; those of
a large case run one after the other, because they do not fit side by side. With `--side-by-side` each case is a process:
they compile at the same time (so that first steps share the cores) and are timed one after the other. Peak memory is what
a system adds to what was held before it was made, with the memory of recordings, after what was not in use went back to
the system; on a CPU training_memory.py measures it. `loss` compares the loss of the first steps with eager's.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

_CACHES = tempfile.TemporaryDirectory(prefix="intarsia-training-bench-")
for _name, _folder in (("TORCHINDUCTOR", "inductor"), ("TRITON", "triton"), ("INTARSIA", "intarsia")):
    os.environ.setdefault(f"{_name}_CACHE_DIR", f"{_CACHES.name}/{_folder}")

import torch  # noqa: E402  (after the caches are named)
from torch import Tensor, nn  # noqa: E402
from training_cases import CASES, Case  # noqa: E402

import intarsia  # noqa: E402

TORCH_MODES: dict[str, dict[str, str]] = {
    "inductor": {},
    "reduce-overhead": {"mode": "reduce-overhead"},
    "max-autotune": {"mode": "max-autotune"},
}
WARM = 6  # steps in front of a timing: recordings are made in the third
COMPARED = 4  # steps whose losses are compared
READY = "ready to be timed"
AGREE = 0.02  # how far a loss may be from eager's, as a part of it

Step = Callable[[], Tensor]


@dataclass
class Row:
    """What was measured of one system on one case; seconds, bytes."""

    first: float = math.nan
    step: float = math.inf
    peak: int = 0
    losses: list[float] = field(default_factory=list)
    error: str = ""


def make_step(system: str, case: Case, model: nn.Module, args: tuple[Tensor, ...]) -> Step:
    """One training step of `model` as `system` runs it."""
    system, _, budget = system.partition("@")
    options = {"memory_budget": float(budget)} if budget else None
    optimizer = case.optimizer(model)
    update: Callable[[], Any] = optimizer.step
    forward: Callable[..., Tensor] = model
    if system in TORCH_MODES:
        forward, update = torch.compile(model, **TORCH_MODES[system]), torch.compile(optimizer.step)
    elif system == "model":
        forward, update = intarsia.compile(model, options=options), intarsia.compile(optimizer.step)

    def step() -> Tensor:
        loss = forward(*args)
        loss.backward()
        update()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return intarsia.compile(step, options=options) if system == "step" else step


class Device:
    """What a device is asked: to finish its work, and how much memory was in use."""

    def __init__(self, name: str) -> None:
        self.cuda = name == "cuda"

    def wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def allocated(self) -> int:
        """Bytes that are held; what is garbage goes first."""
        gc.collect()
        if self.cuda:
            torch.cuda.empty_cache()
        return torch.cuda.memory_reserved() if self.cuda else 0

    def forget_peak(self) -> None:
        """What is not in use goes back to the system. Recordings keep theirs: it is part of the peak."""
        if self.cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def peak(self) -> int:
        """The most memory that was held since `forget_peak`; on a CPU that of the process would count what compiling took."""
        return torch.cuda.max_memory_reserved() if self.cuda else 0


def begin(
    system: str, case: Case, model: nn.Module, args: tuple[Tensor, ...], device: Device
) -> tuple[Step | None, Row]:
    """The step of a system after its first calls, with what these showed."""
    row = Row()
    before = device.allocated()
    try:
        step = make_step(system, case, copy.deepcopy(model), args)
        device.wait()
        start = perf_counter()
        row.losses.append(step().item())
        row.first = perf_counter() - start
        for _ in range(COMPARED - 1):
            row.losses.append(step().item())
        for _ in range(WARM - COMPARED):
            step()
        device.wait()
        device.forget_peak()
        step()
        device.wait()
        row.peak = device.peak() - before
    except Exception as error:
        row.error = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
        return None, row
    return step, row


def time_steps(steps: dict[str, Step], rows: dict[str, Row], device: Device, seconds: float) -> None:
    """The least time of a step, of rounds that all systems take in turn."""
    rounds, end = 0, perf_counter() + seconds * len(steps)
    while steps and (rounds < 3 or perf_counter() < end):
        for name, step in steps.items():
            device.wait()
            start = perf_counter()
            for _ in range(5):
                step()
            device.wait()
            rows[name].step = min(rows[name].step, (perf_counter() - start) / 5)
        rounds += 1


def run_case(
    case: Case, systems: list[str], device: Device, seconds: float, wait: Callable[[], None]
) -> dict[str, Row]:
    """All systems on one case; `wait` returns when it is this case's turn to be timed."""
    torch.manual_seed(0)
    model, args = case.make()
    model.train()
    rows: dict[str, Row] = {}
    steps: dict[str, Step] = {}
    for system in systems:
        step, rows[system] = begin(system, case, model, args, device)
        if step is not None:
            steps[system] = step
        if case.large and step is not None:
            time_steps({system: step}, rows, device, seconds)
            steps.clear()
        del step
        if case.large:
            torch._dynamo.reset()
            gc.collect()
            if device.cuda:
                torch.cuda.empty_cache()
    wait()
    time_steps(steps, rows, device, seconds)
    torch._dynamo.reset()
    return rows


def wait_for_turn() -> None:
    """Of a case in a process of its own: it is ready, and goes on when it is told to."""
    print(READY, flush=True)
    sys.stdin.readline()


def side_by_side(names: list[str], large: list[str], given: argparse.Namespace) -> dict[str, dict[str, Row]]:
    """Each case in a process of its own: all become ready at the same time, large ones after the others, and take turns to be timed."""
    folder = Path(_CACHES.name)
    command = [sys.executable, __file__, "--device", given.device, "--threads", str(given.threads), "--wait"]
    command += ["--systems", given.systems, "--seconds", str(given.seconds)]
    found = {}
    for group in ([n for n in names if n not in large], *([n] for n in large)):
        results = {name: folder / f"{i}.json" for i, name in enumerate(group)}
        processes = {
            name: subprocess.Popen(
                [*command, "--only", name, "--json", str(file)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for name, file in results.items()
        }
        lines = {
            name: _until_ready(process) for name, process in processes.items()
        }  # all are ready before one is timed
        for name, process in processes.items():
            more, _ = process.communicate("go\n")
            print(lines[name] + more, end="", flush=True)
            if process.returncode == 0:
                found[name] = {s: Row(**row) for s, row in json.loads(results[name].read_text())[name].items()}
                write(found, given.json)
            results[name].unlink(missing_ok=True)
    return found


def _until_ready(process: subprocess.Popen[str]) -> str:
    """What a process prints before it is ready, or ends."""
    out = ""
    for line in process.stdout or ():
        if line.strip() == READY:
            break
        out += line
    return out


def verdict(row: Row, eager: Row | None) -> str:
    """ "ok" where the losses are eager's; dropout draws other numbers, so the first losses of both only have to be near."""
    if row.error:
        return row.error
    if eager is None or not eager.losses:
        return "-"
    off = [abs(a - b) / max(abs(b), 1e-6) for a, b in zip(row.losses, eager.losses, strict=True)]
    return (
        "ok"
        if max(off) <= AGREE
        else f"losses {[round(x, 4) for x in row.losses]}, not {[round(x, 4) for x in eager.losses]}"
    )


def show(name: str, rows: dict[str, Row]) -> None:
    eager = rows.get("eager")
    print(f"\n{name}")
    print(f"  {'':16} {'step':>10} {'/eager':>7} {'first':>8} {'peak MiB':>9}  loss")
    for system, row in rows.items():
        ratio = eager.step / row.step if eager and row.step < math.inf else math.nan
        print(
            f"  {system:16} {row.step * 1e3:7.2f} ms {ratio:6.2f}x {row.first:6.1f} s {row.peak >> 20 or '-':>9}  {verdict(row, eager)}",
            flush=True,
        )


def geomean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def summary(found: dict[str, dict[str, Row]]) -> None:
    """The better of our two systems over eager, and over torch.compile's best mode."""
    over_eager, over_torch = [], []
    for rows in found.values():
        ours = min((rows[s].step for s in ("model", "step") if s in rows), default=math.inf)
        theirs = min((rows[s].step for s in TORCH_MODES if s in rows), default=math.inf)
        if ours < math.inf and "eager" in rows:
            over_eager.append(rows["eager"].step / ours)
        if ours < math.inf and theirs < math.inf:
            over_torch.append(theirs / ours)
    print(f"\nover eager {geomean(over_eager):.2f}x ({len(over_eager)} cases)", end="")
    print(f", over torch.compile's best {geomean(over_torch):.2f}x ({len(over_torch)} cases)" if over_torch else "")


def write(found: dict[str, dict[str, Row]], file: Path | None) -> None:
    """The rows as JSON, where a file is asked for."""
    if file is not None:
        rows = {case: {system: vars(row) for system, row in by.items()} for case, by in found.items()}
        file.write_text(json.dumps(rows, indent=1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=2, help="threads of the CPU")
    parser.add_argument("--systems", default="eager,inductor,model,step")
    parser.add_argument("--only", default="", help="names of cases, with commas; part of a name is enough")
    parser.add_argument("--seconds", type=float, default=1.0, help="of timing, for each system")
    parser.add_argument("--side-by-side", action="store_true", help="cases compile at the same time; timed in turn")
    parser.add_argument("--wait", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    systems = given.systems.split(",")
    unknown = {s for s in systems if not re.fullmatch(r"(model|step)(@[01]?\.?\d+)?", s)} - {"eager", *TORCH_MODES}
    if unknown:
        parser.error(f"unknown systems: {', '.join(sorted(unknown))}")
    cases = CASES[given.device]
    parts = given.only.split(",")
    names = [given.only] if given.only in cases else [n for n in cases if any(part in n for part in parts)]
    if not names:
        parser.error(f"no case has {given.only!r} in its name; there are {', '.join(CASES[given.device])}")
    torch.set_num_threads(given.threads)
    device = Device(given.device)
    if not given.wait:
        print(
            f"torch {torch.__version__}, {torch.cuda.get_device_name() if device.cuda else f'{given.threads} threads'}"
        )
    found: dict[str, dict[str, Row]] = {}
    if given.side_by_side:
        found = side_by_side(names, [n for n in names if cases[n].large], given)
    for name in () if given.side_by_side else names:
        found[name] = run_case(
            cases[name], systems, device, given.seconds, wait_for_turn if given.wait else lambda: None
        )
        show(name, found[name])
        write(found, given.json)
    if not given.wait:
        summary(found)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
