"""What training takes in memory on a CPU: the peak of whole steps, and what is saved for backward at each memory budget.

    python benchmarks/training_memory.py                              # all cases, eager, model and step
    python benchmarks/training_memory.py --only vit --budgets 1.0,0.5,0.2

`peak` is what tensors hold between steps (weights, states, memory that is kept) and what a step adds to the process at most. Each is
taken in a process of its own whose larger blocks are mapped one by one, so that memory that is free does not count as in use.
`saved` is what lies in memory between forward and backward, beside parameters and inputs: as the partition says, and as autograd's
graph holds it. A budget leaves the model as it is: losses of the first steps are compared with eager's.
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from training import make_step
from training_cases import CASES

import intarsia

MIB = 1 << 20
WARM = 5  # steps in front of what is measured: backward gives up what was saved from the second call on
MAPPED = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_MMAP_MAX_": "1000000"}


def storages(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Bytes of the memory of tensors, by address."""
    found = {}
    for tensor in tensors:
        try:
            found[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        except (RuntimeError, NotImplementedError):  # a fake tensor, or one in a library's own format
            continue
    return found


def resident() -> tuple[int, int]:
    """Bytes of the process now, and at most since the record was cleared."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["VmRSS"].split()[0]) << 10, int(lines["VmHWM"].split()[0]) << 10


def peak(case: str, system: str) -> dict[str, float]:
    """In a process of its own: what is held between steps, and what a step adds."""
    torch.manual_seed(0)
    model, args = CASES["cpu"][case].make()
    step = make_step(system, CASES["cpu"][case], model.train(), args)
    for _ in range(WARM):
        step()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    held = sum(storages(x for x in gc.get_objects() if issubclass(type(x), Tensor)).values())
    before = resident()[0]
    Path("/proc/self/clear_refs").write_text("5")
    step()
    return {"held": held, "step": resident()[1] - before}


def peaks(case: str, systems: list[str], threads: int) -> None:
    eager = 0.0
    for system in systems:
        command = [sys.executable, __file__, "--peak-of", case, system, "--threads", str(threads)]
        done = subprocess.run(command, env=os.environ | MAPPED, capture_output=True, text=True)
        if done.returncode:
            print(f"{case:26} {system:8} {done.stderr.strip().splitlines()[-1][:120]}", flush=True)
            continue
        found = json.loads(done.stdout.splitlines()[-1])
        total = found["held"] + found["step"]
        eager = total if system == "eager" else eager
        of_eager = f"{total / eager:5.2f} of eager" if eager else ""
        print(
            f"{case:26} {system:8} held {found['held'] / MIB:7.1f}  step {found['step'] / MIB:7.1f}"
            f"  peak {total / MIB:7.1f} MiB {of_eager}",
            flush=True,
        )


def saved_by_eager(model: nn.Module, args: tuple[Tensor, ...]) -> int:
    """Bytes that eager's autograd saves, beside parameters and inputs."""
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(*args)
    given = storages([*model.parameters(), *model.buffers(), *args])
    found = sum(size for place, size in storages(kept).items() if place not in given)
    loss.backward()
    return found


def saved_by_nodes(loss: Tensor, model: nn.Module, args: tuple[Tensor, ...]) -> int:
    """Bytes that the nodes behind a compiled loss hold, beside parameters and inputs."""
    given = storages([*model.parameters(), *model.buffers(), *args])
    todo, seen, kept = [loss.grad_fn], set[Any](), list[Tensor]()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        kept += [t for t in getattr(node, "saved_tensors", None) or () if t is not None]
        todo += [n for n, _ in node.next_functions]
    return sum(size for place, size in storages(kept).items() if place not in given)


def losses(run: Callable[..., Tensor], model: nn.Module, args: tuple[Tensor, ...]) -> list[float]:
    """Of three steps of plain gradient descent."""
    found = []
    for _ in range(3):
        loss = run(*args)
        loss.backward()
        found.append(loss.item())
        with torch.no_grad():
            for p in model.parameters():
                if p.grad is not None:
                    p -= 1e-3 * p.grad
                    p.grad = None
    return found


def budgets(case: str, values: list[float]) -> None:
    torch.manual_seed(0)
    model, args = CASES["cpu"][case].make()
    model.train()
    plain = copy.deepcopy(model)
    eager = saved_by_eager(plain, args)
    plain.load_state_dict(model.state_dict())
    plain.zero_grad()
    wanted = losses(plain, plain, args)
    print(f"{case:26} eager    saved {'':7} {eager / MIB:7.1f} MiB")
    for budget in values:
        mine = copy.deepcopy(model)
        compiled = intarsia.compile(mine, options={"memory_budget": budget})
        told = intarsia.explain(compiled)(*args)
        held = saved_by_nodes(told.result, mine, args)
        told.result.backward()
        mine.load_state_dict(model.state_dict())
        mine.zero_grad()
        halves = [graph.partition for graph in told.graphs if graph.partition is not None]
        planned = sum(p.bytes for p in halves)
        again = sum(n for p in halves for n in p.costly.values())
        off = max(abs(a - b) / abs(b) for a, b in zip(losses(compiled, mine, args), wanted, strict=True))
        print(
            f"{case:26} {budget:<8} saved {planned / MIB:7.1f} {held / MIB:7.1f} MiB  {held / eager:5.2f} of eager"
            f"  {again:3} library calls again  losses off by {off:.0e}",
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names of cases, with commas; part of a name is enough")
    parser.add_argument("--systems", default="eager,model,step", help="whose peaks are measured")
    parser.add_argument("--budgets", default="", help="instead of peaks: what is saved at these budgets")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peak-of", nargs=2, metavar=("CASE", "SYSTEM"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.peak_of:
        print(json.dumps(peak(*given.peak_of)))
        return 0
    for case in CASES["cpu"]:
        if not given.only or any(part in case for part in given.only.split(",")):
            if given.budgets:
                budgets(case, [float(b) for b in given.budgets.split(",")])
            else:
                peaks(case, given.systems.split(","), given.threads)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
