"""Much on one GPU in little time: programs, models, operators and random graphs, compiled and compared in processes side by side.

    python -m tests.gpu.sweep [--kinds models,training,architectures,architecture-training,programs,operators,gradients,graphs,functions] [--jobs 14] [--seconds 90] [--device cuda]

Programs and models (INTARSIA_SWEEP_MODE=max-autotune: in that mode) and operators are compared with eager, random graphs (1,000 with `--kinds graphs --graphs 1000`) with the interpreter.

First prints what is wrong, then what runs in eager and why, then the time it took. A process that crashes or hangs is replaced; what it
was at counts as wrong.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import monotonic
from typing import Any

os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # whether there is a GPU is asked without touching it
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("INTARSIA_RANDOM", "eager")  # its numbers are compared with

import torch
import torch.utils._pytree as pytree

import intarsia
from intarsia.targets.triton.worker import WORKERS
from intarsia.testing import Undecided, check

sys.path[:0] = [str(Path(__file__).parents[2] / room) for room in ("benchmarks", "tests/fuzz")]
HUNG = 180.0  # seconds after which a task counts as hung
GROUP = 10  # random programs that are one task
ARCHITECTURES = ("architectures", "half-architectures", "architecture-training")
MODE = os.environ.get("INTARSIA_SWEEP_MODE")  # of programs and models


@dataclass(frozen=True)
class Found:
    """What became of one task: "ok", "wrong", "eager" (it fell back, visibly) or "skip" (there is nothing to compare with)."""

    kind: str
    name: str
    verdict: str
    detail: str = ""
    seconds: float = 0.0


Check = Callable[[str], tuple[str, str]]


# ---- what is checked ------------------------------------------------------------------------------------------------


def by_the_rule(
    fn: Any, args: Sequence[Any], kwargs: dict[str, Any] | None = None, gradients: bool = False, calls: int = 2
) -> tuple[str, str]:
    """By the accuracy rule, and whether it ran compiled."""
    from tests.opdb.harness import listening

    before = intarsia.counters()["fallbacks"]
    with torch.set_grad_enabled(gradients), listening() as said:
        try:
            report = check(fn, args, kwargs, compiled=intarsia.compile(fn, mode=MODE), gradients=gradients, calls=calls)
        except Undecided as error:
            return "skip", str(error).splitlines()[0]
    if intarsia.counters()["fallbacks"] != before:
        return "eager", " ".join(" ".join(said).split()) or "SILENTLY"
    return "ok", f"eager raises {report.raised.__name__}" if report.raised else ""


def program(device: str, name: str) -> tuple[str, str]:
    """One of benchmarks/sweep_programs.py, with all its tensors on the device."""
    from sweep_programs import PROGRAMS

    torch.manual_seed(0)
    with torch.device(device):
        fn, args = PROGRAMS[name]()
    return by_the_rule(fn, args)


def model(device: str, name: str, gradients: bool = False) -> tuple[str, str]:
    """One of benchmarks/models.py.

    With gradients, convolutional networks are in training mode, without dropout, and all is in float64: in float32 a rounding error
    may decide on which side of relu's corner a number lies.
    """
    from models import build

    case = build(name)
    if gradients:
        case = case._replace(
            model=case.model.double(),
            args=pytree.tree_map_only(torch.Tensor, lambda t: t.double() if t.is_floating_point() else t, case.args),
        )
    if gradients and any(isinstance(m, torch.nn.BatchNorm2d) for m in case.model.modules()):
        case.model.train()
        for part in case.model.modules():
            if isinstance(part, torch.nn.Dropout):
                part.p = 0.0
    args, kwargs = pytree.tree_map_only(torch.Tensor, lambda t: t.to(device), (case.args, case.kwargs))
    return by_the_rule(case.model.to(device), args, kwargs, gradients)


def architecture(device: str, name: str, gradients: bool = False) -> tuple[str, str]:
    """One of tests/architectures, in the type behind the @ (default: float32).

    With gradients in training mode. Where one differs, all is repeated in float64: a network whose float64 gradients agree is "chaotic",
    as those with batch norm over few images are: a rounding error decides on which side of relu's corner a number lies. So is one whose
    float64 gradients differ by no more than eager's own do when all parameters and inputs change by a few roundings.
    """
    from tests.architectures import build

    stem, _, word = name.partition("@")

    def outcome(dtype: torch.dtype) -> tuple[str, str]:
        case = build(stem)
        args, kwargs = pytree.tree_map_only(
            torch.Tensor, lambda t: t.to(device, dtype if t.is_floating_point() else None), (case.args, case.kwargs)
        )
        module = case.model.to(device, dtype).train(gradients)
        for part in module.modules():
            if isinstance(part, torch.nn.Dropout):
                part.p = 0.0
        return by_the_rule(module, args, kwargs, gradients, calls=2 if device == "cpu" else 5)

    try:
        return outcome(getattr(torch, word or "float32"))
    except AssertionError as error:
        if not gradients:
            raise
        try:
            verdict, detail = outcome(torch.float64)
        except AssertionError:
            beyond = _beyond_rounding(device, stem)
            if beyond:
                raise
            verdict, detail = "ok", "in float64 as near as eager is to itself one rounding away;"
        return ("chaotic" if verdict == "ok" else verdict), f"{detail} in float32: {error}"


def _beyond_rounding(device: str, stem: str) -> list[str]:
    """The gradients in float64 that differ by more than eager's own do when parameters and inputs change by some roundings."""
    from tests.architectures import build

    def gradients(perturbation: int, compiled: bool = False) -> dict[str, torch.Tensor]:
        case, draw = build(stem), torch.Generator().manual_seed(perturbation)
        module = case.model.double().train()

        def near(value: torch.Tensor) -> torch.Tensor:
            if not value.is_floating_point():
                return value
            noise = torch.rand(value.shape, generator=draw, dtype=torch.float64) - 0.5
            return value.double() * (1 + noise * (2.0**-48 if perturbation else 0.0))

        for part in module.modules():
            if isinstance(part, torch.nn.Dropout):
                part.p = 0.0
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.copy_(near(parameter))
        args, kwargs = pytree.tree_map_only(torch.Tensor, lambda t: near(t).to(device), (case.args, case.kwargs))
        module.to(device)
        torch.manual_seed(0)
        results = (intarsia.compile(module) if compiled else module)(*args, **kwargs)
        weights = torch.Generator().manual_seed(1)
        torch.stack(
            [
                (t * torch.randn(t.shape, generator=weights, dtype=torch.float64).to(device)).sum()
                for t in pytree.tree_leaves(results)
                if isinstance(t, torch.Tensor) and t.requires_grad
            ]
        ).sum().backward()
        return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}

    with torch.enable_grad():
        eager, ours = gradients(0), gradients(0, compiled=True)
        moved = [gradients(k) for k in range(1, 6)]
    found = [f"{name}: compiled has a gradient, or has none" for name in eager.keys() ^ ours.keys()]
    for name in eager.keys() & ours.keys():
        reach = max(float((other[name] - eager[name]).abs().max()) for other in moved)
        off = float((ours[name] - eager[name]).abs().max())
        if not off <= 4 * reach + 1e-12 * float(eager[name].abs().max()):
            found.append(f"{name}: {off:.2g} off, eager moves by {reach:.2g}")
    return found


def operator(device: str, name: str) -> tuple[str, str]:
    """One of torch's operator database, in the type behind the @, with its first samples."""
    from tests.opdb.harness import name_of, op_db, outcome, try_compiled

    full_name, _, word = name.partition("@")
    info, dtype = next(info for info in op_db if name_of(info) == full_name), getattr(torch, word)
    if dtype not in (info.dtypes if device == "cpu" else info.dtypesIfCUDA):
        return "skip", f"not in {word} on {device}"
    with torch.no_grad():
        found = outcome(info, 1, try_compiled, device, dtype)
    return {"pass": "ok", "fallback": "eager"}.get(found.kind, found.kind), found.detail


def gradient(device: str, name: str) -> tuple[str, str]:
    """The gradients of one of torch's operator database."""
    from tests.opdb.gradients import differentiable, full_name, outcome

    info = next((info for info in differentiable() if full_name(info) == name), None)
    if info is None or torch.float32 not in (info.dtypes if device == "cpu" else info.dtypesIfCUDA):
        return "skip", f"has none on {device}"
    found = outcome(info, 1, device)
    return {"pass": "ok", "fallback": "eager", "error": "wrong"}.get(found.kind, found.kind), found.detail


def graphs(device: str, name: str) -> tuple[str, str]:
    """Some random programs, from this seed on."""
    from tests.gpu.random_graphs import check, random_one

    failures = check([random_one(seed) for seed in range(int(name), int(name) + GROUP)])
    return "wrong" if failures else "ok", "\n".join(failures)


def functions(device: str, name: str) -> tuple[str, str]:
    """Some random functions, called so often that they are recorded."""
    from functions import random_function, runs_in_eager

    found: list[tuple[str, str]] = []
    for seed in range(int(name), int(name) + GROUP):
        function = random_function(seed)
        if runs_in_eager(function):
            with torch.device(device):  # of the tensors that it makes
                try:
                    found.append(by_the_rule(function.call, [x.to(device) for x in function.inputs], calls=5))
                except AssertionError as error:
                    found.append(("wrong", f"seed {seed}: {error}\n{function.source}"))
    worst = [text for verdict, text in found if verdict == "wrong"]
    eager = [text for verdict, text in found if verdict == "eager"]
    return "wrong" if worst else "eager" if eager else "ok", "\n".join(worst or eager)


def tasks(kinds: Sequence[str], wanted: str, every: int, count: int) -> list[tuple[str, str]]:
    """(kind, name) of all tasks, the longest first."""
    from sweep_programs import PROGRAMS

    found: list[tuple[str, str]] = []
    pool = ProcessPoolExecutor(1, get_context("spawn"))  # of its own: reading the database may start CUDA
    operators = pool.submit(_database_names) if {"operators", "gradients"} & set(kinds) else None
    pool.shutdown(wait=False)
    if {"models", "training", *ARCHITECTURES} & set(kinds):  # imported once, in front of the processes
        import torchvision_stub

        torchvision_stub.install()
        import timm  # noqa: F401
        import transformers  # noqa: F401
        from models import WIDE

        found += [("models", name) for name in WIDE if "models" in kinds]
        found += [("training", name) for name in WIDE if "training" in kinds]
    if set(ARCHITECTURES) & set(kinds):
        from tests.architectures import NAMES

        found += [("architecture-training", name) for name in NAMES if "architecture-training" in kinds]
        found += [("architectures", name) for name in NAMES if "architectures" in kinds]
        found += [("architectures", f"{name}@bfloat16") for name in NAMES if "half-architectures" in kinds]
    if "graphs" in kinds:
        found += [("graphs", str(seed)) for seed in range(0, count, GROUP)]
    if "functions" in kinds:
        found += [("functions", str(seed)) for seed in range(0, count // 5, GROUP)]
    if "programs" in kinds:
        found += [("programs", name) for name in PROGRAMS]
    if operators is not None:
        names = operators.result()
        found += [("gradients", name) for name in names if "gradients" in kinds]
        found += [("operators", f"{name}@float32") for name in names if "operators" in kinds]
        found += [("operators", f"{name}@bfloat16") for name in names[::3] if "operators" in kinds]
    words = [word for word in wanted.split(",") if word]
    return [t for t in found if not words or any(word in t[1] for word in words)][::every]


def _database_names() -> list[str]:
    try:
        from tests.opdb.harness import name_of, op_db
    except ModuleNotFoundError as error:
        print(f"no operators: {error}", flush=True)
        return []
    return [name_of(info) for info in op_db]


# ---- processes ------------------------------------------------------------------------------------------------------


def _work(device: str, todo: list[tuple[str, str]], following: Any, at: Any, place: int, found: Any) -> None:
    """The life of a process: takes the next task until none is left."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    WORKERS.limit = 2
    checks: dict[str, Check] = {
        "programs": partial(program, device),
        "models": partial(model, device),
        "operators": partial(operator, device),
        "graphs": partial(graphs, device),
        "functions": partial(functions, device),
        "gradients": partial(gradient, device),
        "training": partial(model, device, gradients=True),
        "architectures": partial(architecture, device),
        "architecture-training": partial(architecture, device, gradients=True),
    }
    while True:
        with following.get_lock():
            k = following.value
            following.value += 1
        if k >= len(todo):
            at[2 * place] = -1
            found.put(None)
            return
        kind, name = todo[k]
        at[2 * place + 1], at[2 * place] = monotonic(), k
        start = monotonic()
        try:
            verdict, detail = checks[kind](name)
        except AssertionError as error:
            verdict, detail = "wrong", str(error)
        except Exception as error:
            verdict, detail = "wrong", f"{type(error).__name__}: {error}"
        torch._dynamo.reset() if "torch._dynamo" in sys.modules and k % 50 == 0 else None
        found.put(Found(kind, name, verdict, detail, monotonic() - start))
        if device != "cpu":
            try:
                torch.cuda.synchronize()
            except RuntimeError:  # an assertion on the device: this process can use it no more
                os._exit(3)
        intarsia.reset()


def _can_fork(device: str) -> bool:
    """Whether a forked process may use the GPU: not when something that was imported has started CUDA."""
    if device == "cpu":
        return True
    child = get_context("fork").Process(target=_touch, args=(device,))
    child.start()
    child.join()
    return child.exitcode == 0


def _touch(device: str) -> None:
    torch.zeros(1, device=device)


def sweep(todo: list[tuple[str, str]], device: str, jobs: int, seconds: float) -> list[Found]:
    """All tasks that can be done in these seconds."""
    start = monotonic()
    context = get_context("fork" if _can_fork(device) else "spawn")
    following, found = context.Value("i", 0), context.SimpleQueue()
    at = context.Array("d", [-1.0] * (2 * jobs), lock=False)  # of each process: the task, and since when

    def begin(place: int) -> BaseProcess:
        at[2 * place] = -1
        made: BaseProcess = context.Process(target=_work, args=(device, todo, following, at, place, found), daemon=True)
        made.start()
        return made

    results: list[Found] = []
    finished = 0
    running = [begin(k) for k in range(jobs)]
    print(f"{len(todo)} tasks, {jobs} processes ({context.get_start_method()})", flush=True)
    while finished < jobs and monotonic() - start < seconds:
        while found.empty():
            for k, process in enumerate(running):
                task, since = int(at[2 * k]), at[2 * k + 1]
                hung = task >= 0 and monotonic() - since > HUNG
                if hung:
                    process.kill()
                    process.join()
                if not process.is_alive() and process.exitcode != 0:
                    if task >= 0 and not any((r.kind, r.name) == todo[task] for r in results):
                        what = f"hung for {HUNG:.0f} s" if hung else f"the process ended with {process.exitcode}"
                        results.append(Found(*todo[task], "wrong", what))
                    running[k] = begin(k)
            if monotonic() - start > seconds or not found.empty():
                break
            running[0].join(0.05)
        if not found.empty():
            result = found.get()
            if result is None:
                finished += 1
            elif not any((r.kind, r.name) == (result.kind, result.name) for r in results):
                results.append(result)
    for process in running:
        if process.is_alive():
            process.kill()
    return results


# ---- what is printed ------------------------------------------------------------------------------------------------


def tell(results: list[Found], todo: list[tuple[str, str]], spent: float) -> int:
    """Print all results, the bad ones first; how many are wrong."""
    for kind in dict.fromkeys(kind for kind, _ in todo):
        counts = Counter(r.verdict for r in results if r.kind == kind)
        print(f"{kind}: {sum(k == kind for k, _ in todo)} tasks, {', '.join(f'{n} {v}' for v, n in counts.items())}")
    wrong = [r for r in results if r.verdict == "wrong"]
    for r in wrong:
        lines = [line for line in r.detail.splitlines() if line.strip()]
        print(f"WRONG {r.kind} {r.name}: " + "\n    ".join(line[:220] for line in lines[:7]))
    reasons: dict[str, list[Found]] = defaultdict(list)
    for r in results:
        if r.verdict == "eager":
            reasons[re.sub(r"\d+|/\S+", "#", r.detail)[:90]].append(r)
    for those in sorted(reasons.values(), key=len, reverse=True):
        print(f"EAGER {len(those)}: {those[0].detail[:400]}\n    {', '.join(r.name for r in those)[:600]}")
    skipped = Counter(r.detail[:60] for r in results if r.verdict == "skip")
    for detail, count in skipped.most_common(12):
        print(f"skipped {count}: {detail}")
    slowest = sorted(results, key=lambda r: -r.seconds)[:8]
    print(f"{len(results)} of {len(todo)} done in {spent:.1f} s; {sum(r.seconds for r in results):.0f} s of work")
    print("slowest: " + ", ".join(f"{r.name} {r.seconds:.1f}" for r in slowest))
    return len(wrong)


def main() -> int:
    """Check what the command line names; 1 when something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default="models,training,programs,operators,gradients,graphs,functions")
    parser.add_argument("--only", default="", help="tasks whose names contain one of these words, with commas")
    parser.add_argument("--every", type=int, default=1, help="each so many-th task")
    parser.add_argument("--graphs", type=int, default=200, help="how many random graphs; a fifth as many functions")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--seconds", type=float, default=90.0, help="after which what is left is not done")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    start = monotonic()
    todo = tasks(tuple(options.kinds.split(",")), options.only, options.every, options.graphs)
    print(f"imports {monotonic() - start:.1f} s", flush=True)
    with tempfile.TemporaryDirectory(prefix="intarsia-sweep-") as folder:
        os.environ["INTARSIA_CACHE_DIR"] = folder
        results = sweep(todo, options.device, options.jobs, options.seconds - (monotonic() - start))
    return int(tell(results, todo, monotonic() - start) > 0)


if __name__ == "__main__":
    sys.exit(main())
