"""Loops that a tensor's value ends: graphs, breaks, kernels that a call starts, and times beside eager and torch.compile.

    python benchmarks/loops.py --device cuda

Results are compared over three calls with other values. Kernels are counted on a GPU, by torch's profiler.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import intarsia

ROUNDS = 64


def rnn(items: Tensor, state: Tensor, w: Tensor, u: Tensor) -> Any:
    """A recurrent layer that stops early."""
    out = torch.zeros(ROUNDS, *state.shape, device=state.device)
    for t in range(ROUNDS):
        state = torch.tanh(items[t] @ w + state @ u)
        out[t] = state
        if state.abs().mean() > 0.93:
            break
    return out, state, t


def newton(x: Tensor) -> Any:
    """Cube roots of 2, to a tolerance."""
    rounds, step = 0, torch.ones_like(x)
    while step.abs().max() > 1e-6 and rounds < 50:
        step = (x * x * x - 2) / (3 * x * x)
        x, rounds = x - step, rounds + 1
    return x, rounds


def kmeans(points: Tensor, centres: Tensor) -> Any:
    """Until no centre moves."""
    while True:
        nearest = torch.cdist(points, centres).argmin(1)
        member = torch.nn.functional.one_hot(nearest, centres.shape[0]).to(points.dtype)
        new = (member.t() @ points) / member.sum(0).clamp(min=1)[:, None]
        moved, centres = (new - centres).abs().max(), new
        if moved < 1e-4:
            break
    return centres, nearest


def decode(token: Tensor, keys: Tensor, values: Tensor, table: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Any:
    """Greedy decoding with a static cache, until each row has ended."""
    out = torch.zeros(ROUNDS, token.shape[0], dtype=torch.long, device=token.device)
    positions, n = torch.arange(ROUNDS, device=token.device), 0
    while n < ROUNDS and not (token == 7).all():
        x = table[token]
        keys[:, n], values[:, n] = x @ k, x @ v
        scores = torch.einsum("bd,bnd->bn", x @ q, keys) / 11.3
        weights = scores.masked_fill(positions > n, float("-inf")).softmax(-1)
        token = ((x + torch.einsum("bn,bnd->bd", weights, values)) @ table.t()).argmax(-1)
        out[n] = token
        n += 1
    return out, n


def beam(scores: Tensor, logits: Tensor) -> Any:
    """One step of a beam search."""
    best, place = (scores[:, None] + logits.log_softmax(-1)).view(-1).topk(4)
    parents, tokens = place // logits.shape[1], place % logits.shape[1]
    if (tokens == 2).all():
        best = best + 1
    return best, parents, tokens


def cases(device: str) -> dict[str, tuple[Callable[..., Any], Callable[[], list[Tensor]]]]:
    """The programs, and what makes their arguments."""

    def normal(*shape: int, by: float = 1.0) -> Tensor:
        return torch.randn(*shape, device=device) / by

    w, u = normal(256, 256, by=16), normal(256, 256, by=16)
    table, q, k, v = normal(512, 128), *(normal(128, 128, by=11) for _ in range(3))
    return {
        "RNN with early stop": (rnn, lambda: [normal(ROUNDS, 32, 256), torch.zeros(32, 256, device=device), w, u]),
        "Newton": (newton, lambda: [torch.rand(1 << 20, device=device) + 1]),
        "k-means": (kmeans, lambda: [normal(20000, 8), normal(16, 8)]),
        "greedy decoding": (
            decode,
            lambda: [
                torch.randint(0, 512, (4,), device=device),
                torch.zeros(4, ROUNDS, 128, device=device),
                torch.zeros(4, ROUNDS, 128, device=device),
                table,
                q,
                k,
                v,
            ],
        ),
        "beam step": (beam, lambda: [normal(4), normal(4, 32000)]),
    }


def agree(a: Any, b: Any) -> bool:
    """Equal, tensors up to rounding."""
    return bool(torch.allclose(a.double(), b.double(), rtol=1e-3, atol=1e-3)) if isinstance(a, Tensor) else a == b


def measured(function: Callable[..., Any], args: list[Tensor], device: str) -> str:
    """The median of ten calls, in ms, and the kernels of one."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    times = []
    for _ in range(13):
        wait()
        start = time.perf_counter()
        function(*args)
        wait()
        times.append((time.perf_counter() - start) * 1e3)
    text = f"{statistics.median(times[3:]):.3f} ms"
    if device == "cuda":
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            function(*args)
            wait()
        text += f", {sum(e.device_type == torch.autograd.DeviceType.CUDA for e in seen.events())} kernels"
    return text


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    device = parser.parse_args().device
    logging.getLogger("intarsia").setLevel(logging.ERROR)
    torch.manual_seed(0)
    print("| program | graphs, breaks | result | eager | intarsia | torch.compile |\n|---|---|---|---|---|---|")
    for name, (function, make) in cases(device).items():
        report = intarsia.explain(function)(*make())
        ours, right = intarsia.compile(function), []
        for _ in range(3):
            args = make()
            copies = [a.clone() for a in args]
            right.append(all(map(agree, function(*args), ours(*copies))))
        args = make()
        row = [measured(f, args, device) for f in (function, ours, torch.compile(function))]
        cells = [name, f"{len(report.graphs)}, {len(report.breaks)}", "eager's" if all(right) else "differs", *row]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    with torch.no_grad():
        main()
