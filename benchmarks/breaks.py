"""Graph breaks and capture time by architecture, beside torch.compile's capture: `python benchmarks/breaks.py [--only NAMES]`.

Both capture the same tiny model (built from its config, random weights) with a backend that runs the graph as it is, in inference or, where
the module is in training, with gradients. A row says how many graphs and breaks each makes, the seconds of the first call, and whether
Intarsia's result, with its gradients and what the call leaves in its arguments (caches), is eager's ("as torch.compile": the model asks
whether it is traced, and gives another result there). With `--save PATH` the rows are written as JSON.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import platform
import sys
import time
import warnings
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

sys.path[:0] = [str(Path(__file__).parent.parent / "tests" / "frontend"), str(Path(__file__).parent)]


class Graphs:
    """A backend that counts the graphs it is given, and runs them as they are."""

    takes_floats = takes_gradients = True  # as the compiler's own does

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, gm: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        self.count += 1
        return gm.forward


def measure(name: str) -> dict[str, Any]:
    """One row."""
    import intarsia

    model = models()[name]()
    run(
        (model[0], *copy.deepcopy(model[1:])), lambda module: module, copied=False
    )  # what models set up in their first call
    expected, _ = run(model, lambda module: module)
    ours, theirs = Graphs(), Graphs()
    intarsia.reset()
    found, our_seconds = run(model, lambda module: intarsia.compile(module, backend=ours))
    counts = intarsia.counters()
    try:
        torch._dynamo.reset()
        traced, their_seconds = run(model, lambda module: torch.compile(module, backend=theirs))
        their_graphs: int | None = theirs.count
    except Exception as error:
        their_graphs, their_seconds, traced = None, 0.0, expected
        print(f"{name}: torch.compile: {type(error).__name__}", file=sys.stderr)
    right = "as torch.compile" if agrees(found, traced) and not agrees(found, expected) else agrees(found, expected)
    return {
        "model": name,
        "graphs": ours.count,
        "breaks": counts["breaks"],
        "fallbacks": counts["fallbacks"],
        "seconds": round(our_seconds, 3),
        "torch graphs": their_graphs,
        "torch seconds": round(their_seconds, 3),
        "right": right,
    }


def models() -> dict[str, Callable[[], Any]]:
    """Architectures of libraries, and models written from papers, by name."""
    import zoo
    import zoo_decoders  # registers its models
    import zoo_papers

    assert zoo_decoders.paper is zoo_papers.paper
    return zoo.ZOO | zoo_papers.PAPERS


def run(model: Any, compiled: Callable[[Any], Any], copied: bool = True) -> tuple[Any, float]:
    """Result, arguments behind the call, buffers, gradients and random state of a call on copies of model and arguments; its seconds."""
    module, args, kwargs = copy.deepcopy(model) if copied else model
    torch.manual_seed(0)  # some draw numbers
    with torch.set_grad_enabled(module.training):
        function = compiled(module)
        start = time.perf_counter()
        result = function(*args, **kwargs)
        seconds = time.perf_counter() - start
        if module.training:
            (result.loss if getattr(result, "loss", None) is not None else tensors(result)[0].sum()).backward()
    left = [held(value) for value in kwargs.values()]
    gradients = [p.grad for p in module.parameters()]
    return [tensors(result), left, list(module.buffers()), gradients, torch.get_rng_state()], seconds


def held(value: Any) -> list[torch.Tensor]:
    """The tensors in an argument, a cache for instance."""
    layers = getattr(value, "layers", None) or [
        getattr(value, n, None) for n in ("self_attention_cache", "cross_attention_cache")
    ]
    found = [v for layer in layers if layer is not None for v in vars(layer).values()]
    return tensors(value) + [t for v in found for t in (held(v) if hasattr(v, "layers") else tensors(v))]


def agrees(found: Any, expected: Any) -> bool:
    """Whether the tensors of two results are equal but for rounding."""
    pairs = list(zip_longest(tensors(found), tensors(expected)))
    return all(
        a is not None
        and b is not None
        and a.shape == b.shape
        and torch.allclose(a, b, equal_nan=True, rtol=1e-4, atol=1e-5)
        for a, b in pairs
    )


def tensors(value: Any) -> list[torch.Tensor]:
    """The tensors in a result."""
    value = dict(value) if hasattr(value, "to_tuple") else value
    return [t for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]


def main() -> int:
    """Run and print; 1 when a result is wrong or a model has more graphs than torch.compile gives it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", help="names of architectures")
    parser.add_argument("--save", type=Path, help="write the rows as JSON")
    options = parser.parse_args()
    import torchvision_stub

    torchvision_stub.install()
    logging.getLogger("intarsia").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    torch._dynamo.config.recompile_limit = 64
    rows = []
    for name in options.only or models():
        try:
            rows.append(measure(name))
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {str(error).splitlines()[0][:120]}", file=sys.stderr)
            continue
        print("  ".join(f"{k} {v}" for k, v in rows[-1].items()), flush=True)
    more = [r["model"] for r in rows if r["torch graphs"] is not None and r["graphs"] > r["torch graphs"]]
    wrong = [r["model"] for r in rows if not r["right"]]
    ratio = sum(r["seconds"] for r in rows) / max(sum(r["torch seconds"] for r in rows), 1e-9)
    print(f"{len(rows)} architectures; more graphs than torch.compile: {more or 'none'}; wrong: {wrong or 'none'}")
    print(f"seconds of the first call, all together, over torch.compile(backend='eager'): {ratio:.2f}")
    if options.save:
        facts = {"torch": torch.__version__, "python": platform.python_version(), "rows": rows}
        options.save.write_text(json.dumps(facts, indent=1) + "\n")
    return 1 if more or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
