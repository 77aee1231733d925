"""Where the first call goes: a table of phases, cold and warm, each in a process of its own; many equal layers; many operations.

    python benchmarks/compile_time.py [--cases bert_base,resnet18,...] [--threads 1] [--beside] [--layers] [--operations]

Every second between `intarsia.compile(...)` and the first result has a name; "other" is what is left. Imports stand apart. `--beside` also
times torch.compile's first call, with an empty cache. "cpu" is the processor time of the process itself: on a busy machine it says more.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

HERE = Path(__file__).parent
PHASES = ["capture", "key", "load", "functionalize", "import", "passes", "emit", "c++", "entry", "first run"]
CASES = ["bert_base", "resnet18", "mobilenet_v3_small", "gpt2"]


def child(job: dict[str, Any]) -> dict[str, Any]:
    """One process: imports, the model, one first call."""
    start = perf_counter()
    import torch

    found: dict[str, Any] = {"import torch": perf_counter() - start}
    torch.set_num_threads(job["threads"])
    start = perf_counter()
    import intarsia

    found["import intarsia"] = perf_counter() - start
    model, args, kwargs = _made(job["case"])
    with torch.no_grad():
        model(*args, **kwargs)  # eager's own libraries are loaded before the clock starts
        start, used = perf_counter(), process_time()
        compiled = torch.compile(model) if job["system"] == "inductor" else intarsia.compile(model)
        compiled(*args, **kwargs)
        found["total"], found["cpu"] = perf_counter() - start, process_time() - used
        start = perf_counter()
        compiled(*args, **kwargs)
        found["second call"] = perf_counter() - start
    counted = intarsia.counters()
    found["phases"] = counted.pop("seconds")
    return found | {"counts": counted}


def _made(case: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    import torch

    kind, _, number = case.partition(":")
    torch.manual_seed(0)
    if kind == "layers":
        layers = [
            torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, norm_first=True) for _ in range(int(number))
        ]
        return torch.nn.Sequential(*layers).train().requires_grad_(False), (torch.randn(2, 16, 64),), {}
    if kind == "bert_layers":
        import torchvision_stub
        from models import _text

        torchvision_stub.install()
        made = _text("BertModel", 1, 32, hidden_size=64, num_hidden_layers=int(number), num_attention_heads=4)()
        return made.model, made.args, made.kwargs
    if kind in ("chain", "mixed"):
        return _operations(kind, int(number)), (torch.randn(32, 32) * 0.01, torch.randn(32, 32) * 0.01), {}
    from models import build

    made = build(case)
    return made.model, made.args, made.kwargs


def _operations(kind: str, count: int) -> Any:
    import torch

    def chain(x: Any, y: Any) -> Any:
        for _ in range(count // 4):
            x = torch.relu(torch.sin(x) * 0.5 + y)
        return x

    def mixed(x: Any, y: Any) -> Any:
        for _ in range(count // 8):
            x = torch.relu(torch.sin(x) * 0.5 + y)
            x = (x - x.sum(-1, keepdim=True) * 0.01) @ y
        return x

    return chain if kind == "chain" else mixed


def run(case: str, cache: str, threads: int, system: str = "intarsia") -> dict[str, Any]:
    """What `child` finds in a new process, with this cache folder."""
    environment = {**os.environ, "INTARSIA_CACHE_DIR": cache, "TORCHINDUCTOR_CACHE_DIR": cache + "-inductor"}
    environment["OMP_NUM_THREADS"] = str(threads)
    job = json.dumps({"case": case, "threads": threads, "system": system})
    command = [sys.executable, str(Path(__file__).resolve()), "--job", job]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=HERE, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{case}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def row(name: str, found: dict[str, Any]) -> str:
    """One line of the table."""
    phases = found["phases"]
    named = [phases.get(p, 0.0) for p in PHASES]
    other = found["total"] - sum(named)
    numbers = [
        found["total"],
        found["cpu"],
        *named,
        other,
        found["second call"],
        found["import torch"],
        found["import intarsia"],
    ]
    return f"{name:28}" + "".join(f"{n:10.3f}" for n in numbers)


def table(cases: list[str], threads: int, beside: bool) -> None:
    """Cold and warm, and torch.compile's cold first call."""
    heads = ["total", "cpu", *PHASES, "other", "2nd call", "i. torch", "i. ours"]
    print(f"{'seconds':28}" + "".join(f"{h[:9]:>10}" for h in heads))
    ratios = []
    for case in cases:
        with tempfile.TemporaryDirectory() as cache:
            cold = run(case, cache, threads)
            warm = min((run(case, cache, threads) for _ in range(2)), key=lambda r: r["total"])
            print(row(f"{case} cold", cold), row(f"{case} warm", warm), sep="\n", flush=True)
            if beside:
                other = run(case, cache, threads, "inductor")
                ratios.append(other["total"] / cold["total"])
                print(f"{case + ' torch.compile':28}{other['total']:10.3f}   {ratios[-1]:.1f} times ours", flush=True)
    if ratios:
        print(f"geomean of torch.compile's first call over ours: {math.prod(ratios) ** (1 / len(ratios)):.2f}")


def growth(kinds: list[str], counts: list[int], threads: int) -> None:
    """How the cost of a first call grows with equal layers or operations."""
    for kind in kinds:
        found = {}
        for count in counts:
            with tempfile.TemporaryDirectory() as cache:
                found[count] = run(f"{kind}:{count}", cache, threads)
            print(row(f"{kind} x {count}", found[count]), flush=True)
        first, last = (found[c] for c in (counts[0], counts[-1]))
        compiling = [f["total"] - f["phases"].get("capture", 0.0) - f["second call"] for f in (first, last)]
        whole = [f["total"] - f["second call"] for f in (first, last)]
        print(
            f"{kind}: {counts[0]} -> {counts[-1]}: {whole[1] / whole[0]:.2f} times, without capture {compiling[1] / compiling[0]:.2f} times; "
            f"ms for each: {whole[0] / counts[0] * 1e3:.2f} -> {whole[1] / counts[-1] * 1e3:.2f}",
            flush=True,
        )


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--beside", action="store_true", help="torch.compile's first call as well")
    parser.add_argument("--layers", action="store_true", help="4 and 32 equal layers")
    parser.add_argument("--operations", action="store_true", help="graphs of 1,000 and 10,000 operations")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        print(json.dumps(child(json.loads(options.job))))
        return
    if options.cases:
        table(options.cases.split(","), options.threads, options.beside)
    if options.layers:
        growth(["bert_layers", "layers"], [4, 32], options.threads)
    if options.operations:
        growth(["chain", "mixed"], [1000, 10000], options.threads)


if __name__ == "__main__":
    main()
