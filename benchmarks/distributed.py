"""Training in several processes, beside eager and torch.compile: DDP of GPT-2, FSDP2 and tensor parallel of a Llama.

    python benchmarks/distributed.py --ranks 2 --limit 300 --json results.json
    python benchmarks/distributed.py --device cpu --ranks 2
    torchrun --nproc-per-node 2 benchmarks/distributed.py

Started plainly it starts its processes itself, and starts them again for the systems that are left where one fails or takes
too long. Each system trains the model `alone` (each process for itself, without talking to the others) and then in each way.
`tokens/s` are those of all processes together; `scaling` is their part of what the processes make alone, in tensor parallel
over one of them. Forward and backward are compiled, the optimizer is torch's fused one for all; `--update` compiles its step
too. `loss` compares the losses of the first steps with eager's. Peak memory is that of one process.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import Any

if __name__ == "__main__" and "RANK" not in os.environ:
    _CACHES = tempfile.TemporaryDirectory(prefix="intarsia-distributed-bench-")
    for _name, _folder in (("TORCHINDUCTOR", "inductor"), ("TRITON", "triton"), ("INTARSIA", "intarsia")):
        os.environ.setdefault(f"{_name}_CACHE_DIR", f"{_CACHES.name}/{_folder}")

import torch  # noqa: E402  (after the caches are named)
import torch.distributed as dist  # noqa: E402
from distributed_cases import CASES, Case, Size  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402

import intarsia  # noqa: E402

COMPARED = 5  # steps whose losses are compared
WARM = 8  # steps in front of a timing
AGREE = 0.02  # how far a loss may be from eager's, as a part of it

Compile = Callable[[Any], Any]
Found = dict[tuple[str, ...], dict[str, Any]]  # by case, way and system
SYSTEMS: dict[str, Compile] = {
    "eager": lambda fn: fn,
    "inductor": torch.compile,
    "inductor-blocks": torch.compile,  # each layer by itself
    "intarsia": intarsia.compile,
}


def prepared(system: str, case: Case, size: Size, way: Any, mesh: Any, update: bool) -> Callable[[], Tensor]:
    """A training step."""
    rank, device = dist.get_rank(), mesh.device_type
    torch.manual_seed(0)
    model: nn.Module = case.model(size).to(device)
    if system == "inductor-blocks":
        for layer in model.layers:  # type: ignore[union-attr]
            layer.compile()  # type: ignore[operator]
    wrapped = way(model, mesh)
    compiled = SYSTEMS[system] if system != "inductor-blocks" else SYSTEMS["eager"]
    forward = compiled(wrapped)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-4, fused=True)
    step_optimizer = compiled(optimizer.step) if update else optimizer.step
    draw = torch.Generator().manual_seed(0 if way.__name__ in case.same else rank)
    x = torch.randint(size.vocabulary, (size.rows, size.length + 1), generator=draw).to(device)
    x, target = x[:, :-1].contiguous(), x[:, 1:].contiguous()

    def step() -> Tensor:
        loss: Tensor = forward(x, target)
        loss.backward()
        step_optimizer()
        optimizer.zero_grad()
        return loss.detach()

    return step


def measure(system: str, case: Case, size: Size, way: Any, mesh: Any, update: bool, seconds: float) -> dict[str, Any]:
    """One system, one way; the same on all processes."""
    cuda = mesh.device_type == "cuda"
    wait = torch.cuda.synchronize if cuda else lambda: None
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    begun = perf_counter()
    step = prepared(system, case, size, way, mesh, update)
    wait()
    start = perf_counter()
    losses = [averaged(step())]
    first = perf_counter() - start
    losses += [averaged(step()) for _ in range(COMPARED - 1)]
    for _ in range(WARM - COMPARED):
        step()
    wait()
    start = perf_counter()
    step()
    wait()
    count = max(2, min(50, int(largest(seconds / 3 / (perf_counter() - start)))))
    best = math.inf
    for _ in range(3):
        dist.barrier()
        start = perf_counter()
        for _ in range(count):
            step()
        wait()
        best = min(best, largest((perf_counter() - start) / count))
    peak = torch.cuda.max_memory_reserved() >> 20 if cuda else 0
    told = {name: intarsia.counters().get(name, 0) for name in ("graphs", "breaks", "fallbacks")}
    return {
        "first": largest(first), "step": best, "losses": losses, "peak": peak, "took": perf_counter() - begun, **told
    }  # fmt: skip


def averaged(loss: Tensor) -> float:
    value = loss.float().cpu()
    dist.all_reduce(value)
    return value.item() / dist.get_world_size()


def largest(number: float) -> float:
    value = torch.tensor(number, dtype=torch.float64)
    dist.all_reduce(value, dist.ReduceOp.MAX)
    return value.item()


def work(given: argparse.Namespace, rank: int, ranks: int, place: str, jobs: list[list[str]], end: float) -> Found:
    """What one process does; rank 0 prints a line of JSON for each result, and one in front of each."""
    found: Found = {}
    cuda = given.device == "cuda"
    if cuda:
        torch.cuda.set_device(rank % torch.cuda.device_count())
    else:
        torch.set_num_threads(1)
    backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
    dist.init_process_group(
        backend, init_method=place, rank=rank, world_size=ranks, timeout=timedelta(seconds=given.each)
    )
    mesh = init_device_mesh(given.device, (ranks,))
    for name, way, system in jobs:
        left = largest(monotonic() - end)
        if left > -given.each / 6:  # as the slowest process sees it
            break
        if rank == 0:
            print(json.dumps({"case": name, "way": way, "system": system, "begun": True}), flush=True)
        case = CASES[name]
        function = next(w for w in case.ways if w.__name__ == way)
        row = measure(system, case, case.sizes[given.device], function, mesh, given.update, given.seconds)
        if rank == 0:
            found[name, way, system] = row
            print(json.dumps({"case": name, "way": way, "system": system, **row}), flush=True)
        intarsia.reset()
        torch._dynamo.reset()
        gc.collect()
        if cuda:
            torch.cuda.empty_cache()
    dist.destroy_process_group()
    return found


def launch(given: argparse.Namespace, jobs: list[list[str]], end: float) -> Found:
    """Start the processes until each job has a result or an error, or the time is over."""
    found: Found = {}
    while (todo := [job for job in jobs if tuple(job) not in found]) and monotonic() < end - 5:
        before = len(found)
        with tempfile.TemporaryDirectory() as folder:
            running = None
            logs = [Path(folder) / f"log{r}" for r in range(given.ranks)]
            ranks = []
            for r, log in enumerate(logs):
                said = {"rank": r, "place": f"file://{folder}/meet", "jobs": todo, "end": end}
                with open(log, "wb") as out, open(f"{log}.errors", "wb") as err:
                    options = ["--worker", json.dumps(said), *sys.argv[1:]]
                    ranks.append(subprocess.Popen([sys.executable, __file__, *options], stdout=out, stderr=err))
            lines, since = 0, monotonic()
            while True:
                sleep(0.2)
                codes = [p.poll() for p in ranks]
                for line in logs[0].read_text().splitlines(keepends=True)[lines:]:
                    if not line.endswith("\n"):
                        break
                    lines, since = lines + 1, monotonic()
                    if line.startswith("{"):
                        row = json.loads(line)
                        running = (row["case"], row["way"], row["system"])
                        if not row.pop("begun", False):
                            found[running], running = row, None
                            tell(row)
                broken = any(codes)
                failed = broken or monotonic() - since > given.each or monotonic() > end
                if failed or all(code == 0 for code in codes):
                    break
            for process in ranks:
                process.kill()
                process.wait()
            if failed:
                why = "a process failed" if broken else "it took too long"
                order = sorted(range(given.ranks), key=lambda r: (codes[r] or -1) < 0)  # its own error first
                text = Path(f"{logs[order[0]]}.errors").read_text().strip()
                print(f"{running}: {why}\n" + "\n".join(text.splitlines()[-given.trace :]), flush=True)
                if running is not None:
                    last = text.splitlines()[-1] if broken and text else ""
                    found[running] = {"error": f"{why}: {last[:160]}", "case": running[0]}
        if len(found) == before:
            break
    return found


def tell(row: dict[str, Any]) -> None:
    print(
        f"{row['case']} {row['way']} {row['system']}: {row['step'] * 1e3:.2f} ms a step, first {row['first']:.1f} s, "
        f"took {row['took']:.0f} s",
        flush=True,
    )


def summary(found: Found, given: argparse.Namespace) -> None:
    """The table."""
    for name, case in CASES.items():
        size = case.sizes[given.device]
        for way in case.ways:
            rows = {s: row for (n, w, s), row in found.items() if (n, w) == (name, way.__name__)}
            if not rows:
                continue
            shared = way.__name__ in case.same
            print(f"\n{name} {way.__name__}, {size.rows}x{size.length} {'in all' if shared else 'a process'}")
            print(
                f"  {'':16}{'a step':>11} {'tokens/s':>10} {'/eager':>7} {'scaling':>8} {'first':>8} {'peak':>9}  loss"
            )
            for system, row in rows.items():
                if "error" in row:
                    print(f"  {system:16}{row['error']}")
                    continue
                eager, one = rows.get("eager", {}), found.get((name, "alone", system), {})
                tokens = size.rows * size.length * (1 if shared else given.ranks) / row["step"]
                scaling = one.get("step", math.nan) / row["step"]
                ratio = eager.get("step", math.nan) / row["step"]
                print(
                    f"  {system:16}{row['step'] * 1e3:8.2f} ms {tokens:10.0f} {ratio:6.2f}x {scaling:8.2f} "
                    f"{row['first']:6.1f} s {row['peak']:5} MiB  {verdict(row, eager)}"
                )


def verdict(row: dict[str, Any], eager: dict[str, Any]) -> str:
    """ "ok" where the losses are eager's."""
    wanted = eager.get("losses")
    if not wanted:
        return "-"
    off = max(abs(a - b) / max(abs(b), 1e-6) for a, b in zip(row["losses"], wanted, strict=True))
    counted = f" ({row['graphs']} graphs, {row['breaks']} breaks, {row['fallbacks']} fallbacks)" * bool(row["graphs"])
    return (f"ok, {off:.0e}" if off <= AGREE else f"WRONG: {row['losses']}, not {wanted}") + counted


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--systems", default="eager,intarsia,inductor")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--ways", default="alone,ddp,fsdp,tp")
    parser.add_argument("--update", action="store_true", help="compile optimizer.step too")
    parser.add_argument("--seconds", type=float, default=2.0, help="of timing, for each system and way")
    parser.add_argument("--each", type=float, default=120.0, help="seconds after which a system and way is given up")
    parser.add_argument("--limit", type=float, default=570.0, help="seconds after which all ends")
    parser.add_argument("--trace", type=int, default=12, help="lines of an error that are shown")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    end = monotonic() + given.limit
    ways = given.ways.split(",")
    jobs = [
        [name, way.__name__, system]
        for name in given.cases.split(",")
        for way in CASES[name].ways
        if way.__name__ in ways
        for system in given.systems.split(",")
    ]
    if given.worker:
        said = json.loads(given.worker)
        work(given, said["rank"], given.ranks, said["place"], said["jobs"], said["end"])
        return 0
    if "RANK" in os.environ:
        found = work(given, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "env://", jobs, end)
        summary(found, given)
        return 0
    where = torch.cuda.get_device_name() if given.device == "cuda" else "the CPU, one thread a process"
    print(f"torch {torch.__version__}, {given.ranks} processes on {where}", flush=True)
    found = launch(given, jobs, end)
    summary(found, given)
    if given.json:
        given.json.write_text(json.dumps([{"way": k[1], "system": k[2], **row} for k, row in found.items()], indent=1))
    return 1 if any("error" in row for row in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
