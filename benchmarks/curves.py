"""Loss curves of whole training runs: compiled beside eager, and eager beside itself with its sums in another order.

    python benchmarks/curves.py --steps 500
    python benchmarks/curves.py --device cuda --cases gpt,resnet,AdamW --json curves.json

Each run starts from the same seed and sees the same batches. `reordered` runs are eager with the samples of each batch (and the micro-batches
of a step) in another order, one of them on one thread: equal in real numbers, other roundings in every sum over samples. `apart` is
Intarsia around the model and around `optimizer.step`, `whole` around the function that is the whole step.

Two gaps between two curves, as parts of the mean loss of eager's: `early` is the largest difference of a loss in the first EARLY steps,
before small differences have grown; `whole` is the root of the mean square of differences between means over a WINDOW-th of the run.
A compiled run agrees with eager where its gaps are at most EARLY_TIMES and WHOLE_TIMES the largest of the reordered runs, or below FLOOR.
Under autocast, and where an optimizer computes in bfloat16 (Muon), eager in float32 counts as one more run that eager is compared with: how far
bfloat16 moves a curve is what eager itself allows.
Each compiled run is made twice and has to give the same curve, to the last bit, where eager's own two runs do.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import platform
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from unittest import mock

_CACHE = tempfile.TemporaryDirectory(prefix="intarsia-curves-")
os.environ.setdefault("INTARSIA_CACHE_DIR", _CACHE.name)

import torch  # noqa: E402  (after the cache is named)
from curves_cases import MODELS, OPTIMIZERS, Batch, Case, System, Where  # noqa: E402
from torch import Tensor  # noqa: E402

import intarsia  # noqa: E402

CASES = MODELS | OPTIMIZERS
SYSTEMS = {
    "apart": System(model=intarsia.compile, update=intarsia.compile),
    "whole": System(step=intarsia.compile),
}
REORDERED = 12
EARLY, EARLY_TIMES = 5, 10
WINDOW, WHOLE_TIMES = 25, 3
FLOOR = 1e-6


@dataclass
class Result:
    """What the runs of a case gave: the curves by name, seconds of all, graphs and breaks of the compiled runs."""

    curves: dict[str, list[float]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    graphs: dict[str, int] = field(default_factory=dict)
    breaks: dict[str, int] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)


def reordered(batch: Batch, order: torch.Generator) -> Batch:
    """The same samples in another order."""
    at = torch.randperm(len(batch[0]), generator=order)
    return tuple(t[at] for t in batch)


def run(case: Case, where: Where, system: System, steps: int, order: int | None = None) -> list[float]:
    """The losses of one training run; `order`: the seed of the order in which it sees its samples."""
    intarsia.reset()
    torch.manual_seed(0)
    train = case.make(where, system)
    batches, generator = case.batches(), torch.Generator().manual_seed(order or 0)
    losses: list[Tensor] = []
    for _ in range(steps):
        parts = list(itertools.islice(batches, case.micro))
        if order is not None:
            parts = [reordered(parts[k], generator) for k in torch.randperm(len(parts), generator=generator)]
        losses.append(train(*(t.to(where.device) for part in parts for t in part)))
    return torch.stack(losses).double().cpu().tolist()  # type: ignore[no-any-return]


def all_runs(case: Case, where: Where, steps: int, systems: Mapping[str, System] = SYSTEMS) -> Result:
    """Every run of a case: eager (twice), in other orders, in float32 under autocast, and compiled (twice)."""
    result, eager = Result(), System()

    def timed(name: str, what: Callable[[], list[float]]) -> None:
        start = perf_counter()
        try:
            result.curves[name] = what()
        except Exception as error:
            result.errors.append(f"{name}: {type(error).__name__}: {str(error).strip().splitlines()[0][:160]}")
        result.seconds[name] = round(perf_counter() - start, 2)

    timed("eager", lambda: run(case, where, eager, steps))
    timed("eager again", lambda: run(case, where, eager, min(steps, 50)))
    threads = torch.get_num_threads()
    for k in range(1, REORDERED + 1):
        torch.set_num_threads(1 if k == REORDERED else threads)
        timed(f"reordered {k}", lambda k=k: run(case, where, eager, steps, k))  # type: ignore[misc]
    torch.set_num_threads(threads)
    if where.amp or case.halves:
        with mock.patch.object(torch.Tensor, "bfloat16", torch.Tensor.float):
            timed("float32", lambda: run(case, Where(where.device, False), eager, steps))
    for name, system in systems.items():
        for again in ("", " again"):
            timed(name + again, lambda system=system: run(case, where, system, steps))  # type: ignore[misc]
            counters = intarsia.counters()
            result.graphs[name], result.breaks[name] = counters["graphs"], counters["breaks"]
    return result


def early(a: list[float], b: list[float]) -> float:
    """See the module's text."""
    return _relative(max(abs(x - y) for x, y in zip(a[:EARLY], b[:EARLY], strict=True)), a)


def whole(a: list[float], b: list[float]) -> float:
    """See the module's text."""
    window = max(1, len(a) // WINDOW)
    differences = torch.tensor([x - y for x, y in zip(a, b, strict=True)], dtype=torch.float64)
    means = torch.stack([part.mean() for part in differences.split(window)])
    return _relative(float(means.square().mean().sqrt()), a)


def _relative(gap: float, curve: list[float]) -> float:
    scale = sum(map(abs, curve)) / len(curve)
    return gap / scale if math.isfinite(gap / scale) else math.inf


@dataclass
class Judged:
    """The gaps of a compiled run, those that are allowed, and what is wrong; "" where nothing is."""

    early: float
    whole: float
    allowed_early: float
    allowed_whole: float
    wrong: str


def judge(result: Result, name: str) -> Judged:
    """A compiled run beside eager, see the module's text."""
    curves = result.curves
    if "eager" not in curves or name not in curves:
        return Judged(math.inf, math.inf, 0, 0, "; ".join(result.errors))
    others = [curve for key, curve in curves.items() if key.startswith(("reordered", "float32"))]
    eager, have = curves["eager"], curves[name]
    allowed = [
        max(FLOOR, times * max(gap(eager, other) for other in others))
        for gap, times in ((early, EARLY_TIMES), (whole, WHOLE_TIMES))
    ]
    gaps = early(eager, have), whole(eager, have)
    wrong = []
    if not all(map(math.isfinite, have)):
        wrong.append("not finite")
    for what, gap, most in zip(("early", "whole"), gaps, allowed, strict=True):
        if gap > most:
            wrong.append(f"{what} gap {gap:.1e} > {most:.1e}")
    again, eager_again = curves.get(f"{name} again"), curves.get("eager again", [])
    if again != have and eager_again == eager[: len(eager_again)]:
        wrong.append("the same seed gives another run")
    return Judged(*gaps, *allowed, "; ".join(wrong))


def row(name: str, where: Where, system: str, result: Result) -> str:
    """A line of the table."""
    found = judge(result, system)
    eager = result.curves.get("eager", [math.nan])
    losses = f"{eager[0]:.3f} to {sum(eager[-10:]) / len(eager[-10:]):.3f}"
    mode = "bfloat16" if where.amp else "float32"
    return (
        f"| {name} | {mode} | {system} | {losses} | {found.early:.1e} of {found.allowed_early:.1e} "
        f"| {found.whole:.1e} of {found.allowed_whole:.1e} | {result.graphs.get(system, 0)} | {result.breaks.get(system, 0)} "
        f"| {found.wrong or 'agrees'} |"
    )


HEADER = (
    "| case | numbers | compiled | eager's loss | early gap of allowed | whole gap of allowed | graphs | breaks | verdict |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
)


def main() -> int:
    parser = argparse.ArgumentParser(description="Loss curves, compiled and eager.")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--cases", default="all", help=f"all, models, optimizers, or some of {', '.join(CASES)}")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--json", type=Path, help="where the curves are written to")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    groups = {"all": list(CASES), "models": list(MODELS), "optimizers": list(OPTIMIZERS)}
    names = groups.get(args.cases) or args.cases.split(",")
    print(
        f"{args.steps} steps, {args.device}, torch {torch.__version__}, Python {platform.python_version()}\n\n{HEADER}"
    )
    wrong, kept = 0, {}
    for name in names:
        for amp in (False, True) if name in MODELS else (False,):
            where = Where(args.device, amp)
            result = all_runs(CASES[name], where, args.steps)
            kept[f"{name} {'bfloat16' if amp else 'float32'}"] = vars(result)
            for system in SYSTEMS:
                print(row(name, where, system, result), flush=True)
                wrong += bool(judge(result, system).wrong)
    print(f"\n{wrong} compiled runs do not agree with eager")
    if args.json:
        args.json.write_text(json.dumps(kept))
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
