"""How near is each kernel and library call to what the machine can do? `intarsia.explain(fn, timed=True)` of the benchmarks' cases.

    python benchmarks/roofline.py --suite models --only bert_base
    python benchmarks/roofline.py --device cuda --suite kernels,models

Prints a table for each case: time, bytes, operations, share of the copy rate or of the rate of matrix products, the user's lines. Each step is
timed alone, the caches as the step before left them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import intarsia

TITLE = "Time of each kernel and library call"


def cpu_cases(suite: str) -> dict[str, Callable[[], tuple[Any, tuple[Any, ...], dict[str, Any]]]]:
    """The cases of benchmarks/suites.py."""
    from suites import SUITES, make

    def one(name: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        case = make(suite, name)
        return case.model, case.args, case.kwargs

    return {name: lambda name=name: one(name) for name in SUITES[suite]}


def gpu_cases(suite: str) -> dict[str, Callable[[], tuple[Any, tuple[Any, ...], dict[str, Any]]]]:
    """The cases of benchmarks/gpu_cases.py."""
    import gpu_cases as gpu

    def of_kernel(name: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        fn, make = getattr(gpu, suite.upper())[name]
        return fn, tuple(make()), {}

    def of_model(name: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        fn, args = gpu.MODELS[name]()
        return fn, tuple(args), {}

    one = of_model if suite == "models" else of_kernel
    return {name: lambda name=name: one(name) for name in getattr(gpu, suite.upper())}


def tables(options: argparse.Namespace) -> Iterator[tuple[str, str, list[dict[str, Any]]]]:
    """Each case's name, its table, and the same as plain data."""
    only = [word for word in options.only.split(",") if word]
    for suite in options.suite.split(","):
        cases = (gpu_cases if options.device == "cuda" else cpu_cases)(suite)
        for name, make in cases.items():
            if only and not any(word in name for word in only):
                continue
            intarsia.reset()
            torch.manual_seed(0)
            fn, args, kwargs = make()
            found = intarsia.explain(fn, timed=True)(*args, **kwargs)
            sections = str(found).split("\n\n")
            text = next((s.partition("\n")[2] for s in sections if s.startswith(TITLE)), "  nothing was compiled")
            yield name, text, [dataclasses.asdict(times) for graph in found.graphs for times in graph.times]


def main() -> int:
    """Print the tables of the cases that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--suite", default="kernels", help="with commas; on a GPU kernels, products and models")
    parser.add_argument("--only", default="", help="cases whose names contain one of these words, with commas")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = {}
    with torch.no_grad():
        for name, text, data in tables(options):
            print(f"{name}\n{text}\n", flush=True)
            rows[name] = data
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
