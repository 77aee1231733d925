"""The table that the training examples print: the same loop in eager, with torch.compile and with Intarsia."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch

import intarsia

SYSTEMS: dict[str, Callable[[Any], Any]] = {
    "eager": lambda f: f,
    "torch.compile": torch.compile,
    "intarsia": intarsia.compile,
}
Train = Callable[[Callable[[Any], Any]], Callable[[int], torch.Tensor]]


def table(prepare: Train, description: str | None, show: bool = True) -> dict[str, list[float]]:
    """Train by each system; its losses.

    `prepare(compile)` makes model and optimizer from the same seed, and returns a function that makes step `n` and gives its
    loss. Each system starts anew. The first step compiles; the median of the others is the time.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="with commas; default: %(default)s")
    given = parser.parse_args()
    unknown = [name for name in given.systems.split(",") if name not in SYSTEMS]
    if unknown or given.steps < 3:
        sys.exit(f"known systems: {', '.join(SYSTEMS)}; at least 3 steps")
    losses: dict[str, list[float]] = {}
    if show:
        print(f"{'':14} {'first step':>11} {'a step':>10}   loss: first, last")
    for name in given.systems.split(","):
        times, losses[name] = [], []
        try:
            torch.manual_seed(0)
            step = prepare(SYSTEMS[name])
            for n in range(given.steps):
                start = perf_counter()
                losses[name].append(step(n).item())
                times.append(perf_counter() - start)
        except Exception as error:
            if name != "torch.compile":
                raise
            print(
                f"{name:14} {type(error).__name__}: {str(error).splitlines()[0]:.80}"
            )  # the others can still be compared
            continue
        middle = sorted(times[2:])[len(times[2:]) // 2]
        if show:
            print(f"{name:14} {times[0]:9.2f} s {middle * 1e3:7.2f} ms   {losses[name][0]:.4f}, {losses[name][-1]:.4f}")
    eager = losses.get("eager")
    if eager and show and "intarsia" in losses:
        near = all(abs(a - b) <= 0.01 * abs(b) + 0.01 for a, b in zip(losses["intarsia"], eager, strict=True))
        print("losses as in eager:", near)
    return losses
